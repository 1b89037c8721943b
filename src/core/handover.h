#pragma once

#include "onceward/core/handover.h"
#include "onceward/core/queue.h"

/* The part of core/handover.c that other files of the core call, for ordered queues only. */

/* The queue subscribes now. */
void handover_subscribes(struct queue *q);

void handover_delivered(struct queue *q);

/* is_planned: order_stop has closed the channel. Returns the time from which the queue may subscribe again. */
int64_t handover_channel_lost(struct queue *q, int64_t now_ms, bool is_planned);

/* Call it once a second. */
void handover_step(struct queue *q, int64_t now_ms);
