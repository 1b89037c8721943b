#pragma once

#include "onceward/core/queue.h"

/* What a queue holds: each delivery in one list, by its operation and phase or by its wait; its timer; its
 * place beside others of its id; the broker's tags and the credit that they use. Only these functions change
 * any of that. Private to the core. */

enum { N_FOLLOWERS_MAX = 16 }; /* copies beyond wait for the row */

void held_init(struct queue *q);
void held_deinit(struct queue *q);

/* A new delivery, in no list yet: its first step follows. */
struct delivery *held_add(struct queue *q, int64_t now_ms, const struct arrival *a);

/* To another list; its timer is cleared. For life.c alone. */
void held_move(struct queue *q, int64_t now_ms, struct delivery *d, enum operation op, enum phase phase,
               enum wait_reason wait);

/* Behind the others of its list. */
void held_put_behind(struct queue *q, struct delivery *d);

/* It is over here. For life.c alone. */
void held_end(struct queue *q, int64_t now_ms, struct delivery *d);

/* No answer of its request is awaited any more; no-op when none is. */
void held_leave_request(struct queue *q, int64_t now_ms, struct delivery *d);

/* Answered 202: it counts as out at the application until the row is settled; 0: it is. */
void held_accept(struct queue *q, int64_t now_ms, struct delivery *d, int64_t until_ms);

/* Where a new delivery stands beside others of its id: it leads, follows, waits (too many follow), or has
 * another body than the leader's row. */
enum join { JOIN_LEADS, JOIN_FOLLOWS, JOIN_SURPLUS, JOIN_MISMATCH };
enum join held_join(struct queue *q, struct delivery *d, const struct delivery **ret_leader);
/* It leads no others and follows none. Answers the follower that leads the others now, and has no step yet; NULL:
 * none. For life.c alone. */
struct delivery *held_step_down(struct queue *q, struct delivery *d);
struct delivery *held_first_follower(struct delivery *d); /* taken out of them; NULL: none */

/* Message freed, and its bytes given back to max_bytes. */
void held_drop_body(struct queue *q, struct delivery *d);

/* What it said to the broker, or will: no longer in the tags. */
void held_drop_tag(struct queue *q, struct delivery *d);

/* Could a copy of it be published to its own queue? */
bool held_can_renew(const struct queue *q, const struct delivery *d);

/* Near the broker's delivery limit: it is renewed, or stored whole where it cannot be. */
bool held_is_near(const struct queue *q, const struct delivery *d);

bool held_tag_is_lost(const struct queue *q, const struct delivery *d);
bool held_is_idle(const struct delivery *d);
bool held_is_parked(const struct delivery *d);
uint64_t held_holder(const struct queue *q, const struct delivery *d); /* for application_take_place */
uint64_t held_random(struct queue *q);
int64_t held_backoff_ms(struct queue *q, int n);
/* The wait before the next attempt, after n in a row: at least a window, if the application may still be at work. */
int64_t held_delay_ms(struct queue *q, const struct delivery *d, int n);
int64_t held_lock_wait_ms(struct delivery *d); /* 20 ms, doubling to 1 s */
