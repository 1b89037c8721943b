#pragma once

#include "onceward/base/buf.h"
#include "onceward/inbox/admin.h"

#include <stdbool.h>

/* What `top` draws, as text. Pure. */
struct top_screen {
    int width, height; /* in characters; width 0: as wide as it is; height 0: as many lines as there are */
    bool colour;
    const char *where, *clock; /* the database; the time of day */
    const char *fault;         /* what is in the way of newer figures; NULL: nothing */
};

/* Appends the lines, each with a line feed. */
void top_draw(struct buf *out, const struct top_screen *s, const struct fleet *f);
