/* Events from the broker: deliveries, and the loss of their channel. */
#include "core/handover.h"
#include "core/life.h"
#include "core/notes.h"
#include "core/order.h"
#include "core/order_limit.h"
#include "core/pauses.h"

#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/core/backoff.h"
#include "onceward/core/message.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Requeues a delivery whose body was skipped once there is room. A body that never fits is rejected, or held if
 * nothing may be lost. */
static struct step arrived_without_body(struct queue *q, int64_t now_ms, struct delivery *d)
{
    struct note *n;
    bool headers = d->arrival->copy.body_len <= q->rules.max_message_bytes;
    bool rejects = q->rules.too_large_is_reject && !headers; /* on_too_large is about bodies */
    bool rests = returns_is_near(&q->returns, d->arrival->copy.delivery_count + 2), tells = rests && !rejects;

    assert(!d->arrival->message);
    if (headers && !q->rules.ordered) {
        pause_begin(q, now_ms, PAUSE_BYTES_FULL, "max_bytes are held");
        return step_wait(OP_REQUEUE, WAIT_ROOM, now_ms + ROOM_LOOK_MS);
    }
    n = notes_tell(q, EVENT_TOO_LARGE, NULL);
    note_text(n, "a message of %" PRIu64 " bytes%s, %s is %zu%s%s%s",
              headers ? (uint64_t)d->arrival->copy.n_bytes : d->arrival->copy.body_len,
              headers ? " with its properties and headers" : "",
              headers ? "the most with this max_bytes" : "max_message",
              headers ? held_ordered_most(q) : q->rules.max_message_bytes,
              tells ? "; near the delivery limit: " : "",
              !tells                               ? ""
              : returns_need_consumer(&q->returns) ? "one message at a time"
                                                   : "nothing more",
              tells ? " is consumed here before max_message or on_too_large is changed" : "");
    if (rejects) {
        q->counts.dead.total++;
        return life_reject_again(q, now_ms, d);
    }
    /* The body cannot be stored and must not be lost: the queue continues beside it, and requeues it after max_hold.
     * Just before the delivery limit this sidecar takes nothing more, so that a replica with room gets the message in
     * time. */
    if (rests || q->rules.ordered)
        pause_begin(q, now_ms, PAUSE_TOO_LARGE, n->text);
    if (q->rules
            .ordered) { /* unknown key: the whole queue waits, with the deliveries behind it on this channel */
        order_stop(q, now_ms, "a message is too large, and its key is unknown");
        return step_wait(OP_CLAIM, WAIT_ORDER, INT64_MAX);
    }
    return step_wait(OP_REQUEUE, WAIT_HELD, life_must_stay(q, d) ? INT64_MAX : now_ms + q->rules.max_hold_ms);
}

/* A complete delivery of an ordered queue, with an id. */
static struct step arrived_in_order(struct queue *q, int64_t now_ms, struct delivery *d, const char *why)
{
    const struct arrival *a = d->arrival;

    assert(q->rules.ordered && a->message && a->id_len);
    handover_delivered(q);
    order_watch_priority(q, now_ms, d);
    if (a->was_here)
        order_watch_loop(q, now_ms, d);
    if (!a->has_key && q->rules.unkeyed_is_dead)
        return life_die(q, now_ms, d, DEAD_NO_KEY, LETTER_ROWLESS,
                        why ? why : "the message has no key where order.key looks for it");
    if (!a->has_key)
        order_watch_unkeyed(q, now_ms, d);
    if (a->has_key)
        order_join(q, now_ms, d);
    return life_join(q, now_ms, d);
}

