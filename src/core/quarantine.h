#pragma once

#include "onceward/core/queue.h"

/* The quarantined group of a queue. With batches, messages after their first crash or their second takeover have the
 * application to themselves together, at most GROUP_MOST in one request. A crash of that request is a second crash for
 * each of them, so each is sent alone after it. The group stays in quarantine until its last member leaves.
 *
 *   quarantine_open   the first member waits for quarantine
 *   quarantine_join   the group is in quarantine: others are claimed, too
 *   quarantine_sent   the request is in flight: no other message can join
 *
 * A member leaves when its claim fails, or when it awaits no answer any more. Without batches there is no group, and
 * each message is quarantined by itself. Private to the core. */

enum { GROUP_MOST = 8 };

static inline bool quarantine_has(const struct queue *q, const struct delivery *d)
{
    return d->claim->group && d->claim->group == q->quarantine.number;
}

/* Owner of the quarantine of d or of its group, for application_take_place. */
uint64_t quarantine_owner(const struct queue *q, const struct delivery *d);

/* d asks for quarantine: as the first of a new group, if it goes in a group and none is in quarantine. */
void quarantine_open(struct queue *q, struct delivery *d);

/* d becomes a member, if the group is in quarantine, has room, and its request was not sent. */
bool quarantine_join(struct queue *q, struct delivery *d);

/* Next message to be claimed for the group. NULL: none. */
struct delivery *quarantine_next(struct queue *q, int64_t now_ms);

/* For a message that turns out to need quarantine when it has a slot already: see application_find_place. */
bool quarantine_find(struct queue *q, int64_t now_ms, struct delivery *d);

/* Is no claim of the group of d in flight? */
bool quarantine_is_claimed(const struct queue *q, const struct delivery *d);

/* The request of the group is in flight. */
void quarantine_sent(struct queue *q);

/* d is no longer quarantined and no longer waits for it. The last member ends the group's quarantine. */
void quarantine_leave(struct queue *q, int64_t now_ms, struct delivery *d);
