#pragma once

/* The reasons that log, stats lines and dead letters name: see reasons.def. Constant tables, any thread. */

/* Why a queue stands still. */
enum pause_reason {
#define PAUSE(id, name, sentence, advice) PAUSE_##id,
#include "onceward/core/reasons.def"
    N_PAUSE_REASONS
};

/* Why a message was given up. */
enum dead_reason {
    DEAD_NONE = -1, /* it was not */
#define DEAD(id, name, sentence, advice) DEAD_##id,
#include "onceward/core/reasons.def"
    N_DEAD_REASONS
};

struct reason_info {
    const char *name;     /* a word; two pauses may share one, which `detail` then tells apart */
    const char *sentence; /* what it means */
    const char *advice;   /* what an operator does, with the command to type */
};

/* The row of a reason; for DEAD_NONE there is none. */
const struct reason_info *pause_reason_info(enum pause_reason r);
const struct reason_info *dead_reason_info(enum dead_reason r);
