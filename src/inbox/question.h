#pragma once

#include "onceward/base/fault.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

/* Questions: calls that are not about deliveries. Each is one call of one function of the schema, sent in the
 * pipeline between the batches, at most once at a time, and answered by rows or a fault. */
enum question {
    QUESTION_FIGURES,
    QUESTION_HOUSEKEEP,
    QUESTION_EXPIRE_HISTORY,
    QUESTION_MAKE_MESSAGES,
    QUESTION_KEEP_MESSAGES,
    QUESTION_LOCK_HOLDER,
    QUESTION_TRY,
    QUESTION_REGISTER,
    QUESTION_PRESENCE,
    QUESTION_OUTBOX_REGISTER,
    QUESTION_OUTBOX_LEASE,
    QUESTION_OUTBOX_LOOK,
    QUESTION_OUTBOX_READ,
    QUESTION_OUTBOX_WRITE,
    QUESTION_OUTBOX_TURN,
    QUESTION_OUTBOX_RESTORE,
    QUESTION_OUTBOX_DEAD_LETTER,
    QUESTION_OUTBOX_PARKED,
    QUESTION_OUTBOX_PARKED_READ,
    QUESTION_OUTBOX_UNPARK,
    QUESTION_OUTBOX_GAUGE,
    N_QUESTIONS
};

enum question_state { QUESTION_IDLE, QUESTION_ASKED, QUESTION_ANSWERED, QUESTION_FAILED };

struct question_answer {
    enum question_state state;
    PGresult *rows; /* for ANSWERED */
    struct fault fault;
};

const char *question_sql(enum question q);

/* Name of the prepared statement, derived from its text; NULL: too rare to be prepared. */
enum { QUESTION_NAME_SIZE = 40 };
const char *question_name(enum question q, char room[QUESTION_NAME_SIZE]);

/* ASKED to ANSWERED or FAILED. Takes rows; NULL: the question failed with error, which is borrowed and may be NULL
 * too. */
void question_take(struct question_answer *a, PGresult *rows, const PGresult *error);

/* 1: answered, with *ret_rows (the caller's, PQclear) of that many columns, and of n_rows rows unless that is
 * negative. 0: no answer. -1: failed, or the answer has another form: f. Once. */
int question_read(struct question_answer *a, int n_rows, int n_columns, PGresult **ret_rows, struct fault *f);

void question_deinit(struct question_answer *a);
