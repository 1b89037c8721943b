#pragma once

#include "core/held.h"
#include "core/request.h"
#include "onceward/core/outcome.h"

/* The life of a delivery. A rule takes a fact about one delivery and returns a step; life_go carries it out. Rules
 * change no delivery's operation, phase or wait, and no other delivery. Private to the core. */

enum {
    HELD_LOOK_MS = 1000,
    LOCK_LOOK_MS = 20,
    ON_HOLD_LOOK_MS =
        30000, /* commands of operators arrive sooner; this one is for a command that was missed */
    SURPLUS_LOOK_MS =
        50, /* interval at which a copy beyond N_FOLLOWERS_MAX checks here, not at the database; 1 ms more per
               other copy */
    SURPLUS_BYTES =
        4096, /* share of max_bytes per such copy: more than its struct, id and first block of headers */
    ROOM_LOOK_MS = 250,     /* interval for a body that did not fit */
    TO_TRY_WITH_MS = 30000, /* how long a probe message stays, and how long there is none afterwards */
    N_ALONE_TAKEOVERS = 2,  /* a row that was taken over this often is quarantined from then on */
    N_ALONE_CRASHES = 2, /* a message with this many crashes is never forwarded beside others; one crash may
                            be chance */
};

/* A fact about a delivery. */
enum fact {
    FACT_DELIVERED, /* the broker delivered it */
    FACT_TURN,      /* its turn has come: for an action, or for another operation */
    FACT_ROW,       /* the database answered */
    FACT_ANSWER,    /* the application answered its request */
    FACT_WINDOW,    /* its request's window has ended */
    FACT_PUBLISHED, /* the broker answered about its copy */
    FACT_DUE,       /* its wait has ended */
    FACT_LEAVE,     /* must leave: max_hold, another replica, a drain */
    FACT_COMMAND,   /* an operator command */
    FACT_BREAKER,   /* the circuit breaker was switched on or off */
    FACT_LOST,      /* the channel or the database is lost */
    FACT_KEY,       /* the previous message of its key has ended */
    FACT_LEADER,    /* its leader is completed, or makes it the leader */
    N_FACTS
};

enum step_kind { STEP_STAY, STEP_WANT, STEP_WAIT, STEP_SENT, STEP_END };

/* Effects of a step, in the order in which they take place. */
enum {
    EFFECT_LEAVE_REQUEST = 1 << 0,     /* the answer no longer matters; 202 is forgotten */
    EFFECT_ACCEPT = 1 << 1,            /* 202: accepted_until_ms */
    EFFECT_DROP_TOKEN = 1 << 2,        /* the row belongs to another claim, or its window ends by itself */
    EFFECT_ACK_FOLLOWERS = 1 << 3,     /* copies of a completed message are completed */
    EFFECT_RELEASE_FOLLOWERS = 1 << 4, /* the first of them leads the others; a follower leaves its leader */
    EFFECT_EXTEND = 1 << 5,            /* its request is in flight as before */
};

struct step {
    enum step_kind kind;
    enum operation op;     /* WANT, WAIT, SENT */
    enum wait_reason wait; /* WAIT */
    int64_t until_ms;      /* WAIT; INT64_MAX: no timer */
    unsigned effects;
    int64_t accepted_until_ms; /* EFFECT_ACCEPT */
};

/* The operation is wanted now; or when the wait is over, at until_ms at the latest; it is sent; the delivery ends. */
static inline struct step step_want(enum operation op)
{
    return (struct step){.kind = STEP_WANT, .op = op};
}

static inline struct step step_wait(enum operation op, enum wait_reason wait, int64_t until_ms)
{
    return (struct step){.kind = STEP_WAIT, .op = op, .wait = wait, .until_ms = until_ms};
}

static inline struct step step_sent(const struct delivery *d)
{
    return (struct step){.kind = STEP_SENT, .op = d->op};
}

static inline struct step step_end(void)
{
    return (struct step){.kind = STEP_END};
}

static inline struct step step_stay(void)
{
    return (struct step){.kind = STEP_STAY};
}

static inline struct step step_with(struct step s, unsigned effects)
{
    s.effects |= effects;
    return s;
}

/* Carries the step out after the fact, and then its consequences for other deliveries. */
void life_follow_breaker(struct queue *q, int64_t now_ms);
void life_go(struct queue *q, int64_t now_ms, struct delivery *d, enum fact fact, struct step s);

/* All members of the request were added: their operations are sent with it. */
void life_send(struct queue *q, int64_t now_ms, struct request *r);

