#pragma once

#include "onceward/core/queue.h"

/* The deliveries of a queue. Each is in one list, by its operation and phase or by its wait. Also their timers, their
 * places beside others of their ids, the broker's tags, and the credit in use. Only these functions change any of
 * that. Private to the core. */

enum { N_FOLLOWERS_MAX = 16 }; /* further copies wait for the row */

void held_init(struct queue *q);
void held_deinit(struct queue *q);

/* Largest memory of one message of an ordered queue, with its properties and headers. max_bytes holds a prefetch of the
 * largest bodies. The properties and headers of all messages may take as much again, or 16 KiB each. */
size_t held_ordered_most(const struct queue *q);

/* Adds a delivery to no list yet: its first step follows. Takes over the arrival. */
struct delivery *held_add(struct queue *q, int64_t now_ms, struct arrival *a);

/* Begins the claim of the delivery, if it has none yet. */
void held_begin_claim(struct delivery *d);

/* Moves the delivery to another list and clears its timer. For life.c only. */
void held_move(struct queue *q, int64_t now_ms, struct delivery *d, enum operation op, enum phase phase,
               enum wait_reason wait);

/* Moves the delivery to the end of its list. */
void held_put_behind(struct queue *q, struct delivery *d);

/* Ends the delivery. For life.c only. */
void held_end(struct queue *q, int64_t now_ms, struct delivery *d);

/* Removes the delivery from its request, whose answer no longer matters to it. Without a request, does nothing. */
void held_leave_request(struct queue *q, int64_t now_ms, struct delivery *d);

/* After a 202 the delivery keeps its slot of the application until the row is completed. until_ms 0: the row is. */
void held_accept(struct queue *q, int64_t now_ms, struct delivery *d, int64_t until_ms);

/* Position of a delivery among others of its id. It leads, follows, waits (too many follow, or the row's body is
 * unknown), or differs from the body of the leader's row. On an ordered queue the leader is the earliest arrival and
 * the followers are in that order: a message is completed in the place of its first copy, whatever keys the copies
 * have. */
enum join { JOIN_LEADS, JOIN_FOLLOWS, JOIN_SURPLUS, JOIN_MISMATCH };
enum join held_join(struct queue *q, struct delivery *d, const struct delivery **ret_leader);
/* Detaches the delivery from the others of its id. Returns the follower that now leads them, which has no step yet;
 * NULL: none. For life.c only. */
struct delivery *held_step_down(struct queue *q, struct delivery *d);
struct delivery *held_first_follower(struct delivery *d); /* removed from the followers; NULL: none */

/* Frees the message, and returns its bytes to max_bytes. */
void held_drop_body(struct queue *q, struct delivery *d);

/* Removes the tag of a delivery that is acked, rejected or requeued, or will be. */
void held_drop_tag(struct queue *q, struct delivery *d);

/* Could a copy be published to the message's own queue? */
bool held_can_renew(const struct queue *q, const struct delivery *d);

/* Is the delivery near the broker's delivery limit, so that it must be renewed, or else stored whole? */
bool held_is_near(const struct queue *q, const struct delivery *d);

bool held_tag_is_lost(const struct queue *q, const struct delivery *d);
bool held_is_idle(const struct delivery *d);
bool held_is_parked(const struct delivery *d);
uint64_t held_random(struct queue *q);
int64_t held_backoff_ms(struct queue *q, int n);
/* The wait before the next attempt, after n consecutive failures: at least a window, if the application may
 * still be at work. */
int64_t held_delay_ms(struct queue *q, const struct delivery *d, int n);

/* Begins another outcome, zeroed, and frees the previous one. */
void held_outcome(struct delivery *d, enum outcome_kind kind);
int64_t held_lock_wait_ms(struct delivery *d); /* 20 ms, doubling to 1 s */
