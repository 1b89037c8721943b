#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The meaning of an application's answer. Pure. */

enum answer_kind {
    ANSWER_STATUS,      /* a complete response; status holds its code */
    ANSWER_UNREACHABLE, /* no byte was sent: no route, name not found, refused, TLS failure, timeout */
    ANSWER_DIED,        /* the request was (or may have been) sent, then reset, closed or garbage */
    ANSWER_TIMEOUT,     /* the window ended first */
    ANSWER_ABANDONED,   /* this side gave up: shutdown */
};

/* An answer to a request, as forward.h fills it and the core reads it. */
struct answer {
    size_t queue;
    uint64_t ref;          /* of the request */
    enum answer_kind kind; /* ANSWER_ABANDONED only from the core */
    int status;            /* 0: none */
    bool refused;  /* unreachable because the connection failed: refused, no route, name not found, TLS
                     failure. False: it took too long, or broke before anything was sent */
    bool kept;     /* the connection stays open for the next request */
    bool reused;   /* sent over a connection that had carried other requests */
    bool to_close; /* the body has no length: it ended with the connection, and may have broken off */
    bool cut;      /* the body exceeds the queue's max_response, or broke off; the status counts */
    int64_t retry_after_ms; /* at most an hour; -1: absent or malformed */
    int64_t batch;          /* the field Onceward-Batch; -1: absent, or no number */
    struct slice body;      /* at most max_response */
    int64_t took_us;
    const char *error; /* in words: "answered 500", "connection refused by 127.0.0.1:8080", "connection closed
                          by 127.0.0.1:8080 before an answer"; where the queue's error_body wants it, the
                          first 256 bytes of a textual error body are added in quotes, control characters
                          removed. Empty for 2xx */
    const char *brief; /* the same without the application's own text: for the log */
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

/* Length of the part of a stored error (`answered 500: "…"`, possibly with a prefix) that may be logged: everything
 * but the application's own text. That text may repeat the request's data, and more people read logs than rows. */
size_t outcome_brief(const char *error, size_t len);