/* The table: the operations that may follow, a bit for each, and LIFE_END. */
enum { LIFE_END = 1 << N_OPERATIONS };
unsigned life_allows(enum operation op, enum phase phase, enum fact fact);
const char *life_fact_name(enum fact fact);

/* --- rules --- */

/* Beside others of its id: it leads them, follows, or waits. */
struct step life_join(struct queue *q, int64_t now_ms, struct delivery *d);

/* Its wait has ended. */
struct step life_due(struct queue *q, int64_t now_ms, struct delivery *d);

/* The end of a renewal: the claim of its delivery decides. */
struct step life_end_renewal(struct queue *q, int64_t now_ms, struct delivery *d);

/* The time of its next attempt has come. */
struct step life_next_attempt(struct queue *q, int64_t now_ms, struct delivery *d);

/* The window of its request is over, and its operation is FORWARD. */
struct step life_window_over(struct queue *q, struct delivery *d);

/* The application's answer to its request. STEP_STAY: the answer is kept until the row has answered. */
struct step life_answered(struct queue *q, int64_t now_ms, struct delivery *d, const struct member_answer *a);

/* An answer that was kept, after the row has answered. */
struct step life_answer_kept(struct queue *q, int64_t now_ms, struct delivery *d);

/* Ready to be claimed: now, or in turn with the trials while everything fails. */
struct step life_claim(const struct queue *q, const struct delivery *d);

/* Whether a failure that is about to be written is charged: known when it is sent. */
void life_fail_charged(struct delivery *d, bool charged);

/* Releases the claim: the failure is not the message's own. */
struct step life_release(struct delivery *d, int64_t delay_ms, struct row_changes changes);

/* The same, followed by a requeue. */
struct step life_release_to_requeue(struct delivery *d, int64_t delay_ms);

/* Gives a message up without a faulty attempt (no id, mismatch, too old …); while the circuit breaker is on,
 * it is held. */
struct step life_die(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why,
                     enum letter_row row, const char *text);

/* An operator has given it up, as an answer about its row shows. */
struct step life_give_up(struct queue *q, int64_t now_ms, struct delivery *d, enum letter_row row);

/* Row and dead letter must be written in any case. */
struct step life_dead_letter(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why,
                             enum letter_row row);

/* Another owner's claim would have to be waited for, and the broker could drop the message meanwhile: it is
 * stored whole, and rejected. If it waits to be given up because of the circuit breaker, the letter has its
 * own reason. */
struct step life_dead_letter_held(struct queue *q, int64_t now_ms, struct delivery *d);

/* Completed: it and its followers are acked. */
struct step life_ack(void);

/* Its dead letter is committed, or not needed. */
struct step life_reject(void);

/* Dead before: rejected again, after a wait where the queue's dead-letter exchange leads back to it. */
struct step life_reject_again(struct queue *q, int64_t now_ms, struct delivery *d);

/* Requeues it; near the delivery limit a copy is published instead. */
struct step life_requeue(const struct queue *q, struct delivery *d);

/* Publishes a copy to its own queue, in any state of its row. */
struct step life_renew(struct delivery *d);

/* A delivery leaves at max_hold or for another replica: it is requeued, or stored whole if a requeue could be
 * its end. STEP_STAY: neither is safe now. */
struct step life_leave(struct queue *q, int64_t now_ms, struct delivery *d);

/* A request failed as a whole, which charges no message: it counts for the circuit breaker, as that one of its
 * messages. */
void life_request_failed(struct queue *q, int64_t now_ms, const struct delivery *member, const char *text);

/* An answer has told that no message can succeed: the circuit breaker is set, and the queue pauses. */
void life_everything_fails(struct queue *q, int64_t now_ms, enum pause_reason why, const char *text);

/* Appends the known facts about its limit, and why it was not renewed. */
struct buf;
void life_limit_words(const struct queue *q, const struct delivery *d, struct buf *ret);

/* life_is_given_up: has an operator given it up by its id? life_given_up_is_dead: it is dead now, so a
 * redriven copy may live. */
bool life_is_given_up(const struct queue *q, const struct delivery *d);
void life_given_up_is_dead(struct queue *q, const struct delivery *d);

/* May the delivery not be returned where the broker counts returns? With a limit of 0 none may be. */
bool life_must_stay(const struct queue *q, const struct delivery *d);

/* --- deliveries that wait for the same thing --- */

/* Sends refused statements again: the database works again, or an operator has requested it. */
void life_try_again(struct queue *q, int64_t now_ms);
