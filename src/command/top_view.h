#pragma once

#include "onceward/base/buf.h"
#include "onceward/inbox/admin.h"

#include <stdbool.h>

/* The drawing of `top`, as text. Pure. */
struct top_screen {
    int width, height; /* in characters; width 0: unlimited; height 0: as many lines as there are */
    bool colour;
    const char *where, *clock; /* the database; the time of day */
    const char *fault;         /* why newer figures are missing; NULL: they are current */
};

/* Appends the lines, each with a line feed. */
void top_draw(struct buf *out, const struct top_screen *s, const struct fleet *f);
