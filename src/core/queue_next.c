/* What is to be done next: one action at a time, what is known to be done before what is new.
 *
 * Whatever is wanted stays wanted until the shell can carry it out: that is how batches grow by themselves,
 * without a timer. */
#include "core/decide.h"

#include "onceward/core/message.h"
#include "onceward/core/mutant.h"

#include <stdlib.h>
#include <string.h>

enum {
    N_RECLAIMS_MAX = 2,    /* new windows for one attempt before it goes with a short one */
    BACKLOG_LOOK_MS = 100, /* what waits so long for a slot is worth a look whether it was completed before */
    IDENTITY_WAIT_MS = 1000,
    LEFT_MS = 60000,
    REVOKED_MS = 1000,
    ALONE_LOOK_MS = 200, /* one that must go alone, and may not keep others waiting now */
    /* How long an ack waits for its predecessors before it goes alone, where credit is short and elsewhere:
     * one for many costs the broker a fraction of many. */
    ACK_STARVED_MS = 10,
    ACK_SINGLE_MS = 500,
    N_LETTERS_PASSED = 64, /* that cannot go now, before no other is looked for behind them */
};

static struct delivery *at(struct link *k)
{
    return container_of(k, struct delivery, in_list);
}

static bool take(struct queue *q, int64_t now_ms, struct delivery *d, enum action_kind kind,
                 struct action *ret)
{
    held_sent(q, now_ms, d);
    *ret = (struct action){
        .kind = kind, .d = d, .ref = d->ref, .generation = d->copy.generation, .tag = d->copy.number};
    return true;
}

/* --- what is said --- */

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
    if (!q->abandons.n)
        return false;
    *ret = (struct action){.kind = ACTION_ABANDON, .ref = q->abandons.refs[--q->abandons.n]};
    q->application->n_abandoned--;
    return true;
}

/* --- acks, rejects, requeues --- */

static bool is_acked(const struct delivery *d)
{
    return d->op == OP_ACK && d->phase == PHASE_WANTED && d->wait == WAIT_NONE;
}

/* The whole prefix of tags that may be acked, at once. */
static bool next_ack_prefix(struct queue *q, int64_t now_ms, struct action *ret)
{
    struct delivery *last = NULL;
    size_t n = 0;

    list_each(&q->held.unacked, k)
    {
        struct delivery *d = container_of(k, struct delivery, in_tags);

        if (!is_acked(d) && !(MUTANT(ACKS_TOO_MANY) && last))
            break;
        last = d;
        n++;
    }
    if (!last)
        return false;
    *ret = (struct action){.kind = ACTION_ACK,
                           .d = last,
                           .ref = last->ref,
                           .multiple = n > 1,
                           .generation = last->copy.generation,
                           .tag = last->copy.number,
                           .n = (int64_t)n};
    while (n--)
        held_end(q, now_ms, container_of(list_first(&q->held.unacked), struct delivery, in_tags));
    return true;
}

/* Nothing is left to claim while there are free slots, and acks would bring more. */
static bool is_starved(const struct queue *q)
{
    return q->held.unacked.len * 4 >= (size_t)q->consumer.prefetch * 3 && !q->held.wanted[OP_CLAIM].len &&
           (int)(q->held.n_out + q->held.n_reserved) < q->rules.concurrency;
}

static int64_t ack_patience_ms(const struct queue *q)
{
    if (q->drain)
        return 0;
    /* Credit lasts for 100,000/s all the same. */
    if (q->held.wanted[OP_ACK].len * 4 > (size_t)q->consumer.prefetch * 3)
        return q->consumer.prefetch < 1000 ? q->consumer.prefetch / 100 : ACK_STARVED_MS;
    return is_starved(q) ? ACK_STARVED_MS : ACK_SINGLE_MS;
}

