/* Selects the next action, one at a time: known results before new work.
 *
 * A wanted operation stays wanted until the shell can carry it out. So batches grow by themselves, without a
 * timer. */
#include "core/batches.h"
#include "core/claims.h"
#include "core/handover.h"
#include "core/notes.h"
#include "core/order.h"
#include "core/pauses.h"
#include "core/renewals.h"
#include "core/steps.h"

#include "onceward/core/message.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEATH_WAIT_MS = 1000,
    /* While messages wait for a slot, no publisher waits for an ack: acks gather for this time. Otherwise each of
     * many queues would send an ack for a few messages in each turn, and the broker would log each to disk. */
    ACK_GATHER_MS = 100,
    STOP_LOOK_MS = 20,     /* while the channel of an ordered queue is being closed */
    N_LETTERS_PASSED = 64, /* dead letters passed over in one pass; the next pass starts behind them */
};

/* --- log lines --- */

static bool next_note(struct queue *q, struct action *ret)
{
    struct queue_notes *n = &q->notes;

    if (n->at > 0) { /* its text was valid until now */
        note_clear(&n->items[n->at - 1]);
    }
    if (n->at == n->n) {
        n->at = n->n = 0;
        return false;
    }
    *ret = (struct action){.kind = ACTION_TELL, .note = n->items[n->at++]};
    return true;
}

static bool next_abandon(struct queue *q, struct action *ret)
{
    struct queue_abandons *a = &q->abandons;

    buf_deinit(&a->last_body);
    if (!a->n)
        return false;
    a->last_body = a->items[--a->n].body;
    *ret = (struct action){.kind = ACTION_ABANDON, .ref = a->items[a->n].ref};
    assert(q->application->n_abandoned > 0);
    q->application->n_abandoned--;
    return true;
}

/* --- acks, rejects, requeues --- */

static bool is_acked(const struct delivery *d)
{
    return d->op == OP_ACK && d->phase == PHASE_WANTED && d->wait == WAIT_NONE;
}

/* Time for which acks gather: none if their credit is needed. */
static int64_t ack_gather_ms(const struct queue *q)
{
    bool many = q->held.wanted[OP_ACK].len * 8 >= (size_t)q->consumer.prefetch;

    return q->drain || order_is_stopping(q) || many || !q->held.wanted[OP_CLAIM].len ? 0 : ACK_GATHER_MS;
}

/* Once the oldest ack is due, all are sent. */
static bool acks_are_due(struct queue *q, int64_t now_ms)
{
    struct link *oldest = list_first(&q->held.wanted[OP_ACK]); /* the list is in the order of ready_ms */

    if (!oldest)
        q->flow.acking = false;
    else if (now_ms - delivery_at(oldest)->ready_ms >= ack_gather_ms(q))
        q->flow.acking = true;
    return q->flow.acking;
}

/* Acks the whole prefix of finished tags at once. */
static bool next_ack_prefix(struct queue *q, int64_t now_ms, struct action *ret)
{
    struct delivery *last = NULL;
    size_t n = 0;

    list_each(&q->held.unacked, k)
    {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        if (!is_acked(d))
            break;
        last = d;
        n++;
    }
    if (!last)
        return false;
    assert(!held_tag_is_lost(q, last));
    *ret = (struct action){.kind = ACTION_ACK,
                           .d = last,
                           .ref = last->ref,
                           .multiple = n > 1,
                           .tag = last->arrival->copy.tag,
                           .n = (int64_t)n};
    while (n--)
        life_go(q, now_ms, container_of(list_first(&q->held.unacked), struct delivery, in_tags), FACT_TURN,
                step_end());
    return true;
}

/* Acks one delivery behind an unfinished one. Tags ascend, since the broker searches each from the oldest. */
static bool next_ack_single(struct queue *q, int64_t now_ms, struct action *ret)
{
    struct delivery *first = NULL;

    list_each(&q->held.wanted[OP_ACK], k)
    {
        if (!first || delivery_at(k)->arrival->copy.tag.number < first->arrival->copy.tag.number)
            first = delivery_at(k);
    }
    if (!first)
        return false;
    assert(!held_tag_is_lost(q, first));
    *ret = (struct action){
        .kind = ACTION_ACK, .d = first, .ref = first->ref, .tag = first->arrival->copy.tag, .n = 1};
    life_go(q, now_ms, first, FACT_TURN, step_end());
    return true;
}

