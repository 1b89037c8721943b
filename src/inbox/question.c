/* Questions other than batches, and their answers until these are read. A question in flight when the connection is
 * lost is never answered: it ends with the inbox. */
#include "question.h"

#include "call.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const texts[N_QUESTIONS] = {
    [QUESTION_FIGURES] =
        "SELECT dead_letters, dead_letter_bytes, oldest_snapshot_ms FROM onceward.sidecar_gauge_many($1)",
    [QUESTION_HOUSEKEEP] =
        "SELECT purged, swept, orphans, next_page, took_us, away_ms, unfinished, ahead_ms, "
        "moved, history_due, n_pages "
        "FROM onceward.sidecar_keep_house($1, $2, $3, $4, $5, $6, $7, $8)",
    [QUESTION_EXPIRE_HISTORY] = "SELECT expired, next_page, n_pages, took_us "
                                "FROM onceward.sidecar_expire_history($1, $2, $3, $4, $5, $6)",
    [QUESTION_MAKE_MESSAGES] = "SELECT due, onceward.sidecar_days_hindered() "
                               "FROM onceward.sidecar_make_messages($1, $2, $3)",
    [QUESTION_KEEP_MESSAGES] = "SELECT dropped, more, stuck FROM onceward.sidecar_keep_messages($1, $2, $3)",
    [QUESTION_LOCK_HOLDER] =
        "SELECT pid, age_ms, application, state, gid FROM onceward.sidecar_lock_holder($1, $2)",
    [QUESTION_TRY] = "SELECT yes FROM onceward.sidecar_try($1)",
    [QUESTION_REGISTER] = "SELECT ord, answer, queue, vhost, broker, former, number "
                          "FROM onceward.sidecar_register_many($1, $2, $3, $4, $5, $6, $7)",
    [QUESTION_PRESENCE] = "SELECT kind, ord, name, number, counter, yes, text, priority, active "
                          "FROM onceward.sidecar_presence($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    [QUESTION_OUTBOX_REGISTER] = "SELECT answer, broker, vhost FROM onceward.sidecar_outbox_register($1, $2)",
    [QUESTION_OUTBOX_LEASE] = "SELECT answer, lease, holder, left_ms, restored, paused "
                              "FROM onceward.sidecar_outbox_lease($1, $2, $3, $4, $5)",
    [QUESTION_OUTBOX_LOOK] = "SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text",
    [QUESTION_OUTBOX_READ] = "SELECT batch, over, seq, exchange, routing_key, message_id, type, headers, "
                             "properties, body, body_bytes, age_ms "
                             "FROM onceward.sidecar_outbox_read($1, $2, $3, $4, $5)",
    [QUESTION_OUTBOX_WRITE] = "SELECT onceward.sidecar_outbox_write($1, $2, $3)",
    [QUESTION_OUTBOX_TURN] = "SELECT onceward.sidecar_outbox_turn($1, $2, $3)",
    [QUESTION_OUTBOX_RESTORE] = "SELECT onceward.sidecar_outbox_restore($1, $2)",
    [QUESTION_OUTBOX_DEAD_LETTER] = "SELECT ord, answer, letter_id "
                                    "FROM onceward.sidecar_outbox_bury($1, $2, $3, $4, $5, $6)",
    [QUESTION_OUTBOX_PARKED] = "SELECT exchange FROM onceward.sidecar_outbox_parked()",
    [QUESTION_OUTBOX_PARKED_READ] =
        "SELECT batch, over, seq, exchange, routing_key, message_id, type, headers, properties, body, "
        "body_bytes, age_ms FROM onceward.sidecar_outbox_parked_read($1, $2, $3, $4, $5)",
    [QUESTION_OUTBOX_UNPARK] = "SELECT onceward.sidecar_outbox_unpark($1, $2)",
    [QUESTION_OUTBOX_GAUGE] = "SELECT waiting, exact, lag_ms, letters, holder, bytes, turn_waits_ms "
                              "FROM onceward.sidecar_outbox_gauge()",
};

static const char odd_answer[] = "the database's answer does not fit the question";

const char *question_sql(enum question q)
{
    return texts[q];
}

const char *question_name(enum question q, char room[QUESTION_NAME_SIZE])
{
    static const char *const verbs[N_QUESTIONS] = {
        [QUESTION_OUTBOX_LOOK] = "look",
        [QUESTION_OUTBOX_READ] = "read",
        [QUESTION_OUTBOX_WRITE] = "write",
    };

    if (!verbs[q])
        return NULL;
    snprintf(room, QUESTION_NAME_SIZE, "onceward_outbox_%s_%08" PRIx32, verbs[q], call_hash(texts[q]));
    return room;
}

void question_take(struct question_answer *a, PGresult *rows, const PGresult *error)
{
    const char *code = error ? PQresultErrorField(error, PG_DIAG_SQLSTATE) : NULL;
    const char *text = error ? PQresultErrorField(error, PG_DIAG_MESSAGE_PRIMARY) : NULL;

    PQclear(a->rows);
    a->rows = rows;
    a->state = rows ? QUESTION_ANSWERED : QUESTION_FAILED;
    if (rows)
        return;
    fault_set(&a->fault, "%s", text ? text : odd_answer);
    snprintf(a->fault.code, sizeof(a->fault.code), "%s", code ? code : "");
}

int question_read(struct question_answer *a, int n_rows, int n_columns, PGresult **ret_rows, struct fault *f)
{
    enum question_state state = a->state;
    PGresult *rows = a->rows;

    if (state == QUESTION_IDLE || state == QUESTION_ASKED)
        return 0;
    a->state = QUESTION_IDLE;
    a->rows = NULL;
    if (state == QUESTION_FAILED) {
        *f = a->fault;
        return -1;
    }
    if (PQnfields(rows) != n_columns || (n_rows >= 0 && PQntuples(rows) != n_rows)) {
        PQclear(rows);
        return fault_set(f, "%s", odd_answer);
    }
    *ret_rows = rows;
    return 1;
}

void question_deinit(struct question_answer *a)
{
    PQclear(a->rows);
    a->rows = NULL;
    a->state = QUESTION_IDLE;
}