/* Ascending: the broker looks each up from the oldest. */
static bool next_ack_single(struct queue *q, int64_t now_ms, struct action *ret)
{
    int64_t patience = ack_patience_ms(q);
    struct link *oldest = list_first(&q->held.wanted[OP_ACK]); /* the list is in the order of ready_ms */
    struct delivery *first = NULL;

    if (!oldest || now_ms - at(oldest)->ready_ms < patience)
        return false;

    list_each(&q->held.wanted[OP_ACK], k)
    {
        if (now_ms - at(k)->ready_ms >= patience && (!first || at(k)->copy.number < first->copy.number))
            first = at(k);
    }
    if (!first)
        return false;
    *ret = (struct action){.kind = ACTION_ACK,
                           .d = first,
                           .ref = first->ref,
                           .generation = first->copy.generation,
                           .tag = first->copy.number,
                           .n = 1};
    held_end(q, now_ms, first);
    return true;
}

static bool next_of_broker(struct queue *q, int64_t now_ms, enum operation op, enum action_kind kind,
                           struct action *ret)
{
    struct link *k = list_first(&q->held.wanted[op]);

    if (!k)
        return false;
    struct delivery *d = at(k);
    *ret = (struct action){
        .kind = kind, .d = d, .ref = d->ref, .generation = d->copy.generation, .tag = d->copy.number};
    held_end(q, now_ms, d);
    return true;
}

static bool next_to_broker(struct queue *q, int64_t now_ms, unsigned can, struct action *ret)
{
    if (!q->generation)
        return false;
    return (can & 1u << OP_ACK && (next_ack_prefix(q, now_ms, ret) || next_ack_single(q, now_ms, ret))) ||
           (can & 1u << OP_REJECT && next_of_broker(q, now_ms, OP_REJECT, ACTION_REJECT, ret)) ||
           (can & 1u << OP_REQUEUE && next_of_broker(q, now_ms, OP_REQUEUE, ACTION_REQUEUE, ret));
}

/* --- what ends an attempt --- */

static bool next_plain(struct queue *q, int64_t now_ms, enum operation op, struct action *ret)
{
    struct link *k = list_first(&q->held.wanted[op]);

    return k && take(q, now_ms, at(k), ACTION_DATABASE, ret);
}

static bool next_fail(struct queue *q, int64_t now_ms, struct action *ret)
{
    struct link *k = list_first(&q->held.wanted[OP_REVOKE]);

    if (k) { /* a window's end is charged like any other failure, or not */
        at(k)->outcome.give_back = q->brake.on || decide_is_tainted(q, at(k));
        return take(q, now_ms, at(k), ACTION_DATABASE, ret);
    }
    k = list_first(&q->held.wanted[OP_FAIL]);
    if (!k)
        return false;
    at(k)->outcome.give_back |= at(k)->outcome.charged && decide_is_tainted(q, at(k));
    return take(q, now_ms, at(k), ACTION_DATABASE, ret);
}

/* Messages whose end is not known yet, and could still set the circuit breaker. */
static size_t n_open(const struct queue *q)
{
    const struct queue_held *h = &q->held;

    return h->n_out + h->n_reserved + h->wanted[OP_CLAIM].len + h->wanted[OP_LOOK].len +
           h->sent[OP_LOOK].len + h->wanted[OP_CHECK].len + h->sent[OP_CHECK].len +
           h->waiting[WAIT_WATCHING].len;
}

/* Others without an id may be on their way: one batch of deliveries is not everything. */
static bool identity_waits(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    bool no_id = d->outcome.dead == DEAD_NO_MESSAGE_ID || d->outcome.dead == DEAD_INVALID_MESSAGE_ID;

    return no_id && d->outcome.charged && q->brake.threshold && !q->drain &&
           now_ms - d->ready_ms < IDENTITY_WAIT_MS;
}

/* A death waits while others' answers will tell whether it is the message; for half a window at most, since
 * the token must still be the row's. */
