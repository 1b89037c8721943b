#pragma once

#include "onceward/inbox/admin.h"

#include <stdbool.h>

struct buf;
struct config;
struct config_queue;
struct message;

/* What the files behind `check` share. */

struct findings {
    int n_failed, n_warnings;
    bool json;         /* a JSON object a line */
    const char *where; /* what the lines are about */
};

/* A line on standard output. ctx: struct findings. */
void check_tell(void *ctx, enum finding kind, const char *text);

/* As a JSON object on a line. path: of a key of the configuration, or NULL. */
void check_tell_json(enum finding kind, const char *where, const char *path, const char *text);

/* Tries everything that the configuration names; with `sample` it also looks at a message of each queue.
 * Answers the exit status. */
int check_connections(const struct config *c, bool sample, struct findings *s);

/* Which id does the present message_id find in this message, and where; or what the message has, by its
 * names, and what would find one. False: it finds none that can be used. */
bool sample_describe(const struct config_queue *q, const struct message *m, struct buf *out);
