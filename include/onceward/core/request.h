#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/core/application.h"
#include "onceward/core/timers.h"

#include <stdbool.h>
#include <stdint.h>

/* A request to the application, and the deliveries that it carries: its *members*. The window, the marks of the two
 * limiters and the application's bookkeeping are those of the request, and so is its answer, which becomes one
 * fact per member.
 *
 *   begun ──send──▶ in flight ──answer───────────────────────────────▶ over
 *                    │    ▲  └──last member leaves: ACTION_ABANDON ──▶ over
 *          window    ▼    │ every token was extended
 *           ends    overdue: each member is revoked; an answer may still come
 *
 * A member leaves when its answer is dealt with, or when it goes another way meanwhile; the others stay. A delivery
 * remembers its latest request until it joins another: how long its transaction may have lasted, and whether it
 * was sent on probation, count until its row is written. The request is freed with the last delivery that does. */
struct request {
    uint64_t ref; /* of the process, never used twice: answers and ACTION_ABANDON name it */
    struct hash_link by_ref;
    struct link in_list; /* queue_held.in_flight or .overdue */
    struct list members; /* delivery.in_request, in the order in which they were added */
    size_t n_deliveries; /* members, and deliveries that have left it and remember it */
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
    uint64_t parent;     /* the larger request that failed, of whose members these are; 0: none, or unknown */
    uint64_t size_mark;  /* of the learned size */
    bool is_full;        /* more messages would not have gone with it */
    bool some_succeeded; /* its answer names some as failed, and not all */
    bool some_completed; /* a row was completed, after an answer that awaits it */
    bool failed;         /* counted for the circuit breaker */
    bool is_bad;         /* its answer is none to a batch: its rows say nothing about the next answer */
    bool crashed;        /* the application was told of its crash, and said whose it is: */
    enum crash whose;
};
