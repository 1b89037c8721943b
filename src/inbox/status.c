/* The output of `onceward status`: the replicas (fleet.c) and five queries, as a table for people or JSON for programs.
 *
 * Ages come from the database's clock. Both tables are scanned: a person runs this command, not every interval. */

#include "inbox/connect.h"
#include "inbox/fleet.h"
#include "inbox/session.h"
#include "inbox/sql.h"

#include "onceward/base/buf.h"
#include "onceward/base/table.h"

#include <inttypes.h>
#include <string.h>

enum {
    C_CONSUMER,
    C_CONFIGURED,
    C_PROCESSING,
    C_FAILED,
    C_WAITING,
    C_HELD,
    C_COMPLETED,
    C_DEAD,
    C_LETTERS,
    C_OLDEST_MS,
    C_USED
};

enum { R_CONSUMER, R_REASON, R_COUNT, R_NEWEST_MS };

enum {
    U_CONSUMER,
    U_ID,
    U_STATE,
    U_ATTEMPT,
    U_AGE_MS,
    U_NEXT_MS,
    U_WINDOW_MS,
    U_HOLDER,
    U_HOST,
    U_ERROR,
    U_LOCK_PID,
    U_LOCK_APPLICATION,
    U_LOCK_USER,
    U_LOCK_STATE,
    U_LOCK_AGE_MS,
    U_LOCK_GID,
    U_LOCK_OWNER
};

enum { O_CONSUMER, O_COUNT, O_OLDEST_MS };

enum { H_CONSUMER, H_COUNT, H_OLDEST_DAY, H_ESTIMATED };

struct status {
    struct admin *a;
    const struct config *config;
    struct fleet fleet;
    PGresult *consumers, *reasons, *unfinished, *overdue, *history;
    FILE *out;
};

/* For people */

/* The dead letters of the outbox belong to each configuration with an outbox. */
static bool is_configured(const struct status *s, int row)
{
    const PGresult *r = s->consumers;

    return field_text(r, row, C_CONFIGURED)[0] == 't' ||
           (s->config->outbox.is_there && !strcmp(field_text(r, row, C_CONSUMER), DEAD_OUTBOX));
}

/* Lists consumers whose rows no sidecar seems to purge any more. */
static void print_unused(const struct status *s)
{
    const PGresult *r = s->consumers;
    struct buf names = {0};

    for (int i = 0; i < PQntuples(r); i++) {
        if (is_configured(s, i) || field_text(r, i, C_USED)[0] == 't' ||
            !strcmp(field_text(r, i, C_CONSUMER), DEAD_OUTBOX))
            continue;
        buf_add_text(&names, names.len ? ", " : "");
        text_add_safe(&names, slice_of(field_text(r, i, C_CONSUMER)));
    }
    if (names.len)
        fprintf(s->out,
                "No replica has used these consumers for 10 min: %s.\n"
                "To remove the data of one: onceward forget --consumer C\n",
                buf_text(&names));
    buf_deinit(&names);
}

static void print_consumers(const struct status *s)
{
    struct table t = {.n_columns = 9, .right = 0xFE};
    static const char *const heads[] = {"CONSUMER",  "PROCESSING", "FAILED",  "WAITING",          "HELD",
                                        "COMPLETED", "DEAD",       "LETTERS", "OLDEST UNFINISHED"};
    const PGresult *r = s->consumers;
    bool foreign = false;

    for (size_t i = 0; i < t.n_columns; i++)
        table_add_text(&t, heads[i]);
    for (int i = 0; i < PQntuples(r); i++) {
        bool configured = is_configured(s, i);
        struct buf name = {0};

        buf_printf(&name, "%s%s", field_text(r, i, C_CONSUMER), configured ? "" : " *");
        table_add(&t, buf_slice(&name));
        buf_deinit(&name);
        for (int column = C_PROCESSING; column <= C_LETTERS; column++)
            table_add_int(&t, field_int(r, i, column));
        if (field_text(r, i, C_OLDEST_MS))
            table_add_age(&t, field_int(r, i, C_OLDEST_MS));
        else
            table_add_text(&t, NULL);
        foreign |= !configured;
    }
    table_print(&t, s->out, text_width(s->out));
    table_deinit(&t);
    if (foreign)
        fprintf(s->out, "* not in this configuration\n");
    print_unused(s);
}

