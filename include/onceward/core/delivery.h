#pragma once

#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/base/slice.h"
#include "onceward/core/keys.h"
#include "onceward/core/operation.h"
#include "onceward/core/reasons.h"
#include "onceward/core/request.h"
#include "onceward/core/timers.h"

#include <stdbool.h>
#include <stdint.h>

/* A delivery that is held. Only src/core/queue*.c changes it; the shell reads what it needs to carry an
 * action out, and fills in the token of a claim or a letter. It is valid from queue_delivered to the
 * queue_reap after its end. */

struct message;

/* As the broker gave it. */
struct delivery_copy {
    uint64_t generation, number; /* its tag */
    uint32_t consumer;           /* whose credit it holds */
    bool redelivered;
    int64_t delivery_count; /* as its header has it */
    int64_t n_rejected;     /* from this queue, before it came back to it */
    int64_t deaths;         /* message_deaths() */
    size_t n_bytes;         /* that it takes, or would take */
    uint64_t body_len;
    int64_t received_ms;
};

/* Its claim, and what the row says. */
struct delivery_claim {
    uint8_t token[16]; /* filled in by the shell when a claim is `fresh`, or a letter new */
    bool fresh;        /* the shell is to make a new token for this claim */
    bool has_token;    /* the token may be in the row */
    bool row_is_ours;  /* the row has said that it holds this body */
    bool alone;        /* claimed to go alone */
    bool reserved;     /* it holds a slot of the application */
    bool looked;       /* a read-only look was made while it waited for a slot */
    int attempt;       /* without takeovers */
    int crashes, takeovers;
    int unproven_step;
    int64_t unproven_at_ms; /* this side's clock; -1: never */
    int batch_cap; /* messages in its next request, at most, since a larger one failed; 0: as many as configured */
    int n_reclaims;         /* new windows for one attempt before it goes with a short one */
    int64_t window_ends_ms; /* this side's clock, from before the claim was sent */
};

/* The application's answer, where the row is still to be asked about it. */
struct delivery_answer {
    int64_t accepted_until_ms; /* 202: watched until then; 0: not accepted */
    int64_t commit_until_ms;   /* 2xx: the row must be completed by then; 0: no such wait */
    bool put_off;              /* its latest answer was "not now" */
    int kept_verdict;          /* of an answer that came while the window was being asked about; -1: none */
    int64_t kept_retry_after_ms;
};

/* May it be renewed near the delivery limit? */
enum renewal {
    RENEWAL_OPEN,        /* when it would be claimed */
    RENEWAL_AFTER_CLAIM, /* its row is dead, and a claim may revive it */
    RENEWAL_REFUSED,     /* not at all */
};

/* Columns of the row that change with the end of an attempt. */
struct row_changes {
    int crashes, unproven_step; /* -1: as it is */
    int batch_cap;              /* 0: as it is */
};

static inline struct row_changes row_as_it_is(void)
{
    return (struct row_changes){.crashes = -1, .unproven_step = -1};
}

static inline struct row_changes row_with_crashes(int n)
{
    return (struct row_changes){.crashes = n, .unproven_step = -1};
}

/* What is to be written of it, and what was said. */
struct delivery_outcome {
    int http_status;
    int64_t delay_ms;           /* until the next attempt; release, fail */
    bool died;                  /* the request ended in a crash */
    bool only_expired;          /* fail: unless the token was extended */
    bool give_back;             /* fail: not charged */
    bool charged;               /* what is being written counts against the brake */
    bool unanswered;            /* no answer in time, or 504: the application may still be at work */
    bool then_requeue;          /* release: and then back to the broker */
    struct row_changes changes; /* fail, release */
    enum dead_reason dead;      /* bury */
    bool rowless, exhausted;    /* bury */
    bool unsure;                /* bury: it was sent before, and what came of that is not known */
    char *error;  /* what went wrong last, in words, without a word of the application: for the log. Owned */
    char *said;   /* the same with what the application wrote, for row and letter; NULL: error. Owned */
    char *result; /* to be stored with the completion. Owned */
    size_t result_len;
};

struct delivery {
    struct link in_list; /* of its operation and phase, or of its wait */
    struct link in_tags; /* ascending, while its channel lives and nothing was said to the broker about it */
    struct link in_leader;  /* leader->followers */
    struct link in_request; /* request->members: its answer is awaited */
    struct hash_link by_ref, by_id;
    struct key_place place; /* of an ordered queue: in the line of its key, until its message has ended */
    struct list followers;
    struct delivery *leader; /* itself: it stands for its id; another: it follows that; NULL: neither */
    uint64_t ref;            /* of the process, never used twice */
    enum operation op;
    enum phase phase;
    enum wait_reason wait;
    bool ended;    /* over here; freed by queue_reap */
    bool was_dead; /* its row says so: it is to be rejected again */
    bool has_circled;
    bool given_up; /* an operator lets it die */
    enum renewal renewal;
    const char *not_renewed; /* RENEWAL_REFUSED: why, of static memory */
    struct timer timer;
    int64_t ready_ms; /* since when what is wanted may be sent */
    int64_t tried_ms; /* when it was last sent to the application; 0: never */
    int64_t locked_since_ms;
    int n_waits, n_given_back; /* in a row: of the database, without fault */
    struct message *message;   /* NULL: its body was not taken */
    char *id;
    size_t id_len;
    uint8_t fingerprint[16];
    struct delivery_copy copy;
    struct delivery_claim claim;
    struct request *request; /* the latest; NULL: none. A member of it while it is linked by in_request */
    struct delivery_answer answer;
    struct delivery_outcome outcome;
};

static inline struct slice delivery_slice(const struct delivery *d)
{
    return (struct slice){d->id, d->id_len};
}

/* Is it with the application, its answer awaited? */
static inline bool delivery_is_in_flight(const struct delivery *d)
{
    return d->in_request.next && d->request->in_flight;
}

/* The first member of a request; NULL: none is left. */
static inline struct delivery *request_first(const struct request *r)
{
    return r->members.len ? container_of(r->members.head.next, struct delivery, in_request) : NULL;
}
