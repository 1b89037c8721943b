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
#include "core/order_limit.h"
#include "core/pauses.h"

#include "onceward/base/mem.h"

#include "onceward/core/message.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    PRIORITY_HIGH = 5, /* messages of this priority or more overtake others in quorum queues of RabbitMQ 4 */
    N_KEYS_SEEN = 4096,
    NOT_EXCLUSIVE_MS = 60000,
};

static struct delivery *of_place(struct key_place *p)
{
    return container_of(p, struct delivery, place);
}

/* --- arrivals --- */

/* Finds the delivery that this one repeats on the same channel, after the broker has taken it back without a notice.
 * A later copy of the message is another one, and was delivered at most as often. */
static const struct delivery *find_former(const struct delivery *d)
{
    if (!delivery_is_redelivered(d) || d->arrival->copy.delivery_count <= 0)
        return NULL;
    list_each(&d->place.line->places, k)
    {
        const struct delivery *other = of_place(container_of(k, struct key_place, in_line));

        if (other != d && slice_equal(delivery_slice(other), delivery_slice(d)) &&
            other->arrival->copy.delivery_count < d->arrival->copy.delivery_count)
            return other;
    }
    return NULL;
}

/* The partitions share one line: a mistake in order.key concerns all of them. */
void order_watch_unkeyed(struct queue *q, int64_t now_ms, const struct delivery *d)
{
    struct queue_share *s = q->share;

    q->counts.unkeyed.total++;
    s->unkeyed.n++;
    if (s->unkeyed.told_ms && now_ms - s->unkeyed.told_ms < q->rules.stats_interval_ms)
        return;
    notes_tell(q, EVENT_UNKEYED, d)->n = s->unkeyed.n;
    s->unkeyed.n = 0;
    s->unkeyed.told_ms = now_ms ? now_ms : 1;
}

void order_watch_priority(struct queue *q, int64_t now_ms, const struct delivery *d)
{
    if (!d->arrival->message->has_priority || d->arrival->message->priority < PRIORITY_HIGH ||
        q->returns.kind != KIND_QUORUM || q->returns.server_major < 4 ||
        (q->order.priority_ms && now_ms - q->order.priority_ms < q->rules.stats_interval_ms))
        return;
    q->order.priority_ms = now_ms ? now_ms : 1;
    notes_tell(q, EVENT_ORDER_PRIORITY, d)->n = d->arrival->message->priority;
}

/* Logged only. A pause, as in renewal_loop, would not restore the order: the message stands behind its successors
 * already, each message loops at most as often as it is dead-lettered, and all other keys would wait for a person. */
void order_watch_loop(struct queue *q, int64_t now_ms, const struct delivery *d)
{
    if (q->order.loop_ms && now_ms - q->order.loop_ms < q->rules.stats_interval_ms)
        return;
    q->order.loop_ms = now_ms ? now_ms : 1;
    notes_tell(q, EVENT_ORDER_LOOP, d);
}

/* Checks that a key comes from one partition. The table has a place for each hash, so two keys that share a place may
 * come from two partitions unseen. */
static void watch_partitions(struct queue *q, int64_t now_ms, const struct delivery *d)
{
    const uint8_t *key = d->arrival->key;
    struct queue_share *s = q->share;

    if (s->n_queues < 2)
        return;
    if (!s->keys_seen)
        s->keys_seen = mem_zalloc(N_KEYS_SEEN, sizeof(*s->keys_seen));
    struct key_seen *k = &s->keys_seen[hash_bytes(key, KEY_BYTES) % N_KEYS_SEEN];
    bool is_other = k->queue && k->queue != q->number && !memcmp(k->key, key, KEY_BYTES);

    memcpy(k->key, key, KEY_BYTES);
    k->queue = q->number;
    if (!is_other || (q->order.two_ms && now_ms - q->order.two_ms < q->rules.stats_interval_ms))
        return;
    q->order.two_ms = now_ms ? now_ms : 1;
    notes_tell(q, EVENT_KEY_IN_TWO_PARTITIONS, d);
}

void queue_forget_keys(struct queue *q)
{
    if (q->share->keys_seen)
        memset(q->share->keys_seen, 0, N_KEYS_SEEN * sizeof(*q->share->keys_seen));
}

void order_join(struct queue *q, int64_t now_ms, struct delivery *d)
{
    assert(q->rules.ordered && d->arrival->has_key);
    keys_join(&q->order.keys, d->arrival->key, &d->place);
    watch_partitions(q, now_ms, d);
    if (find_former(d))
        order_stop(q, now_ms, "the broker has redelivered messages that it had taken back without notice");
}

/* --- ends --- */

struct delivery *order_ended(struct queue *q, struct delivery *d)
{
    struct key_place *p = keys_leave(&q->order.keys, &d->place);

    return p && of_place(p)->wait == WAIT_ORDER ? of_place(p) : NULL;
}

/* --- back to the broker --- */

/* A stop counts a delivery for each message. A queue that is paused near its delivery limit stops once at most, and
 * no message is returned with its last delivery. */
static bool may_stop(const struct queue *q, int64_t now_ms)
{
    if (q->order.stop || !q->generation || q->drain)
        return false;
    if (pause_is_on(q, PAUSE_DELIVERY_LIMIT) && !order_limit_may_return(q, now_ms))
        return false;
    return !order_limit_is_last(q);
}

void order_stop(struct queue *q, int64_t now_ms, const char *why)
{
    if (!may_stop(q, now_ms))
        return;
    assert(q->rules.ordered);
    q->order.stop = why;
    q->order.stop_until_ms = now_ms + q->rules.token_window_ms;
}

/* Is the delivery being processed? A known outcome that waits to be written counts: without it the message would be
 * forwarded again. */
