#pragma once

#include "config/keys.h"

#include <jansson.h>

struct config;
struct fault;
struct config_report;
struct config_values;

/* Where a value came from. The marks tell the checks across keys whose fault a combination is. */
enum { ORIGIN_NONE, ORIGIN_DEFAULTS, ORIGIN_GIVEN, ORIGIN_BAD };

/* How it was given: as it is, with something of the environment, or by K_file. */
enum { WAY_PLAIN, WAY_VARIABLE, WAY_FILE, N_WAYS };

/* Reading one object of keys into one struct. */
struct reading {
    struct config *config; /* for its memory */
    struct config_report *report;
    enum key_scope scope;
    void *target;       /* struct config or struct config_queue */
    const char *prefix; /* "", "defaults" or "queues.payments" */
    uint8_t origin;     /* the mark of what is read now */
    bool is_marked;     /* names that stand twice have marks: see duplicates.h */
    bool is_literal;    /* the present value stands in the file as it is, so that it can be shown */
    uint8_t origins[KEYS_MAX];
    uint8_t ways[KEYS_MAX];
    struct config_values *values; /* NULL: nobody asks for them */
};

/* The name as it stands in the file. */
const char *plain_name(const struct reading *r, const char *name);

/* Sets every key that has a default to it. */
void read_fallbacks(struct reading *r);

/* Reads the object's keys. "queues", "defaults" and "$schema" of the root are left to the caller. */
void read_object(struct reading *r, json_t *object);

/* Reports the needed keys that were not given. */
void read_missing(struct reading *r);

/* Stands for a number that is larger than what the library holds. */
#define NUMBER_TOO_LARGE "1e308"

/* Does a text of the file take something from the environment? */
bool is_variable(const char *raw);

/* A file could not be read: as f says, but that the path stands there as the configuration has it: what it
 * takes from the environment may be a secret. */
void report_unread(struct reading *r, const char *path, json_t *value, const char *file,
                   const struct fault *f);

/* "a string", "an object", … */
const char *kind_name(const json_t *value);
