#pragma once

#include "onceward/inbox/admin.h"

#include <stdbool.h>

struct buf;
struct config;
struct config_queue;
struct message;

/* Shared by the files behind `check`. */

struct findings {
    int n_failed, n_warnings;
    bool json;         /* a JSON object per line */
    const char *where; /* the subject of the lines */
};

/* Prints a finding on standard output. ctx: struct findings. */
void check_tell(void *ctx, enum finding kind, const char *text);

/* Prints a finding as a JSON object on a line. path: of a key of the configuration, or NULL. */
void check_tell_json(enum finding kind, const char *where, const char *path, const char *text);

/* Tries every connection that the configuration names; with `sample` it also reads a message of each queue.
 * Returns the exit status. */
int check_connections(const struct config *c, bool sample, struct findings *s);

/* Describes the id that the configured message_id finds in this message, and its source; or the names in the
 * message, and the sources that would find an id. False: it finds no usable id. */
bool sample_describe(const struct config_queue *q, const struct message *m, struct buf *out);
