#pragma once

#include "core/held.h"
#include "core/request.h"
#include "onceward/core/outcome.h"

/* The life of a delivery. A rule takes a fact about one delivery and returns a step; life_go carries it out. Rules
 * change no delivery's operation, phase or wait, and no other delivery. Private to the core. */

enum {
    HELD_LOOK_MS = 1000,
    LOCK_LOOK_MS = 20,
    ON_HOLD_LOOK_MS = 30000, /* in case an operator command was missed; normally it arrives sooner */
    /* Copies beyond N_FOLLOWERS_MAX: between two checks, which ask no database, plus 1 ms per such copy; and their
     * share of max_bytes, which is more than a struct, an id and a first block of headers. */
    SURPLUS_LOOK_MS = 50,
    SURPLUS_BYTES = 4096,
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
    FACT_LEAVE,     /* the delivery must leave: max_hold, another replica, a drain */
    FACT_COMMAND,   /* an operator command */
    FACT_BREAKER,   /* the circuit breaker was switched on or off */
    FACT_LOST,      /* the channel or the database is lost */
    FACT_KEY,       /* the previous message of its key has ended */
    FACT_LEADER,    /* its leader is completed, or hands the lead over */
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

/* Steps: want the operation now; want it after a wait, at until_ms at the latest; mark it as sent; end the
 * delivery; change nothing. */
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

/* life_follow_breaker: another partition has switched the shared circuit breaker on or off. life_go: carries
 * the step out, then its consequences for other deliveries. */
void life_follow_breaker(struct queue *q, int64_t now_ms);
void life_go(struct queue *q, int64_t now_ms, struct delivery *d, enum fact fact, struct step s);

/* Marks the operations of all members as sent, and the request as in flight. */
void life_send(struct queue *q, int64_t now_ms, struct request *r);

/* The table: the operations that may follow, a bit for each, and LIFE_END. */
enum { LIFE_END = 1 << N_OPERATIONS };
unsigned life_allows(enum operation op, enum phase phase, enum fact fact);
const char *life_fact_name(enum fact fact);

/* --- rules --- */

/* Places a new delivery beside others of its id: it leads them, follows, or waits. */
struct step life_join(struct queue *q, int64_t now_ms, struct delivery *d);

/* The wait of the delivery has ended. */
struct step life_due(struct queue *q, int64_t now_ms, struct delivery *d);

/* The end of a renewal: the claim of its delivery decides. */
struct step life_end_renewal(struct queue *q, int64_t now_ms, struct delivery *d);

/* The next attempt is due. */
struct step life_next_attempt(struct queue *q, int64_t now_ms, struct delivery *d);

/* The window of the delivery's request is over. The operation is FORWARD. */
struct step life_window_over(struct queue *q, struct delivery *d);

/* Applies the application's answer to a member that has left its request. While a revoke is in flight, the answer is
 * kept until the row has been read. */
void life_member_answered(struct queue *q, int64_t now_ms, struct delivery *d, enum verdict v,
                          const struct answer *a);

/* Applies an answer that was kept, now that the row has been read. */
struct step life_answer_kept(struct queue *q, int64_t now_ms, struct delivery *d);

/* Wants a claim. While everything fails, a message that was tried before waits for its turn as a trial. */
struct step life_claim(const struct queue *q, const struct delivery *d);

/* Sets whether a failure is charged to the message, which is known only when the failure is sent. */
void life_fail_charged(struct delivery *d, bool charged);

/* Releases the claim: the failure is not the message's own. */
struct step life_release(struct delivery *d, int64_t delay_ms, struct row_changes changes);

/* Releases the claim, then requeues the delivery. */
struct step life_release_to_requeue(struct delivery *d, int64_t delay_ms);

/* Gives a message up without a faulty attempt (no id, mismatch, too old …); while the circuit breaker is on,
 * it is held. */
struct step life_die(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why,
                     enum letter_row row, const char *text);

/* Dead-letters a message that an operator has given up. */
struct step life_give_up(struct queue *q, int64_t now_ms, struct delivery *d, enum letter_row row);

/* Dead-letters the message, whatever the circuit breaker says. */
struct step life_dead_letter(struct queue *q, int64_t now_ms, struct delivery *d, enum dead_reason why,
                             enum letter_row row);

/* Stores the message whole and rejects it, since the broker could drop it during the wait for another owner's
 * claim. A dead letter that waits for the circuit breaker keeps its own reason. */
struct step life_dead_letter_held(struct queue *q, int64_t now_ms, struct delivery *d);

/* Acks a completed message and its followers. */
struct step life_ack(void);

/* Rejects a message whose dead letter is committed, or not needed. */
struct step life_reject(void);

/* Rejects a message that was dead before, after a wait if the queue's dead-letter exchange leads back to it. */
struct step life_reject_again(struct queue *q, int64_t now_ms, struct delivery *d);

/* Requeues the delivery, or publishes a copy near the delivery limit. */
struct step life_requeue(const struct queue *q, struct delivery *d);

/* Publishes a copy to the message's own queue, in any state of its row. */
struct step life_renew(struct delivery *d);

/* Ends a delivery at max_hold or for another replica: by a requeue, or by a dead letter if a requeue could
 * lose the message. STEP_STAY: neither is safe now. */
struct step life_leave(struct queue *q, int64_t now_ms, struct delivery *d);

/* Counts a request that failed as a whole for the circuit breaker, as a failure of this member. No message is
 * charged. */
void life_request_failed(struct queue *q, int64_t now_ms, const struct delivery *member, const char *text);

/* Sets the circuit breaker and pauses the queue: an answer shows that no message can succeed. */
void life_everything_fails(struct queue *q, int64_t now_ms, enum pause_reason why, const char *text);

/* Appends the known facts about the message's delivery limit, and why it was not renewed. */
struct buf;
void life_limit_words(const struct queue *q, const struct delivery *d, struct buf *ret);

/* life_is_given_up: has an operator given the message up by its id? life_given_up_is_dead: takes the id off
 * the list, so that a redriven copy may live. */
bool life_is_given_up(const struct queue *q, const struct delivery *d);
void life_given_up_is_dead(struct queue *q, const struct delivery *d);

/* Must the delivery not be returned where the broker counts returns? With a limit of 0 none may be. */
bool life_must_stay(const struct queue *q, const struct delivery *d);

/* --- deliveries that wait for the same thing --- */

/* Sends refused statements again: the database works again, or an operator has requested it. */
void life_try_again(struct queue *q, int64_t now_ms);
