#pragma once

#include "onceward/core/outcome.h"
#include "onceward/core/queue.h"

/* Applies an answer to a member that has left its request. Private to the core. */
void member_answered(struct queue *q, int64_t now_ms, struct delivery *d, enum verdict v,
                     const struct answer *a);
