#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Peers that a queue waits for before its first `ready`. In a pod services start one after another, so this is logged
 * at info, and only a long wait is a warning. After the first `ready` the same is a fault, which other events report.
 * Pure. */

enum waiting_for { WAITING_BROKER, WAITING_DATABASE, WAITING_APPLICATION, N_WAITING_FOR };

enum { WAITING_TEXT_MAX = 256 };

struct waiting {
    struct waiting_one {
        bool on;
        int64_t since_ms, told_ms;
        int64_t warned_ms;           /* INT64_MIN: no warning yet */
        char text[WAITING_TEXT_MAX]; /* as last logged */
    } one[N_WAITING_FOR];
};

enum waiting_line { WAITING_NO_LINE, WAITING_LINE, WAITING_WARNING };

/* The peer is not available, with the reason. Returns the due line: one when the wait begins or its reason changes
 * (at most one per second), and a warning every patience_ms. If the peer is there and refuses, the first warning is
 * due at once. */
enum waiting_line waiting_for(struct waiting *w, enum waiting_for what, const char *text, bool is_refused,
                              int64_t now_ms, int64_t patience_ms);

/* The peer is available. */
void waiting_over(struct waiting *w, enum waiting_for what);

/* Word for the line's `reason`, which `onceward explain` knows. */
const char *waiting_reason(enum waiting_for what);
