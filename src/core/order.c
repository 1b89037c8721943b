/* Order per key.
 *
 * The queue has a single active consumer, so this channel has received every unfinished predecessor of a delivery
 * before it, in order. Each channel works through its own stream in order. Two channels may overlap for a while:
 * the claims on the rows keep them from the same message, and a completed row stays completed. So the first
 * completions of a key commit in the order of the queue.
 *
 *   arrives ─▶ first of its key ─▶ claim … completed, or dead ─▶ ack, or reject
 *          └─▶ WAIT_ORDER ──────────▲         └ the next of the key leaves WAIT_ORDER
 *
 * This holds as long as deliveries go back to their places in the queue. Quorum queues put a whole tail back in
 * order when its channel is closed. They do not when deliveries are requeued one by one, when a consumer is
 * cancelled before its deliveries are acked, or when a consumer with a smaller prefetch returns a part of them. So
 * an ordered queue is never cancelled, requeues nothing, and has one prefetch: order_stop is the only way back. */
#include "core/order.h"

#include "core/notes.h"

#include "onceward/core/message.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    PRIORITY_HIGH = 5, /* from it on a message overtakes others in quorum queues of RabbitMQ 4 */
    SUBSCRIBE_AGAIN_MS = 1000,
    LIMIT_SPARE = 2,
};

static struct delivery *of_place(struct key_place *p)
{
    return container_of(p, struct delivery, place);
}

/* --- arrivals --- */

/* The delivery that this one repeats on the same channel: the broker has taken it back without a notice. A later copy
 * of the message is another one, and was delivered at most as often. */
static const struct delivery *find_former(const struct delivery *d)
{
    if (!d->copy.redelivered || d->copy.delivery_count <= 0)
        return NULL;
    list_each(&d->place.line->places, k)
    {
        const struct delivery *other = of_place(container_of(k, struct key_place, in_line));

        if (other != d && slice_equal(delivery_slice(other), delivery_slice(d)) &&
            other->copy.delivery_count < d->copy.delivery_count)
            return other;
    }
    return NULL;
}

void order_watch_priority(struct queue *q, int64_t now_ms, const struct delivery *d)
{
    if (!d->message->has_priority || d->message->priority < PRIORITY_HIGH || q->returns.kind != KIND_QUORUM ||
        q->returns.server_major < 4 ||
        (q->order.priority_ms && now_ms - q->order.priority_ms < q->rules.stats_interval_ms))
        return;
    q->order.priority_ms = now_ms ? now_ms : 1;
    notes_tell(q, EVENT_ORDER_PRIORITY, d)->n = d->message->priority;
}

bool order_is_near_limit(const struct queue *q, const struct delivery *d)
{
    int limit = returns_limit(&q->returns);

    return limit > 0 && returns_count(&q->returns, d->copy.delivery_count) >= limit - LIMIT_SPARE;
}

bool order_join(struct queue *q, int64_t now_ms, struct delivery *d, const uint8_t key[KEY_BYTES])
{
    bool is_first = keys_join(&q->order.keys, key, &d->place);

    if (find_former(d))
        order_stop(q, now_ms,
                   "the broker has delivered messages again that it had taken back without a notice");
    return is_first;
}

/* --- ends --- */

struct delivery *order_ended(struct queue *q, struct delivery *d)
{
    struct key_place *p = keys_leave(&q->order.keys, &d->place);

    return p && of_place(p)->wait == WAIT_ORDER ? of_place(p) : NULL;
}

/* --- back to the broker --- */

void order_stop(struct queue *q, int64_t now_ms, const char *why)
{
    if (q->order.stop || !q->generation || q->drain || q->pauses[PAUSE_DELIVERY_LIMIT].since_ms)
        return;
    q->order.stop = why;
    q->order.stop_until_ms = now_ms + q->rules.token_window_ms;
}

/* A known outcome that waits to be written counts: without it the message would be forwarded again. */
static bool is_at_work(const struct delivery *d)
{
    return delivery_is_in_flight(d) || d->answer.accepted_until_ms || d->phase == PHASE_SENT ||
           (d->wait != WAIT_BRAKE && !held_is_idle(d));
}

bool order_is_settled(const struct queue *q)
{
    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next)
        if (is_at_work(container_of((struct link *)k, struct delivery, in_tags)))
            return false;
    return true;
}

void order_step(struct queue *q, int64_t now_ms)
{
    if (!q->order.stop || q->order.closing || !q->generation || q->drain)
        return;
    if (now_ms < q->order.stop_until_ms && !order_is_settled(q))
        return;
    struct note *n = notes_tell(q, EVENT_RETURNED, NULL);

    n->n = (int64_t)q->held.unacked.len;
    note_text(n, "%s", q->order.stop);
    q->asks.reopen = q->order.stop;
    q->order.closing = true;
}

bool order_channel_lost(struct queue *q)
{
    bool planned = q->order.closing;

    keys_deinit(&q->order.keys);
    if (q->order.stop)
        q->asks.reopen = NULL;
    q->order.stop = NULL;
    q->order.closing = false;
    return planned;
}

/* --- standing still --- */

/* The first message with others behind it, or else the first that is held. */
static const struct delivery *blocking_head(const struct queue *q)
{
    const struct delivery *held = NULL;

    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next) {
        const struct delivery *d = container_of((struct link *)k, struct delivery, in_tags);

        if (key_place_is_first(&d->place) && d->place.line->places.len > 1)
            return d;
        if (!held && d->wait == WAIT_ON_HOLD)
            held = d;
    }
    return held;
}

/* The prefetch is used up by messages that wait, and none of them is at work. */
void order_watch(struct queue *q, int64_t now_ms)
{
    const struct delivery *d;

    if (q->held.unacked.len < (size_t)q->consumer.prefetch || q->order.stop || q->drain ||
        (q->order.blocked_ms && now_ms - q->order.blocked_ms < q->rules.stats_interval_ms) ||
        q->held.wanted[OP_CLAIM].len || !order_is_settled(q))
        return;
    d = blocking_head(q);
    if (!d)
        return;
    q->order.blocked_ms = now_ms ? now_ms : 1;
    notes_tell(q, EVENT_ORDER_BLOCKED, d)->n = (int64_t)d->place.line->places.len - 1;
}
