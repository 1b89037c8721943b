/* The active replica of each partition of an ordered consumer.
 *
 * A queue with a single active consumer delivers to one replica. Quorum queues of RabbitMQ 4 choose it by the priority
 * of the subscriptions: when a higher one arrives, the active replica receives nothing more, and the other one nothing
 * until all deliveries are acked. Then the broker switches. Nothing is returned, and no delivery is counted.
 *
 *   priority = level | rank      level: one more than any that was seen, of a replica that takes a partition over or
 *                                       finds no other there; else 0, so that a standby outranks no active replica
 *                                rank: from a hash of instance and queue; it spreads the partitions of a replica that
 *                                      ends, before the others have noticed
 *
 * Every replica computes the same owners from the members of the consumer, which are the replicas that are subscribed
 * to a partition of it. The owner of a partition that is not active there subscribes again, with the highest priority.
 * No other replica does, so the members need no agreement beyond that list.
 *
 *   OWNER, STANDBY ── the members have not changed for a second ──▶ closes, subscribes with a higher level
 *   ACTIVE ── a subscribed replica has a higher priority, and nothing has arrived for 5 s ──▶ order_stop, STANDBY
 *
 * The second step is for deliveries that do not end soon (in backoff, held). It returns a tail, which the broker
 * counts. So both steps happen once per change of the members or lost connection, and the second one once a minute at
 * most. Older brokers and classic queues ignore priorities: there the first subscriber stays active.
 *
 * From RabbitMQ 4.3 on no priority is sent, so the first subscriber stays active there, too. 4.3.6 does not forget an
 * active consumer whose channel ends while a higher priority waits for its deliveries. Once no other consumer is there,
 * that one becomes active again, and nobody gets a message until the queue has another leader. */
#include "core/handover.h"

#include "core/notes.h"
#include "core/order.h"
#include "core/pauses.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    SETTLE_MS = 800, /* replicas that start together see each other first */
    YIELD_MS = 5000,
    YIELD_AGAIN_MS = 60000,
    KNOWN_MS = 10000, /* a report of the replicas counts for this long: a slow database delays the next one */
    SUBSCRIBE_AGAIN_MS = 1000,
    RANK_BITS = 16,
    PRIORITY_NONE = -1,
    LEVEL_MAX = INT32_MAX,
    PRIORITY_MAJOR = 4, /* version of RabbitMQ whose quorum queues know priorities, */
    GHOST_MINOR = 3,    /* and the first one of it that keeps consumers that have ended */
};

/* --- owners --- */

static uint64_t mix(uint64_t n)
{
    n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9;
    n = (n ^ n >> 27) * 0x94d049bb133111eb;
    return n ^ n >> 31;
}

uint64_t handover_hash(const void *data, size_t len)
{
    const uint8_t *bytes = data;
    uint64_t h = 0xcbf29ce484222325;

    for (size_t i = 0; i < len; i++)
        h = (h ^ bytes[i]) * 0x100000001b3;
    return mix(h);
}

static uint64_t rank_of(uint64_t member, uint64_t partition)
{
    return mix(member ^ mix(partition));
}

struct pair {
    uint64_t rank;
    size_t member, partition;
};

