#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

/* The table of keys, from keys.def. */

enum key_scope { SCOPE_ROOT, SCOPE_QUEUE };

enum key_type {
    TYPE_TEXT,
    TYPE_SECRET,
    TYPE_PATH,
    TYPE_INT,
    TYPE_PORT,
    TYPE_BOOL,
    TYPE_DURATION,
    TYPE_DURATION_OFF,
    TYPE_SIZE,
    TYPE_SIZE_NONE,
    TYPE_CHOICE,
    TYPE_FLAG,
    TYPE_HEADERS,
    TYPE_IDENTITIES,
    TYPE_STATUSES,
    TYPE_NAMES,
};

enum key_presence { KEY_NEEDED, KEY_EITHER, KEY_MAY, KEY_HAS };

/* NULL: valid; else the expected form. */
typedef const char *key_check_fn(const char *text);

struct key {
    enum key_scope scope;
    const char *path; /* relative to its scope */
    enum key_type type;
    enum key_presence presence;
    const char *fallback; /* the default, or the consequence of its absence as text */
    const char *range;
    key_check_fn *check;
    size_t offset; /* of the field in struct config or struct config_queue */
    const char *sentence;
    const char *example; /* JSON, or "" */
};

extern const struct key keys[];
extern const size_t n_keys;

/* Upper bound of the table's size. */
enum { KEYS_MAX = 128 };

/* Finds the key of that path, or NULL. */
const struct key *key_find(enum key_scope scope, struct slice path);

/* Does any key lie below path (such as the group "forward")? */
bool key_is_group(enum key_scope scope, struct slice path);

/* Is the key's value a string, so that K_file can replace it? */
bool key_takes_file(const struct key *k);

/* Is the key's value equal in a and b, both struct config or both struct config_queue? Secrets in files are equal if
 * their paths are. */
bool key_is_same(const struct key *k, const void *a, const void *b);

/* Bounds of the key's range. Durations in ms, sizes in bytes. */
void key_bounds(const struct key *k, int64_t *low, int64_t *high);

/* Adds "a duration from 2s to 1d, such as \"30s\"". */
void key_expected(struct buf *out, const struct key *k);

/* Word at that place of "a|b|c"; empty: there is none. */
struct slice key_word(const char *words, size_t at);

/* Finds the key below prefix ("" or "forward.") that a misspelt name probably means. False: none is close. */
bool key_nearest(struct buf *out, enum key_scope scope, struct slice prefix, struct slice name);

/* Finds the value that an invalid text probably means: "warn" warning, "5 min" 5m, "64MB" 64MiB. False: none is
 * close. */
bool value_nearest(struct buf *out, const struct key *k, const char *text);

/* Adds "30s" or "64KiB": in the largest unit that divides it. */
void duration_write(struct buf *out, int64_t ms);
void size_write(struct buf *out, uint64_t bytes);
