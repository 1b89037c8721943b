/* The active replica of each partition of an ordered consumer.
 *
 * A queue with a single active consumer delivers to one replica. When that replica closes its channel, the one that has
 * waited longest becomes active.
 *
 * Every replica computes the same owners from the members of the consumer, which are the replicas that are subscribed
 * to a partition of it. The owner of a partition stays subscribed to it. Every other replica subscribes to it again,
 * once for each subscription of the owner, and so steps behind the owner:
 *
 *   STANDBY ── the members have not changed for a second ──▶ closes, subscribes again
 *   ACTIVE, nothing is held ── the same ──▶ closes, subscribes again; the owner is active now
 *   ACTIVE, messages are held ── the others have had the time to step behind ──▶ order_stop, subscribes again
 *
 * While the members stay the same, a replica steps at most once a minute. Only the last kind of step returns messages,
 * and the broker counts a delivery for each of them. So that step happens at most once a minute, even if the members
 * change. If a replica other than the owner becomes active, it steps behind the owner in its turn.
 *
 * Consumer priorities could choose the owner, too, and would return fewer messages. But only quorum queues of RabbitMQ
 * 4 choose by them, and 4.3.6 keeps an active consumer whose channel ends while one with a higher priority waits for
 * its deliveries. Once no other consumer is left, the dead one becomes active again, and the queue stands still until
 * it has another leader. */
#include "core/handover.h"

#include "core/notes.h"
#include "core/order.h"
#include "core/pauses.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    SETTLE_MS = 800,  /* replicas that start together see each other first */
    OTHERS_MS = 2500, /* interval of the reports: within it the others step behind the owner */
    STEP_AGAIN_MS = 60000,
    KNOWN_MS = 10000, /* a report of the replicas counts for this long: a slow database delays the next one */
    SUBSCRIBE_AGAIN_MS = 1000,
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
}

/* --- reports of others --- */

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
        partitions[i]->handover.owner = n_members ? owners[i] : 0;
    free(hashes);
    free(owners);
}

static void forget_peers(struct queue *q)
{
    q->n_others = 0;
    q->handover.ahead = 0;
    q->handover.other_is_active = false;
}

static void hear_peer(struct queue *q, const struct handover_peer *p)
{
    struct handover *h = &q->handover;

    q->n_others += p->may_consume;
    h->other_is_active |= p->is_active;
    if (p->may_consume && p->who == h->owner)
        h->ahead = p->subscription;
}

bool handover_presence(struct queue *const *partitions, size_t n, int64_t now_ms,
                       const struct handover_peer *peers, size_t n_peers)
{
    struct handover_members *known = &partitions[0]->share->members;
    size_t n_members;
    uint64_t *members = members_of(partitions, n, peers, n_peers, &n_members);
    uint64_t hash = handover_hash(members, n_members * sizeof(*members));

    assert(n > 0);
    if (!known->since_ms || hash != known->hash) {
        find_owners(partitions, n, members, n_members);
        *known = (struct handover_members){hash, now_ms ? now_ms : 1};
    }
    for (size_t i = 0; i < n; i++) {
        forget_peers(partitions[i]);
        partitions[i]->handover.heard_ms = now_ms;
    }
    for (size_t i = 0; i < n_peers; i++)
        hear_peer(partitions[peers[i].partition], &peers[i]);
    free(members);
    return now_ms - known->since_ms < SETTLE_MS;
}

void handover_unknown(struct queue *q)
{
    forget_peers(q);
}

bool handover_is_standby(const struct queue *q)
{
    const struct handover *h = &q->handover;

    return q->rules.ordered && q->consumer.state == CONSUMER_ACTIVE && !h->is_active && h->other_is_active;
}

/* --- the subscription --- */

void handover_subscribes(struct queue *q)
{
    q->handover.behind = q->handover.ahead;
}

void handover_delivered(struct queue *q)
{
    q->handover.is_active = true;
}

int64_t handover_channel_lost(struct queue *q, int64_t now_ms, bool is_planned)
{
    struct handover *h = &q->handover;
    bool others_wait = is_planned && !h->steps;

    if (is_planned && h->steps) {
        h->stepped_ms = now_ms;
        if (q->held.unacked.len)
            h->returned_ms = now_ms;
    }
    h->is_active = h->steps = false;
    h->wanted_ms = 0;
    return others_wait ? now_ms + SUBSCRIBE_AGAIN_MS : now_ms;
}

static void tell_standby(struct queue *q)
{
    bool is_standby = handover_is_standby(q);

    if (is_standby && !q->handover.is_told)
        note_text(notes_tell(q, EVENT_STANDBY, NULL), "another replica is active");
    q->handover.is_told = is_standby;
}

/* Is the owner subscribed, but not known to be ahead of this replica? */
static bool is_before_the_owner(const struct queue *q, int64_t now_ms)
{
    const struct handover *h = &q->handover;

    return h->ahead && h->ahead != h->behind && now_ms - q->share->members.since_ms >= SETTLE_MS &&
           now_ms - h->heard_ms < KNOWN_MS && q->consumer.state == CONSUMER_ACTIVE && !q->left_to_others &&
           !q->drain && !order_is_stopping(q);
}

static bool is_long_ago(int64_t at_ms, int64_t now_ms)
{
    return !at_ms || now_ms - at_ms >= STEP_AGAIN_MS;
}

/* Replicas that have different sets of partitions may each take the other one for the owner: hence the minute. */
static bool may_step(const struct queue *q, int64_t now_ms)
{
    const struct handover *h = &q->handover;

    if (h->stepped_ms >= q->share->members.since_ms && !is_long_ago(h->stepped_ms, now_ms))
        return false;
    if (!q->held.unacked.len)
        return !pause_is_any_on(q);
    return now_ms - h->wanted_ms >= OTHERS_MS && is_long_ago(h->returned_ms, now_ms);
}

void handover_step(struct queue *q, int64_t now_ms)
{
    struct handover *h = &q->handover;
    size_t n_held = q->held.unacked.len;

    h->steps = h->steps && order_is_stopping(q); /* else the stop was given up */
    tell_standby(q);
    if (!is_before_the_owner(q, now_ms)) {
        h->wanted_ms = 0;
        return;
    }
    if (!h->wanted_ms)
        h->wanted_ms = now_ms;
    if (!may_step(q, now_ms))
        return;
    order_stop(q, now_ms, "another replica takes the queue over");
    h->steps = order_is_stopping(q);
    if (h->steps && n_held)
        notes_tell(q, EVENT_HANDOVER, NULL)->n = (int64_t)n_held;
}
