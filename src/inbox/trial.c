/* The inbox of `onceward try`: two blocking connections. One runs queries; the other locks rows, so that complete()
 * blocks there, and changes the locked rows.
 *
 * Claims, failures and completions use the sidecar's own functions. Separate statements delete rows and restore a
 * token, only for this consumer: a sidecar never does so. */

#include "onceward/inbox/trial.h"

#include "inbox/session.h"
#include "inbox/sql.h"

#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct trial {
    struct admin *asker, *holder;
    char *consumer;
    bool transaction;
    bool holding;
    int64_t holder_pid;
    int64_t outbox_floor; /* last outbox number assigned before */
    char *waiters;        /* pids of the waiting sessions, as an array */
};

/* ---- open, close ---- */

static int remove_left(struct trial *t, struct fault *f)
{
    return session_once(t->asker, sql_query("trial_leftovers"), 0, NULL, NULL, f);
}

static int floor_read(struct trial *t, struct fault *f)
{
    PGresult *r;

    if (session_once(t->asker, "SELECT n.last_value FROM onceward.outbox_number n", 0, NULL, &r, f))
        return -1;
    t->outbox_floor = field_int(r, 0, 0);
    PQclear(r);
    return 0;
}

int trial_published(struct trial *t, bool discard, struct trial_published *ret, struct fault *f)
{
    static const char sql[] = "SELECT n, others, unsent, discarded, ids, relay FROM "
                              "onceward.sidecar_try_published($1, $2, $3, $4)";
    char from[24];
    const char *const params[] = {t->consumer, from, t->transaction ? "t" : "f", discard ? "t" : "f"};
    PGresult *r;

    snprintf(from, sizeof from, "%" PRId64, t->outbox_floor);
    if (session_once(t->asker, sql, 4, params, &r, f))
        return -1;
    *ret = (struct trial_published){.n = field_int(r, 0, 0),
                                    .others = field_int(r, 0, 1),
                                    .unsent = field_int(r, 0, 2),
                                    .discarded = field_int(r, 0, 3)};
    snprintf(ret->ids, sizeof ret->ids, "%s", PQgetvalue(r, 0, 4));
    snprintf(ret->relay, sizeof ret->relay, "%s", PQgetvalue(r, 0, 5));
    PQclear(r);
    return 0;
}

int trial_open(const struct config_database *c, const char *consumer, bool transaction, struct trial **ret,
               struct fault *f)
{
    struct trial *t = mem_zalloc(1, sizeof *t);

    t->consumer = mem_copy(consumer, strlen(consumer));
    t->transaction = transaction;
    if (admin_open(c, ADMIN_WRITES, &t->asker, f) == 0 && admin_check_schema(t->asker, f) == 0 &&
        admin_open(c, ADMIN_WRITES, &t->holder, f) == 0 && remove_left(t, f) == 0 && floor_read(t, f) == 0) {
        *ret = t;
        return 0;
    }
    trial_close(t);
    return -1;
}

void trial_close(struct trial *t)
{
    if (!t)
        return;
    admin_close(t->holder);
    admin_close(t->asker);
    free(t->consumer);
    free(t->waiters);
    free(t);
}

/* ---- as the sidecar ---- */

