#pragma once

#include <stdbool.h>
#include <stdint.h>

/* How long housekeeping rests between two calls. Each call delays whoever comes to the database behind it, so
 * its share of the time is bounded: a share that doubles with every call that found something and halves with
 * every call that did not, between PACE_LEAST and PACE_MOST thousandths. All zero: the start. */
struct pace {
    int share; /* thousandths */
};

enum { PACE_LEAST = 2, PACE_MOST = 30 };

/* The rest after a call that took took_us. ended: it reached the end of the table; then the rest is at least
 * between_ms. */
int64_t pace_rest_ms(struct pace *p, int64_t took_us, bool found, bool ended, int64_t between_ms);

/* The rest between two walks through the table: a hundredth of the retention, 1 s to 20 s. What is past the
 * retention is kept for so much longer, no more, and the walker's lease (60 s) does not run out meanwhile. */
int64_t pace_between_ms(int64_t retention_ms);
