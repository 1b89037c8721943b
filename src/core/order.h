#pragma once

#include "core/held.h"

/* Order per key. A delivery of an ordered queue is claimed only when every earlier delivery of its key on the same
 * channel has ended, which is read from a committed row: completed, or dead. See order.c. Private to the core. */

/* Gives a new delivery its place in the line of its key. */
void order_join(struct queue *q, int64_t now_ms, struct delivery *d);

/* Does an earlier message of its key have to end first? */
static inline bool order_waits(const struct delivery *d)
{
    return d->place.line && !key_place_is_first(&d->place);
}

/* Counts and logs a message without a key, which is not ordered. */
void order_watch_unkeyed(struct queue *q, int64_t now_ms, const struct delivery *d);

/* Logs a message whose priority lets it overtake others. */
void order_watch_priority(struct queue *q, int64_t now_ms, const struct delivery *d);

/* Logs a message that was dead-lettered from this queue and is in it again, behind its successors. */
void order_watch_loop(struct queue *q, int64_t now_ms, const struct delivery *d);

/* The row is completed or dead: the delivery leaves its line. Returns the next of its key if that one has waited for
 * it, else NULL. */
struct delivery *order_ended(struct queue *q, struct delivery *d);

/* Returns all deliveries to the broker as one tail: claiming ends, requests in flight may end, and the channel is
 * closed. why: static text. */
void order_stop(struct queue *q, int64_t now_ms, const char *why);

/* Will the channel be closed, so that no new work may begin? */
static inline bool order_is_stopping(const struct queue *q)
{
    return q->order.stop != NULL;
}

/* Is none of the held deliveries being processed? Then closing the channel costs only the deliveries. */
bool order_is_settled(const struct queue *q);

/* The channel is lost, and none of its deliveries waits for another. True: order_stop has closed it. */
bool order_channel_lost(struct queue *q);

/* For each turn of an ordered queue. */
void order_step(struct queue *q, int64_t now_ms);

/* Once a second: detects a partition in which nothing can progress, and ends its pause. */
void order_watch(struct queue *q, int64_t now_ms);
