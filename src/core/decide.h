#pragma once

#include "core/held.h"
#include "core/request.h"

/* Where a delivery goes next, when a fact has told how it stands. Private to the core. */

enum {
    HELD_LOOK_MS = 1000,
    LOCK_LOOK_MS = 20,
    SURPLUS_LOOK_MS =
        50, /* a copy beyond N_FOLLOWERS_MAX looks here, not at the database; later by 1 ms for each other one */
    SURPLUS_BYTES =
        4096, /* of max_bytes for each such copy: more than its struct, id and first block of headers */
    ROOM_LOOK_MS = 250,     /* a body that did not fit */
    TO_TRY_WITH_MS = 30000, /* one delivery stays to try with for so long, and for so long then none */
    N_ALONE_TAKEOVERS = 2,  /* a row that was taken over so often goes alone from then on */
    N_ALONE_CRASHES =
        2, /* who was there at so many crashes never goes beside others; at one it may be chance */
};

/* It stands beside others of its id: it leads them, follows, or waits. */
void queue_join(struct queue *q, int64_t now_ms, struct delivery *d);

/* What it waited for is due: its operation is wanted, or it stands beside others of its id again. */
void queue_come_due(struct queue *q, int64_t now_ms, struct delivery *d);

/* Has an operator given it up by its id? */
bool decide_is_given_up(const struct queue *q, const struct delivery *d);

/* It is dead of that: a copy that is redriven lives. */
void decide_given_up(struct queue *q, const struct delivery *d);

/* It may be claimed: now, or in turn with what is tried while everything fails. */
void decide_claim(struct queue *q, int64_t now_ms, struct delivery *d);

/* Its attempt is given back: the failure is not its own. crashes, unproven: to be written into the row, -1:
 * as they are. */
void decide_release(struct queue *q, int64_t now_ms, struct delivery *d, int64_t delay_ms, int crashes,
                    int unproven);

/* A failure that is the message's own, as far as one can tell: it is charged; or given back where everything
 * fails or the database's connection broke meanwhile. death: DEAD_NONE, or why it dies of it. */
void decide_charge(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason death, int crashes,
                   int unproven);

/* The attempt failed: charged, and dead when it was the last. */
void decide_fail(struct queue *q, int64_t now_ms, struct delivery *d, int crashes, int unproven);

/* A window ended without an answer, and the row says failed: that counts for the circuit breaker. */
void decide_window_failed(struct queue *q, int64_t now_ms, struct delivery *d);

/* The database connection broke during the life of the request: that may have aborted the application's
 * transaction. */
bool decide_is_tainted(const struct queue *q, const struct delivery *d);

/* An answer that came while the database was asked whether the window is over, when that is known. */
void queue_answer_kept(struct queue *q, int64_t now_ms, struct delivery *d);

/* It dies without an attempt of its own being at fault (no id, mismatch, too old …), unless everything does:
 * then it is held. */
void decide_die(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why, bool rowless,
                const char *text);

/* An operator has given it up, by an answer about its row. */
void decide_operator(struct queue *q, int64_t now_ms, struct delivery *d);

/* Letter and row are to be written, whatever else happens. */
void decide_bury(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why, bool rowless);

/* Completed, by whomever: it and its followers are acked. */
void decide_ack(struct queue *q, int64_t now_ms, struct delivery *d);

/* A message went through. */
void decide_success(struct queue *q, int64_t now_ms, const struct delivery *d);

/* Dead before: rejected again, after a wait where the queue's dead-letter exchange leads back to it. */
void decide_reject_again(struct queue *q, int64_t now_ms, struct delivery *d);

/* Rejected: its letter is committed, or it is not wanted whole. */
void decide_reject(struct queue *q, int64_t now_ms, struct delivery *d);

/* Back to the broker, its claim given back first. */
void decide_requeue(struct queue *q, int64_t now_ms, struct delivery *d);

/* Instead of being returned, near the delivery limit: its copy is published, whatever its row is doing. */
void decide_renew(struct queue *q, int64_t now_ms, struct delivery *d);

/* Appends what is known of its limit, and why it was not renewed. */
struct buf;
void decide_limit_words(const struct queue *q, const struct delivery *d, struct buf *ret);

/* What only waits leaves at max_hold or for another replica: requeued, or stored whole where a return could
 * be its end. false: neither is safe now. */
bool decide_leave(struct queue *q, int64_t now_ms, struct delivery *d);

/* Where another holder's work on the row would have to be waited for, and the broker could drop the message
 * meanwhile: it is stored whole, and rejected. What waits to die because everything fails is stored with its
 * own reason. */
void decide_bury_held(struct queue *q, int64_t now_ms, struct delivery *d);

/* In a pause: can only a message tell that the application is well again? */
bool decide_needs_message(const struct queue *q);

/* Near the broker's delivery limit? */
bool decide_is_near(const struct queue *q, const struct delivery *d);

/* What waits because the database did not answer, or refused, is asked for again now. */
void decide_again(struct queue *q, int64_t now_ms);

/* What waits for the brake's end may go. */
void decide_brake_off(struct queue *q, int64_t now_ms);

/* A pause with a reason in words begins, goes on, or ends. It is told when it has lasted: queue_time. */
void pause_begin(struct queue *q, int64_t now_ms, enum pause_reason r, const char *text);
void pause_end(struct queue *q, int64_t now_ms, enum pause_reason r);
bool pause_is_on(const struct queue *q, enum pause_reason r);
