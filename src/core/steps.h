#pragma once

#include "core/held.h"

/* Parts of queue_time besides timers and bounds, each in a file of its own. Private to the core. */

/* Once a second: returns deliveries to the broker (max_hold, pause_hold, crowded). queue_returns.c. */
void return_step(struct queue *q, int64_t now_ms);

/* Next step of a drain, if there is one. queue_drain.c. */
void drain_step(struct queue *q, int64_t now_ms);

/* Time of its next step. INT64_MAX: none, or it waits for other facts. */
int64_t drain_deadline(const struct queue *q, int64_t now_ms);
