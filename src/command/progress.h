#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A bar on a terminal, for what takes its time. Nothing where the stream is none. */
struct progress {
    FILE *to; /* NULL: nothing is shown */
    int64_t total, began_ms, shown_ms;
};

/* total: how many there will be. wanted: else nothing is shown. */
void progress_begin(struct progress *p, FILE *to, int64_t total, bool wanted);

/* n of them are done: shown a few times a second. */
void progress_show(struct progress *p, int64_t n);

/* Takes it away. */
void progress_end(struct progress *p);

struct buf;

/* What stands in it, after took_ms; width: of the terminal. */
void progress_write(struct buf *out, int64_t n, int64_t total, int64_t took_ms, int width);
