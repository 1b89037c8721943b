/* Selects the next deliveries to claim, look up and forward, if there is a slot. See claims.h. */
#include "core/batches.h"
#include "core/claims.h"
#include "core/notes.h"
#include "core/order.h"
#include "core/pauses.h"
#include "core/quarantine.h"
#include "core/run_claims.h"
#include "core/runs.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>

enum {
    N_RECLAIMS_MAX = 2,    /* new windows for one attempt, before it is forwarded with a short one */
    BACKLOG_LOOK_MS = 100, /* a message that waits this long for a slot is looked up: it may be completed */
    LOOK_EVERY_MS = 20,    /* between two passes over the waiting messages */
    N_LOOKS = 64,          /* lookups wanted at once: a message that waits for one cannot be claimed */
    LEFT_MS = 60000,       /* between two tries of a message left to others, if nothing else arrives */
    REVOKED_MS = 1000,
    ALONE_LOOK_MS = 200, /* the same, if it needs quarantine and may not keep others waiting now */
};

bool action_take(struct queue *q, int64_t now_ms, struct delivery *d, enum action_kind kind,
                 struct action *ret)
{
    life_go(q, now_ms, d, FACT_TURN, step_sent(d));
    *ret = (struct action){.kind = kind, .d = d, .ref = d->ref, .tag = d->arrival->copy.tag};
    return true;
}

/* --- claims and lookups --- */

/* Most messages are copies of completed ones: then a lookup, which costs a fraction of a claim, comes first. */
static bool most_are_duplicates(const struct queue *q)
{
    return q->flow.duplicates > 0.6;
}

/* Are some messages copies, so that a lookup saves a claim? In a queue of new messages each would be looked up once
 * its backlog waits for BACKLOG_LOOK_MS. But if nothing was claimed for that long, a lookup is the only progress for
 * completed messages. */
static bool looks_pay(const struct queue *q, int64_t now_ms)
{
    return q->flow.duplicates > 0.02 || now_ms - q->flow.claimed_ms > BACKLOG_LOOK_MS;
}

static bool may_be_looked_at(const struct delivery *d)
{
    return !d->claim->looked && !delivery_has_token(d) && !d->claim->crashes && !d->claim->takeovers &&
           !d->given_up;
}

/* Wants lookups for all ripe messages, up to N_LOOKS. One pass over those looked up before serves many. */
static void want_looks(struct queue *q, int64_t now_ms)
{
    bool most = most_are_duplicates(q);
    int64_t next = now_ms + (most ? 1 : BACKLOG_LOOK_MS); /* when new messages are worth it */
    int n = 0;

    q->flow.looks_left = false;
    list_each(&q->held.wanted[OP_CLAIM], k)
    {
        struct delivery *d = delivery_at(k);
        int64_t ripe = d->ready_ms + BACKLOG_LOOK_MS; /* in the order of their times */

        if (!may_be_looked_at(d))
            continue;
        if (!most && ripe > now_ms) {
            next = ripe > now_ms + LOOK_EVERY_MS ? ripe : now_ms + LOOK_EVERY_MS;
            q->flow.looks_left = true;
            break;
        }
        if (n++ == N_LOOKS) {
            next = now_ms;
            q->flow.looks_left = true;
            break;
        }
        d->claim->looked = true;
        life_go(q, now_ms, d, FACT_TURN, step_want(OP_LOOK));
    }
    q->flow.look_ms = next;
}

/* When most messages are copies, each is looked up before its claim: so lookups postponed while copies were few are
 * due now. */
static bool may_look(const struct queue *q, int64_t now_ms)
{
    if (most_are_duplicates(q))
        return q->flow.look_ms != now_ms + 1; /* as set by want_looks() */
    return now_ms >= q->flow.look_ms && looks_pay(q, now_ms);
}

bool next_look(struct queue *q, int64_t now_ms, struct action *ret)
{
    if (action_take_first(q, now_ms, OP_CHECK, ret) || action_take_first(q, now_ms, OP_LOOK, ret))
        return true;
    if (!may_look(q, now_ms))
        return false;
    want_looks(q, now_ms);
    return action_take_first(q, now_ms, OP_LOOK, ret);
}

static bool may_begin(const struct queue *q)
{
    return !q->drain && !q->commands.paused && !q->commands.awaited && database_is_up(q->database) &&
           !pause_is_on(q, PAUSE_REFUSED) && !pause_is_on(q, PAUSE_STREAM) && !order_is_stopping(q) &&
           !pause_is_on(q, PAUSE_DELIVERY_LIMIT);
}

