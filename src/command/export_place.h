#pragma once

#include "onceward/base/buf.h"

#include <stdbool.h>

struct fault;

/* A position in an export: "row.HEX.HEX" (consumer, id), "letter.NUMBER", "message.HEX.HEX.HEX" (consumer,
 * time, number). */

enum export_kind { EXPORT_ROW, EXPORT_LETTER, EXPORT_MESSAGE, N_EXPORT_KINDS };

struct export_place {
    bool is_set;
    enum export_kind kind;
    struct buf first, second, third; /* decoded */
};

const char *export_kind_name(enum export_kind kind);

void export_place_write(struct buf *out, enum export_kind kind, struct slice first, struct slice second,
                        struct slice third);

/* -1: f has the expected form. */
int export_place_read(struct export_place *p, struct slice text, struct fault *f);

void export_place_deinit(struct export_place *p);
