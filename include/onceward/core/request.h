#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/core/application.h"
#include "onceward/core/timers.h"

#include <stdbool.h>
#include <stdint.h>

/* The name of a member that has left its request in flight. */
struct request_left {
    char *id;
    size_t id_len;
    uint8_t token[16];
};

/* A request to the application, and the deliveries that it carries: its *members*. The window, the marks of the two
 * limiters and the application's bookkeeping are those of the request. Its answer becomes one fact per member.
 *
 *   begun ──send──▶ in flight ──answer───────────────────────────────▶
 *                    │    ▲  └──last member leaves: ACTION_ABANDON ──▶ over
 *          window    ▼    │ every token was extended
 *           ends    overdue: each member is revoked; an answer may still come
 *
 * A member leaves when its answer is dealt with, or when it goes another way meanwhile; the others stay. A delivery
 * remembers its latest request until it joins another one, since the age of its transaction and its probation count
 * until the row is written. The request is freed with the last delivery that remembers it. */
struct request {
    struct request_left
        *left; /* members that have left it in flight, in `response`: the answer may name them */
    size_t n_left;
    uint64_t ref; /* unique in the process: answers and ACTION_ABANDON name it */
    struct hash_link by_ref;
    struct link in_list; /* queue_held.in_flight or .overdue */
    struct list members; /* delivery.in_request, in the order in which they were added */
    size_t n_deliveries; /* members, and deliveries that have left and remember it */
    struct timer timer;  /* the end of the window */
    int64_t sent_ms;
    int64_t window_ends_ms; /* the earliest of its members' windows */
    struct application_request application;
    uint64_t mark;           /* of the queue's limiter */
    uint32_t database_epoch; /* at the time of sending */
    bool in_flight;          /* sent, not answered yet */
    bool overdue;            /* its window has ended, and the tokens are being revoked */
    bool probation;          /* sent while the circuit breaker is on: a trial */
    bool unanswered;         /* the limiter has its mark for a window without an answer */
    struct buf body;         /* with several messages: the envelope. Empty: the body is that of the message */
    size_t n_sent;           /* members when it was sent */
    uint64_t parent;         /* larger request that failed, and had these members; 0: none, or unknown */
    uint64_t size_mark;      /* of the learned size */
    bool is_full;            /* there was no room for more messages */
    bool some_succeeded;     /* the answer names some members as failed, and not all */
    bool some_completed;     /* a row was completed, after an answer that awaits that */
    bool failed;             /* counted for the circuit breaker */
    bool is_bad;             /* the answer is none to a batch: rows say nothing about the next answer */
    bool crashed;            /* a crash that the application's bookkeeping has, with its owner: */
    enum crash whose;
};