int claims_n_slots(const struct queue *q)
{
    return (int)(q->share->n_in_flight + slots_of(q->share->reserved_units) +
                 slots_of(q->share->accepted_units));
}

/* Is one message at a time tried? Then each try takes another message, in the order of their last tries. */
static bool is_trying(const struct queue *q)
{
    return q->share->limiter.limit < 2 || q->application->limiter.limit < 2 || q->share->brake.on;
}

/* Number of claims beyond the free slots that will find a slot when they are answered: as many as are served during
 * one round trip of a claim. Doubled, since the next claims wait for these, and a slot that waits is lost. */
static int look_ahead(const struct queue *q)
{
    int limit =
        (int)(q->share->limiter.limit < q->application->limiter.limit ? q->share->limiter.limit
                                                                      : q->application->limiter.limit);
    double n = q->flow.service_us > 0 ? 2 * limit * q->flow.claim_us / q->flow.service_us : 0;
    int most = limit * 4, prefetch = q->rules.prefetch;

    if (is_trying(q))
        return 0;
    if (batches_are_on(q)) { /* the next request is claimed while all slots are taken */
        prefetch /= (int)batches_messages(q);
        n = n < 1 ? 1 : n;
    }
    if (most > prefetch / 2)
        most = prefetch / 2;
    return n < most ? (int)n : most;
}

/* May one more claim be sent? A queue with nothing in flight may always send one, unless a limiter waits. */
static bool has_slot(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    int busy = claims_n_slots(q), room = limiter_room(&q->share->limiter, now_ms), ahead, more;

    if (!room || !application_may_send(q->application, now_ms, 0))
        return false;
    if (!busy)
        return true;
    ahead = look_ahead(q);
    more = (int)(slots_of(q->held.reserved_units + batches_share(q, d)) - slots_of(q->held.reserved_units));
    if (room > q->rules.concurrency)
        room = q->rules.concurrency;
    return busy + more <= room + ahead &&
           application_taken(q->application) + more <= limiter_room(&q->application->limiter, now_ms) + ahead;
}

static void claim_prepare(struct queue *q, int64_t now_ms, struct delivery *d, bool alone)
{
    if (!delivery_has_token(d))
        d->claim->of_row = CLAIM_OFFERED;
    d->claim->alone = alone;
    d->claim->is_behind = q->rules.ordered && order_waits(d);
    d->claim->trial = q->share->brake.on;
    d->claim->window_ends_ms = now_ms + q->rules.token_window_ms;
    held_outcome(d, OUTCOME_NONE);
    if (d->outcome.request != REQUEST_PUT_OFF)
        d->outcome.request = REQUEST_ANSWERED;
    d->outcome.http_status = d->claim->next_cap = 0;
    mem_clear(&d->claim->kept);
}

static bool claim_delivery(struct queue *q, int64_t now_ms, struct delivery *d, bool alone,
                           struct action *ret)
{
    bool fresh = !delivery_has_token(d);

    assert(d->op == OP_CLAIM && d->phase == PHASE_WANTED && d->arrival->message && d->arrival->id_len);
    if (q->rules.ordered && !order_waits(d) && !alone)
        run_claims_begin(q, d);
    claim_prepare(q, now_ms, d, alone);
    q->flow.claimed_ms = now_ms;
    action_take(q, now_ms, d, ACTION_DATABASE, ret);
    ret->new_token = fresh;
    return true;
}

/* Claims a message only to dead-letter it, even if the application is down: the broker is about to drop it, or an
 * operator gives it up. */
static bool next_last_chance(struct queue *q, int64_t now_ms, struct action *ret)
{
    if (!q->flow.last_chances || !database_is_up(q->database) || q->drain >= DRAIN_LEAVING)
        return false;
    list_each(&q->held.wanted[OP_CLAIM], k)
    {
        /* A message that can be renewed is not claimed for its letter. */
        if (held_is_near(q, delivery_at(k)) && held_can_renew(q, delivery_at(k)))
            continue;
        /* The message is not forwarded, so it counts as alone; a row that was taken over before requires that. */
        if (held_is_near(q, delivery_at(k)) || delivery_at(k)->given_up)
            return claim_delivery(q, now_ms, delivery_at(k),
                                  delivery_at(k)->claim->takeovers >= N_ALONE_TAKEOVERS, ret);
    }
    q->flow.last_chances = false;
    return false;
}

static bool needs_to_be_alone(const struct delivery *d)
{
    return d->row_end != ROW_END_ON_HOLD &&
           (d->claim->crashes > 0 || d->claim->takeovers >= N_ALONE_TAKEOVERS);
}