static bool death_waits(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    return d->outcome.charged && brake_may_set(&q->brake, n_open(q)) &&
           now_ms - d->ready_ms <= q->rules.token_window_ms / 2;
}

/* Is it to be sent with what can be sent now? */
static bool letter_can_go(struct queue *q, const struct delivery *d, unsigned can)
{
    if (!queue_letter_is_large(d))
        return can & 1u << OP_BURY;
    q->asks.large_letter = true;
    return can & CAN_BURY_LARGE;
}

static bool next_bury(struct queue *q, int64_t now_ms, unsigned can, struct action *ret)
{
    int n_passed = 0;

    list_each(&q->held.wanted[OP_BURY], k)
    {
        struct delivery *d = at(k);

        if (identity_waits(q, now_ms, d) || death_waits(q, now_ms, d))
            continue;
        if (d->outcome.charged && d->claim.has_token && decide_is_tainted(q, d)) {
            decide_release(q, now_ms, d, held_backoff_ms(q, ++d->n_given_back), -1, -1);
            continue;
        }
        if (letter_can_go(q, d, can))
            return take(q, now_ms, d, ACTION_DATABASE, ret);
        if (++n_passed == N_LETTERS_PASSED)
            return false;
    }
    return false;
}

/* --- claims and looks --- */

/* Most are copies of what was completed: then a look, which costs a fraction of a claim, comes first. */
static bool most_are_duplicates(const struct queue *q)
{
    return q->flow.duplicates > 0.6;
}

static bool may_be_looked_at(const struct delivery *d)
{
    return !d->claim.looked && !d->claim.has_token && !d->claim.crashes && !d->claim.takeovers &&
           !d->given_up;
}

static bool next_look(struct queue *q, int64_t now_ms, struct action *ret)
{
    if (next_plain(q, now_ms, OP_CHECK, ret) || next_plain(q, now_ms, OP_LOOK, ret))
        return true;
    if (q->flow.no_look_ms == now_ms) /* found nothing in this millisecond */
        return false;
    list_each(&q->held.wanted[OP_CLAIM], k)
    {
        struct delivery *d = at(k);

        if (d->ready_ms + BACKLOG_LOOK_MS > now_ms && !most_are_duplicates(q))
            return false; /* in the order of their times */
        if (!may_be_looked_at(d))
            continue;
        d->claim.looked = true;
        held_want(q, now_ms, d, OP_LOOK);
        return take(q, now_ms, d, ACTION_DATABASE, ret);
    }
    q->flow.no_look_ms = now_ms;
    return false;
}

static bool may_begin(const struct queue *q)
{
    return (!q->drain || MUTANT(DRAIN_FORWARDS)) && !q->lever.paused && !q->lever.awaited &&
           (database_is_up(q->database) || MUTANT(DOWN_IS_IGNORED)) && !pause_is_on(q, PAUSE_REFUSED) &&
           !pause_is_on(q, PAUSE_STREAM);
}

static int n_busy(const struct queue *q)
{
    return (int)(q->held.n_out + q->held.n_reserved);
}

/* One at a time is tried: then each try takes another message, in the order of their last tries. */
static bool is_trying(const struct queue *q)
{
    return q->limiter.limit < 2 || q->application->limiter.limit < 2 || q->brake.on;
}

/* How many claims beyond the free slots will find a slot by the time their answer is here: what is served
 * during one round trip of a claim. Twice that, since the next claims leave only when these have come, and
 * some take longer than the mean: a slot that has to wait is lost. */
static int look_ahead(const struct queue *q)
{
    int limit = (int)(q->limiter.limit < q->application->limiter.limit ? q->limiter.limit
                                                                       : q->application->limiter.limit);
    double n = q->flow.service_us > 0 ? 2 * limit * q->flow.claim_us / q->flow.service_us : 0;
    int most = limit * 4;

    if (is_trying(q))
        return 0;
    if (most > q->rules.prefetch / 2)
        most = q->rules.prefetch / 2;
    return n < most ? (int)n : most;
}

