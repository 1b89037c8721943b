#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The active replica of each partition of an ordered consumer: see core/handover.c. */

struct queue;

/* Another replica that is subscribed to a partition, as it last reported. */
struct handover_peer {
    uint64_t who;         /* handover_hash of its instance */
    size_t partition;     /* index */
    int64_t subscription; /* its number, above 0: unique for that replica, also across restarts */
    bool may_consume;     /* able to process a message now */
    bool is_active;       /* the receiver of the partition's messages, as far as that replica knows */
};

/* Hash that is the same in every process and version. */
uint64_t handover_hash(const void *data, size_t len);

/* Assigns each partition to a member: every member gets as many as the others, or one more. Members and partitions
 * are given by their hashes, in any order. The members are different, and at least one. */
void handover_assign(const uint64_t *members, size_t n_members, const uint64_t *partitions,
                     size_t n_partitions, uint64_t *ret_owners);

/* Takes the hashes of this instance and of the queue's name. Called before any fact. */
void handover_init(struct queue *q, uint64_t self, uint64_t partition);

/* Takes the subscriptions of all other replicas to the partitions of one consumer. True: their next report is wanted
 * soon. */
bool handover_presence(struct queue *const *partitions, size_t n, int64_t now_ms,
                       const struct handover_peer *peers, size_t n_peers);

/* The database is lost: other replicas are unknown from now on. */
void handover_unknown(struct queue *q);

/* Is another replica active on this queue, as far as is known? */
bool handover_is_standby(const struct queue *q);