static bool next_of_broker(struct queue *q, int64_t now_ms, enum operation op, enum action_kind kind,
                           struct action *ret)
{
    struct link *k = list_first(&q->held.wanted[op]);

    if (!k)
        return false;
    struct delivery *d = delivery_at(k);
    assert(!held_tag_is_lost(q, d));
    *ret = (struct action){.kind = kind, .d = d, .ref = d->ref, .tag = d->arrival->copy.tag};
    life_go(q, now_ms, d, FACT_TURN, step_end());
    return true;
}

static bool next_to_broker(struct queue *q, int64_t now_ms, unsigned can, struct action *ret)
{
    if (!q->generation)
        return false;
    return (can & 1u << OP_ACK && acks_are_due(q, now_ms) &&
            (next_ack_prefix(q, now_ms, ret) || next_ack_single(q, now_ms, ret))) ||
           (can & 1u << OP_REJECT && next_of_broker(q, now_ms, OP_REJECT, ACTION_REJECT, ret)) ||
           (can & 1u << OP_REQUEUE && next_of_broker(q, now_ms, OP_REQUEUE, ACTION_REQUEUE, ret));
}

/* --- end of an attempt --- */

static bool next_fail(struct queue *q, int64_t now_ms, struct action *ret)
{
    struct link *k = list_first(&q->held.wanted[OP_REVOKE]);

    if (k) { /* an expired window is charged like any other failure, unless spared */
        bool spared =
            q->share->brake.on || request_is_tainted(q, delivery_at(k)) || batches_in_company(delivery_at(k));

        life_fail_charged(delivery_at(k), !spared);
        return action_take(q, now_ms, delivery_at(k), ACTION_DATABASE, ret);
    }
    k = list_first(&q->held.wanted[OP_FAIL]);
    if (!k)
        return false;
    if (delivery_failure(delivery_at(k))->charged && request_is_tainted(q, delivery_at(k)))
        life_fail_charged(delivery_at(k), false);
    return action_take(q, now_ms, delivery_at(k), ACTION_DATABASE, ret);
}

/* Number of messages with an open outcome that could still switch the circuit breaker on. */
static size_t n_open(const struct queue *q)
{
    const struct queue_held *h = &q->held;

    return batches_most_open(q) + h->n_reserved + h->wanted[OP_CLAIM].len + h->wanted[OP_LOOK].len +
           h->sent[OP_LOOK].len + h->wanted[OP_CHECK].len + h->sent[OP_CHECK].len +
           h->waiting[WAIT_WATCHING].len;
}

/* Are other failures likely to arrive? One batch of deliveries is not everything. A success in between shows that the
 * message is at fault. */
static bool others_may_fail(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    return delivery_dead_letter(d)->charged && q->share->brake.threshold && q->share->brake.n && !q->drain &&
           now_ms - d->ready_ms < DEATH_WAIT_MS;
}

/* Must a dead letter wait while other answers may show whether the message is at fault? For half a window at most,
 * since the token must still be the row's. */
static bool death_waits(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    return delivery_dead_letter(d)->charged && brake_may_set(&q->share->brake, n_open(q)) &&
           now_ms - d->ready_ms <= q->rules.token_window_ms / 2;
}

/* Can the letter be sent now? */
static bool letter_can_go(struct queue *q, const struct delivery *d, unsigned can)
{
    if (!queue_letter_is_large(d))
        return can & 1u << OP_DEAD_LETTER;
    q->asks.large_letter = true;
    return can & CAN_DEAD_LETTER_LARGE;
}

bool queue_take_large_letter(struct queue *q)
{
    bool is_waiting = q->asks.large_letter;

    q->asks.large_letter = false;
    return is_waiting;
}

