/* Stored messages of one consumer, for the commands, in the order of their first claims.
 *
 * A walk reads a page of positions and sizes, then the messages in runs of one MiB. No transaction is open
 * between calls, as in a walk over letters. It ends at a horizon: see horizon.c.
 *
 * A replay's progress is stored under its name, and written only if no other process has moved it. */

#include "inbox/session.h"
#include "inbox/sql.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 500, RUN_BYTES = 1 << 20 };

/* Parameters of message_filter.part. */
enum { N_PARAMS = 8 };

/* Runs in a transaction of its own without a timeout, since matches may be few and far apart. */
static int ask(struct admin *a, const char *sql, int n, const char *const *params, bool binary,
               PGresult **ret, struct fault *f)
{
    static const char plans[] = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; "
                                "SET LOCAL jit = off; SET LOCAL plan_cache_mode = force_custom_plan";
    PGresult *r = NULL;

    if (session_begin(a, 0, 0, f) || session_script(a, plans, f) ||
        (binary ? session_query_binary : session_query)(a, sql, n, params, &r, f)) {
        session_rollback(a);
        return -1;
    }
    if (session_commit(a, f)) {
        PQclear(r);
        return -1;
    }
    *ret = r;
    return 0;
}

static void place_set(struct message_place *p, const char *received_at, const char *seq)
{
    snprintf(p->received_at, sizeof p->received_at, "%s", received_at);
    snprintf(p->seq, sizeof p->seq, "%s", seq);
}

void message_place_first(struct message_place *p)
{
    place_set(p, "-infinity", "0");
}

int admin_time(struct admin *a, const char *text, const char *from, char ret[MESSAGE_TIME_SIZE],
               struct fault *f)
{
    char ms_text[24];
    const char *params[] = {text, from};
    int64_t ms;
    bool ago = config_duration(text, &ms) == 0;
    PGresult *r;

    snprintf(ms_text, sizeof ms_text, "%" PRId64, ago ? ms : 0);
    if (ago)
        params[0] = ms_text;
    if (session_once(a,
                     ago ? "SELECT " TIME_TEXT(
                               "coalesce($2::timestamptz, clock_timestamp()) - $1::bigint * interval '1 ms'")
                         : "SELECT " TIME_TEXT("$1::timestamptz"),
                     ago ? 2 : 1, params, &r, f))
        return -1;
    snprintf(ret, MESSAGE_TIME_SIZE, "%s", field_text(r, 0, 0));
    PQclear(r);
    return 0;
}

struct walk {
    struct admin *a;
    const struct message_filter *filter;
    struct buf ids;
    const char *params[N_PARAMS + 2];
    struct message_place at, end; /* position of the last message passed on; end of the present run */
    int (*each)(void *ctx, const struct stored_message *message);
    void *ctx;
};

static void ids_write(struct buf *out, const struct message_filter *filter)
{
    buf_add_char(out, '{');
    for (size_t i = 0; i < filter->n_ids; i++) {
        buf_add_text(out, i ? ",\"" : "\"");
        for (const char *c = filter->ids[i]; *c; c++) {
            if (*c == '"' || *c == '\\')
                buf_add_char(out, '\\');
            buf_add_char(out, *c);
        }
        buf_add_char(out, '"');
    }
    buf_add_char(out, '}');
}

static void walk_init(struct walk *w, struct admin *a, const struct message_filter *filter,
                      const struct message_place *from)
{
    *w = (struct walk){.a = a, .filter = filter, .at = *from};
    if (filter->n_ids)
        ids_write(&w->ids, filter);
    const char *params[] = {filter->consumer,
                            w->at.received_at,
                            w->at.seq,
                            filter->horizon,
                            *filter->since ? filter->since : NULL,
                            *filter->until ? filter->until : NULL,
                            filter->type,
                            filter->n_ids ? buf_text(&w->ids) : NULL,
                            w->end.received_at,
                            w->end.seq};
    memcpy(w->params, params, sizeof params);
}

static struct slice bytes_get(const PGresult *r, int row, int column)
{
    if (PQgetisnull(r, row, column))
        return (struct slice){0};
    return (struct slice){PQgetvalue(r, row, column), (size_t)PQgetlength(r, row, column)};
}

/* Walks the messages behind `at`, up to `end`. */
static int walk_run(struct walk *w, struct fault *f)
{
    PGresult *r;
    int answer = 0;

    if (ask(w->a, sql_query("message_run"), N_PARAMS + 2, w->params, true, &r, f))
        return -1;
    for (int i = 0; i < PQntuples(r) && !answer; i++) {
        struct stored_message m = {.consumer = w->filter->consumer,
                                   .message_id = field_text(r, i, 0),
                                   .message_type = field_text(r, i, 3),
                                   .exchange = field_text(r, i, 4),
                                   .routing_key = field_text(r, i, 5),
                                   .content_header = bytes_get(r, i, 6),
                                   .body = bytes_get(r, i, 7)};

        place_set(&m.place, field_text(r, i, 1), field_text(r, i, 2));
        answer = w->each(w->ctx, &m);
    }
    PQclear(r);
    w->at = w->end;
    return answer;
}

