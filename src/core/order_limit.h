#pragma once

#include "core/held.h"

/* The delivery limit of an ordered queue: see order_limit.c. Private to the core. */

/* A new delivery: the queue stops if it is near the limit. */
void order_limit_watch(struct queue *q, int64_t now_ms, const struct delivery *d);

/* Would the broker drop one of the held deliveries at their next return? */
bool order_limit_is_last(const struct queue *q);

/* May all held deliveries be returned, although the queue is stopped? Once, when the inbox has recorded the stop. */
bool order_limit_may_return(const struct queue *q, int64_t now_ms);