/* Adds "in 4 min", "now", "token ends in 12 s" or "token ended 3 min ago". */
static void add_next(struct table *t, const PGresult *r, int row)
{
    bool processing = field_text(r, row, U_WINDOW_MS) != NULL;
    int64_t ms = field_int(r, row, processing ? U_WINDOW_MS : U_NEXT_MS);
    struct buf text = {0};

    if (!processing && !field_text(r, row, U_NEXT_MS)) { /* held: until an operator decides */
        table_add_text(t, NULL);
        return;
    }
    if (processing)
        buf_add_text(&text, ms >= 0 ? "token ends in " : "token ended ");
    else
        buf_add_text(&text, ms > 0 ? "in " : "due for ");
    text_add_age(&text, ms < 0 ? -ms : ms);
    if (processing && ms < 0)
        buf_add_text(&text, " ago");
    table_add(t, buf_slice(&text));
    buf_deinit(&text);
}

/* Names a prepared transaction, which has no session: only an operator can end it. */
static void print_prepared(const struct status *s, int row)
{
    const PGresult *r = s->unfinished;
    struct buf line = {0};

    buf_add_text(&line, "Row ");
    text_add_safe(&line, slice_of(field_text(r, row, U_ID)));
    buf_add_text(&line, " is locked by the prepared transaction ");
    text_add_safe(&line, slice_of(field_text(r, row, U_LOCK_GID)));
    buf_add_text(&line, " of ");
    text_add_safe(&line, slice_of(field_text(r, row, U_LOCK_OWNER)));
    buf_add_text(&line, ", ");
    text_add_age(&line, field_int(r, row, U_LOCK_AGE_MS));
    buf_add_text(&line, " old. To end it: ROLLBACK PREPARED, or COMMIT PREPARED, in this database.");
    fprintf(s->out, "%s\n", buf_text(&line));
    buf_deinit(&line);
}

static void print_lock(const struct status *s, int row)
{
    const PGresult *r = s->unfinished;
    struct buf line = {0};

    if (field_text(r, row, U_LOCK_GID))
        print_prepared(s, row);
    if (!field_text(r, row, U_LOCK_PID))
        return;
    buf_add_text(&line, "Row ");
    text_add_safe(&line, slice_of(field_text(r, row, U_ID)));
    buf_printf(&line, " is locked by pid %s (application ", field_text(r, row, U_LOCK_PID));
    text_add_safe(&line, slice_of(field_text(r, row, U_LOCK_APPLICATION)));
    buf_add_text(&line, ", user ");
    text_add_safe(&line, slice_of(field_text(r, row, U_LOCK_USER)));
    if (field_text(r, row, U_LOCK_STATE)) {
        buf_printf(&line, ", %s, transaction open for ", field_text(r, row, U_LOCK_STATE));
        text_add_age(&line, field_int(r, row, U_LOCK_AGE_MS));
    }
    buf_printf(&line, "). To end it: SELECT pg_terminate_backend(%s);", field_text(r, row, U_LOCK_PID));
    fprintf(s->out, "%s\n", buf_text(&line));
    buf_deinit(&line);
}

/* Largest depth of a queue that its replicas report, for the first of them. -1: unknown, or not the first. */
static int64_t depth_of(const struct fleet *f, size_t at)
{
    const struct fleet_queue *q = &f->queues[at];
    int64_t depth = -1;

    for (size_t i = 0; i < f->n_queues; i++) {
        const struct fleet_queue *other = &f->queues[i];

        if (strcmp(other->queue, q->queue) != 0 || strcmp(other->consumer, q->consumer) != 0)
            continue;
        if (i < at)
            return -1;
        if (other->depth > depth)
            depth = other->depth;
    }
    return depth;
}

