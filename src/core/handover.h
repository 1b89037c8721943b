#pragma once

#include "onceward/core/handover.h"
#include "onceward/core/queue.h"

/* The part of core/handover.c that other files of the core call, for ordered queues only. */

/* The priority of the subscription that begins now. */
int64_t handover_subscribes(struct queue *q);

void handover_delivered(struct queue *q, int64_t now_ms);

/* is_planned: order_stop has closed the channel. Returns when it may subscribe again after that. */
int64_t handover_channel_lost(struct queue *q, int64_t now_ms, bool is_planned);

/* Call it once a second. */
void handover_step(struct queue *q, int64_t now_ms);
