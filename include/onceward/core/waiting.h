#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What a queue waits for before it was ever ready. In a pod things start one after another: that is told at
 * info, and only what has lasted longer than anybody's patience is a warning. From the first `ready` on, the
 * same is a fault, told by other events. Pure. */

enum waiting_for { WAITING_BROKER, WAITING_DATABASE, WAITING_APPLICATION, N_WAITING_FOR };

enum { WAITING_TEXT_MAX = 256 };

struct waiting {
    struct waiting_one {
        bool on;
        int64_t since_ms, told_ms;
        int64_t warned_ms;           /* INT64_MIN: not yet */
        char text[WAITING_TEXT_MAX]; /* as it was told last */
    } one[N_WAITING_FOR];
};

enum waiting_line { WAITING_NO_LINE, WAITING_LINE, WAITING_WARNING };

/* It is not there, and why. Which line is due: one when the wait begins or its reason changes (not more than
 * one a second), a warning each patience_ms; the first warning at once where the peer is there and refuses. */
enum waiting_line waiting_for(struct waiting *w, enum waiting_for what, const char *text, bool is_refused,
                              int64_t now_ms, int64_t patience_ms);

/* It is there. */
void waiting_over(struct waiting *w, enum waiting_for what);

/* As the line's `reason` has it: a word that `onceward explain` knows. */
const char *waiting_reason(enum waiting_for what);