static int by_rank(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;

    return x->rank > y->rank ? -1 : x->rank < y->rank;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Assigns pairs of member and partition in the order of their ranks, unless the member has its share. Without that
 * bound, rendezvous hashing of 16 partitions to 4 replicas was off by more than one for 39 in 40 sets of instances. */
void handover_assign(const uint64_t *members, size_t n_members, const uint64_t *partitions,
                     size_t n_partitions, uint64_t *ret_owners)
{
    size_t share = n_partitions / n_members, n_larger = n_partitions % n_members, n = 0;
    struct pair *pairs = mem_zalloc(n_members * n_partitions + 1, sizeof(*pairs));
    size_t *loads = mem_zalloc(n_members, sizeof(*loads));
    bool *taken = mem_zalloc(n_partitions + 1, sizeof(*taken));

    for (size_t m = 0; m < n_members; m++)
        for (size_t p = 0; p < n_partitions; p++)
            pairs[n++] = (struct pair){rank_of(members[m], partitions[p]), m, p};
    qsort(pairs, n, sizeof(*pairs), by_rank);
    for (size_t i = 0; i < n; i++) {
        const struct pair *k = &pairs[i];

        if (taken[k->partition] || loads[k->member] > share || (loads[k->member] == share && !n_larger))
            continue;
        n_larger -= loads[k->member] == share;
        loads[k->member]++;
        taken[k->partition] = true;
        ret_owners[k->partition] = members[k->member];
    }
    free(pairs);
    free(loads);
    free(taken);
}

void handover_init(struct queue *q, uint64_t self, uint64_t partition)
{
    q->handover.self = self;
    q->handover.partition = partition;
    q->handover.others_highest = PRIORITY_NONE;
}

/* --- reports of others --- */

/* Do priorities decide which replica is active? */
static bool has_priorities(const struct queue *q)
{
    return q->returns.kind != KIND_CLASSIC && q->returns.server_major == PRIORITY_MAJOR &&
           q->returns.server_minor < GHOST_MINOR;
}

static bool is_outranked(const struct queue *q)
{
    return has_priorities(q) && q->handover.others_highest > q->handover.priority;
}

static bool is_member(const struct queue *q)
{
    return q->consumer.state == CONSUMER_ACTIVE && !q->drain;
}

/* Returns the different members, sorted. The caller frees them. */
static uint64_t *members_of(struct queue *const *partitions, size_t n, const struct handover_peer *peers,
                            size_t n_peers, size_t *ret_n)
{
    uint64_t *members = mem_zalloc(n_peers + 1, sizeof(*members));
    size_t n_all = 0, n_different = 0;

    for (size_t i = 0; i < n && !n_all; i++)
        if (is_member(partitions[i]))
            members[n_all++] = partitions[i]->handover.self;
    for (size_t i = 0; i < n_peers; i++)
        members[n_all++] = peers[i].who;
    qsort(members, n_all, sizeof(*members), by_number);
    for (size_t i = 0; i < n_all; i++)
        if (!n_different || members[i] != members[n_different - 1])
            members[n_different++] = members[i];
    *ret_n = n_different;
    return members;
}

static void find_owners(struct queue *const *partitions, size_t n, const uint64_t *members, size_t n_members)
{
    uint64_t *hashes = mem_zalloc(n, sizeof(*hashes)), *owners = mem_zalloc(n, sizeof(*owners));

    for (size_t i = 0; i < n; i++)
        hashes[i] = partitions[i]->handover.partition;
    if (n_members)
        handover_assign(members, n_members, hashes, n, owners);
    for (size_t i = 0; i < n; i++)
        partitions[i]->handover.is_owner = n_members && owners[i] == partitions[i]->handover.self;
    free(hashes);
    free(owners);
}

static void forget_peers(struct queue *q)
{
    q->n_others = 0;
    q->handover.others_highest = PRIORITY_NONE;
    q->handover.other_is_active = false;
}

static void hear_peer(struct queue *q, const struct handover_peer *p)
{
    struct handover *h = &q->handover;

    q->n_others += p->may_consume;
    h->other_is_active |= p->is_active;
    if (p->priority > h->others_highest)
        h->others_highest = p->priority;
    if (p->priority > h->highest)
        h->highest = p->priority;
}

/* The broker switches without a notice, once the active replica has acked everything. */
static void follow_priorities(struct queue *q, int64_t now_ms)
{
    struct handover *h = &q->handover;

    if (!is_outranked(q)) {
        h->outranked_ms = 0;
        return;
    }
    if (!h->outranked_ms)
        h->outranked_ms = now_ms;
    if (!q->held.unacked.len)
        h->is_active = false;
}

static bool can_take_over(const struct queue *q)
{
    return has_priorities(q) && is_member(q) && !q->held.unacked.len && !pause_is_any_on(q) &&
           q->database->linked && !q->left_to_others && !order_is_stopping(q);
}

static void take_over(struct queue *q, int64_t now_ms)
{
    struct handover *h = &q->handover;

    if (!h->is_owner || h->others_highest < h->priority || h->taken == h->change || !can_take_over(q))
        return;
    order_stop(q, now_ms, "this replica takes the queue over");
    h->takes = order_is_stopping(q);
    if (h->takes)
        h->taken = h->change;
}

bool handover_presence(struct queue *const *partitions, size_t n, int64_t now_ms,
                       const struct handover_peer *peers, size_t n_peers)
{
    struct handover_members *known = &partitions[0]->share->members;
    size_t n_members;
    uint64_t *members = members_of(partitions, n, peers, n_peers, &n_members);
    uint64_t hash = handover_hash(members, n_members * sizeof(*members));
    bool is_settled;

    for (size_t i = 0; i < n; i++) {
        forget_peers(partitions[i]);
        partitions[i]->handover.knows_others = true;
        partitions[i]->handover.heard_ms = now_ms;
    }
    assert(n > 0);
    for (size_t i = 0; i < n_peers; i++)
        hear_peer(partitions[peers[i].partition], &peers[i]);
    if (!known->n_changes || hash != known->hash) {
        find_owners(partitions, n, members, n_members);
        *known = (struct handover_members){hash, now_ms, known->n_changes + 1};
    }
    is_settled = now_ms - known->since_ms >= SETTLE_MS;
    for (size_t i = 0; i < n; i++) {
        partitions[i]->handover.change = known->n_changes;
        follow_priorities(partitions[i], now_ms);
        if (is_settled)
            take_over(partitions[i], now_ms);
    }
    free(members);
    return !is_settled;
}

void handover_unknown(struct queue *q)
{
    forget_peers(q);
    q->handover.knows_others = false;
    q->handover.outranked_ms = 0;
}

bool handover_is_standby(const struct queue *q)
{
    const struct handover *h = &q->handover;

    return q->rules.ordered && q->consumer.state == CONSUMER_ACTIVE && !h->is_active &&
           (h->other_is_active || is_outranked(q));
}

/* --- the subscription --- */

int64_t handover_subscribes(struct queue *q)
{
    struct handover *h = &q->handover;
    bool is_alone = h->knows_others && h->others_highest == PRIORITY_NONE;
    int64_t level = h->takes || is_alone ? (h->highest >> RANK_BITS) + 1 : 0;

    if (level > LEVEL_MAX)
        level = LEVEL_MAX;
    h->takes = false;
    h->outranked_ms = 0;
    assert(level >= 0);
    h->priority = has_priorities(q)
                      ? level << RANK_BITS | (int64_t)(rank_of(h->self, h->partition) >> (64 - RANK_BITS))
                      : 0;
    return h->priority;
}

void handover_delivered(struct queue *q, int64_t now_ms)
{
    struct handover *h = &q->handover;

    h->is_active = true;
    if (h->outranked_ms)
        h->outranked_ms = now_ms;
}

int64_t handover_channel_lost(struct queue *q, int64_t now_ms, bool is_planned)
{
    struct handover *h = &q->handover;

    h->is_active = false;
    h->outranked_ms = 0;
    if (!is_planned) { /* another replica is active now */
        h->takes = false;
        h->taken = h->yielded = 0;
    } else if (h->yields) {
        h->yielded_ms = now_ms;
    }
    h->yields = false;
    return is_planned && !h->takes ? now_ms + SUBSCRIBE_AGAIN_MS : now_ms;
}

/* Has the broker stopped delivering for the sake of another replica, although deliveries have not ended here? */
static bool keeps_another_waiting(const struct queue *q, int64_t now_ms)
{
    const struct handover *h = &q->handover;

    return h->outranked_ms && now_ms - h->outranked_ms >= YIELD_MS && now_ms - h->heard_ms < KNOWN_MS &&
           q->consumer.state == CONSUMER_ACTIVE && q->held.unacked.len &&
           q->held.unacked.len < (size_t)q->consumer.prefetch && !order_is_stopping(q) && !q->drain;
}

static void tell_standby(struct queue *q)
{
    bool is_standby = handover_is_standby(q);

    if (is_standby && !q->handover.is_told)
        note_text(notes_tell(q, EVENT_STANDBY, NULL), "another replica is active");
    q->handover.is_told = is_standby;
}

void handover_step(struct queue *q, int64_t now_ms)
{
    struct handover *h = &q->handover;

    tell_standby(q);
    if (!keeps_another_waiting(q, now_ms))
        return;
    if (!h->told_ms || now_ms - h->told_ms >= q->rules.stats_interval_ms) {
        h->told_ms = now_ms;
        notes_tell(q, EVENT_HANDOVER, NULL)->n = (int64_t)q->held.unacked.len;
    }
    if (h->yielded == h->change || (h->yielded_ms && now_ms - h->yielded_ms < YIELD_AGAIN_MS))
        return;
    order_stop(q, now_ms, "another replica takes the queue over");
    h->yields = order_is_stopping(q);
    if (h->yields)
        h->yielded = h->change;
}
