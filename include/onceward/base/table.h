#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/slice.h"

#include <stdint.h>
#include <stdio.h>

/* Text for people at a terminal: aligned columns, ages, sizes. Values from outside (message ids, errors) may contain
 * anything; here they can neither move the cursor nor break a line. */

/* Appends text with control characters and bidirectional overrides written as \x1b or \u202e, and bytes that
 * are not UTF-8 as \xff. */
void text_add_safe(struct buf *out, struct slice s);

/* Would text_add_safe change only line feeds and tabs? For bodies. */
bool text_is_safe(struct slice s);

/* Appends "350 ms", "12 s", "4 min 10 s", "2 h 5 min" or "3 d 4 h". Negative counts as 0. */
void text_add_age(struct buf *out, int64_t ms);

/* Appends "512 B", "1.5 KiB" or "3.0 MiB". */
void text_add_size(struct buf *out, uint64_t bytes);

/* Width of the terminal behind a stream; 0: the stream is no terminal. */
int text_width(FILE *stream);

/* A table, filled row by row; the first row is the heading. {0} with n_columns set: an empty one. */
struct table {
    size_t n_columns;
    uint32_t right; /* bit i: column i is aligned to the right */
    struct buf text;
    size_t *ends;
    size_t n, cap;
};

void table_add(struct table *t, struct slice cell);     /* made safe; cut at 200 characters; "-" when empty */
void table_add_text(struct table *t, const char *cell); /* NULL: "-" */
void table_add_int(struct table *t, int64_t value);
void table_add_age(struct table *t, int64_t ms);

/* Prints and removes the complete rows. Lines are cut at width; 0: they are not cut. */
void table_print(struct table *t, FILE *out, int width);
void table_deinit(struct table *t);
