#pragma once

#include "core/held.h"

/* Order per key. A delivery of an ordered queue is claimed only when every earlier delivery of its key on the same
 * channel has ended, which is read from a committed row: completed, or dead. See order.c. Private to the core. */

/* A new delivery takes its place in the line of its key. true: it is the first, and may be claimed; false: it waits. */
bool order_join(struct queue *q, int64_t now_ms, struct delivery *d, const uint8_t key[KEY_BYTES]);

/* Logs a message whose priority lets it overtake others. */
void order_watch_priority(struct queue *q, int64_t now_ms, const struct delivery *d);

/* Two more returns of all that is held, and the broker drops it. */
bool order_is_near_limit(const struct queue *q, const struct delivery *d);

/* Its row is completed or dead: it leaves its line. Answers the next of its key if that has waited for it, else
 * NULL. */
struct delivery *order_ended(struct queue *q, struct delivery *d);

/* All deliveries go back to the broker as one tail: claiming ends, requests in flight may end, and the channel is
 * closed. why: of static memory. */
void order_stop(struct queue *q, int64_t now_ms, const char *why);

/* Is the channel to be closed, so that nothing new is begun? */
static inline bool order_is_stopping(const struct queue *q)
{
    return q->order.stop != NULL;
}

/* Is nothing of the held deliveries at work? Then closing the channel costs nothing but the deliveries. */
bool order_is_settled(const struct queue *q);

/* The channel is gone, and its deliveries wait for nobody. true: by order_stop. */
bool order_channel_lost(struct queue *q);

/* In each turn of an ordered queue. */
void order_step(struct queue *q, int64_t now_ms);

/* Once a second: a partition in which nothing can go. */
void order_watch(struct queue *q, int64_t now_ms);