static bool is_at_work(const struct delivery *d)
{
    return delivery_is_in_flight(d) || delivery_is_accepted(d) || d->phase == PHASE_SENT ||
           (d->wait != WAIT_BRAKE && !held_is_idle(d));
}

bool order_is_settled(const struct queue *q)
{
    for (const struct link *k = q->held.unacked.head.next; k != &q->held.unacked.head; k = k->next)
        if (is_at_work(container_of((struct link *)k, struct delivery, in_tags)))
            return false;
    return true;
}

/* Does an idle channel that was to be closed hold messages by now? The queue is stopped near its delivery limit, and
 * returning them would cost one more delivery. */
static bool keeps_the_messages(const struct queue *q, int64_t now_ms)
{
    return q->held.unacked.len && pause_is_on(q, PAUSE_DELIVERY_LIMIT) && !order_limit_may_return(q, now_ms);
}

void order_step(struct queue *q, int64_t now_ms)
{
    if (!q->order.stop || q->order.closing || !q->generation || q->drain)
        return;
    if (keeps_the_messages(q, now_ms)) {
        q->order.stop = NULL;
        return;
    }
    if (now_ms < q->order.stop_until_ms && !order_is_settled(q))
        return;
    if (q->held.unacked.len) {
        struct note *n = notes_tell(q, EVENT_RETURNED, NULL);

        n->n = (int64_t)q->held.unacked.len;
        note_text(n, "%s", q->order.stop);
    }
    q->asks.reopen = q->order.stop;
    q->order.closing = true;
}

bool order_channel_lost(struct queue *q)
{
    bool planned = q->order.closing;

    assert(q->rules.ordered && (!planned || q->order.stop));
    keys_deinit(&q->order.keys);
    if (q->order.stop)
        q->asks.reopen = NULL;
    q->order.stop = NULL;
    q->order.closing = false;
    return planned;
}

/* --- other replicas --- */

static struct order_peer *find_peer(struct queue *q, uint64_t who)
{
    enum { N = sizeof(q->order.peers) / sizeof(*q->order.peers) };
    struct order_peer *p = NULL;

    for (size_t i = 0; i < N && (!p || p->who != who); i++)
        if (q->order.peers[i].who == who || (!p && !q->order.peers[i].who))
            p = &q->order.peers[i];
    if (!p)
        p = &q->order.peers[q->order.next_peer++ % N];
    if (p->who != who)
        *p = (struct order_peer){.who = who};
    return p;
}

/* A single active consumer stays active until its channel is closed. With the same subscriptions on both sides, this
 * replica cannot receive, then the other, then this one again. A peer's figures are as old as one report, so those
 * that follow the first step are left out. */
void queue_peer(struct queue *q, int64_t now_ms, uint64_t who, int64_t subscription, int64_t received)
{
    enum { STEP_NONE, STEP_HERE, STEP_REPORTED, STEP_THERE };
    struct order_peer *p = find_peer(q, who);
    bool here = q->counts.received.total > p->received_here, there = received > p->received;

    if (p->subscription != subscription || p->own != q->consumer.number || received < p->received ||
        q->consumer.state != CONSUMER_ACTIVE)
        p->step = STEP_NONE;
    else if (p->step == STEP_NONE)
        p->step = here ? STEP_HERE : STEP_NONE;
    else if (p->step == STEP_HERE)
        p->step = STEP_REPORTED;
    else if (p->step == STEP_REPORTED)
        p->step = there ? STEP_THERE : STEP_REPORTED;
    else if (here) {
        static const char why[] = "this replica and another one have alternately received messages";

        note_text(notes_tell(q, EVENT_NOT_EXCLUSIVE, NULL), "%s", why);
        pause_begin(q, now_ms, PAUSE_NOT_EXCLUSIVE, why);
        q->order.exclusive_again_ms = now_ms + NOT_EXCLUSIVE_MS;
        p->step = STEP_NONE;
    }
    p->subscription = subscription;
    p->received = received;
    p->own = q->consumer.number;
    p->received_here = q->counts.received.total;
}

/* --- standing still --- */

/* Oldest delivery if all of them wait for themselves: not for a moment, and not for a pause. */
static const struct delivery *oldest_waiting(const struct queue *q, int64_t now_ms)
{
    const struct delivery *d = container_of(q->held.unacked.head.next, struct delivery, in_tags);

    return pause_is_any_on(q) || now_ms - d->arrival->received_ms < q->rules.stats_interval_ms ? NULL : d;
}

/* First message with others behind it, or else the first one that is held. */
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

/* Reports a prefetch that is used up by messages that wait, none of which is processed. */
void order_watch(struct queue *q, int64_t now_ms)
{
    const struct delivery *d;

    if (pause_is_on(q, PAUSE_NOT_EXCLUSIVE) && now_ms >= q->order.exclusive_again_ms)
        pause_end(q, now_ms, PAUSE_NOT_EXCLUSIVE);
    if (q->held.unacked.len < (size_t)q->consumer.prefetch || q->order.stop || q->drain ||
        (q->order.blocked_ms && now_ms - q->order.blocked_ms < q->rules.stats_interval_ms) ||
        q->held.wanted[OP_CLAIM].len || !order_is_settled(q))
        return;
    d = blocking_head(q);
    if (!d)
        d = oldest_waiting(q, now_ms);
    if (!d)
        return;
    q->order.blocked_ms = now_ms ? now_ms : 1;
    /* A copy of a held message that has no key has no place in a line. */
    notes_tell(q, EVENT_ORDER_BLOCKED, d)->n = d->place.line ? (int64_t)d->place.line->places.len - 1 : 0;
}
