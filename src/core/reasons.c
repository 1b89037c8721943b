/* The tables of reasons.def. Constant. */

#include "onceward/core/reasons.h"

static const struct reason_info pauses[N_PAUSE_REASONS] = {
#define PAUSE(id, name, sentence, advice) {name, sentence, advice},
#include "onceward/core/reasons.def"
};

static const struct reason_info deaths[N_DEAD_REASONS] = {
#define DEAD(id, name, sentence, advice) {name, sentence, advice},
#include "onceward/core/reasons.def"
};

const struct reason_info *pause_reason_info(enum pause_reason r)
{
    return &pauses[r];
}

const struct reason_info *dead_reason_info(enum dead_reason r)
{
    return &deaths[r];
}