/* May one more claim be sent? A queue with nothing under way may always send one, unless somebody says wait.
 */
static bool has_slot(const struct queue *q, int64_t now_ms)
{
    int busy = n_busy(q), room = limiter_room(&q->limiter, now_ms), ahead;

    if (!room || !application_may_send(q->application, now_ms, 0))
        return false;
    if (!busy)
        return true;
    ahead = look_ahead(q);
    if (room > q->rules.concurrency)
        room = q->rules.concurrency;
    return busy < room + ahead && q->application->n_out + q->application->n_reserved <
                                      limiter_room(&q->application->limiter, now_ms) + ahead;
}

static void claim_prepare(struct queue *q, int64_t now_ms, struct delivery *d, bool alone)
{
    d->claim.fresh = !d->claim.has_token && !(MUTANT(TOKEN_USED_AGAIN) && d->tried_ms);
    if (d->claim.fresh)
        d->claim.row_is_ours = false;
    d->claim.has_token = true;
    d->claim.alone = alone;
    d->claim.window_ends_ms = now_ms + q->rules.token_window_ms;
    d->outcome.exhausted = d->outcome.rowless = d->outcome.only_expired = d->outcome.give_back =
        d->outcome.charged = false;
    d->outcome.then_requeue = d->outcome.died = false;
    d->outcome.write_crashes = d->outcome.write_unproven = -1;
    d->outcome.http_status = 0;
    d->request.kept_verdict = -1;
    d->request.commit_until_ms = 0;
}

static bool claim(struct queue *q, int64_t now_ms, struct delivery *d, bool alone, struct action *ret)
{
    claim_prepare(q, now_ms, d, alone);
    return take(q, now_ms, d, ACTION_DATABASE, ret);
}

/* What the broker is about to drop, and what an operator lets die, is claimed only to be buried: whatever
 * becomes of the application. */
static bool next_last_chance(struct queue *q, int64_t now_ms, struct action *ret)
{
    if (!database_is_up(q->database) || q->drain >= DRAIN_RELEASING)
        return false;
    list_each(&q->held.wanted[OP_CLAIM], k)
    {
        /* It is not sent, so it is as good as alone; a row that was taken over before is given to no other.
         */
        if (decide_is_near(q, at(k)) || at(k)->given_up)
            return claim(q, now_ms, at(k), at(k)->claim.takeovers >= N_ALONE_TAKEOVERS, ret);
    }
    return false;
}

static bool needs_to_be_alone(const struct delivery *d)
{
    return (d->claim.crashes > 0 || d->claim.takeovers >= N_ALONE_TAKEOVERS) && !MUTANT(ALONE_WITH_OTHERS);
}

/* While everything fails and another replica consumes, none that was redelivered is tried: the others are to
 * get those. But where nothing else comes, nobody would ever learn that the application is well again: then
 * one is tried in LEFT_MS. */
static bool is_left_to_others(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    return q->brake.on && q->n_others && d->copy.redelivered &&
           (now_ms - q->brake.tried_ms < LEFT_MS || MUTANT(LEFT_FOR_EVER));
}

/* The one that waits to go alone, if it is of this queue: while it does, no other may. */
static struct delivery *place_holder(struct queue *q)
{
    list_each(&q->held.wanted[OP_CLAIM], k)
    {
        if (held_holder(q, at(k)) == q->application->place.holder)
            return at(k);
    }
    return NULL;
}

/* Whose turn is it? The first that waits; where one at a time is tried, the one whose last try is the oldest.
 */
static struct delivery *next_candidate(struct queue *q, int64_t now_ms)
{
    struct delivery *best = q->application->place.holder ? place_holder(q) : NULL;

    if (best)
        return best;

