#pragma once

#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/base/slice.h"
#include "onceward/core/arrival.h"
#include "onceward/core/claim.h"
#include "onceward/core/operation.h"
#include "onceward/core/reasons.h"
#include "onceward/core/request.h"
#include "onceward/core/timers.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/* A delivery that Onceward holds. Operation, phase and wait change in src/core/life.c only, lists and counts in
 * held.c; the other fields belong to the rules of the core. The shell reads the fields that it needs for an action,
 * and fills in the token of a claim or a dead letter. Valid from queue_delivered to the queue_reap after its end. */

/* Can the message be renewed near the delivery limit? */
enum renewal {
    RENEWAL_OPEN,        /* yes, before it is claimed */
    RENEWAL_AFTER_CLAIM, /* the row is dead, and only a claim may revive it */
    RENEWAL_REFUSED,     /* no */
};

/* Columns of the row that change with the end of an attempt, in addition to claim->next_cap; -1: unchanged. */
struct row_changes {
    int crashes, unproven_step;
};

static inline struct row_changes row_as_it_is(void)
{
    return (struct row_changes){.crashes = -1, .unproven_step = -1};
}

static inline struct row_changes row_with_crashes(int n)
{
    return (struct row_changes){.crashes = n, .unproven_step = -1};
}

/* How the latest request ended. */
enum request_end {
    REQUEST_ANSWERED,   /* with an answer of its own; or none was sent */
    REQUEST_PUT_OFF,    /* "not now"; until the next one is sent */
    REQUEST_CRASHED,    /* with a crash */
    REQUEST_UNANSWERED, /* no answer in time, or 504: the application may still work */
};

/* The row of a message that becomes a dead letter. */
enum letter_row {
    LETTER_CLAIMED,   /* with the token of this delivery */
    LETTER_UNCLAIMED, /* without a claim: attempts are used up, or the next one is not due */
    LETTER_ROWLESS,   /* no row: no usable id, or the row has another body */
};

/* The outcome to be written, or written last, by the operation that writes it. */
enum outcome_kind {
    OUTCOME_NONE, /* the row is only claimed or read */
    OUTCOME_CHECK,
    OUTCOME_COMPLETE,
    OUTCOME_FAIL, /* also by REVOKE */
    OUTCOME_RELEASE,
    OUTCOME_DEAD_LETTER,
};

struct outcome_complete {
    char *result; /* to be stored. Owned */
    size_t result_len;
};

struct outcome_fail {
    int64_t delay_ms; /* until the next attempt */
    struct row_changes changes;
    bool charged;      /* the failure is the message's own; otherwise the claim is released */
    bool only_expired; /* unless the token was extended */
};

struct outcome_release {
    int64_t delay_ms; /* negative: that long after the end of the window */
    struct row_changes changes;
    bool then_requeue;
};

struct outcome_dead_letter {
    enum dead_reason reason;
    enum letter_row row;
    bool charged; /* the failure is the message's own, as far as the circuit breaker knows */
    bool unsure;  /* sent before, with an unknown outcome */
};

/* How the latest attempt ended, and the outcome to be written. */
struct delivery_outcome {
    int http_status;
    enum request_end request;
    char *error; /* the last error, without the application's own text: for the log. Owned */
    char *said;  /* the same with the application's text, for row and dead letter; NULL: error. Owned */
    enum outcome_kind kind;
    union {
        int64_t commit_until_ms; /* CHECK: after 2xx the row must be completed by then */
        struct outcome_complete complete;
        struct outcome_fail fail;
        struct outcome_release release;
        struct outcome_dead_letter dead_letter;
    };
};

/* State of the row while only an operator can change it. */
enum row_end {
    ROW_END_NONE,
    ROW_END_ON_HOLD, /* held, which is logged */
    ROW_END_DEAD,    /* dead already: the delivery is rejected again */
};

struct delivery {
    struct link in_list; /* list of its operation and phase, or of its wait */
    struct link
        in_tags; /* ascending, while the channel exists and the delivery is neither acked, rejected nor
                    requeued */
    struct link in_request; /* request->members, while the answer is awaited */
    struct hash_link by_ref;
    struct key_place place;  /* ordered queue: place in the line of the key, until the message has ended */
    struct delivery *leader; /* itself: leads the deliveries of its id; another: follows that one; NULL:
                                neither */
    union {
        struct { /* leader: */
            struct hash_link by_id;
            struct list followers;
        };
        struct link in_leader; /* follower: in leader->followers */
    };
    struct arrival *arrival; /* owned */
    uint64_t ref;            /* unique in the process */
    enum operation op;
    enum phase phase;
    enum wait_reason wait;
    enum row_end row_end;
    bool has_circled; /* has waited once, because the queue's dead-letter exchange leads back to it */
    bool given_up;    /* an operator has given it up */
    enum renewal renewal;
    const char *not_renewed; /* reason for RENEWAL_REFUSED, in static memory */
    struct timer timer;
    int64_t ready_ms;        /* time since which the wanted operation may be sent */
    int n_waits;             /* consecutive waits for the database, or for the confirm of its copy */
    struct claim *claim;     /* since it leads its id, or is a dead letter; NULL before. Owned */
    struct request *request; /* the latest; NULL: none. The delivery is a member while in_request links it */
    struct delivery_outcome outcome;
};