/* Must the message wait for quarantine? Beside others it would crash them too, and its crash would prove nothing. */
static bool goes_only_alone(const struct delivery *d)
{
    return d->row_end != ROW_END_ON_HOLD &&
           (d->claim->crashes >= N_ALONE_CRASHES || d->claim->takeovers >= N_ALONE_TAKEOVERS);
}

/* Do other replicas get messages? Those of an ordered queue get none while this one has it. */
static bool others_get_messages(const struct queue *q)
{
    return q->n_others && !q->rules.ordered;
}

/* While the circuit breaker is on and another replica consumes, redelivered messages are left to the others. If
 * nothing else arrives, one is tried every LEFT_MS, or the application's recovery would go unnoticed. */
static bool is_left_to_others(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    return q->share->brake.on && others_get_messages(q) && delivery_is_redelivered(d) &&
           now_ms - q->share->brake.tried_ms < LEFT_MS;
}

/* The message of this queue that waits for quarantine: no other may go meanwhile. The circuit breaker may hold it
 * back. NULL: none. */
static struct delivery *place_owner(struct queue *q)
{
    uint64_t owner = q->application->place.owner;
    const struct list *lists[] = {&q->held.wanted[OP_CLAIM], &q->held.waiting[WAIT_BRAKE]};

    if (!owner || queue_number_of(owner) != q->number)
        return NULL;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        list_each(lists[i], k)
        {
            if (quarantine_owner(q, delivery_at(k)) == owner && delivery_at(k)->op == OP_CLAIM)
                return delivery_at(k);
        }
    }
    return NULL;
}

/* Frees the quarantine of a message that may not be sent now. */
static void give_up_place(struct queue *q, int64_t now_ms)
{
    struct delivery *d = place_owner(q);

    if (d)
        quarantine_leave(q, now_ms, d);
}

/* Next candidate: the first waiting message or, while one at a time is tried, the one with the oldest last try. */
static struct delivery *next_candidate(struct queue *q, int64_t now_ms)
{
    struct delivery *best = place_owner(q);

    if (best)
        return best;

    list_each(&q->held.wanted[OP_CLAIM], k)
    {
        struct delivery *d = delivery_at(k);

        if ((most_are_duplicates(q) && may_be_looked_at(d)) || is_left_to_others(q, now_ms, d))
            continue;
        if (!is_trying(q))
            return d;
        if (!best || d->claim->tried_ms < best->claim->tried_ms)
            best = d;
        if (best && !best->claim->tried_ms)
            return best;
    }
    if (best || !q->share->brake.on)
        return best;
    list_each(&q->held.waiting[WAIT_BRAKE], k)
    {
        if (delivery_at(k)->op == OP_CLAIM && !is_left_to_others(q, now_ms, delivery_at(k)))
            return delivery_at(k);
    }
    return NULL;
}

/* Has the message been held for max_hold? Another attempt would hold it longer. */
static bool leaves_instead(struct queue *q, int64_t now_ms, struct delivery *d)
{
    struct note *n;

    struct step s = now_ms - d->arrival->received_ms < q->rules.max_hold_ms || q->rules.ordered
                        ? step_stay()
                        : life_leave(q, now_ms, d);

    if (s.kind == STEP_STAY)
        return false;
    life_go(q, now_ms, d, FACT_LEAVE, s);
    n = notes_tell_limited(q, now_ms, EVENT_RETURNED, NULL);
    if (n)
        n->n = 1;
    note_text(n, "held for max_hold");
    return true;
}

static int brake_tries(const struct queue *q)
{
    return others_get_messages(q) ? 1 : q->rules.concurrency;
}