void queue_delivered(struct queue *q, int64_t now_ms, struct arrival *a, const char *why)
{
    struct note *n;

    if (a->copy.tag.generation != q->generation) { /* from a lost channel: it is redelivered */
        arrival_free(a);
        return;
    }
    struct delivery *d = held_add(q, now_ms, a);

    q->counts.received.total += a->message != NULL;
    if (a->copy.body_len <= q->rules.max_message_bytes)
        consumer_saw_size(&q->consumer, now_ms, a->copy.n_bytes);
    q->consumer.watch.stuck_for = NULL;
    q->consumer.watch.n_remedies = 0;
    q->consumer.watch.standby = false;
    if (a->copy.delivery_count > 0 && returns_limit_is_missing(&q->returns, a->copy.delivery_count)) {
        n = notes_tell(q, EVENT_LIMITS, NULL);
        struct buf text = {0};

        returns_limit_words(&q->returns, &text);
        note_text(n, "a quorum queue has delivered a message again: %s", buf_text(&text));
        buf_deinit(&text);
    }
    if (q->consumer.cautions & CAUTION_LIMIT && !life_must_stay(q, d))
        queue_caution_end(q, CAUTION_LIMIT);
    if (q->rules.ordered)
        order_limit_watch(q, now_ms, d);
    if (q->commands.ids_len && a->message && a->no_id == DEAD_NONE)
        d->given_up = life_is_given_up(q, d);
    life_go(q, now_ms, d, FACT_DELIVERED,
            !a->message             ? arrived_without_body(q, now_ms, d)
            : a->no_id != DEAD_NONE ? life_die(q, now_ms, d, a->no_id, LETTER_ROWLESS, why)
            : q->rules.ordered      ? arrived_in_order(q, now_ms, d, why)
                                    : life_join(q, now_ms, d));
}

/* --- the channel --- */

void queue_channel_open(struct queue *q, int64_t now_ms, uint64_t generation, int server_major,
                        int server_minor, enum queue_kind kind)
{
    (void)now_ms;
    assert(generation > 0 && !q->held.unacked.len);
    q->generation = generation;
    q->returns.server_major = server_major;
    q->returns.server_minor = server_minor;
    if (kind != KIND_UNKNOWN)
        q->returns.kind = kind;
    q->flow.last_chances = true;
    q->consumer.state = CONSUMER_NONE;
    q->consumer.watch.depth = -1; /* the depth before the interruption is outdated */
    q->consumer.watch.asked_ms = 0;
}

void queue_kind_known(struct queue *q, enum queue_kind kind)
{
    q->returns.kind = kind;
    q->flow.last_chances = true;
}

/* Ends the deliveries of a list after the loss of the channel; those with a claim release it first. Ended leaders may
 * add followers to the list meanwhile, so its deliveries are collected first. */
static void lose_list(struct queue *q, int64_t now_ms, struct list *l)
{
    size_t n = 0;
    struct delivery **all = mem_zalloc(l->len + 1, sizeof(struct delivery *));

    list_each(l, k) all[n++] = container_of(k, struct delivery, in_list);
    for (size_t i = 0; i < n; i++) {
        struct delivery *d = all[i];

        if (!held_tag_is_lost(q, d) || d->phase != PHASE_WANTED)
            continue;
        if (operation_infos[d->op].link == LINK_BROKER || held_is_idle(d) || d->wait == WAIT_BRAKE ||
            d->op == OP_DEAD_LETTER)
            life_go(q, now_ms, d, FACT_LOST,
                    step_wait(d->op, d->wait, d->timer.slot ? d->timer.at_ms : INT64_MAX));
    }
    free(all);
}

/* A missing queue is not a fault of the connection: logged once, and shown as the state in the stats lines. */
static void tell_channel_lost(struct queue *q, bool no_queue, int64_t wait_ms, const char *reason)
{
    struct note *n;

    if (no_queue && q->consumer.watch.no_queue_told)
        return;
    n = notes_tell(q, no_queue ? EVENT_NO_QUEUE : EVENT_DISCONNECTED, NULL);
    n->reason = "broker";
    n->ms = wait_ms;
    note_text(n, "%s", reason);
    q->consumer.watch.no_queue_told = no_queue;
}

