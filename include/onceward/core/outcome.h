#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The meaning of an application's answer, as a pure function. */

enum answer_kind {
    ANSWER_STATUS,      /* a complete response; status holds its code */
    ANSWER_UNREACHABLE, /* nothing was sent: refused, no route, name not found, TLS failure, connect timeout
                           */
    ANSWER_DIED,        /* the request was (or may have been) sent, then reset, closed or garbage */
    ANSWER_TIMEOUT,     /* the window ended first */
    ANSWER_ABANDONED,   /* this side gave up: shutdown */
};

enum verdict {
    VERDICT_COMPLETE,    /* completion response, 2xx: complete the row */
    VERDICT_CHECK,       /* completion transaction, 2xx: the row must become completed within commit_grace */
    VERDICT_ACCEPTED,    /* completion transaction, 202: read the row again during the window */
    VERDICT_NOT_NOW,     /* release the claim; retry after retry_after_ms or backoff */
    VERDICT_UNAVAILABLE, /* release the claim, with a bad mark for the limiter */
    VERDICT_PERMANENT,   /* give the message up */
    VERDICT_FAILED,      /* charge the attempt; backoff */
    VERDICT_DIED,        /* a crash: quarantine; application.h decides which message is charged */
    VERDICT_REVOKE,      /* the window has ended: fail, unless it was extended */
    VERDICT_SPLIT,       /* failed in company: release at once, for a smaller request */
    VERDICT_BAD_ANSWER,  /* the answer says nothing about the messages of its request: release, backoff */
    N_VERDICTS
};

struct outcome_rules {
    bool transaction; /* completion: transaction */
    const int *permanent_status;
    size_t n_permanent;
};

/* The verdict for a kind and a status (0: none). permanent_status outranks every other rule. 502 and 504 are
 * VERDICT_DIED; 1xx cannot be final and counts as VERDICT_DIED (garbage); 600 and above count as 5xx (RFC
 * 9110, 15). An abandoned request is VERDICT_NOT_NOW: its claim is released. */
enum verdict outcome_of(enum answer_kind kind, int status, const struct outcome_rules *rules);

const char *verdict_name(enum verdict v);

/* The length of the part of a stored error (`answered 500: "…"`, possibly with a prefix) that may be logged:
 * everything but the application's own text. That text may repeat the request's data, and logs are more
 * widely readable than rows. */
size_t outcome_brief(const char *error, size_t len);