bool next_claim(struct queue *q, int64_t now_ms, struct action *ret)
{
    enum place place = PLACE_BESIDE;

    if (next_last_chance(q, now_ms, ret))
        return true;
    if (!may_begin(q)) {
        give_up_place(q, now_ms);
        return false;
    }
    for (;;) {
        struct delivery *d = run_claims_next(q);

        if (d) {
            life_go(q, now_ms, d, FACT_KEY, step_want(OP_CLAIM));
            return claim_delivery(q, now_ms, d, false, ret);
        }
        d = quarantine_next(q, now_ms);
        if (d)
            return claim_delivery(q, now_ms, d, true, ret);
        d = next_candidate(q, now_ms);
        if (!d)
            return false;
        if (leaves_instead(q, now_ms, d))
            continue;
        bool alone = needs_to_be_alone(d);
        int64_t others_first_ms =
            alone && q->share->brake.on ? application_others_first_ms(q->application) : 0;

        if (now_ms < others_first_ms && !q->application->gone) {
            life_go(q, now_ms, d, FACT_TURN, step_wait(OP_CLAIM, WAIT_DUE, others_first_ms));
            continue;
        }
        /* Quarantine is requested before the slots: while another message has it, there are no slots. */
        if (alone) {
            if (!limiter_room(&q->share->limiter, now_ms)) {
                give_up_place(q, now_ms);
                return false;
            }
            quarantine_open(q, d);
            place =
                application_take_place(q->application, now_ms, quarantine_owner(q, d), goes_only_alone(d));
            if (place == PLACE_WAIT)
                return false;
            if (place == PLACE_BESIDE)
                quarantine_leave(q, now_ms, d);
        }
        alone = alone && place == PLACE_TAKEN;
        if (!alone && needs_to_be_alone(d) && goes_only_alone(d)) {
            life_go(q, now_ms, d, FACT_TURN, step_wait(OP_CLAIM, WAIT_DUE, now_ms + ALONE_LOOK_MS));
            continue;
        }
        if (!alone && !has_slot(q, now_ms, d))
            return false;
        if (q->share->brake.on && !brake_try(&q->share->brake, now_ms, brake_tries(q)))
            return false;
        return claim_delivery(q, now_ms, d, alone, ret);
    }
}

/* --- requests --- */

/* Is the claim useless? No slot was free until its window had nearly ended, or none will be soon. */
static bool is_unsendable(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    int64_t left = d->claim->window_ends_ms - now_ms, tenth = q->rules.token_window_ms / 10;

    if (left < tenth)
        return true;
    /* Claimed for a request with many messages; now each would be a trial, all at once. */
    if (batches_are_on(q) && q->share->brake.on && !d->claim->trial)
        return true;
    if (!may_begin(q) && !(q->drain && database_is_up(q->database)))
        return true;
    return q->drain || q->application->gone || q->application->probe.failing ||
           q->share->limiter.wait_until_ms > now_ms + tenth ||
           q->application->limiter.wait_until_ms > now_ms + tenth;
}

static int n_sent_slots(const struct queue *q)
{
    return (int)(q->share->n_in_flight + slots_of(q->share->accepted_units));
}

static bool may_forward(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    const struct application *a = q->application;
    int room = limiter_room(&q->share->limiter, now_ms), taken = n_sent_slots(q);

    if (a->gone || a->probe.failing || !limiter_room(&a->limiter, now_ms) || !room)
        return false;
    if (a->place.owner == quarantine_owner(q, d))
        return a->place.taken && quarantine_is_claimed(q, d);
    /* Quarantine waits for messages that were claimed before it was requested. Once it has begun, no other one is
     * sent. */
    if (a->place.owner && a->place.taken && now_ms < a->place.until_ms)
        return false;
    if (!taken)
        return true;
    return taken < room && taken < q->rules.concurrency &&
           a->n_out + a->n_accepted < limiter_room(&a->limiter, now_ms);
}

/* A quarantined request has the application to itself for one window, and for twice as long with each crash of its
 * members, so that a slow killer is found too. */
static void share_place(struct queue *q, int64_t now_ms, const struct request *r)
{
    int64_t patience = q->rules.token_window_ms;
    int n_crashes = 0;

    list_each(&r->members, k)
    {
        const struct delivery *d = container_of(k, struct delivery, in_request);

        if (!d->claim->alone || d->claim->takeovers >= N_ALONE_TAKEOVERS)
            return;
        if (d->claim->crashes > n_crashes)
            n_crashes = d->claim->crashes;
    }
    for (int i = 1; i < n_crashes && patience < q->rules.max_window_ms; i++)
        patience *= 2;
    /* A request that only hangs has been revoked by then. */
    application_share_place(q->application, quarantine_owner(q, request_first(r)),
                            now_ms + patience + REVOKED_MS);
}

/* Is the window too short for an attempt? Then a new one is requested first. */
static bool needs_reclaim(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    return d->claim->window_ends_ms - now_ms < q->rules.token_window_ms / 10 * 9 &&
           d->claim->n_reclaims < N_RECLAIMS_MAX;
}

static bool may_accompany(const struct queue *q, int64_t now_ms, const struct delivery *d)
{
    return !is_unsendable(q, now_ms, d) && !needs_reclaim(q, now_ms, d);
}

/* Slots that requests may take now, this one included. */
static int n_free_slots(const struct queue *q, int64_t now_ms)
{
    const struct application *a = q->application;
    int room = limiter_room(&q->share->limiter, now_ms), taken = n_sent_slots(q), free;

    if (room > q->rules.concurrency)
        room = q->rules.concurrency;
    free = limiter_room(&a->limiter, now_ms) - a->n_out - a->n_accepted;
    return free < room - taken ? free : room - taken;
}