/* Did an answer cause the dead letter, perhaps after an aborted transaction? Age needs no request. */
static bool was_refused(const struct delivery *d)
{
    return delivery_dead_letter(d)->reason != DEAD_TOO_OLD;
}

static bool next_dead_letter(struct queue *q, int64_t now_ms, unsigned can, struct action *ret)
{
    int n_passed = 0;
    size_t n_left = q->held.wanted[OP_DEAD_LETTER].len; /* dead letters put behind come up once more */

    list_each(&q->held.wanted[OP_DEAD_LETTER], k)
    {
        struct delivery *d = delivery_at(k);

        if (!n_left--)
            return false;
        if (others_may_fail(q, now_ms, d) || death_waits(q, now_ms, d))
            continue;
        if (was_refused(d) && delivery_dead_letter(d)->charged && delivery_has_token(d) &&
            request_is_tainted(q, d)) {
            life_go(q, now_ms, d, FACT_TURN,
                    life_release(d, held_delay_ms(q, d, ++d->claim->n_given_back), row_as_it_is()));
            continue;
        }
        assert(d->arrival->message && delivery_dead_letter(d)->reason != DEAD_NONE);
        if (letter_can_go(q, d, can)) {
            action_take(q, now_ms, d, ACTION_DATABASE, ret);
            ret->new_token = queue_letter_is_new(d);
            return true;
        }
        held_put_behind(q, d);
        if (++n_passed == N_LETTERS_PASSED)
            return false;
    }
    return false;
}

/* --- the consumer --- */

/* Could a delivery that arrived now not be processed, or not be kept? */
static bool is_standing_still(const struct queue *q)
{
    static const enum pause_reason reasons[] = {PAUSE_BYTES_FULL, PAUSE_REFUSED, PAUSE_OPERATOR,
                                                PAUSE_DATABASE};

    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (pause_is_on(q, reasons[i]))
            return true;
    return q->commands.awaited;
}

static size_t n_asked(const struct queue_held *h, enum operation op)
{
    return h->wanted[op].len + h->sent[op].len;
}

static struct consumer_load load_of(const struct queue *q)
{
    const struct queue_held *h = &q->held;

    return (struct consumer_load){
        .prefetch = q->rules.prefetch,
        .max_parked = q->rules.max_parked,
        .max_bytes = q->rules.max_bytes / q->share->n_queues,
        .fixed = q->returns.limits.single_active || q->rules.ordered,
        .yields = (pause_is_on(q, PAUSE_DATABASE) || pause_is_on(q, PAUSE_REFUSED)) && !q->rules.ordered,
        .cautious = q->consumer.cautions != 0,
        .most = q->left_to_others || is_standing_still(q) ? 1 : 0,
        .n_bytes = h->n_bytes,
        .n_waiting = queue_n_parked(q) + h->waiting[WAIT_WATCHING].len + n_asked(h, OP_CLAIM) +
                     n_asked(h, OP_LOOK) + n_asked(h, OP_CHECK) + n_asked(h, OP_RELEASE),
    };
}

/* After everything was left to other replicas, this one may take one probe message, if only a message can show that
 * the application has recovered. */
static bool may_try_another(const struct queue *q, int64_t now_ms)
{
    return pause_needs_message(q) && !q->held.unacked.len && now_ms - q->flow.left_ms >= TO_TRY_WITH_MS;
}

/* Before its first start a queue waits until everything is available. From then on it stays subscribed. */
static bool may_consume(const struct queue *q, int64_t now_ms)
{
    /* An ordered queue near its delivery limit keeps its messages, but does not take them once more. */
    if (pause_is_on(q, PAUSE_DELIVERY_LIMIT) && !q->held.unacked.len)
        return false;
    /* Another replica may be registered, and the queue has one active consumer. */
    if (q->rules.ordered && pause_is_on(q, PAUSE_REFUSED))
        return false;
    if (q->drain || q->limits_awaited || pause_is_on(q, PAUSE_NOT_ORDERED) ||
        pause_is_on(q, PAUSE_NOT_EXCLUSIVE) || pause_is_on(q, PAUSE_TOO_LARGE) ||
        pause_is_on(q, PAUSE_RENEWAL_LOOP) || pause_is_on(q, PAUSE_LEAVING) || pause_rests(q) ||
        (q->left_to_others && !may_try_another(q, now_ms)))
        return false;
    return q->ready || (database_is_up(q->database) && q->application->reached && !is_standing_still(q));
}

