#pragma once

#include "run.h"

/* The outbox, as a world of its own: two or three relays (the core, src/core/outbox.c) between a simulated
 * database and a simulated broker. One seed is one run. out says what broke. */
void outbox_run(uint64_t seed, bool trace, struct outcome *out);
