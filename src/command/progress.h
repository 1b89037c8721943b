#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A progress bar for long work. Shown only on a terminal. */
struct progress {
    FILE *to; /* NULL: not shown */
    int64_t total, began_ms, shown_ms;
};

/* total: the expected number. Shown only if wanted. */
void progress_begin(struct progress *p, FILE *to, int64_t total, bool wanted);

/* n of them are done; redrawn a few times a second. */
void progress_show(struct progress *p, int64_t n);

/* Removes the bar. */
void progress_end(struct progress *p);

struct buf;

/* Writes the bar after took_ms. width: of the terminal. */
void progress_write(struct buf *out, int64_t n, int64_t total, int64_t took_ms, int width);
