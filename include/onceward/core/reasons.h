#pragma once

#include "onceward/core/term.h"

/* The reasons in log, stats lines and dead letters: see reasons.def. Constant tables, any thread. */

/* Why a queue is paused. */
enum pause_reason {
#define PAUSE(id, name, sentence, advice) PAUSE_##id,
#include "onceward/core/reasons.def"
    N_PAUSE_REASONS
};

/* Why a message was given up. */
enum dead_reason {
    DEAD_NONE = -1, /* not given up */
#define DEAD(id, name, sentence, advice) DEAD_##id,
#include "onceward/core/reasons.def"
    N_DEAD_REASONS
};

/* Two pauses may share a name; the line's `detail` then tells them apart. */
extern const struct term pause_reasons[N_PAUSE_REASONS];
extern const struct term dead_reasons[N_DEAD_REASONS]; /* none for DEAD_NONE */
