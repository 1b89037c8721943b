#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Rest of one walk between two calls. Each call delays later statements, so its share of the time is bounded: it
 * doubles with every call that found work and halves with every other one, between PACE_LEAST and PACE_MOST
 * thousandths. Starts zeroed. The walks of a process share the bound: see pace_pause_ms. */
struct pace {
    int share; /* thousandths */
};

enum { PACE_LEAST = 2, PACE_MOST = 30, PACE_BEHIND = 250 };

/* Rest after a call of took_us. ended: the call reached the end of the table; the rest is then at least between_ms.
 * behind: see pace_is_behind; the share then grows up to PACE_BEHIND. */
int64_t pace_rest_ms(struct pace *p, int64_t took_us, bool found, bool ended, bool behind,
                     int64_t between_ms);

/* Rest after a call before the next one of any walk, which bounds the share of all of them together. */
int64_t pace_pause_ms(int64_t took_us, bool behind);

/* A walk that compacts has a time limit: a tenth of compact_after. Beyond it rows would stay much longer than
 * that, and the inbox would outgrow the memory that compaction is meant for. */
struct pace_walk {
    int64_t began_ms; /* 0: no walk */
    int64_t page, n_pages;
};

int64_t pace_goal_ms(int64_t compact_ms);

/* Is the done part of the walk smaller than the elapsed part of its time limit? 0: no limit. */
bool pace_is_behind(const struct pace_walk *w, int64_t now_ms, int64_t goal_ms);

/* Time by which the walk exceeds twice its time limit; 0: none. */
int64_t pace_lag_ms(const struct pace_walk *w, int64_t now_ms, int64_t goal_ms);

/* Rest between two walks through the table: a hundredth of the retention, 1 s to 20 s. Rows outlive the retention by
 * no more than that, and the walker's lease (60 s) does not run out meanwhile. */
int64_t pace_between_ms(int64_t retention_ms);