static void add_pause(struct buf *line, const struct fleet_queue *q)
{
    text_add_safe(line, slice_of(q->queue));
    buf_add_text(line, " is paused on ");
    fleet_add_name(line, q->instance, q->host);
    if (q->paused_for_ms >= 0) {
        buf_add_text(line, " for ");
        text_add_age(line, q->paused_for_ms);
    }
    buf_add_text(line, *q->reason ? ": " : "");
    text_add_safe(line, slice_of(q->reason));
    buf_add_text(line, *q->detail ? ", " : "");
    text_add_safe(line, slice_of(q->detail));
    buf_add_text(line, ".\n");
}

/* Prints messages that have no row yet, and replicas that take none. Returns whether there are any. */
static bool print_outside(const struct status *s)
{
    struct buf lines = {0};
    bool any;

    for (size_t i = 0; i < s->fleet.n_queues; i++) {
        const struct fleet_queue *q = &s->fleet.queues[i];
        int64_t depth = depth_of(&s->fleet, i);

        if (depth > 0) {
            buf_printf(&lines, "%" PRId64 " message%s at the broker in ", depth,
                       depth == 1 ? " waits" : "s wait");
            text_add_safe(&lines, slice_of(q->queue));
            buf_add_text(&lines, ".\n");
        }
        if (!strcmp(q->state, "paused"))
            add_pause(&lines, q);
    }
    any = lines.len > 0;
    if (any)
        fprintf(s->out, "\n%s", buf_text(&lines));
    buf_deinit(&lines);
    return any;
}

static void print_unfinished(const struct status *s)
{
    static const char *const heads[] = {"AGE",     "CONSUMER", "MESSAGE ID", "STATE",
                                        "ATTEMPT", "NEXT",     "HOLDER",     "LAST ERROR"};
    struct table t = {.n_columns = 8, .right = 1 << 4};
    const PGresult *r = s->unfinished;
    bool is_outside = print_outside(s);

    if (PQntuples(r) == 0) {
        fputs(is_outside ? "No row is unfinished.\n" : "\nNothing is unfinished.\n", s->out);
        return;
    }
    fprintf(s->out, "\nThe oldest unfinished:\n");
    for (size_t i = 0; i < t.n_columns; i++)
        table_add_text(&t, heads[i]);
    for (int i = 0; i < PQntuples(r); i++) {
        table_add_age(&t, field_int(r, i, U_AGE_MS));
        table_add_text(&t, field_text(r, i, U_CONSUMER));
        table_add_text(&t, field_text(r, i, U_ID));
        table_add_text(&t, field_text(r, i, U_STATE));
        table_add_int(&t, field_int(r, i, U_ATTEMPT));
        add_next(&t, r, i);
        fleet_table_name(&t, field_text(r, i, U_HOLDER), field_text(r, i, U_HOST));
        table_add_text(&t, field_text(r, i, U_ERROR));
    }
    table_print(&t, s->out, text_width(s->out));
    table_deinit(&t);
    for (int i = 0; i < PQntuples(r); i++)
        print_lock(s, i);
}

static void print_overdue(const struct status *s)
{
    const PGresult *r = s->overdue;

    for (int i = 0; i < PQntuples(r); i++) {
        struct buf line = {0};

        buf_printf(&line, "\n%" PRId64 " row%s of ", field_int(r, i, O_COUNT),
                   field_int(r, i, O_COUNT) == 1 ? "" : "s");
        text_add_safe(&line, slice_of(field_text(r, i, O_CONSUMER)));
        buf_add_text(&line, " overdue, the first for ");
        text_add_age(&line, field_int(r, i, O_OLDEST_MS));
        buf_add_text(&line,
                     ". If no backlog explains this, their messages are no longer in any queue.\n"
                     "To forget those that were due for a week: SELECT onceward.orphans_remove(consumer, '7 "
                     "days');");
        fprintf(s->out, "%s\n", buf_text(&line));
        buf_deinit(&line);
    }
}

static void print_history(const struct status *s)
{
    static const char *const heads[] = {"CONSUMER", "IDS", "OLDEST"};
    struct table t = {.n_columns = 3, .right = 1 << 1};
    const PGresult *r = s->history;

    if (PQntuples(r) == 0)
        return;
    fprintf(s->out, "\nCompacted (compact_after)%s:\n",
            field_text(r, 0, H_ESTIMATED)[0] == 't' ? ", estimated" : "");
    for (size_t i = 0; i < t.n_columns; i++)
        table_add_text(&t, heads[i]);
    for (int i = 0; i < PQntuples(r); i++) {
        table_add_text(&t, field_text(r, i, H_CONSUMER));
        table_add_int(&t, field_int(r, i, H_COUNT));
        table_add_text(&t, field_text(r, i, H_OLDEST_DAY));
    }
    table_print(&t, s->out, text_width(s->out));
    table_deinit(&t);
}

