/* The tables of reasons.def. */

#include "onceward/core/reasons.h"

const struct term pause_reasons[N_PAUSE_REASONS] = {
#define PAUSE(id, name, sentence, advice) {name, sentence, advice},
#include "onceward/core/reasons.def"
};

const struct term dead_reasons[N_DEAD_REASONS] = {
#define DEAD(id, name, sentence, advice) {name, sentence, advice},
#include "onceward/core/reasons.def"
};
