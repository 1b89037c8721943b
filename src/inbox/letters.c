/* The dead letters, for the commands.
 *
 * A walk reads a page of letters without their bodies, which may be large, and then one body at a time. No
 * transaction is open between calls: a walk over a hundred thousand letters at one per second must not delay vacuum. */

#include "inbox/session.h"
#include "inbox/sql.h"

#include "onceward/base/buf.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 200 };

/* Parameters of dead_filter.part, and of dead_page.sql. */
enum { N_MATCH_PARAMS = 8, ANY = 11 };

struct match {
    struct buf ids, consumers;
    char since[24], older[24];
    const char *params[ANY];
};

/* Sets parameter `at` to a time, and the next one to milliseconds before now. */
static void match_time(struct match *m, const char *text, size_t at, char room[static 24])
{
    int64_t ms;

    if (text && config_duration(text, &ms) == 0) {
        snprintf(room, 24, "%" PRId64, ms);
        m->params[at + 1] = room;
    } else {
        m->params[at] = text;
    }
}

static void match_init(struct match *m, const struct dead_filter *filter)
{
    *m = (struct match){.params = {filter->consumer, filter->reason}};
    match_time(m, filter->since, 2, m->since);
    match_time(m, filter->older, 6, m->older);
    for (size_t i = 0; filter->of && i < filter->of->n_queues; i++) {
        buf_add_char(&m->consumers, i ? ',' : '[');
        buf_add_json(&m->consumers, slice_of(filter->of->queues[i].consumer));
    }
    if (filter->of && filter->of->outbox.is_there) {
        buf_add_char(&m->consumers, m->consumers.len ? ',' : '[');
        buf_add_json(&m->consumers, slice_of(DEAD_OUTBOX));
    }
    if (filter->of) {
        if (!m->consumers.len)
            buf_add_char(&m->consumers, '[');
        buf_add_char(&m->consumers, ']');
        m->params[5] = buf_text(&m->consumers);
    }
    if (!filter->n_ids)
        return;
    for (size_t i = 0; i < filter->n_ids; i++)
        buf_printf(&m->ids, "%c%" PRId64, i ? ',' : '{', filter->ids[i]);
    buf_add_char(&m->ids, '}');
    m->params[4] = buf_text(&m->ids);
}

static void match_deinit(struct match *m)
{
    buf_deinit(&m->ids);
    buf_deinit(&m->consumers);
}

static char *copy_field(const PGresult *r, int row, int column)
{
    return PQgetisnull(r, row, column)
               ? NULL
               : mem_copy(PQgetvalue(r, row, column), (size_t)PQgetlength(r, row, column));
}

static void read_letter(const PGresult *r, int row, struct dead_letter *l)
{
    *l = (struct dead_letter){
        .id = field_int(r, row, 0),
        .consumer = copy_field(r, row, 1),
        .queue = copy_field(r, row, 2),
        .vhost = copy_field(r, row, 3),
        .message_id = copy_field(r, row, 4),
        .raw_id_hex = copy_field(r, row, 5),
        .reason = copy_field(r, row, 6),
        .last_error = copy_field(r, row, 7),
        .content_type = copy_field(r, row, 8),
        .properties = copy_field(r, row, 9),
        .headers = copy_field(r, row, 10),
        .exchange = copy_field(r, row, 11),
        .routing_key = copy_field(r, row, 12),
        .died_at = copy_field(r, row, 13),
        .fingerprint_hex = copy_field(r, row, 14),
        .attempts = (int)field_int(r, row, 15),
        .http_status = (int)field_int(r, row, 16),
        .rowless = PQgetvalue(r, row, 17)[0] == 't',
        .body_len = (size_t)field_int(r, row, 18),
        .age_ms = field_int(r, row, 19),
        .trace_id = copy_field(r, row, 20),
    };
}

static void letter_deinit(struct dead_letter *l)
{
    char **const owned[] = {&l->consumer,   &l->queue,           &l->vhost,      &l->message_id,
                            &l->raw_id_hex, &l->reason,          &l->last_error, &l->content_type,
                            &l->properties, &l->headers,         &l->exchange,   &l->routing_key,
                            &l->died_at,    &l->fingerprint_hex, &l->body,       &l->content_header,
                            &l->trace_id};

    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_clear(owned[i]);
}

/* Reads the body in binary: as text it would take twice the room. 0; 1: the letter is gone; -1. */
static int read_body(struct admin *a, struct dead_letter *l, struct fault *f)
{
    static const char sql[] = "SELECT body, content_header FROM onceward.dead_letter WHERE id = $1::bigint";
    char id[24];
    const char *const params[] = {id};
    PGresult *r;
    int answer;

    snprintf(id, sizeof id, "%" PRId64, l->id);
    if (session_begin(a, a->statement_timeout_ms, 0, f) || session_query_binary(a, sql, 1, params, &r, f)) {
        session_rollback(a);
        return -1;
    }
    answer = PQntuples(r) == 1 ? 0 : 1;
    if (answer == 0) {
        l->body_len = (size_t)PQgetlength(r, 0, 0);
        l->body = mem_copy(PQgetvalue(r, 0, 0), l->body_len);
        l->content_header_len = (size_t)PQgetlength(r, 0, 1);
        l->content_header = copy_field(r, 0, 1);
    }
    PQclear(r);
    return session_commit(a, f) ? -1 : answer;
}