    list_each(&q->held.wanted[OP_CLAIM], k)
    {
        struct delivery *d = at(k);

        if ((most_are_duplicates(q) && may_be_looked_at(d)) || is_left_to_others(q, now_ms, d))
            continue;
        if (!is_trying(q))
            return d;
        if (!best || d->tried_ms < best->tried_ms)
            best = d;
        if (best && !best->tried_ms)
            return best;
    }
    if (best || !q->brake.on)
        return best;
    list_each(&q->held.waiting[WAIT_BRAKE], k)
    {
        if (at(k)->op == OP_CLAIM && !is_left_to_others(q, now_ms, at(k)))
            return at(k);
    }
    return NULL;
}

/* Held for max_hold already: another attempt would hold it for longer. */
static bool leaves_instead(struct queue *q, int64_t now_ms, struct delivery *d)
{
    struct note *n;

    if (now_ms - d->copy.received_ms < q->rules.max_hold_ms || !decide_leave(q, now_ms, d))
        return false;
    n = held_tell_limited(q, now_ms, EVENT_RETURNED, NULL);
    if (n)
        n->n = 1;
    note_text(n, "held for max_hold");
    return true;
}

static int brake_tries(const struct queue *q)
{
    return q->n_others ? 1 : q->rules.concurrency;
}

static bool next_claim(struct queue *q, int64_t now_ms, struct action *ret)
{
    enum place place = PLACE_BESIDE;

    if (next_last_chance(q, now_ms, ret))
        return true;
    if (!may_begin(q))
        return false;
    for (;;) {
        struct delivery *d = next_candidate(q, now_ms);

        if (!d)
            return false;
        if (leaves_instead(q, now_ms, d))
            continue;
        bool alone = needs_to_be_alone(d);

        /* The place is asked for before the slots: while somebody has it there are none for others. */
        if (alone) {
            if (!limiter_room(&q->limiter, now_ms))
                return false;
            place = application_take_place(q->application, now_ms, held_holder(q, d));
            if (place == PLACE_WAIT)
                return false;
        }
        alone = alone && place == PLACE_TAKEN;
        if (!alone && needs_to_be_alone(d) && d->claim.takeovers >= N_ALONE_TAKEOVERS) {
            held_wait(q, now_ms, d, OP_CLAIM, WAIT_DUE, now_ms + ALONE_LOOK_MS);
            continue;
        }
        if (!alone && !has_slot(q, now_ms))
            return false;
        if (q->brake.on && !brake_try(&q->brake, now_ms, brake_tries(q)))
            return false;
        return claim(q, now_ms, d, alone, ret);
    }
}

/* --- requests --- */

/* A claim that came to nothing: no slot was free until its window was nearly over, or none will be soon. */
static bool is_unsendable(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    int64_t left = d->claim.window_ends_ms - now_ms, tenth = q->rules.token_window_ms / 10;

    if (left < tenth)
        return true;
    if (!may_begin(q) && !(q->drain && database_is_up(q->database)))
        return true;
    return q->drain || q->application->gone || q->application->probe.failing ||
           q->limiter.wait_until_ms > now_ms + tenth ||
           q->application->limiter.wait_until_ms > now_ms + tenth;
}

static bool may_forward(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    const struct application *a = q->application;
    int room = limiter_room(&q->limiter, now_ms);

    if (a->gone || a->probe.failing || !limiter_room(&a->limiter, now_ms) || !room)
        return false;
    if (a->place.holder == held_holder(q, d))
        return a->place.taken;
    /* What was claimed before somebody asked to be alone is what that one waits for. */
    if (a->place.holder && ((a->place.taken && now_ms < a->place.until_ms) || MUTANT(WAITS_FOR_EACH_OTHER)))
        return false;
    if (!q->held.n_out)
        return true;
    return MUTANT(CONCURRENCY_IGNORED) ||
           ((int)q->held.n_out < room && (int)q->held.n_out < q->rules.concurrency &&
            a->n_out < limiter_room(&a->limiter, now_ms));
}