void queue_channel_lost(struct queue *q, int64_t now_ms, int code, const char *reason)
{
    enum { CONSUME_FIRST_MS = 1000, CONSUME_LAST_MS = 30000, NOT_FOUND = 404 };
    bool steps = false; /* closed to step behind the owner: the next subscription is not logged */
    struct link *k;

    if (!q->generation && q->consumer.state == CONSUMER_NONE && !code)
        return;
    if (q->rules.ordered) {
        bool is_planned = order_channel_lost(q);

        steps = is_planned && q->handover.steps;
        int64_t again_ms = handover_channel_lost(q, now_ms, is_planned);

        if (is_planned) {
            q->consumer.not_before_ms = again_ms;
            code = 0;
        }
    }
    if (code) {
        if (q->consumer.n_failures < 0)
            q->consumer.n_failures = 0;
        int64_t wait_ms =
            backoff_ms(CONSUME_FIRST_MS, CONSUME_LAST_MS, ++q->consumer.n_failures, held_random(q));

        tell_channel_lost(q, code == NOT_FOUND, wait_ms, reason);
        q->consumer.not_before_ms = now_ms + wait_ms;
    } else if (q->consumer.n_failures < 0 && !steps) {
        q->consumer.n_failures = 0;
    }
    q->consumer.watch.no_queue = code == NOT_FOUND;
    q->generation = 0;
    q->consumer.state = CONSUMER_NONE;
    q->consumer.former = 0;
    q->consumer.number++;
    q->consumer.n_used = q->consumer.n_parked = 0;
    while ((k = list_first(&q->held.unacked)))
        list_remove(&q->held.unacked, k);
    /* Followers first: a leader that leaves would promote them needlessly. */
    lose_list(q, now_ms, &q->held.waiting[WAIT_FOLLOWING]);
    for (int i = 0; i < N_WAITS; i++)
        lose_list(q, now_ms, &q->held.waiting[i]);
    for (int i = 0; i < N_OPERATIONS; i++)
        lose_list(q, now_ms, &q->held.wanted[i]);
    assert(!q->held.wanted[OP_ACK].len && !q->held.wanted[OP_REJECT].len && !q->held.wanted[OP_REQUEUE].len);
}

void queue_consuming(struct queue *q, int64_t now_ms, uint32_t number)
{
    struct note *n;

    if (number != q->consumer.number || q->consumer.state != CONSUMER_STARTING)
        return;
    q->consumer.state = CONSUMER_ACTIVE;
    q->consumer.watch.stuck_for = NULL;
    q->consumer.watch.since_ms = now_ms;
    q->consumer.watch.no_queue = q->consumer.watch.no_queue_told = false;
    if (q->consumer.n_failures >= 0) { /* renewed credit is not worth a line */
        n = notes_tell(q, EVENT_CONSUMING, NULL);
        n->n = q->consumer.prefetch;
    }
    q->consumer.n_failures = -1;
    if (!q->ready)
        notes_tell(q, EVENT_READY, NULL);
    q->ready = true;
}

void queue_stopped(struct queue *q, int64_t now_ms, uint32_t number)
{
    (void)now_ms;
    if (number == q->consumer.former)
        q->consumer.former = 0;
    if (number == q->consumer.number && q->consumer.state == CONSUMER_STOPPING)
        q->consumer.state = CONSUMER_NONE;
}

void queue_depth_asked(struct queue *q, int64_t now_ms)
{
    if (!q->consumer.watch.asked_ms)
        q->consumer.watch.asked_ms = now_ms;
}

void queue_depth(struct queue *q, int64_t now_ms, int64_t depth, bool no_queue)
{
    if (q->consumer.watch.no_queue && depth >= 0)
        q->consumer.not_before_ms = now_ms; /* the queue exists again */
    consumer_depth(&q->consumer, depth, no_queue);
}

/* Is half of the room for waiting messages in use? On some kinds of queues, requeueing makes room. */
static bool is_crowded(const struct queue *q)
{
    return q->held.waiting[WAIT_DUE].len > (size_t)q->rules.max_parked / 2;
}

enum queue_doubt queue_doubt(const struct queue *q, int64_t now_ms)
{
    enum { PATIENCE_MS = 2000 };
    const struct consumer *c = &q->consumer;

    if (q->generation && is_crowded(q))
        return DOUBT_KIND;
    if (c->state != CONSUMER_ACTIVE || q->counts.received.total || now_ms - c->started_ms < PATIENCE_MS / 2)
        return DOUBT_NONE;
    if (c->watch.depth < 0 || c->watch.depth_of_ms < c->started_ms + PATIENCE_MS / 2)
        return DOUBT_DEPTH;
    return now_ms - c->started_ms >= PATIENCE_MS && c->watch.depth > 0 ? DOUBT_KIND : DOUBT_NONE;
}