/* Does the maximum of deliveries wait here? New credit would add to them each time. */
static bool is_full(const struct queue *q, const struct consumer_load *l)
{
    int most = q->rules.max_parked > q->rules.prefetch ? q->rules.max_parked : q->rules.prefetch;

    return l->n_waiting >= (size_t)most || pause_is_on(q, PAUSE_PARKED_FULL);
}

/* Must the consumer stay, because the broker would delete the queue with its messages? Other replicas do not count,
 * since they may pause at the same time. A consumer that stays gets one delivery, behind the others' consumers. */
static bool is_kept(const struct queue *q, bool want)
{
    if (q->consumer.state == CONSUMER_NONE || q->drain || q->rules.ordered)
        return false;
    return q->left_to_others ? returns_may_need_consumer(&q->returns)
                             : !want && returns_need_consumer(&q->returns);
}

static bool cancel_consumer(struct queue *q, uint32_t number, struct action *ret)
{
    assert(!q->rules.ordered); /* or a standby begins too late */
    q->consumer.watch.stuck_for = NULL;
    *ret = (struct action){.kind = ACTION_CANCEL, .number = number};
    return true;
}

static void subscribe_consumer(struct queue *q, int64_t now_ms, const struct consumer_load *l,
                               struct action *ret)
{
    struct consumer *c = &q->consumer;

    c->former = c->state == CONSUMER_ACTIVE ? c->number : 0;
    c->cancels_former = false;
    c->prefetch = consumer_prefetch(c, l);
    c->bounded = l->most > 0 || l->cautious;
    c->yielded = l->yields;
    c->number++;
    c->state = CONSUMER_STARTING;
    c->started_ms = now_ms;
    c->n_used = c->n_parked = 0;
    c->watch.stuck_for = NULL;
    assert(c->prefetch >= 1 && c->prefetch <= q->rules.prefetch && c->former != c->number);
    *ret = (struct action){.kind = ACTION_CONSUME, .number = c->number, .n = c->prefetch};
    if (q->rules.ordered)
        handover_subscribes(q);
}

/* Has everything that is held passed the database once? A message that waits for its time has; one that waits for a
 * leader has not. */
static bool holds_parked_only(const struct queue *q)
{
    list_each(&q->held.unacked, k)
    {
        const struct delivery *d = container_of(k, struct delivery, in_tags);

        if (!held_is_parked(d) || d->wait == WAIT_FOLLOWING)
            return false;
    }
    return q->held.unacked.len > 0;
}

/* The first delivery after an unclean end has not ended this process as well: it is with the application, done, or
 * parked. A delivery that is gone with its channel, or waits beside a new consumer for its database, has shown
 * nothing. */
static bool first_delivery_survived(const struct queue *q)
{
    const struct queue_counts *c = &q->counts;
    bool ended =
        c->completed.total || c->duplicates.total || c->dead.total || c->retried.total || c->given_back.total;

    return q->consumer.cautions & CAUTION_UNCLEAN && q->counts.received.total &&
           (ended || q->held.sent[OP_FORWARD].len > 0 || holds_parked_only(q));
}

