#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/outcome.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The application's answer to a request with several messages: a verdict for the request, and the members that it
 * names as failed. Pure. */

enum batch_verdict {
    BATCH_ANSWERED, /* 2xx with the echo of the count: the named members failed, all others succeeded */
    BATCH_ACCEPTED, /* the same with 202, in `transaction`: the others are accepted */
    BATCH_BAD,      /* 2xx without the members' outcomes: no member is charged */
    BATCH_UNKNOWN,  /* an application that has never answered a batch refuses the form of the request */
    BATCH_NOT_NOW,  /* all members are released */
    BATCH_NOT_NOW_FOR_ONE, /* the same, but one member may be the cause */
    BATCH_FAILED,          /* the request failed as a whole */
    BATCH_TOO_LARGE,       /* 413: the same, and the application takes smaller requests */
    BATCH_TIMEOUT,         /* no answer within the window */
    BATCH_CRASHED,
    N_BATCH_VERDICTS
};

struct batch_rules {
    struct outcome_rules outcome;
    bool knows_batches; /* this application has echoed a count before */
};

struct batch_reply {
    enum answer_kind kind;
    int status;
    size_t n_sent;    /* messages in the request */
    int64_t echo;     /* the field Onceward-Batch; -1: none, or no number */
    bool is_cut;      /* the body is not whole */
    bool is_to_close; /* the body has no length */
    struct slice body;
};

struct batch_member {
    struct slice id, token;
    /* Set by batch_answer_read. */
    bool failed;
    int status;             /* as if answered for it alone: 500 where the entry has none, a 2xx, 502 or 504 */
    int64_t retry_after_ms; /* -1: none */
    struct slice error;     /* raw text of a JSON string, without its quotes */
    struct slice result;    /* raw JSON; empty: none */
};

struct batch_reading {
    enum batch_verdict verdict;
    const char *why; /* BATCH_BAD: the reason, static text */
};

/* members: those of the request, without two of one id. Slices of the answer point into the body. */
void batch_answer_read(const struct batch_reply *a, const struct batch_rules *rules,
                       struct batch_member *members, size_t n, struct batch_reading *ret);

/* Verdict for a named member, as if it had been answered alone with its status. Never VERDICT_COMPLETE,
 * VERDICT_CHECK, VERDICT_ACCEPTED or VERDICT_DIED. 424: not attempted. */
enum verdict batch_member_verdict(const struct batch_member *m, const struct outcome_rules *rules);
