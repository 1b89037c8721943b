#pragma once

#include "config/keys.h"

#include <jansson.h>

struct config;
struct fault;
struct config_report;
struct config_values;

/* Origin of a value, by which the checks across keys choose where to report a combination. */
enum { ORIGIN_NONE, ORIGIN_DEFAULTS, ORIGIN_GIVEN, ORIGIN_BAD };

/* Form of a value: literal, with an environment variable, or by K_file. */
enum { WAY_PLAIN, WAY_VARIABLE, WAY_FILE, N_WAYS };

/* State of reading one object of keys into one struct. */
struct reading {
    struct config *config; /* owner of the memory */
    struct config_report *report;
    enum key_scope scope;
    void *target;       /* struct config or struct config_queue */
    const char *prefix; /* "", "defaults" or "queues.payments" */
    uint8_t origin;     /* the origin of the object being read */
    bool is_marked;     /* duplicate names have marks: see duplicates.h */
    bool is_literal;    /* the present value stands literally in the file, so messages may show it */
    uint8_t origins[KEYS_MAX];
    uint8_t ways[KEYS_MAX];
    struct config_values *values; /* NULL: not requested */
};

/* Name as in the file. */
const char *plain_name(const struct reading *r, const char *name);

/* Sets every key to its default, if it has one. */
void read_fallbacks(struct reading *r);

/* Reads the object's keys. The caller handles "queues", "defaults" and "$schema" of the root. */
void read_object(struct reading *r, json_t *object);

/* Reports required keys that were not given. */
void read_missing(struct reading *r);

/* Replaces a number that is too large for the library. */
#define NUMBER_TOO_LARGE "1e308"

/* Does a text of the file contain an environment variable? */
bool is_variable(const char *raw);

/* Reports an unreadable file with f's reason. The path is shown as written in the configuration, since a
 * variable in it may hold a secret. */
void report_unread(struct reading *r, const char *path, json_t *value, const char *file,
                   const struct fault *f);

/* Returns "a string", "an object", … */
const char *kind_name(const json_t *value);