static bool next_consumer(struct queue *q, int64_t now_ms, unsigned can, struct action *ret)
{
    struct consumer *c = &q->consumer;
    bool want = may_consume(q, now_ms), keep = is_kept(q, want);

    if (first_delivery_survived(q))
        queue_caution_end(q, CAUTION_UNCLEAN);
    struct consumer_load load = load_of(q);

    if (keep) {
        load.most = 1;
        load.yields = true;
    }
    c->yielded &= load.yields;
    if (!q->generation || !(can & 1u << OP_ACK))
        return false;
    if (c->former && !c->cancels_former) {
        c->cancels_former = true;
        return cancel_consumer(q, c->former, ret);
    }
    if (c->former || c->state == CONSUMER_STARTING || c->state == CONSUMER_STOPPING)
        return false;
    if (c->state == CONSUMER_ACTIVE && !want && q->rules.ordered) {
        order_stop(q, now_ms, "the queue came to pause");
        return false;
    }
    if (c->state == CONSUMER_ACTIVE && !want && !keep) {
        c->state = CONSUMER_STOPPING;
        return cancel_consumer(q, c->number, ret);
    }
    if ((!keep && (!want || is_full(q, &load))) || now_ms < c->not_before_ms ||
        (c->state == CONSUMER_ACTIVE && !consumer_needs_renewal(c, &load, now_ms)))
        return false;
    subscribe_consumer(q, now_ms, &load, ret);
    return true;
}

static bool next_question(struct queue *q, unsigned can, struct action *ret)
{
    if (q->asks.depth && q->generation && can & 1u << OP_ACK) {
        q->asks.depth = false;
        *ret = (struct action){.kind = ACTION_ASK_DEPTH};
        return true;
    }
    if (q->asks.reopen && q->generation) {
        *ret = (struct action){.kind = ACTION_REOPEN, .text = q->asks.reopen};
        q->asks.reopen = NULL;
        return true;
    }
    if (q->asks.lock_holder && q->database->linked) {
        *ret = (struct action){.kind = ACTION_ASK_LOCK_HOLDER, .ref = q->asks.lock_holder};
        q->asks.lock_holder = 0;
        return true;
    }
    return false;
}

bool queue_next(struct queue *q, int64_t now_ms, unsigned can, struct action *ret)
{
    assert(!q->consequences.n && q->notes.at <= q->notes.n);
    if ((q->notes.n && next_note(q, ret)) || next_abandon(q, ret) || next_to_broker(q, now_ms, can, ret))
        return true;
    if (q->database->linked) {
        if ((can & 1u << OP_COMPLETE && action_take_first(q, now_ms, OP_COMPLETE, ret)) ||
            (can & 1u << OP_FAIL && next_fail(q, now_ms, ret)) ||
            (can & 1u << OP_RELEASE && action_take_first(q, now_ms, OP_RELEASE, ret)) ||
            next_renewal(q, now_ms, can, ret) || next_dead_letter(q, now_ms, can, ret) ||
            (can & 1u << OP_LOOK && next_look(q, now_ms, ret)) ||
            (can & 1u << OP_CLAIM && next_claim(q, now_ms, ret)))
            return true;
    }
    if (!q->database->linked && next_renewal(q, now_ms, can, ret))
        return true;
    if (can & 1u << OP_FORWARD && next_forward(q, now_ms, ret))
        return true;
    if (next_consumer(q, now_ms, can, ret) || next_question(q, can, ret))
        return true;
    return q->notes.n && next_note(q, ret); /* log lines of the steps above */
}

/* --- deadlines --- */

int64_t queue_deadline(const struct queue *q, int64_t now_ms)
{
    const struct queue_held *h = &q->held;
    int64_t until =
        time_earlier(timers_next_ms(&q->held.timers), limiter_deadline(&q->share->limiter, now_ms));

    until = time_earlier(until, q->tick_ms);
    if (h->wanted[OP_ACK].len && q->generation) {
        int64_t ready = delivery_at(h->wanted[OP_ACK].head.next)->ready_ms;
        int64_t due = q->flow.acking ? now_ms : ready + ack_gather_ms(q);

        until = time_earlier(until, due > now_ms ? due : now_ms + 1);
    }
    until = time_earlier(until, claims_deadline(q, now_ms));
    if (order_is_stopping(q))
        until = time_earlier(until, now_ms + STOP_LOOK_MS);
    if (q->consumer.state == CONSUMER_NONE && q->generation && q->consumer.not_before_ms > now_ms)
        until = time_earlier(until, q->consumer.not_before_ms);
    return time_earlier(until, drain_deadline(q, now_ms));
}