/* Reads one page of positions. *ret_n: their number. */
static int walk_page(struct walk *w, int *ret_n, struct fault *f)
{
    PGresult *r;
    int64_t bytes = 0;
    int answer = 0;

    if (ask(w->a, sql_query("message_places"), N_PARAMS, w->params, false, &r, f))
        return -1;
    *ret_n = PQntuples(r);
    for (int i = 0; i < *ret_n && !answer; i++) {
        bytes += field_int(r, i, 2);
        if (i + 1 < *ret_n && bytes + field_int(r, i + 1, 2) <= RUN_BYTES)
            continue;
        place_set(&w->end, field_text(r, i, 0), field_text(r, i, 1));
        bytes = 0;
        answer = walk_run(w, f);
    }
    PQclear(r);
    return answer;
}

int admin_messages_each(struct admin *a, const struct message_filter *filter,
                        const struct message_place *from,
                        int (*each)(void *ctx, const struct stored_message *message), void *ctx,
                        struct fault *f)
{
    struct walk w;
    int answer = 0;

    walk_init(&w, a, filter, from);
    w.each = each;
    w.ctx = ctx;
    for (int n = PAGE; answer == 0 && n == PAGE;)
        answer = walk_page(&w, &n, f);
    buf_deinit(&w.ids);
    return answer;
}

int admin_messages_count(struct admin *a, const struct message_filter *filter,
                         const struct message_place *from, struct message_count *ret, struct fault *f)
{
    struct walk w;
    PGresult *r;
    int failed;

    walk_init(&w, a, filter, from);
    failed = ask(a, sql_query("message_count"), N_PARAMS, w.params, false, &r, f);
    buf_deinit(&w.ids);
    if (failed)
        return -1;
    *ret = (struct message_count){.n = field_int(r, 0, 0)};
    snprintf(ret->first, sizeof ret->first, "%s", PQgetvalue(r, 0, 1));
    snprintf(ret->last, sizeof ret->last, "%s", PQgetvalue(r, 0, 2));
    PQclear(r);
    return 0;
}

/* --- consumers --- */

int admin_consumers(struct admin *a, int (*each)(void *ctx, const char *consumer, const char *queue),
                    void *ctx, struct fault *f)
{
    PGresult *r;
    int answer = 0;

    if (session_once(a, "SELECT consumer, queue FROM onceward.consumer ORDER BY consumer", 0, NULL, &r, f))
        return -1;
    for (int i = 0; i < PQntuples(r) && !answer; i++)
        answer = each(ctx, field_text(r, i, 0), field_text(r, i, 1));
    PQclear(r);
    return answer;
}

/* --- progress of a replay --- */

int admin_replay_begin(struct admin *a, const char *name, const char *what, struct replay_position *ret,
                       struct fault *f)
{
    const char *const params[] = {name, what};
    PGresult *r;

    if (session_once(
            a,
            "INSERT INTO onceward.replay (name, what, received_at, seq) VALUES ($1, $2, '-infinity', 0)"
            " ON CONFLICT (name) DO NOTHING",
            2, params, NULL, f) ||
        session_once(a,
                     "SELECT what, received_at::text, seq, n, " TIME_TEXT(
                         "began_at") " FROM onceward.replay WHERE name = $1",
                     1, params, &r, f))
        return -1;
    if (!PQntuples(r)) {
        PQclear(r);
        return fault_set(f, "the replay \"%s\" was ended by another process just now: run this again", name);
    }
    bool same = strcmp(field_text(r, 0, 0), what) == 0;

    if (same) {
        place_set(&ret->place, field_text(r, 0, 1), field_text(r, 0, 2));
        ret->n = field_int(r, 0, 3);
        snprintf(ret->began_at, MESSAGE_TIME_SIZE, "%s", field_text(r, 0, 4));
    } else {
        fault_set(f, "the name \"%s\" belongs to another replay: %s. Give this one another --name", name,
                  field_text(r, 0, 0));
    }
    PQclear(r);
    return same ? 0 : -1;
}

int admin_replay_look(struct admin *a, const char *name, struct replay_position *ret, struct fault *f)
{
    PGresult *r;

    *ret = (struct replay_position){0};
    message_place_first(&ret->place);
    if (session_once(a,
                     "SELECT received_at::text, seq, n, " TIME_TEXT(
                         "began_at") " FROM onceward.replay WHERE name = $1",
                     1, &name, &r, f))
        return -1;
    if (PQntuples(r)) {
        place_set(&ret->place, field_text(r, 0, 0), field_text(r, 0, 1));
        ret->n = field_int(r, 0, 2);
        snprintf(ret->began_at, MESSAGE_TIME_SIZE, "%s", field_text(r, 0, 3));
    }
    PQclear(r);
    return 0;
}

int admin_replay_move(struct admin *a, const char *name, struct replay_position *position,
                      const struct message_place *to, int64_t n, struct fault *f)
{
    char count[24];
    const char *const params[] = {
        name, position->place.received_at, position->place.seq, to->received_at, to->seq, count};
    PGresult *r;

    snprintf(count, sizeof count, "%" PRId64, n);
    if (session_once(
            a,
            "UPDATE onceward.replay SET received_at = $4::timestamptz, seq = $5::bigint, n = n + $6::bigint,"
            " moved_at = clock_timestamp()"
            " WHERE name = $1 AND received_at = $2::timestamptz AND seq = $3::bigint",
            6, params, &r, f))
        return -1;
    bool moved = strcmp(PQcmdTuples(r), "0") != 0;

    PQclear(r);
    if (!moved)
        return fault_set(f, "another `onceward replay` is at work under the name \"%s\"", name);
    position->place = *to;
    position->n += n;
    return 0;
}

int admin_replay_end(struct admin *a, const char *name, struct fault *f)
{
    return session_once(a, "DELETE FROM onceward.replay WHERE name = $1", 1, &name, NULL, f);
}
