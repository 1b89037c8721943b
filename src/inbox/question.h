#pragma once

#include "onceward/base/fault.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

/* Questions: calls that are not about deliveries. Each is one call of one function of the schema, asked in the pipeline between the
 * batches, at most once at a time, and answered by one row of bigints, behind them texts (cut), or by a fault. */
enum question { QUESTION_FIGURES, QUESTION_HOUSEKEEP, QUESTION_HOLDER, QUESTION_TRY, N_QUESTIONS };

enum { QUESTION_MAX_PARAMS = 8, QUESTION_MAX_VALUES = 8, QUESTION_MAX_TEXTS = 3, QUESTION_TEXT = 201 };

enum question_state { QUESTION_IDLE, QUESTION_ASKED, QUESTION_ANSWERED, QUESTION_FAILED };

struct question_answer {
    enum question_state state;
    int64_t values[QUESTION_MAX_VALUES];
    char texts[QUESTION_MAX_TEXTS][QUESTION_TEXT];
    struct fault fault;
};

struct inbox;

const char *question_sql(enum question q);

/* ASKED to ANSWERED or FAILED. rows is borrowed; NULL: it failed with error, which may be NULL too. */
void question_take(struct inbox *i, enum question q, const PGresult *rows, const PGresult *error);