struct walk {
    struct admin *a;
    struct match match;
    bool with_body;
    int (*each)(void *ctx, const struct dead_letter *letter);
    void *ctx;
    char after[24], newest[24], limit[24];
    int64_t left; /* of the filter's limit; -1: no limit */
};

static int walk_one(struct walk *w, const PGresult *r, int row, struct fault *f)
{
    struct dead_letter l;
    int answer;

    read_letter(r, row, &l);
    snprintf(w->after, sizeof w->after, "%" PRId64, l.id);
    answer = w->with_body ? read_body(w->a, &l, f) : 0;
    if (answer == 0)
        answer = w->each(w->ctx, &l);
    else if (answer == 1)
        answer = 0;
    letter_deinit(&l);
    return answer;
}

/* Walks one page. *ret_n: number of its letters. */
static int walk_page(struct walk *w, int *ret_n, struct fault *f)
{
    PGresult *r;
    int answer = 0;

    snprintf(w->limit, sizeof w->limit, "%" PRId64, w->left < 0 || w->left > PAGE ? (int64_t)PAGE : w->left);
    if (session_once(w->a, sql_query("dead_page"), ANY, w->match.params, &r, f))
        return -1;
    for (int i = 0; i < PQntuples(r) && answer == 0; i++)
        answer = walk_one(w, r, i, f);
    *ret_n = PQntuples(r);
    if (w->left > 0)
        w->left -= PQntuples(r);
    PQclear(r);
    return answer;
}

static int walk_start(struct walk *w, const struct dead_filter *filter, struct fault *f)
{
    PGresult *r;

    match_init(&w->match, filter);
    w->left = filter->limit > 0 ? filter->limit : -1;
    w->match.params[N_MATCH_PARAMS] = w->after;
    w->match.params[N_MATCH_PARAMS + 1] = w->newest;
    w->match.params[N_MATCH_PARAMS + 2] = w->limit;
    snprintf(w->after, sizeof w->after, "%" PRId64, filter->after);
    /* A message that dies again during a redrive gets a newer letter, which this walk must not meet. */
    if (session_once(w->a, "SELECT coalesce(max(id), 0) FROM onceward.dead_letter", 0, NULL, &r, f))
        return -1;
    snprintf(w->newest, sizeof w->newest, "%s", field_text(r, 0, 0));
    PQclear(r);
    return 0;
}

int admin_dead_each(struct admin *a, const struct dead_filter *filter, bool with_body,
                    int (*each)(void *ctx, const struct dead_letter *letter), void *ctx, struct fault *f)
{
    struct walk w = {.a = a, .with_body = with_body, .each = each, .ctx = ctx};
    int answer = walk_start(&w, filter, f);

    for (int n = 1; answer == 0 && n > 0 && w.left != 0;)
        answer = walk_page(&w, &n, f);
    match_deinit(&w.match);
    return answer;
}

int admin_dead_count(struct admin *a, const struct dead_filter *filter, int64_t *ret, struct fault *f)
{
    struct match m;
    PGresult *r;
    int answer;

    match_init(&m, filter);
    answer = session_once(a, sql_query("dead_count"), N_MATCH_PARAMS, m.params, &r, f);
    match_deinit(&m);
    if (answer)
        return -1;
    *ret = field_int(r, 0, 0);
    PQclear(r);
    return 0;
}

static int ask_redrive(struct admin *a, const char *sql, int64_t id, const char *message_id,
                       enum redrive_answer *ret, struct fault *f)
{
    static const char *const names[] = {"reset", "completed", "other", "mismatch", "held", "gone", "locked"};
    char text[24];
    const char *const params[] = {text, message_id};
    PGresult *r;
    int answer = -1;

    snprintf(text, sizeof text, "%" PRId64, id);
    if (session_once(a, sql, message_id ? 2 : 1, params, &r, f)) {
        if (strcmp(f->code, "42883") == 0)
            fault_wrap(f, "the schema is older than this program, run `onceward migrate`");
        return -1;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(PQntuples(r) ? PQgetvalue(r, 0, 0) : "gone", names[i]) == 0) {
            *ret = (enum redrive_answer)i;
            answer = 0;
        }
    }
    if (answer)
        fault_set(f, "sidecar_redrive answered %s, which this program does not know", PQgetvalue(r, 0, 0));
    PQclear(r);
    return answer;
}

int admin_redrive_begin(struct admin *a, const struct dead_letter *l, const char *message_id,
                        enum redrive_answer *ret, struct fault *f)
{
    if (!l->rowless && strcmp(l->message_id, message_id) == 0)
        return ask_redrive(a, "SELECT onceward.sidecar_redrive($1::bigint)", l->id, NULL, ret, f);
    return ask_redrive(a, "SELECT onceward.sidecar_redrive_as($1::bigint, $2)", l->id, message_id, ret, f);
}

/* Checks the conditions of both functions, in their order. */
int admin_redrive_look(struct admin *a, const struct dead_letter *l, const char *message_id,
                       enum redrive_answer *ret, struct fault *f)
{
    return ask_redrive(a, sql_query("redrive_look"), l->id, message_id, ret, f);
}

int admin_dead_delete(struct admin *a, int64_t id, struct fault *f)
{
    char text[24];
    const char *const params[] = {text};
    PGresult *r;
    int answer;

    snprintf(text, sizeof text, "%" PRId64, id);
    if (session_once(a, "DELETE FROM onceward.dead_letter WHERE id = $1::bigint", 1, params, &r, f))
        return -1;
    answer = strcmp(PQcmdTuples(r), "0") == 0;
    PQclear(r);
    return answer;
}