/* One that crashed the application, perhaps, has it for itself for a window at first, and for twice that with
 * each crash: so a killer that takes long is found all the same. */
static void share_place(struct queue *q, int64_t now_ms, const struct delivery *d)
{
    int64_t patience = q->rules.token_window_ms;

    if (!d->claim.alone || d->claim.takeovers >= N_ALONE_TAKEOVERS)
        return;
    for (int i = 1; i < d->claim.crashes && patience < q->rules.max_window_ms; i++)
        patience *= 2;
    /* What only hangs has been revoked by then. */
    application_share_place(q->application, held_holder(q, d), now_ms + patience + REVOKED_MS);
}

static bool next_forward(struct queue *q, int64_t now_ms, struct action *ret)
{
    list_each(&q->held.wanted[OP_FORWARD], k)
    {
        struct delivery *d = at(k);
        int64_t left = d->claim.window_ends_ms - now_ms;

        if (is_unsendable(q, now_ms, d)) {
            held_say(d, "its window was nearly over, or the queue came to pause, before it could be sent",
                     NULL);
            decide_release(q, now_ms, d, 0, -1, -1);
            if (q->drain && !d->ended)
                d->outcome.then_requeue = true;
            continue;
        }
        if (!may_forward(q, now_ms, d))
            continue;
        /* A slot has to be free, or the new window would wait as the old one did. */
        if (left < q->rules.token_window_ms / 10 * 9 && d->claim.n_reclaims < N_RECLAIMS_MAX) {
            d->claim.n_reclaims++;
            held_want(q, now_ms, d, OP_CLAIM);
            continue;
        }
        if (left < q->rules.token_window_ms / 10 * 9) {
            struct note *n = held_tell_limited(q, now_ms, EVENT_SHORT_WINDOW, d);

            if (n)
                n->ms = left;
        }
        d->claim.n_reclaims = 0;
        share_place(q, now_ms, d);
        d->request.probation = q->brake.on;
        held_out(q, now_ms, d);
        *ret = (struct action){.kind = ACTION_FORWARD, .d = d, .ref = d->ref};
        return true;
    }
    return false;
}

/* --- the consumer --- */

static struct consumer_load load_of(const struct queue *q)
{
    const struct queue_held *h = &q->held;

    return (struct consumer_load){
        .prefetch = q->rules.prefetch,
        .max_parked = q->rules.max_parked,
        .max_bytes = q->rules.max_bytes,
        .n_bytes = h->n_bytes,
        .n_waiting = queue_n_parked(q) + h->waiting[WAIT_WATCHING].len + h->wanted[OP_CLAIM].len +
                     h->sent[OP_CLAIM].len + h->wanted[OP_LOOK].len + h->sent[OP_LOOK].len,
    };
}

static bool may_consume(const struct queue *q)
{
    static const enum pause_reason stops[] = {PAUSE_PARKED_FULL, PAUSE_BYTES_FULL, PAUSE_TOO_LARGE,
                                              PAUSE_REFUSED,     PAUSE_STREAM,     PAUSE_OPERATOR,
                                              PAUSE_DATABASE};

    for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++)
        if (pause_is_on(q, stops[i]))
            return false;
    if ((!q->ready && !database_is_up(q->database)) || q->lever.awaited)
        return false;
    return !q->drain && q->application->reached && !q->left_to_others;
}

/* As much waits here as may: fresh credit, be it of one delivery, would add to it each time. */
static bool is_full(const struct queue *q, const struct consumer_load *l)
{
    int most = q->rules.max_parked > q->rules.prefetch ? q->rules.max_parked : q->rules.prefetch;

    return l->n_waiting >= (size_t)most && !MUTANT(PARKED_WITHOUT_BOUND);
}

