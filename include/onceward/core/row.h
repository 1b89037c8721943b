#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/operation.h"

#include <stdbool.h>
#include <stdint.h>

/* A token is taken over only this long after it expired, so that its live owner may complete first. */
enum { TAKEOVER_GRACE_MS = 2000 };

/* The inbox's answers: one table for the database functions, the adapter and the core. ROW(id, name in SQL) */
#define ROW_ANSWERS(ROW)                                                                                     \
    ROW(CLAIMED, "claimed")      /* the row is processing with the offered token (claim, look) */            \
    ROW(COMPLETED, "completed")  /* committed as completed, by whomever */                                   \
    ROW(HELD, "held")            /* processing with another token; wait_ms until a takeover is allowed */    \
    ROW(NOT_DUE, "not_due")      /* failed or waiting; wait_ms until its next attempt */                     \
    ROW(DUE, "due")              /* failed, waiting or expired, and may be claimed now (look only) */        \
    ROW(LOCKED, "locked")        /* an application is committing: look again */                              \
    ROW(VANISHED, "vanished")    /* no such row (purged between two looks): claim again */                   \
    ROW(EXHAUSTED, "exhausted")  /* attempts are used up: dead-letter */                                     \
    ROW(DEAD, "dead")            /* dead before */                                                           \
    ROW(ON_HOLD, "on_hold")      /* the row is held until an operator decides (claim, dead letter) */        \
    ROW(MISMATCH, "mismatch")    /* same id, different body */                                               \
    ROW(FAILED, "failed")        /* fail: done */                                                            \
    ROW(RELEASED, "released")    /* release: done */                                                         \
    ROW(DEAD_LETTERED, "buried") /* row and letter are committed */                                          \
    ROW(EXTENDED, "extended")    /* fail at the end of the window: the token was extended; wait_ms left */   \
    ROW(RENEWED, "renewed")      /* renew: counted */                                                        \
    ROW(TOO_OFTEN, "too_often")  /* renew: counted, and the queue pauses for wait_ms; 0: not */              \
    ROW(LOST, "lost")            /* the token is not the row's any more: claim again */                      \
    ROW(UNKNOWN, "unknown")      /* made by the adapter: the connection broke; read before acting */         \
    ROW(RETRY, "retry")     /* made by the adapter: a passing error (lock timeout, statement timeout) */     \
    ROW(INVALID, "invalid") /* made by the adapter: the database refuses this item's data */

enum row_answer {
#define ROW(id, name) ROW_##id,
    ROW_ANSWERS(ROW)
#undef ROW
        N_ROW_ANSWERS
};

const char *row_answer_name(enum row_answer a);

/* Finds the answer of that name; -1: none. */
int row_answer_find(const char *name);

/* An answer of the database about one operation, as the inbox fills it and the core reads it. After a claim or lookup
 * that found a row it has the row's values (not for vanished, unknown, retry and invalid). The application sees
 * attempt + takeovers: for a claimed row the number of this attempt, else of the last one. */
struct row {
    enum operation op; /* of the statement; set by the shell */
    enum row_answer answer;
    int attempt;
    int takeovers;       /* takeovers after an owner ended without an answer; `attempt` does not count them */
    int crashes;         /* crashes of the application with this message */
    int64_t unproven_ms; /* since the latest unproven charge; -1: none */
    int unproven_step;
    int batch_cap;   /* largest size of the next request with this message; 0: as configured */
    int64_t wait_ms; /* held, not_due, extended, claimed (lookup: rest of the window), too_often */
    int64_t age_ms;  /* claimed: since the row was first seen, or revived */
    bool taken_over; /* claimed: from an owner that has ended, or whose token had expired */
    int64_t letter;  /* dead-lettered: the letter's id; 0: none */
    struct slice
        detail; /* held: the claim owner; not_due, dead, exhausted: the last error; mismatch: fingerprints
                            and times, as JSON; invalid, retry: the error */
    char sqlstate[6]; /* retry, invalid; empty: none */
};
