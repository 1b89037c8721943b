#pragma once

#include <stdbool.h>
#include <stdint.h>

/* How long housekeeping rests between two calls. Each call delays whoever comes to the database behind it, so
 * its share of the time is bounded: a share that doubles with every call that found something and halves with
 * every call that did not, between PACE_LEAST and PACE_MOST thousandths. All zero: the start. */
struct pace {
    int share; /* thousandths */
};

enum { PACE_LEAST = 2, PACE_MOST = 30, PACE_BEHIND = 250 };

/* The rest after a call that took took_us. ended: it reached the end of the table; then the rest is at least
 * between_ms. behind: pace_is_behind; then the share grows up to PACE_BEHIND. */
int64_t pace_rest_ms(struct pace *p, int64_t took_us, bool found, bool ended, bool behind,
                     int64_t between_ms);

/* A walk that compacts has a goal: a tenth of compact_after. Beyond it rows would stay for much longer than that, and
 * the inbox would outgrow the memory that compaction is meant for. */
struct pace_walk {
    int64_t began_ms; /* 0: none */
    int64_t page, n_pages;
};

int64_t pace_goal_ms(int64_t compact_ms);

/* Is less of the walk done than of the time of its goal? 0: there is no goal. */
bool pace_is_behind(const struct pace_walk *w, int64_t now_ms, int64_t goal_ms);

/* By how much the walk has exceeded twice its goal; 0: it has not. */
int64_t pace_lag_ms(const struct pace_walk *w, int64_t now_ms, int64_t goal_ms);

/* The rest between two walks through the table: a hundredth of the retention, 1 s to 20 s. What is past the
 * retention is kept for so much longer, no more, and the walker's lease (60 s) does not run out meanwhile. */
int64_t pace_between_ms(int64_t retention_ms);
