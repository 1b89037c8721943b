#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an answer of the application means, as a pure function. */

enum answer_kind {
    ANSWER_STATUS,      /* a whole response came; status holds its code */
    ANSWER_UNREACHABLE, /* nothing was sent: refused, no route, name not found, TLS failure, connect timeout
                         */
    ANSWER_DIED,        /* the request was (or may have been) sent, then reset, closed or garbage */
    ANSWER_TIMEOUT,     /* the window ended first */
    ANSWER_ABANDONED,   /* this side gave up: shutdown */
};

enum verdict {
    VERDICT_COMPLETE,    /* response completion, 2xx: settle the row */
    VERDICT_CHECK,       /* transaction completion, 2xx: the row must say completed, within commit_grace */
    VERDICT_ACCEPTED,    /* transaction completion, 202: watch the row for the window */
    VERDICT_NOT_NOW,     /* given back, after retry_after_ms or backoff */
    VERDICT_UNAVAILABLE, /* given back, and a bad mark for the limiter */
    VERDICT_PERMANENT,   /* dead */
    VERDICT_FAILED,      /* charged, backoff */
    VERDICT_DIED,        /* a crash: quarantined; application.h says whom it is charged to */
    VERDICT_REVOKE,      /* window over: fail, unless extended */
    N_VERDICTS
};

struct outcome_rules {
    bool transaction; /* completion: transaction */
    const int *permanent_status;
    size_t n_permanent;
};

/* kind and status (0 when there is none) to a verdict. permanent_status wins over every other row. 502 and
 * 504 are VERDICT_DIED; 1xx cannot be final and counts as VERDICT_DIED (garbage); 600 and above count as 5xx
 * (RFC 9110, 15). An abandoned request is VERDICT_NOT_NOW: given back. */
enum verdict outcome_of(enum answer_kind kind, int status, const struct outcome_rules *rules);

const char *verdict_name(enum verdict v);

/* How much of an error that was kept (`answered 500: "…"`, perhaps with words before it) may stand in the
 * log: all but what the application wrote. It validates with what it was sent, and logs go further than rows
 * do. */
size_t outcome_brief(const char *error, size_t len);