static inline struct slice delivery_slice(const struct delivery *d)
{
    return (struct slice){d->arrival->id, d->arrival->id_len};
}

/* Has the broker delivered the message before? false: no, or its body was skipped. */
static inline bool delivery_is_redelivered(const struct delivery *d)
{
    return d->arrival->message && d->arrival->message->redelivered;
}

static inline bool delivery_is_rowless(const struct delivery *d)
{
    return d->outcome.kind == OUTCOME_DEAD_LETTER && d->outcome.dead_letter.row == LETTER_ROWLESS;
}

/* The kind of outcome that the operation writes. NONE: any, since it writes none. */
static inline enum outcome_kind outcome_kind_of(enum operation op)
{
    switch (op) {
    case OP_COMPLETE:
        return OUTCOME_COMPLETE;
    case OP_FAIL:
    case OP_REVOKE:
        return OUTCOME_FAIL;
    case OP_RELEASE:
        return OUTCOME_RELEASE;
    case OP_DEAD_LETTER:
        return OUTCOME_DEAD_LETTER;
    default:
        return OUTCOME_NONE;
    }
}

/* The outcome of a delivery whose operation is FAIL or REVOKE, RELEASE, DEAD_LETTER. */
static inline const struct outcome_fail *delivery_failure(const struct delivery *d)
{
    assert(d->outcome.kind == OUTCOME_FAIL);
    return &d->outcome.fail;
}

static inline const struct outcome_release *delivery_release(const struct delivery *d)
{
    assert(d->outcome.kind == OUTCOME_RELEASE);
    return &d->outcome.release;
}

static inline const struct outcome_dead_letter *delivery_dead_letter(const struct delivery *d)
{
    assert(d->outcome.kind == OUTCOME_DEAD_LETTER);
    return &d->outcome.dead_letter;
}

/* Wait before the next attempt of a released or failed delivery. */
static inline int64_t delivery_delay_ms(const struct delivery *d)
{
    return d->outcome.kind == OUTCOME_RELEASE ? d->outcome.release.delay_ms : delivery_failure(d)->delay_ms;
}

static inline const struct row_changes *delivery_changes(const struct delivery *d)
{
    return d->outcome.kind == OUTCOME_RELEASE ? &d->outcome.release.changes : &delivery_failure(d)->changes;
}

/* Is the failure written only if the token was not extended? */
static inline bool delivery_fails_expired(const struct delivery *d)
{
    return d->outcome.kind == OUTCOME_FAIL && d->outcome.fail.only_expired;
}

/* May the token of this delivery be in the row? */
static inline bool delivery_has_token(const struct delivery *d)
{
    return d->claim && (d->claim->of_row == CLAIM_OFFERED || d->claim->of_row == CLAIM_HELD);
}

/* Has the row the fingerprint of this delivery's body? */
static inline bool delivery_owns_row(const struct delivery *d)
{
    return d->claim && (d->claim->of_row == CLAIM_HELD || d->claim->of_row == CLAIM_ENDED);
}

static inline void delivery_drop_token(struct delivery *d)
{
    if (delivery_has_token(d))
        d->claim->of_row = d->claim->of_row == CLAIM_HELD ? CLAIM_ENDED : CLAIM_NONE;
}

/* Was the message answered 202? Then it keeps its slot until its row is completed. */
static inline bool delivery_is_accepted(const struct delivery *d)
{
    return d->claim && d->claim->accepted_until_ms;
}

/* Was the message forwarded before? */
static inline bool delivery_was_tried(const struct delivery *d)
{
    return d->claim && d->claim->tried_ms;
}

static inline bool delivery_has_ended(const struct delivery *d)
{
    return d->phase == PHASE_ENDED;
}

/* Is the message with the application, which has not answered yet? */
static inline bool delivery_is_in_flight(const struct delivery *d)
{
    return d->in_request.next && d->request->in_flight;
}

/* The delivery at this link of in_list. */
static inline struct delivery *delivery_at(struct link *k)
{
    return container_of(k, struct delivery, in_list);
}

/* The member at this link of request->members. */
static inline struct delivery *request_member(struct link *k)
{
    return container_of(k, struct delivery, in_request);
}

/* First member of a request. NULL: none is left. */
static inline struct delivery *request_first(const struct request *r)
{
    return r->members.len ? container_of(r->members.head.next, struct delivery, in_request) : NULL;
}
