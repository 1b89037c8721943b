/* The table of keys, and lookups in it. Read-only data; any thread. */

#include "config/keys.h"

#include "config/checks.h"
#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* Offset of a field; the scope selects its struct. */
#define OFFSET_ROOT(field)  offsetof(struct config, field)
#define OFFSET_QUEUE(field) offsetof(struct config_queue, field)

const struct key keys[] = {
#define KEY(scope, path, type, presence, fallback, range, check, field, sentence, ...)                       \
    {SCOPE_##scope, path,  TYPE_##type,           KEY_##presence, fallback,                                  \
     range,         check, OFFSET_##scope(field), sentence,       "" __VA_ARGS__},
#include "config/keys.def"
#undef KEY
};

const size_t n_keys = sizeof(keys) / sizeof(keys[0]);

_Static_assert(sizeof(keys) / sizeof(keys[0]) <= KEYS_MAX, "KEYS_MAX");

const struct key *key_find(enum key_scope scope, struct slice path)
{
    for (size_t i = 0; i < n_keys; i++)
        if (keys[i].scope == scope && slice_equal(path, slice_of(keys[i].path)))
            return &keys[i];
    return NULL;
}

bool key_is_group(enum key_scope scope, struct slice path)
{
    for (size_t i = 0; i < n_keys; i++)
        if (keys[i].scope == scope && slice_starts_with(slice_of(keys[i].path), path) &&
            keys[i].path[path.len] == '.')
            return true;
    return false;
}

bool key_takes_file(const struct key *k)
{
    switch (k->type) {
    case TYPE_TEXT:
    case TYPE_SECRET:
    case TYPE_PORT:
    case TYPE_DURATION:
    case TYPE_DURATION_OFF:
    case TYPE_SIZE:
    case TYPE_SIZE_NONE:
    case TYPE_CHOICE:
    case TYPE_FLAG:
        return true;
    default:
        return false; /* a path names a file already */
    }
}

static int64_t read_bound(const struct key *k, struct slice text)
{
    char copy[32] = "";
    int64_t value = 0;
    size_t bytes;

    assert(text.len && text.len < sizeof(copy));
    memcpy(copy, text.data, text.len);
    if (k->type == TYPE_DURATION || k->type == TYPE_DURATION_OFF) {
        int bad = config_duration(copy, &value);
        assert(!bad);
    } else if (k->type == TYPE_SIZE || k->type == TYPE_SIZE_NONE) {
        int bad = config_size(copy, &bytes);
        assert(!bad);
        value = (int64_t)bytes;
    } else {
        value = strtoll(copy, NULL, 10);
    }
    return value;
}

void key_bounds(const struct key *k, int64_t *low, int64_t *high)
{
    const char *dots = strstr(k->range, "..");

    assert(dots);
    *low = read_bound(k, (struct slice){k->range, (size_t)(dots - k->range)});
    *high = read_bound(k, slice_of(dots + 2));
}

struct slice key_word(const char *words, size_t at)
{
    size_t len = strcspn(words, "|");

    for (; at && words[len]; at--) {
        words += len + 1;
        len = strcspn(words, "|");
    }
    return at ? (struct slice){NULL, 0} : (struct slice){words, len};
}

static void expect_words(struct buf *out, const char *words)
{
    struct slice word;

    for (size_t i = 0; (word = key_word(words, i)).len; i++) {
        if (i)
            buf_add_text(out, key_word(words, i + 1).len ? ", " : " or ");
        buf_printf(out, "\"%.*s\"", (int)word.len, word.data);
    }
}

static void expect_range(struct buf *out, const struct key *k, const char *what)
{
    const char *dots = strstr(k->range, "..");

    buf_printf(out, "%s from %.*s to %s", what, (int)(dots - k->range), k->range, dots + 2);
}

void key_expected(struct buf *out, const struct key *k)
{
    switch (k->type) {
    case TYPE_TEXT:
    case TYPE_SECRET:
    case TYPE_PATH:
        buf_printf(out, "a string of %.*s to %s bytes", (int)strcspn(k->range, "."), k->range,
                   strstr(k->range, "..") + 2);
        return;
    case TYPE_INT:
        expect_range(out, k, "a whole number");
        return;
    case TYPE_PORT:
        expect_range(out, k, "a port");
        buf_add_text(out, ", such as 5672");
        return;
    case TYPE_BOOL:
        buf_add_text(out, "true or false");
        return;
    case TYPE_DURATION:
    case TYPE_DURATION_OFF:
        buf_add_text(out, k->type == TYPE_DURATION_OFF ? "\"off\" or " : "");
        expect_range(out, k, "a duration");
        buf_add_text(out, ", such as \"30s\" (units ms, s, m, h, d)");
        return;
    case TYPE_SIZE:
    case TYPE_SIZE_NONE:
        buf_add_text(out, k->type == TYPE_SIZE_NONE ? "\"none\" or " : "");
        expect_range(out, k, "a size");
        buf_add_text(out, ", such as \"16KiB\" (units B, KiB, MiB, GiB)");
        return;
    case TYPE_CHOICE:
    case TYPE_FLAG:
        expect_words(out, k->range);
        return;
    case TYPE_HEADERS:
        buf_add_text(out, "an object of names and strings");
        return;
    case TYPE_IDENTITIES:
        buf_add_text(out, "a list of strings and lists of strings, such as [\"property:message_id\"]");
        return;
    case TYPE_STATUSES:
        expect_range(out, k, "a list of whole numbers");
        return;
    case TYPE_NAMES:
        buf_add_text(out, "a list of strings");
        return;
    }
}