/* A uuid as text: PostgreSQL accepts 32 digits. */
static const char *hex(const uint8_t bytes[16], char out[33])
{
    for (size_t i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return out;
}

/* Runs a statement. The holder is in a transaction already. */
static int ask(struct trial *t, enum trial_by by, const char *sql, int n, const char *const *params,
               PGresult **ret, struct fault *f)
{
    return by == TRIAL_HOLDER && t->holding ? session_query(t->holder, sql, n, params, ret, f)
                                            : session_once(t->asker, sql, n, params, ret, f);
}

static int ask_answer(struct trial *t, enum trial_by by, const char *sql, int n, const char *const *params,
                      enum row_answer *ret, struct fault *f)
{
    PGresult *r;
    const char *text;
    int answer;

    if (ask(t, by, sql, n, params, &r, f))
        return -1;
    text = PQntuples(r) == 1 ? field_text(r, 0, 0) : NULL;
    answer = text ? row_answer_find(text) : -1;
    if (answer >= 0)
        *ret = (enum row_answer)answer;
    else
        fault_set(f, "the schema answered \"%s\", which this program does not know", text ? text : "");
    PQclear(r);
    return answer < 0 ? -1 : 0;
}

int trial_claim(struct trial *t, enum trial_by by, struct trial_claim *c, int64_t window_ms,
                enum row_answer *ret, struct fault *f)
{
    char window[24], token[33], fingerprint[33];
    const char *const params[] = {
        t->transaction ? "t" : "f", t->consumer, window, c->message_id, token, fingerprint};

    random_bytes(c->token, sizeof c->token);
    snprintf(window, sizeof window, "%" PRId64, window_ms);
    hex(c->token, token);
    hex(c->fingerprint, fingerprint);
    return ask_answer(t, by, sql_query("trial_claim"), 6, params, ret, f);
}

int trial_end(struct trial *t, enum trial_by by, const struct trial_claim *c, struct fault *f)
{
    char token[33];
    const char *const params[] = {t->consumer, c->message_id, hex(c->token, token)};
    enum row_answer answer = ROW_LOST;

    return ask_answer(t, by, sql_query("trial_end"), 3, params, &answer, f);
}

int trial_settle(struct trial *t, const struct trial_claim *c, int http_status, struct fault *f)
{
    char token[33], status[12];
    const char *const params[] = {t->consumer, c->message_id, hex(c->token, token), status};
    enum row_answer answer = ROW_LOST;

    snprintf(status, sizeof status, "%d", http_status);
    return ask_answer(t, TRIAL_ASKER, sql_query("trial_settle"), 4, params, &answer, f);
}

int trial_restore(struct trial *t, const struct trial_claim *c, struct fault *f)
{
    char token[33];
    const char *const params[] = {t->consumer, c->message_id, hex(c->token, token)};

    return session_once(t->asker, sql_query("trial_restore"), 3, params, NULL, f);
}

/* ---- reading ---- */

#define THE_ROW "FROM onceward.inbox r WHERE r.consumer = $1 AND r.message_id = $2"

int trial_look(struct trial *t, const struct trial_claim *c, bool with_lock, struct trial_row *ret,
               struct fault *f)
{
    char token[33];
    const char *const params[] = {t->consumer, c->message_id, hex(c->token, token)};
    PGresult *r;

    *ret = (struct trial_row){0};
    if (with_lock) {
        /* An application that has called complete() holds a lock that conflicts with FOR SHARE. */
        if (session_once(t->asker, "SELECT r.status " THE_ROW " FOR SHARE SKIP LOCKED", 2, params, &r, f))
            return -1;
        ret->locked = PQntuples(r) == 0;
        PQclear(r);
    }
    /* A single round trip, so that little time passes between this query and the following one about the effect. */
    if (session_query(t->asker, "SELECT r.status = 'completed', r.token = $3::uuid " THE_ROW, 3, params, &r,
                      f))
        return -1;
    ret->completed = PQntuples(r) == 1 && field_text(r, 0, 0)[0] == 't';
    ret->is_ours = PQntuples(r) == 1 && field_text(r, 0, 1)[0] == 't';
    PQclear(r);
    return 0;
}

/* ---- locks ---- */

int trial_hold(struct trial *t, const struct trial_claim *const *claims, int n, struct fault *f)
{
    struct buf ids = {0};
    const char *params[] = {t->consumer, NULL};
    PGresult *r;
    int answer = -1;

    for (int i = 0; i < n; i++)
        buf_printf(&ids, "%c\"%s\"", i ? ',' : '{',
                   claims[i]->message_id); /* ids of this program need no quoting */
    buf_add_char(&ids, '}');
    params[1] = buf_text(&ids);
    t->holding = session_begin(t->holder, t->holder->statement_timeout_ms, 1000, f) == 0;
    if (t->holding && session_query(t->holder, sql_query("trial_hold"), 2, params, &r, f) == 0) {
        answer = PQntuples(r) == n ? 0 : fault_set(f, "%d of %d rows could be locked", PQntuples(r), n);
        t->holder_pid = PQntuples(r) ? field_int(r, 0, 0) : 0;
        PQclear(r);
    }
    buf_deinit(&ids);
    if (answer && t->holding) {
        session_rollback(t->holder);
        t->holding = false;
    }
    return answer;
}

int trial_waiting(struct trial *t, int *ret, struct fault *f)
{
    char pid[24];
    const char *const params[] = {pid};
    PGresult *r;

    snprintf(pid, sizeof pid, "%" PRId64, t->holder_pid);
    if (session_query(t->asker, sql_query("trial_waiting"), 1, params, &r, f))
        return -1;
    *ret = (int)field_int(r, 0, 0);
    free(t->waiters);
    t->waiters = mem_copy(field_text(r, 0, 1), strlen(field_text(r, 0, 1)));
    PQclear(r);
    return 0;
}

int trial_at_work(struct trial *t, bool *ret, struct fault *f)
{
    const char *const params[] = {t->waiters ? t->waiters : "{}"};
    PGresult *r;

    if (session_query(t->asker, sql_query("trial_at_work"), 1, params, &r, f))
        return -1;
    *ret = field_int(r, 0, 0) > 0;
    PQclear(r);
    return 0;
}

int trial_let_go(struct trial *t, struct fault *f)
{
    if (!t->holding)
        return 0;
    t->holding = false;
    return session_commit(t->holder, f);
}

int trial_remove(struct trial *t, int64_t *ret_left, struct fault *f)
{
    const char *const params[] = {t->consumer};
    PGresult *r;

    if (session_once(t->asker, sql_query("trial_remove"), 1, params, NULL, f) ||
        session_once(t->asker, sql_query("trial_left"), 1, params, &r, f))
        return -1;
    *ret_left = field_int(r, 0, 0);
    PQclear(r);
    return 0;
}

/* ---- the application's own tables ---- */

struct effects {
    struct admin *a;
    char *query;
    bool by_id;
};

/* Reads a number, or a text in the form of a number. */
static int read_count(const PGresult *r, int64_t *ret, struct fault *f)
{
    const char *text = PQntuples(r) == 1 && PQnfields(r) == 1 ? field_text(r, 0, 0) : NULL;
    char *end;

    if (!text)
        return fault_set(f, "it answered %d rows with %d columns; expected one number", PQntuples(r),
                         PQnfields(r));
    errno = 0;
    *ret = strtoll(text, &end, 10);
    return errno || end == text || *end ? fault_set(f, "it answered \"%.40s\"; expected a number", text) : 0;
}

int effects_count(struct effects *e, const char *message_id, int64_t *ret, struct fault *f)
{
    const char *const params[] = {message_id};
    PGresult *r;
    int answer;

    if (session_query(e->a, e->query, e->by_id, params, &r, f))
        return -1;
    answer = read_count(r, ret, f);
    PQclear(r);
    return answer;
}

/* Tries the query once in a read-only transaction, so that a statement that writes is refused before it does
 * anything. */
static int try_once(struct effects *e, struct fault *f)
{
    int64_t n;
    int answer;

    if (session_script(e->a, "BEGIN READ ONLY", f))
        return -1;
    answer = effects_count(e, "onceward-try", &n, f);
    session_rollback(e->a);
    return answer;
}

int effects_open(const struct config_database *c, const char *query, struct effects **ret, struct fault *f)
{
    struct effects *e = mem_zalloc(1, sizeof *e);

    e->query = mem_copy(query, strlen(query));
    e->by_id = strstr(query, "$1") != NULL;
    if (admin_open(c, ADMIN_READS, &e->a, f) == 0) {
        if (try_once(e, f) == 0) {
            *ret = e;
            return 0;
        }
        fault_wrap(f, "the query of --effect (--effect-database chooses its login)");
    }
    effects_close(e);
    return -1;
}

void effects_close(struct effects *e)
{
    if (!e)
        return;
    admin_close(e->a);
    free(e->query);
    free(e);
}

bool effects_by_id(const struct effects *e)
{
    return e->by_id;
}
