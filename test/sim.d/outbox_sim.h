#pragma once

#include "run.h"

/* The outbox as a world of its own: two or three relays (the core, src/core/outbox.c) between a simulated
 * database and a simulated broker. One seed is one run. out: the broken promise. */
void outbox_run(uint64_t seed, enum trace_mode trace, struct outcome *out);