static void print_reasons(const struct status *s)
{
    static const char *const heads[] = {"CONSUMER", "REASON", "LETTERS", "NEWEST"};
    struct table t = {.n_columns = 4, .right = 1 << 2};
    const PGresult *r = s->reasons;

    if (PQntuples(r) == 0) {
        fprintf(s->out, "\nThere are no dead letters.\n");
        return;
    }
    fprintf(s->out, "\nDead letters:\n");
    for (size_t i = 0; i < t.n_columns; i++)
        table_add_text(&t, heads[i]);
    for (int i = 0; i < PQntuples(r); i++) {
        struct buf ago = {0};

        text_add_age(&ago, field_int(r, i, R_NEWEST_MS));
        buf_add_text(&ago, " ago");
        table_add_text(&t, field_text(r, i, R_CONSUMER));
        table_add_text(&t, field_text(r, i, R_REASON));
        table_add_int(&t, field_int(r, i, R_COUNT));
        table_add(&t, buf_slice(&ago));
        buf_deinit(&ago);
    }
    table_print(&t, s->out, text_width(s->out));
    table_deinit(&t);
}

static void print_text(const struct status *s)
{
    fprintf(s->out, "Database %s\n\n", s->a->where);
    fleet_print(&s->fleet, s->out);
    fputc('\n', s->out);
    print_consumers(s);
    print_unfinished(s);
    print_overdue(s);
    print_history(s);
    print_reasons(s);
}

/* For programs */

static void print_json(const struct status *s)
{
    struct buf out = {0};

    buf_add_char(&out, '{');
    fleet_add_json(&s->fleet, &out);
    json_rows_add(&out, ",\"consumers\":", s->consumers);
    json_rows_add(&out, ",\"oldest_unfinished\":", s->unfinished);
    json_rows_add(&out, ",\"overdue\":", s->overdue);
    json_rows_add(&out, ",\"compacted\":", s->history);
    json_rows_add(&out, ",\"dead_letters\":", s->reasons);
    buf_add_text(&out, "}\n");
    fwrite(out.data, 1, out.len, s->out);
    buf_deinit(&out);
}

static int ask(struct status *s, const struct config *c, struct fault *f)
{
    struct buf names = {0};
    int answer;

    for (size_t i = 0; i < c->n_queues; i++) {
        buf_add_char(&names, i ? ',' : '[');
        buf_add_json(&names, slice_of(c->queues[i].consumer));
    }
    buf_add_text(&names, c->n_queues ? "]" : "[]");
    const char *const params[] = {buf_text(&names)};

    answer = admin_fleet(s->a, c, &s->fleet, f) ||
             session_once(s->a, sql_query("status_consumers"), 1, params, &s->consumers, f) ||
             session_once(s->a, sql_query("status_reasons"), 0, NULL, &s->reasons, f) ||
             session_once(s->a, sql_query("status_unfinished"), 0, NULL, &s->unfinished, f) ||
             session_once(s->a, sql_query("status_overdue"), 0, NULL, &s->overdue, f) ||
             session_once(s->a, sql_query("status_history"), 0, NULL, &s->history, f);
    buf_deinit(&names);
    return answer ? -1 : 0;
}

int admin_status(struct admin *a, const struct config *c, bool json, FILE *out, struct fault *f)
{
    struct status s = {.a = a, .config = c, .out = out};
    int answer;

    if (admin_check_schema(a, f))
        return -1;
    answer = ask(&s, c, f);
    if (answer == 0 && json)
        print_json(&s);
    else if (answer == 0)
        print_text(&s);
    fleet_deinit(&s.fleet);
    PQclear(s.consumers);
    PQclear(s.reasons);
    PQclear(s.unfinished);
    PQclear(s.overdue);
    PQclear(s.history);
    return answer;
}