static bool next_consumer(struct queue *q, int64_t now_ms, unsigned can, struct action *ret)
{
    struct consumer_load load = load_of(q);
    struct consumer *c = &q->consumer;
    bool want = may_consume(q), full = is_full(q, &load);

    if (!q->generation || !(can & 1u << OP_ACK))
        return false;
    if (c->state == CONSUMER_ACTIVE && (!want || (!full && consumer_needs_renewal(c, &load, now_ms)))) {
        c->state = CONSUMER_STOPPING;
        c->watch.stuck_for = NULL;
        *ret = (struct action){.kind = ACTION_CANCEL, .number = c->number};
        return true;
    }
    if (c->state != CONSUMER_NONE || !want || full || now_ms < c->not_before_ms)
        return false;
    c->prefetch = consumer_prefetch(c, &load) * (MUTANT(PREFETCH_FOURFOLD) ? 4 : 1);
    c->number++;
    c->state = CONSUMER_STARTING;
    c->started_ms = now_ms;
    c->n_used = c->n_parked = 0;
    c->watch.stuck_for = NULL;
    *ret = (struct action){.kind = ACTION_CONSUME, .number = c->number, .n = c->prefetch};
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
    if (q->asks.holder && q->database->linked) {
        *ret = (struct action){.kind = ACTION_ASK_HOLDER, .ref = q->asks.holder};
        q->asks.holder = 0;
        return true;
    }
    return false;
}

bool queue_next(struct queue *q, int64_t now_ms, unsigned can, struct action *ret)
{
    if (next_note(q, ret) || next_abandon(q, ret) || next_to_broker(q, now_ms, can, ret))
        return true;
    if (q->database->linked) {
        if ((can & 1u << OP_COMPLETE && next_plain(q, now_ms, OP_COMPLETE, ret)) ||
            (can & 1u << OP_FAIL && next_fail(q, now_ms, ret)) ||
            (can & 1u << OP_RELEASE && next_plain(q, now_ms, OP_RELEASE, ret)) ||
            next_bury(q, now_ms, can, ret) || (can & 1u << OP_LOOK && next_look(q, now_ms, ret)) ||
            (can & 1u << OP_CLAIM && next_claim(q, now_ms, ret)))
            return true;
    }
    if (can & 1u << OP_FORWARD && next_forward(q, now_ms, ret))
        return true;
    if (next_consumer(q, now_ms, can, ret) || next_question(q, can, ret))
        return true;
    return next_note(q, ret); /* what these have said */
}

/* --- when to look again --- */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t queue_deadline(const struct queue *q, int64_t now_ms)
{
    const struct queue_held *h = &q->held;
    int64_t until = earlier(held_next_timer_ms(q), limiter_deadline(&q->limiter, now_ms));

    until = earlier(until, q->tick_ms);
    if (h->wanted[OP_ACK].len && q->generation) {
        int64_t ripe = at(h->wanted[OP_ACK].head.next)->ready_ms + ack_patience_ms(q);

        until = earlier(until, ripe > now_ms ? ripe : now_ms + 1);
    }
    if (h->wanted[OP_CLAIM].len && h->wanted[OP_CLAIM].head.next)
        until = earlier(until, at(h->wanted[OP_CLAIM].head.next)->ready_ms + BACKLOG_LOOK_MS > now_ms
                                   ? at(h->wanted[OP_CLAIM].head.next)->ready_ms + BACKLOG_LOOK_MS
                                   : INT64_MAX);
    if (q->brake.on && (h->wanted[OP_CLAIM].len || h->waiting[WAIT_BRAKE].len)) {
        int64_t next = brake_deadline(&q->brake, now_ms, brake_tries(q));

        if (next > now_ms)
            until = earlier(until, next);
    }
    if (q->consumer.state == CONSUMER_NONE && q->generation && q->consumer.not_before_ms > now_ms)
        until = earlier(until, q->consumer.not_before_ms);
    if (q->drain && q->drain != DRAIN_DONE)
        until = earlier(until, q->drain_until_ms > now_ms ? q->drain_until_ms : INT64_MAX);
    return until;
}
