#pragma once

#include "onceward/inbox/inbox.h"
#include "sidecar/dial.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sidecar;

/* A connection to the database for slow work, made on demand: see side_connection.c. */
struct side_connection {
    struct inbox *inbox; /* NULL: not connected */
    struct dial dial;
    struct watch watch;
    bool readable;
    int64_t used_ms; /* time at which it was made, or returned its latest row */
};

void side_step(struct sidecar *s, struct side_connection *a, bool wanted); /* connects if wanted */
/* Reads while connected. 1: a row; 0: none; -1: the connection was lost, and that is logged. */
int side_next(struct sidecar *s, struct side_connection *a, struct inbox_row *row);
void side_sent(struct sidecar *s, struct side_connection *a); /* something was passed to the inbox */
int64_t side_due_ms(const struct sidecar *s, const struct side_connection *a, bool wanted);
void side_close(struct sidecar *s, struct side_connection *a);
