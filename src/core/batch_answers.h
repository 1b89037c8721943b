#pragma once

#include "onceward/core/queue.h"

/* The answer to a request with several messages. Private to the core. */

/* Ends the request: each member that awaits its answer gets one, as if it had been answered alone. */
void batches_answered(struct queue *q, int64_t now_ms, struct request *r, const struct answer *a);
