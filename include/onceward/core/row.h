#pragma once

/* A token is taken over only when it expired this long ago, so that its live owner may complete first. */
enum { TAKEOVER_GRACE_MS = 2000 };

/* The inbox's answers: one table for the database functions, the adapter and the core. ROW(id, name in SQL) */
#define ROW_ANSWERS(ROW)                                                                                     \
    ROW(CLAIMED, "claimed")     /* the row is processing with the offered token (claim, look) */             \
    ROW(COMPLETED, "completed") /* committed as completed, by whomever */                                    \
    ROW(HELD, "held")           /* processing with another token; wait_ms until a takeover is allowed */     \
    ROW(NOT_DUE, "not_due")     /* failed or waiting; wait_ms until its next attempt */                      \
    ROW(DUE, "due")             /* failed, waiting or expired, and may be claimed now (look only) */         \
    ROW(LOCKED, "locked")       /* an application is committing: look again */                               \
    ROW(VANISHED, "vanished")   /* no such row (purged between two looks): claim again */                    \
    ROW(EXHAUSTED, "exhausted") /* attempts are used up: bury */                                             \
    ROW(DEAD, "dead")           /* dead before */                                                            \
    ROW(ON_HOLD, "on_hold")     /* the row is held until an operator decides (claim, bury) */                \
    ROW(MISMATCH, "mismatch")   /* same id, different body */                                                \
    ROW(FAILED, "failed")       /* fail: done */                                                             \
    ROW(RELEASED, "released")   /* release: done */                                                          \
    ROW(BURIED, "buried")       /* bury: row and letter are committed */                                     \
    ROW(EXTENDED, "extended")   /* fail at the end of the window: the token was extended; wait_ms left */    \
    ROW(RENEWED, "renewed")     /* renew: counted */                                                         \
    ROW(TOO_OFTEN, "too_often") /* renew: counted, and the queue pauses for wait_ms; 0: not */               \
    ROW(LOST, "lost")           /* the token is not the row's any more: claim again */                       \
    ROW(UNKNOWN, "unknown")     /* made by the adapter: the connection broke; read before acting */          \
    ROW(RETRY, "retry")         /* made by the adapter: a passing error (lock timeout, statement timeout) */ \
    ROW(INVALID, "invalid")     /* made by the adapter: the database refuses this item's data */

enum row_answer {
#define ROW(id, name) ROW_##id,
    ROW_ANSWERS(ROW)
#undef ROW
        N_ROW_ANSWERS
};

const char *row_answer_name(enum row_answer a);

/* The answer of that name, or -1. */
int row_answer_find(const char *name);
