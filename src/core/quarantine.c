/* The quarantined group of a queue: see quarantine.h. */
#include "core/quarantine.h"

#include "core/batches.h"
#include "core/life.h"

#include <assert.h>

/* Owner of a group: the queue's number in the upper bits, then a mark and the group's number. A delivery's owner has
 * its ref there. Never 0. */
static uint64_t quarantine_group_owner(const struct queue *q)
{
    return q->number << 40 | 1ull << 39 | (q->quarantine.number & 0x7fffffffff);
}

uint64_t quarantine_owner(const struct queue *q, const struct delivery *d)
{
    assert(q->number && d->ref); /* 0 is no owner */
    return quarantine_has(q, d) ? quarantine_group_owner(q) : q->number << 40 | (d->ref & 0x7fffffffff);
}

uint64_t queue_number_of(uint64_t owner)
{
    return owner >> 40;
}

static bool quarantine_keeps_place(const struct queue *q)
{
    return q->quarantine.n && q->application->place.owner == quarantine_group_owner(q);
}

static bool goes_in_group(const struct queue *q, const struct delivery *d)
{
    return (d->claim->crashes > 0 || d->claim->takeovers >= N_ALONE_TAKEOVERS) &&
           d->claim->crashes < N_ALONE_CRASHES && d->claim->takeovers <= N_ALONE_TAKEOVERS &&
           batches_most_of_group(q, d) > 1;
}

static void quarantine_add(struct queue *q, struct delivery *d)
{
    assert(q->quarantine.number && !quarantine_has(q, d));
    d->claim->group = q->quarantine.number;
    q->quarantine.n++;
}

void quarantine_open(struct queue *q, struct delivery *d)
{
    /* A message with the place in its own name goes alone: from a group it would never leave that place. */
    bool has_place = q->application->place.owner == quarantine_owner(q, d);

    if (has_place || quarantine_has(q, d) || quarantine_keeps_place(q) || !goes_in_group(q, d))
        return;
    q->quarantine.number++;
    q->quarantine.n = 0;
    q->quarantine.is_open = true;
    q->quarantine.is_sent = d->claim->alone = false;
    q->quarantine.batch_cap = d->claim->batch_cap;
    q->quarantine.failed_with = d->claim->failed_with;
    quarantine_add(q, d);
    assert(q->quarantine.n == 1);
}

/* Does the message fit the group? The kind is compared as far as it is known before the claim; batches_fill compares
 * it again. */
static bool quarantine_takes(const struct queue *q, const struct delivery *d)
{
    return quarantine_keeps_place(q) && q->application->place.taken && !q->quarantine.is_sent &&
           q->quarantine.n < batches_most_of_group(q, d) && goes_in_group(q, d) &&
           d->claim->batch_cap == q->quarantine.batch_cap &&
           (!d->claim->batch_cap || d->claim->failed_with == q->quarantine.failed_with);
}

bool quarantine_join(struct queue *q, struct delivery *d)
{
    if (!quarantine_takes(q, d))
        return false;
    quarantine_add(q, d);
    assert(q->quarantine.n <= GROUP_MOST);
    return true;
}

struct delivery *quarantine_next(struct queue *q, int64_t now_ms)
{
    if (!q->quarantine.is_open || !quarantine_keeps_place(q) || !q->application->place.taken)
        return NULL;
    list_each(&q->held.wanted[OP_CLAIM], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_list);

        if (now_ms - d->arrival->received_ms < q->rules.max_hold_ms && quarantine_join(q, d))
            return d;
    }
    q->quarantine.is_open = false; /* the list is walked once per group */
    return NULL;
}

bool quarantine_find(struct queue *q, int64_t now_ms, struct delivery *d)
{
    if (quarantine_join(q, d))
        return true;
    quarantine_open(q, d);
    if (application_find_place(q->application, now_ms, quarantine_owner(q, d)))
        return true;
    quarantine_leave(q, now_ms, d);
    return false;
}

bool quarantine_is_claimed(const struct queue *q, const struct delivery *d)
{
    if (!quarantine_has(q, d))
        return true;
    list_each(&q->held.sent[OP_CLAIM], k)
    {
        if (quarantine_has(q, container_of(k, struct delivery, in_list)))
            return false;
    }
    return true;
}

void quarantine_sent(struct queue *q)
{
    q->quarantine.is_sent = true;
}

void quarantine_leave(struct queue *q, int64_t now_ms, struct delivery *d)
{
    uint64_t owner = quarantine_owner(q, d);

    if (quarantine_has(q, d)) {
        assert(q->quarantine.n > 0);
        if (--q->quarantine.n) {
            d->claim->group = 0;
            return;
        }
    }
    d->claim->group = 0;
    application_leave_place(q->application, now_ms, owner);
}
