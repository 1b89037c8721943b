/* The deliveries that a queue holds: see held.h. */
#include "core/held.h"

#include "core/batches.h"
#include "core/notes.h"
#include "core/quarantine.h"
#include "core/request.h"
#include "onceward/base/mem.h"
#include "onceward/core/backoff.h"
#include "onceward/core/message.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LOCK_FIRST_MS = 20, LOCK_LAST_MS = 1000 };

void held_init(struct queue *q)
{
    struct queue_held *h = &q->held;

    for (int i = 0; i < N_OPERATIONS; i++) {
        list_init(&h->wanted[i]);
        list_init(&h->sent[i]);
    }
    for (int i = 0; i < N_WAITS; i++)
        list_init(&h->waiting[i]);
    list_init(&h->unacked);
    list_init(&h->in_flight);
    list_init(&h->overdue);
    list_init(&h->ended);
}

/* --- numbers --- */

/* splitmix64 (https://prng.di.unimi.it/splitmix64.c), for jitter only. */
uint64_t held_random(struct queue *q)
{
    uint64_t z = q->random += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

int64_t held_backoff_ms(struct queue *q, int n)
{
    return backoff_ms(q->rules.backoff_ms, q->rules.max_backoff_ms, n, held_random(q));
}

int64_t held_delay_ms(struct queue *q, const struct delivery *d, int n)
{
    int64_t wait = held_backoff_ms(q, n);

    return d->outcome.request == REQUEST_UNANSWERED && wait < q->rules.token_window_ms
               ? q->rules.token_window_ms
               : wait;
}

int64_t held_lock_wait_ms(struct delivery *d)
{
    assert(d->n_waits >= 0);
    int64_t wait = (int64_t)LOCK_FIRST_MS << (d->n_waits < 8 ? d->n_waits : 8);

    d->n_waits++;
    return wait < LOCK_LAST_MS ? wait : LOCK_LAST_MS;
}

/* --- state of a delivery --- */

bool held_tag_is_lost(const struct queue *q, const struct delivery *d)
{
    return d->arrival->copy.tag.generation != q->generation;
}

bool held_is_idle(const struct delivery *d)
{
    return d->phase == PHASE_WANTED && !delivery_is_in_flight(d) && !delivery_is_accepted(d) &&
           operation_infos[d->op].idle;
}

/* A delivery that waits for its next attempt holds no credit either: valid messages may follow a whole prefetch of
 * such deliveries. */
bool held_is_parked(const struct delivery *d)
{
    if (d->phase != PHASE_WANTED)
        return false;
    if (d->wait == WAIT_NONE)
        return d->outcome.request == REQUEST_PUT_OFF && operation_infos[d->op].idle;
    if (d->wait == WAIT_BRAKE) /* others must arrive to reset the breaker */
        return true;
    if (d->wait == WAIT_ROOM ||
        (d->wait == WAIT_HELD && !d->arrival->message)) /* too large, for now or always */
        return true;
    return operation_infos[d->op].idle || delivery_is_accepted(d);
}

bool held_can_renew(const struct queue *q, const struct delivery *d)
{
    return d->arrival->message && d->arrival->id_len && d->renewal != RENEWAL_REFUSED &&
           d->op != OP_DEAD_LETTER && !delivery_is_rowless(d) && d->row_end != ROW_END_DEAD && !d->given_up &&
           !q->returns.no_renewal;
}

bool held_is_near(const struct queue *q, const struct delivery *d)
{
    int64_t count = returns_count(&q->returns, d->arrival->copy.delivery_count);

    if (!count) /* a first delivery */
        return false;
    return count >=
           (held_can_renew(q, d) ? returns_renew_count(&q->returns) : returns_near_count(&q->returns));
}

static struct list *list_of(struct queue *q, const struct delivery *d)
{
    if (d->wait != WAIT_NONE)
        return &q->held.waiting[d->wait];
    return d->phase == PHASE_SENT ? &q->held.sent[d->op] : &q->held.wanted[d->op];
}

static void count_parked(struct queue *q, const struct delivery *d, int by)
{
    if (held_is_parked(d) && d->in_tags.next && d->arrival->copy.consumer == q->consumer.number)
        q->consumer.n_parked += (size_t)by;
    assert(q->consumer.n_parked <= SIZE_MAX / 2); /* not below 0 */
}

/* Is it a claim that will take a slot of the application? */
static bool takes_slot(const struct delivery *d)
{
    return d->wait == WAIT_NONE && ((d->op == OP_CLAIM && d->phase == PHASE_SENT) ||
                                    (d->op == OP_FORWARD && d->phase == PHASE_WANTED));
}

/* Is it quarantined, or waiting for quarantine? A member of a group that is claimed again asks again. */
static bool keeps_place(const struct queue *q, const struct delivery *d)
{
    if (quarantine_has(q, d) && d->claim->alone && d->op == OP_CLAIM && d->phase == PHASE_WANTED)
        return false;
    return !delivery_has_ended(d) && (delivery_is_in_flight(d) || delivery_is_accepted(d) ||
                                      (d->wait == WAIT_NONE && (d->op == OP_CLAIM || d->op == OP_FORWARD)));
}

/* Messages that share a request share a slot. */
static void reserve_slot(struct queue *q, struct delivery *d)
{
    size_t before = slots_of(q->held.reserved_units);
    uint32_t units = batches_share(q, d);

    d->claim->slot_units = units;
    q->held.reserved_units += units;
    q->share->reserved_units += units;
    q->held.n_reserved++;
    if (slots_of(q->held.reserved_units) > before)
        application_reserve(q->application);
}

static void unreserve_slot(struct queue *q, const struct delivery *d)
{
    size_t before = slots_of(q->held.reserved_units);
    uint32_t units = d->claim->slot_units;

    assert(q->held.n_reserved > 0 && q->held.reserved_units >= units);
    assert(q->share->reserved_units >= units);
    q->held.reserved_units -= units;
    q->share->reserved_units -= units;
    q->held.n_reserved--;
    if (slots_of(q->held.reserved_units) < before)
        application_unreserve(q->application);
}

/* Updates the slots after a move. took: whether the delivery took a slot before. */
static void account_slot(struct queue *q, struct delivery *d, bool took)
{
    bool takes = takes_slot(d);

    if (takes && !took)
        reserve_slot(q, d);
    else if (!takes && took)
        unreserve_slot(q, d);
}

static void account_place(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (!d->claim) /* never to be sent */
        return;
    bool is_any_quarantined = d->claim->group || q->application->place.owner;

    if (is_any_quarantined && !keeps_place(q, d))
        quarantine_leave(q, now_ms, d);
}

void held_move(struct queue *q, int64_t now_ms, struct delivery *d, enum operation op, enum phase phase,
               enum wait_reason wait)
{
    assert(!delivery_has_ended(d) && op > OP_NONE && op < N_OPERATIONS && wait < N_WAITS);
    assert(phase == PHASE_WANTED || (phase == PHASE_SENT && wait == WAIT_NONE));
    bool took = takes_slot(d);

    count_parked(q, d, -1);
    if (d->in_list.next)
        list_remove(list_of(q, d), &d->in_list);
    timers_clear(&q->held.timers, &d->timer);
    d->op = op;
    d->phase = phase;
    d->wait = wait;
    list_push(list_of(q, d), &d->in_list);
    if (op == OP_CLAIM && !(d->claim && d->claim->looked))
        q->flow.looks_left = true;
    if (op == OP_CLAIM && (d->given_up || held_is_near(q, d)))
        q->flow.last_chances = true;
    count_parked(q, d, 1);
    account_slot(q, d, took);
    account_place(q, now_ms, d);
}

void held_put_behind(struct queue *q, struct delivery *d)
{
    struct list *l = list_of(q, d);

    assert(d->in_list.next && !delivery_has_ended(d));
    list_remove(l, &d->in_list);
    list_push(l, &d->in_list);
}

/* --- the request of a delivery --- */

void held_leave_request(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (!d->in_request.next)
        return;
    request_leave(q, d);
    account_place(q, now_ms, d);
}

void held_accept(struct queue *q, int64_t now_ms, struct delivery *d, int64_t until_ms)
{
    struct claim *c = d->claim;

    assert(until_ms >= 0 && (c || !until_ms));
    if (!until_ms && !delivery_is_accepted(d)) {
        account_place(q, now_ms, d);
        return;
    }
    count_parked(q, d, -1);
    if (!c->accepted_until_ms != !until_ms) {
        int before = (int)slots_of(q->held.accepted_units);

        q->held.n_accepted += until_ms ? 1 : (size_t)-1;
        q->held.accepted_units += until_ms ? c->slot_units : -(size_t)c->slot_units;
        q->share->accepted_units += until_ms ? c->slot_units : -(size_t)c->slot_units;
        q->application->n_accepted += (int)slots_of(q->held.accepted_units) - before;
    }
    c->accepted_until_ms = until_ms;
    assert(q->held.n_accepted <= SIZE_MAX / 2);
    count_parked(q, d, 1);
    account_place(q, now_ms, d);
}

/* --- other deliveries of its id --- */

const struct delivery *queue_find(const struct queue *q, uint64_t ref)
{
    for (struct hash_link *k = hash_first(&q->held.by_ref, hash_number(ref)); k; k = hash_next(k)) {
        struct delivery *d = container_of(k, struct delivery, by_ref);

        if (d->ref == ref)
            return d;
    }
    return NULL;
}

static uint64_t id_hash(const struct delivery *d)
{
    return hash_bytes(d->arrival->id, d->arrival->id_len);
}

static struct delivery *leader_find(const struct queue *q, struct slice id, uint64_t hash)
{
    for (struct hash_link *k = hash_first(&q->held.by_id, hash); k; k = hash_next(k)) {
        struct delivery *d = container_of(k, struct delivery, by_id);

        if (slice_equal(delivery_slice(d), id))
            return d;
    }
    return NULL;
}

void held_begin_claim(struct delivery *d)
{
    if (d->claim)
        return;
    d->claim = mem_zalloc(1, sizeof(*d->claim));
    d->claim->unproven_at_ms = -1;
}

static void lead_id(struct queue *q, struct delivery *d, uint64_t hash)
{
    assert(!d->leader && !delivery_has_ended(d));
    held_begin_claim(d);
    list_init(&d->followers);
    hash_insert(&q->held.by_id, &d->by_id, hash);
    d->leader = d;
}

/* Does the leader's body match the row? Only a claim shows that; a released or failed message keeps its row. */
static bool has_known_row(const struct delivery *leader)
{
    if (!delivery_owns_row(leader) || delivery_is_rowless(leader) || leader->op == OP_LOOK)
        return false;
    return leader->op != OP_CLAIM || (leader->wait == WAIT_DUE && !delivery_has_token(leader));
}

/* Does an earlier delivery of the same id wait as surplus? Its leader may have ended. */
static bool has_earlier_surplus(const struct queue *q, const struct delivery *d)
{
    list_each(&q->held.waiting[WAIT_SURPLUS], k)
    {
        const struct delivery *other = container_of(k, struct delivery, in_list);

        if (other->ref < d->ref && slice_equal(delivery_slice(other), delivery_slice(d)))
            return true;
    }
    return false;
}

static bool is_last_of_id(const struct delivery *leader, const struct delivery *d)
{
    const struct link *last = leader->followers.head.prev;

    return d->ref > leader->ref &&
           (!leader->followers.len ||
            d->ref > container_of((struct link *)last, struct delivery, in_leader)->ref);
}

enum join held_join(struct queue *q, struct delivery *d, const struct delivery **ret_leader)
{
    uint64_t hash = id_hash(d);
    struct delivery *leader = leader_find(q, delivery_slice(d), hash);

    assert(!d->leader);
    *ret_leader = leader;
    if (!leader && q->rules.ordered && has_earlier_surplus(q, d))
        return JOIN_SURPLUS;
    if (!leader) {
        lead_id(q, d, hash);
        return JOIN_LEADS;
    }
    bool same =
        q->rules.mismatch_is_duplicate ||
        !memcmp(leader->arrival->fingerprint, d->arrival->fingerprint, sizeof(d->arrival->fingerprint));
    if (!same && has_known_row(leader))
        return JOIN_MISMATCH;
    if (!same || (q->rules.ordered ? has_earlier_surplus(q, d) : leader->followers.len >= N_FOLLOWERS_MAX))
        return JOIN_SURPLUS;
    assert(!q->rules.ordered || is_last_of_id(leader, d));
    d->leader = leader;
    list_push(&leader->followers, &d->in_leader);
    return JOIN_FOLLOWS;
}

struct delivery *held_first_follower(struct delivery *d)
{
    struct link *k = list_first(&d->followers);

    if (!k)
        return NULL;
    list_remove(&d->followers, k);
    struct delivery *f = container_of(k, struct delivery, in_leader);
    assert(f->leader == d && f->wait == WAIT_FOLLOWING);
    f->leader = NULL;
    return f;
}

static void drop_id(struct queue *q, struct delivery *d)
{
    struct delivery *leader = d->leader;

    d->leader = NULL;
    if (leader == d)
        hash_remove(&q->held.by_id, &d->by_id);
    else if (leader)
        list_remove(&leader->followers, &d->in_leader);
}

/* Makes the first follower the leader of the others, and hands over the known facts about the row. NULL: no
 * follower. */
static struct delivery *promote_follower(struct queue *q, struct delivery *d)
{
    struct delivery *heir = held_first_follower(d), *f;

    if (!heir)
        return NULL;
    lead_id(q, heir, id_hash(heir));
    while ((f = held_first_follower(d))) {
        list_push(&heir->followers, &f->in_leader);
        f->leader = heir;
    }
    assert(!d->followers.len);
    heir->claim->crashes = d->claim->crashes;
    heir->claim->takeovers = d->claim->takeovers;
    heir->claim->tried_ms = d->claim->tried_ms;
    return heir;
}

struct delivery *held_step_down(struct queue *q, struct delivery *d)
{
    bool led = d->leader == d;

    drop_id(q, d);
    return led ? promote_follower(q, d) : NULL;
}

/* --- the life of a delivery --- */

void held_outcome(struct delivery *d, enum outcome_kind kind)
{
    if (d->outcome.kind == OUTCOME_COMPLETE)
        free(d->outcome.complete.result);
    else if (d->outcome.kind == kind && kind == OUTCOME_NONE)
        return;
    d->outcome.kind = kind;
    d->outcome.fail = (struct outcome_fail){0};
    static_assert(sizeof(d->outcome.fail) >= sizeof(d->outcome.release) &&
                      sizeof(d->outcome.fail) >= sizeof(d->outcome.dead_letter) &&
                      sizeof(d->outcome.fail) >= sizeof(d->outcome.complete),
                  "all outcomes are zeroed");
}

struct delivery *held_add(struct queue *q, int64_t now_ms, struct arrival *a)
{
    struct delivery *d = mem_zalloc(1, sizeof(*d));

    assert(a->copy.tag.generation == q->generation);
    a->received_ms = now_ms;
    d->arrival = a;
    d->ref = ++q->held.next_ref;
    list_push(&q->held.unacked, &d->in_tags);
    hash_insert(&q->held.by_ref, &d->by_ref, hash_number(d->ref));
    if (a->message) {
        q->held.n_bytes += a->copy.n_bytes;
        q->share->n_bytes += a->copy.n_bytes;
    }
    if (a->copy.consumer == q->consumer.number)
        q->consumer.n_used++;
    return d;
}

void held_drop_body(struct queue *q, struct delivery *d)
{
    struct arrival *a = d->arrival;

    if (!a->message)
        return;
    assert(q->held.n_bytes >= a->copy.n_bytes && q->share->n_bytes >= a->copy.n_bytes);
    q->held.n_bytes -= a->copy.n_bytes;
    q->share->n_bytes -= a->copy.n_bytes;
    message_free(a->message);
    a->message = NULL;
}

void held_drop_tag(struct queue *q, struct delivery *d)
{
    if (!d->in_tags.next)
        return;
    count_parked(q, d, -1);
    if (d->arrival->copy.consumer == q->consumer.number) {
        assert(q->consumer.n_used > 0);
        q->consumer.n_used--;
    }
    list_remove(&q->held.unacked, &d->in_tags);
}

void held_end(struct queue *q, int64_t now_ms, struct delivery *d)
{
    bool took = takes_slot(d);

    held_leave_request(q, now_ms, d);
    held_accept(q, now_ms, d, 0);
    held_drop_tag(q, d);
    if (d->in_list.next)
        list_remove(list_of(q, d), &d->in_list);
    timers_clear(&q->held.timers, &d->timer);
    assert(!delivery_has_ended(d) && !delivery_is_in_flight(d) && !delivery_is_accepted(d));
    assert(!d->place.line); /* the next message of its key would wait indefinitely */
    d->phase = PHASE_ENDED;
    list_push(&q->held.ended, &d->in_list);
    account_slot(q, d, took);
    account_place(q, now_ms, d);
}

static void delivery_free(struct queue *q, struct delivery *d)
{
    assert(delivery_has_ended(d) && !d->in_tags.next && !d->timer.slot);
    hash_remove(&q->held.by_ref, &d->by_ref);
    request_forget(d);
    held_drop_body(q, d);
    arrival_free(d->arrival);
    free(d->outcome.error);
    free(d->outcome.said);
    held_outcome(d, OUTCOME_NONE);
    if (d->claim)
        free(d->claim->kept);
    free(d->claim);
    free(d);
}

static void reap_ended(struct queue *q)
{
    struct link *k;

    while ((k = list_first(&q->held.ended))) {
        list_remove(&q->held.ended, k);
        delivery_free(q, container_of(k, struct delivery, in_list));
    }
}

/* Pending log lines and actions may refer to ended deliveries. */
void queue_reap(struct queue *q)
{
    if (q->notes.at == q->notes.n && !q->abandons.n)
        reap_ended(q);
}

static void list_end_all(struct queue *q, struct list *l)
{
    struct link *k;

    while ((k = list_first(l))) {
        struct delivery *d = container_of(k, struct delivery, in_list);

        d->leader = NULL; /* no follower takes over */
        held_end(q, 0, d);
    }
}

void held_deinit(struct queue *q)
{
    struct queue_held *h = &q->held;

    keys_deinit(&q->order.keys);
    for (struct link *k = h->unacked.head.next; k != &h->unacked.head; k = k->next)
        container_of(k, struct delivery, in_tags)->leader = NULL;
    for (int i = 0; i < N_WAITS; i++)
        list_end_all(q, &h->waiting[i]);
    for (int i = 0; i < N_OPERATIONS; i++) {
        list_end_all(q, &h->wanted[i]);
        list_end_all(q, &h->sent[i]);
    }
    reap_ended(q);
    hash_deinit(&h->by_ref);
    hash_deinit(&h->by_id);
    hash_deinit(&h->requests);
    timers_deinit(&h->timers);
    notes_deinit(q);
    for (size_t i = 0; i < q->abandons.n; i++)
        buf_deinit(&q->abandons.items[i].body);
    free(q->abandons.items);
    buf_deinit(&q->abandons.last_body);
    free(q->consequences.items);
    free(q->commands.ids);
}

size_t queue_n_parked(const struct queue *q)
{
    size_t n = 0;

    for (int w = WAIT_NONE + 1; w < N_WAITS; w++)
        if (w != WAIT_WATCHING && w != WAIT_SURPLUS)
            n += q->held.waiting[w].len;
    return n;
}

size_t held_ordered_most(const struct queue *q)
{
    enum { HEADERS_LEAST = 16 << 10 }; /* with many partitions a share may be small */
    size_t share = q->rules.max_bytes / (size_t)q->rules.prefetch / q->share->n_queues;

    return q->rules.max_message_bytes + (share > HEADERS_LEAST ? share : HEADERS_LEAST);
}

void queue_room(const struct queue *q, bool redelivered, struct queue_room *ret)
{
    size_t left = q->share->n_bytes < q->rules.max_bytes ? q->rules.max_bytes - q->share->n_bytes : 0;

    if (q->rules.ordered) { /* the prefetch bounds it, and deliveries cannot be requeued alone */
        *ret = (struct queue_room){.body = q->rules.max_message_bytes,
                                   .whole = held_ordered_most(q),
                                   .near_count = INT64_MAX,
                                   .each = true};
        return;
    }
    *ret = (struct queue_room){.body = left, .whole = left, .near_count = INT64_MAX};
    /* A delivery near the limit is stored, which needs its body. Only one at a time, so that a single message exceeds
     * the bound. The queue's kind may be learnt from this very delivery. */
    if (redelivered && q->share->n_bytes <= q->rules.max_bytes)
        ret->near_count = returns_renew_count(&q->returns);
    if (!q->share->n_bytes) { /* a single message may exceed the bound, with its headers */
        ret->body = q->rules.max_message_bytes;
        ret->whole = SIZE_MAX;
    }
}
