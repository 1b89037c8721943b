#pragma once

#include "onceward/base/buf.h"

#include <stdbool.h>
#include <stdio.h>

struct fault;

/* A place in an export: "row.HEX.HEX" (consumer, id), "letter.NUMBER", "message.HEX.HEX.HEX" (consumer, time,
 * number). */

enum export_kind { EXPORT_ROW, EXPORT_LETTER, EXPORT_MESSAGE, N_EXPORT_KINDS };

struct export_place {
    bool is_set;
    enum export_kind kind;
    struct buf first, second, third; /* decoded */
};

const char *export_kind_name(enum export_kind kind);

void export_place_write(struct buf *out, enum export_kind kind, struct slice first, struct slice second,
                        struct slice third);

/* -1: f says what was expected. */
int export_place_read(struct export_place *p, struct slice text, struct fault *f);

/* Finds the last whole line of a file that was opened for appending, takes its position, and cuts what was
 * written behind it. An empty file has none. -1: f. */
int export_place_of_file(struct export_place *p, FILE *file, const char *path, struct fault *f);

void export_place_deinit(struct export_place *p);