/* Members of a quarantined group that did not fit in its request are claimed again, for another group. */
static void claim_left_over(struct queue *q, int64_t now_ms)
{
    list_each(&q->held.wanted[OP_FORWARD], k)
    {
        struct delivery *d = delivery_at(k);

        if (quarantine_has(q, d))
            life_go(q, now_ms, d, FACT_TURN, step_want(OP_CLAIM));
    }
}

bool next_forward(struct queue *q, int64_t now_ms, struct action *ret)
{
    list_each(&q->held.wanted[OP_FORWARD], k)
    {
        struct delivery *d = delivery_at(k);
        int64_t left = d->claim->window_ends_ms - now_ms;

        if (is_unsendable(q, now_ms, d)) {
            error_text_set(
                d, "its window was nearly over, or the queue came to pause, before it could be sent", NULL);
            life_go(q, now_ms, d, FACT_TURN,
                    q->drain ? life_release_to_requeue(d, 0) : life_release(d, 0, row_as_it_is()));
            continue;
        }
        if (q->rules.ordered && runs_place(d) == RUN_BROKEN) {
            error_text_set(d, "not sent: the message before it in its key is not ready", NULL);
            life_go(q, now_ms, d, FACT_TURN, life_release(d, 0, row_as_it_is()));
            continue;
        }
        if (!may_forward(q, now_ms, d) || (q->rules.ordered && runs_place(d) != RUN_FIRST))
            continue;
        /* A slot must be free, or the new window would be wasted like the old one. */
        if (needs_reclaim(q, now_ms, d)) {
            d->claim->n_reclaims++;
            life_go(q, now_ms, d, FACT_TURN, step_want(OP_CLAIM));
            continue;
        }
        if (left < q->rules.token_window_ms / 10 * 9) {
            struct note *n = notes_tell_limited(q, now_ms, EVENT_SHORT_WINDOW, d);

            if (n)
                n->ms = left;
        }
        assert(delivery_has_token(d) && delivery_owns_row(d) && d->arrival->message);
        d->claim->n_reclaims = 0;
        struct request *r = request_new(q);

        request_add(r, d);
        if (batches_are_on(q))
            batches_fill(q, now_ms, r, n_free_slots(q, now_ms), may_accompany);
        if (d->claim->alone)
            share_place(q, now_ms, r);
        life_send(q, now_ms, r);
        if (quarantine_has(q, d)) {
            quarantine_sent(q);
            claim_left_over(q, now_ms);
        }
        *ret = (struct action){.kind = ACTION_FORWARD, .d = d, .request = r, .ref = r->ref};
        return true;
    }
    return false;
}

bool queue_wants_slot(const struct queue *q)
{
    return q->held.wanted[OP_CLAIM].len + q->held.wanted[OP_FORWARD].len > 0;
}

/* Requests are in the order of their starts. An extended one moves behind the others. */
bool queue_may_hang(const struct queue *q, int64_t now_ms)
{
    const struct list *l = &q->held.in_flight;

    if (q->held.overdue.len)
        return true;
    if (!l->len)
        return false;
    const struct request *oldest = container_of(l->head.next, struct request, in_list);
    return now_ms - oldest->sent_ms > oldest->window_ends_ms - now_ms;
}

/* --- deadlines --- */

/* When messages that wait for a slot may be worth a lookup. */
static int64_t looks_deadline(const struct queue *q, int64_t now_ms)
{
    int64_t next = q->flow.look_ms, pays = q->flow.claimed_ms + BACKLOG_LOOK_MS + 1;

    if (most_are_duplicates(q) && !q->flow.looks_left)
        return INT64_MAX; /* an arrival causes a turn anyway */
    if (!most_are_duplicates(q) && !looks_pay(q, now_ms) && next < pays)
        next = pays;
    return next > now_ms ? next : INT64_MAX;
}

int64_t claims_deadline(const struct queue *q, int64_t now_ms)
{
    const struct list *wanted = &q->held.wanted[OP_CLAIM];
    int64_t until = INT64_MAX, next;

    if (wanted->len)
        until = looks_deadline(q, now_ms);
    if (q->share->brake.on && (wanted->len || q->held.waiting[WAIT_BRAKE].len)) {
        next = brake_deadline(&q->share->brake, now_ms, brake_tries(q));
        if (next > now_ms && next < until)
            until = next;
    }
    return until;
}
