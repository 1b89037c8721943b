/* The live replicas, the states of their queues, operator commands, and the outbox: three queries. */
#include "inbox/fleet.h"

#include "inbox/session.h"
#include "inbox/sql.h"

#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/base/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    INSTANCE,
    HOST,
    NUMBER,
    VERSION,
    CONFIG,
    SEEN_MS,
    QUEUE,
    CONSUMER,
    STATE,
    REASON,
    DETAIL,
    PAUSED_FOR_MS,
    IN_FLIGHT,
    ACCEPTED,
    LIMIT,
    LIMIT_REASON,
    BATCH_SIZE,
    HELD,
    PARKED,
    DEPTH,
    DEAD,
    RECEIVED,
    COMPLETED,
    FAILED,
    FORWARD_P50,
    FORWARD_P99,
    END_TO_END_P50,
    END_TO_END_P99
};

enum { L_CONSUMER, L_PAUSED, L_REASON, L_BY, L_SINCE_MS, L_N_GIVE_UP, L_GIVE_UP_BY, L_STOPPED };

enum { O_VHOST, O_HOLDER, O_HOST, O_WAITING, O_EXACT, O_LAG_MS, O_LETTERS, O_BYTES, O_TURN_WAITS_MS };

struct results {
    PGresult *replicas, *commands, *outbox;
};

/* --- answers --- */

static const char *text(const PGresult *r, int row, int column)
{
    const char *value = field_text(r, row, column);

    return value ? value : "";
}

static double number(const PGresult *r, int row, int column)
{
    const char *value = field_text(r, row, column);
    char *end;
    double d = value ? strtod(value, &end) : -1;

    return value && (*end || end == value) ? -1 : d;
}

static struct fleet_queue queue_read(const PGresult *r, int row)
{
    return (struct fleet_queue){
        .instance = text(r, row, INSTANCE),
        .host = text(r, row, HOST),
        .version = text(r, row, VERSION),
        .config = text(r, row, CONFIG),
        .number = field_int(r, row, NUMBER),
        .seen_ms = field_int(r, row, SEEN_MS),
        .queue = text(r, row, QUEUE),
        .consumer = text(r, row, CONSUMER),
        .state = text(r, row, STATE),
        .reason = text(r, row, REASON),
        .detail = text(r, row, DETAIL),
        .paused_for_ms = (int64_t)number(r, row, PAUSED_FOR_MS),
        .in_flight = (int64_t)number(r, row, IN_FLIGHT),
        .accepted = (int64_t)number(r, row, ACCEPTED),
        .limit = (int64_t)number(r, row, LIMIT),
        .limit_reason = text(r, row, LIMIT_REASON),
        .batch_size = (int64_t)number(r, row, BATCH_SIZE),
        .held = (int64_t)number(r, row, HELD),
        .parked = (int64_t)number(r, row, PARKED),
        .depth = (int64_t)number(r, row, DEPTH),
        .dead = (int64_t)number(r, row, DEAD),
        .received_per_s = number(r, row, RECEIVED),
        .completed_per_s = number(r, row, COMPLETED),
        .failed_per_s = number(r, row, FAILED),
        .forward_ms_p50 = number(r, row, FORWARD_P50),
        .forward_ms_p99 = number(r, row, FORWARD_P99),
        .end_to_end_ms_p50 = number(r, row, END_TO_END_P50),
        .end_to_end_ms_p99 = number(r, row, END_TO_END_P99),
    };
}

/* Is it a queue of this configuration? */
static bool is_configured(const struct config *c, const struct fleet_queue *q)
{
    for (size_t i = 0; i < c->n_queues; i++)
        if (!strcmp(c->queues[i].consumer, q->consumer))
            return true;
    return !*q->consumer;
}

static struct fleet_command command_read(const PGresult *r, int row)
{
    return (struct fleet_command){.consumer = text(r, row, L_CONSUMER),
                                  .paused = text(r, row, L_PAUSED)[0] == 't',
                                  .reason = text(r, row, L_REASON),
                                  .by = text(r, row, L_BY),
                                  .since_ms = field_int(r, row, L_SINCE_MS),
                                  .n_give_up = field_int(r, row, L_N_GIVE_UP),
                                  .give_up_by = text(r, row, L_GIVE_UP_BY),
                                  .stopped = text(r, row, L_STOPPED)};
}

static struct fleet_outbox outbox_read(const PGresult *r)
{
    if (!PQntuples(r))
        return (struct fleet_outbox){.holder = "", .host = "", .vhost = ""};
    return (struct fleet_outbox){.is_used = true,
                                 .waiting = field_int(r, 0, O_WAITING),
                                 .exact = text(r, 0, O_EXACT)[0] == 't',
                                 .lag_ms = field_int(r, 0, O_LAG_MS),
                                 .letters = field_int(r, 0, O_LETTERS),
                                 .turn_waits_ms = field_int(r, 0, O_TURN_WAITS_MS),
                                 .holder = text(r, 0, O_HOLDER),
                                 .host = text(r, 0, O_HOST),
                                 .vhost = text(r, 0, O_VHOST)};
}

/* Counts the instances, whose queues are not adjacent. Replicas are few, so a quadratic loop is fine. */
static size_t count_replicas(const struct fleet *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->n_queues; i++) {
        bool known = false;

        for (size_t k = 0; !known && k < i; k++)
            known = strcmp(f->queues[k].instance, f->queues[i].instance) == 0;
        n += !known;
    }
    return n;
}

int admin_fleet(struct admin *a, const struct config *c, struct fleet *ret, struct fault *f)
{
    struct results *r = mem_zalloc(1, sizeof(*r));

    *ret = (struct fleet){.results = r};
    if (session_once(a, sql_query("status_replicas"), 0, NULL, &r->replicas, f) ||
        session_once(a, sql_query("status_levers"), 0, NULL, &r->commands, f) ||
        session_once(a, sql_query("status_outbox"), 0, NULL, &r->outbox, f)) {
        fleet_deinit(ret);
        return -1;
    }
    ret->n_queues = (size_t)PQntuples(r->replicas);
    ret->n_commands = (size_t)PQntuples(r->commands);
    ret->queues = mem_zalloc(ret->n_queues + 1, sizeof(*ret->queues));
    ret->commands = mem_zalloc(ret->n_commands + 1, sizeof(*ret->commands));
    for (size_t i = 0; i < ret->n_queues; i++) {
        ret->queues[i] = queue_read(r->replicas, (int)i);
        ret->queues[i].is_foreign = !is_configured(c, &ret->queues[i]);
    }
    for (size_t i = 0; i < ret->n_commands; i++)
        ret->commands[i] = command_read(r->commands, (int)i);
    ret->outbox = outbox_read(r->outbox);
    ret->n_replicas = count_replicas(ret);
    return 0;
}

void fleet_deinit(struct fleet *f)
{
    struct results *r = f->results;

    if (r) {
        PQclear(r->replicas);
        PQclear(r->commands);
        PQclear(r->outbox);
    }
    free(r);
    free(f->queues);
    free(f->commands);
    *f = (struct fleet){0};
}

/* --- status: for people --- */

static void add_count(struct table *t, int64_t n)
{
    if (n < 0)
        table_add_text(t, NULL);
    else
        table_add_int(t, n);
}

static void add_decimal(struct table *t, double d)
{
    char digits[32];

    snprintf(digits, sizeof(digits), "%.1f", d);
    table_add_text(t, d < 0 ? NULL : digits);
}

static void add_state(struct table *t, const struct fleet_queue *q)
{
    struct buf words = {0};

    buf_add_text(&words, q->state);
    if (*q->reason)
        buf_printf(&words, " (%s)", q->reason);
    table_add(t, buf_slice(&words));
    buf_deinit(&words);
}

static void add_marked(struct table *t, const char *name, bool marked)
{
    struct buf text = {0};

    buf_printf(&text, "%s%s", name, marked ? " *" : "");
    table_add(t, buf_slice(&text));
    buf_deinit(&text);
}

void fleet_add_name(struct buf *out, const char *instance, const char *host)
{
    text_add_safe(out, slice_of(instance));
    if (!host || !*host || strcmp(host, instance) == 0)
        return;
    buf_add_text(out, " (");
    text_add_safe(out, slice_of(host));
    buf_add_text(out, ")");
}

void fleet_table_name(struct table *t, const char *instance, const char *host)
{
    struct buf text = {0};

    if (!instance) {
        table_add_text(t, NULL);
        return;
    }
    fleet_add_name(&text, instance, host);
    table_add(t, buf_slice(&text));
    buf_deinit(&text);
}

static void print_queues(const struct fleet *f, FILE *out)
{
    static const char *const heads[] = {"QUEUE",    "REPLICA", "STATE",  "OUT",  "ACCEPTED",
                                        "LIMIT",    "BATCH",   "HELD",   "IN/S", "DONE/S",
                                        "FAILED/S", "VERSION", "CONFIG", "SEEN"};
    struct table t = {.n_columns = 14, .right = 0x7F8};

    for (size_t i = 0; i < t.n_columns; i++)
        table_add_text(&t, heads[i]);
    for (size_t i = 0; i < f->n_queues; i++) {
        const struct fleet_queue *q = &f->queues[i];
        struct buf seen = {0};

        add_marked(&t, q->queue, q->is_foreign);
        fleet_table_name(&t, q->instance, q->host);
        add_state(&t, q);
        add_count(&t, q->in_flight);
        add_count(&t, q->accepted);
        add_count(&t, q->limit);
        add_count(&t, q->batch_size);
        add_count(&t, q->held);
        add_decimal(&t, q->received_per_s);
        add_decimal(&t, q->completed_per_s);
        add_decimal(&t, q->failed_per_s);
        table_add_text(&t, q->version);
        table_add_text(&t, *q->config ? q->config : NULL);
        text_add_age(&seen, q->seen_ms);
        buf_add_text(&seen, " ago");
        table_add(&t, buf_slice(&seen));
        buf_deinit(&seen);
    }
    table_print(&t, out, text_width(out));
    table_deinit(&t);
}

/* Is it the first replica of its queue with this reason for a low limit? */
static bool is_first_reason(const struct fleet *f, size_t i)
{
    const struct fleet_queue *q = &f->queues[i];

    for (size_t k = 0; k < i; k++)
        if (!strcmp(f->queues[k].queue, q->queue) && !strcmp(f->queues[k].limit_reason, q->limit_reason))
            return false;
    return *q->limit_reason != '\0';
}

static void print_limit_reasons(const struct fleet *f, FILE *out)
{
    for (size_t i = 0; i < f->n_queues; i++) {
        struct buf line = {0};

        if (!is_first_reason(f, i))
            continue;
        buf_add_text(&line, "low limit of ");
        text_add_safe(&line, slice_of(f->queues[i].queue));
        buf_add_text(&line, ": ");
        text_add_safe(&line, slice_of(f->queues[i].limit_reason));
        fprintf(out, "%s\n", buf_text(&line));
        buf_deinit(&line);
    }
}

void fleet_add_command(struct buf *out, const struct fleet_command *l)
{
    text_add_safe(out, slice_of(l->consumer));
    if (l->paused) {
        buf_add_text(out, " was paused ");
        text_add_age(out, l->since_ms);
        buf_add_text(out, " ago by ");
        text_add_safe(out, slice_of(*l->by ? l->by : "somebody"));
        buf_add_text(out, *l->reason ? ": " : "");
        text_add_safe(out, slice_of(l->reason));
    }
    if (l->n_give_up)
        buf_printf(out, "%s %" PRId64 " message%s to be given up", l->paused ? ";" : ":", l->n_give_up,
                   l->n_give_up == 1 ? "" : "s");
    if (*l->stopped) {
        buf_printf(out, "%s stopped near the delivery limit until `onceward retry --consumer C`: ",
                   l->paused || l->n_give_up ? ";" : ":");
        text_add_safe(out, slice_of(l->stopped));
    }
}

enum { TOLD_FROM_MS = 600000 };

void fleet_add_outbox(struct buf *out, const struct fleet_outbox *x)
{
    buf_add_text(out, *x->vhost ? "outbox to " : "outbox, never relayed");
    text_add_safe(out, slice_of(x->vhost));
    buf_printf(out, ": %s%" PRId64 " waiting", x->exact ? "" : "up to ", x->waiting);
    if (x->waiting) {
        buf_add_text(out, ", the oldest for ");
        text_add_age(out, x->lag_ms);
    }
    buf_add_text(out, *x->holder ? "; relayed by " : "; relayed by nobody");
    fleet_add_name(out, x->holder, x->host);
    if (x->letters)
        buf_printf(out, "; %" PRId64 " dead letter%s", x->letters, x->letters == 1 ? "" : "s");
    if (x->turn_waits_ms >= TOLD_FROM_MS) {
        buf_add_text(out, "; its tables could not be emptied for ");
        text_add_age(out, x->turn_waits_ms);
        buf_add_text(out, ": a transaction is open on that server, or prepared");
    }
}

void fleet_print(const struct fleet *f, FILE *out)
{
    if (f->n_queues) {
        fprintf(out, "Replicas (%zu):\n", f->n_replicas);
        print_queues(f, out);
        for (size_t i = 0; i < f->n_queues; i++)
            if (f->queues[i].is_foreign) {
                fprintf(out, "* not in this configuration\n");
                break;
            }
        print_limit_reasons(f, out);
    } else {
        fprintf(out, "No replica has been seen for 15 s.\n");
    }
    for (size_t i = 0; i < f->n_commands; i++) {
        struct buf line = {0};

        fleet_add_command(&line, &f->commands[i]);
        fprintf(out, "%s.\n", buf_text(&line));
        buf_deinit(&line);
    }
    if (f->outbox.is_used) {
        struct buf line = {0};

        fleet_add_outbox(&line, &f->outbox);
        fprintf(out, "%s.\n", buf_text(&line));
        buf_deinit(&line);
    }
}

/* --- status: for programs --- */

/* Is the text a JSON number or boolean? Replicas of other teams write their own states, so a plain value may be any
 * JSON. */
static bool is_plain(const char *text)
{
    if (!strcmp(text, "true") || !strcmp(text, "false"))
        return true;
    return *text && text[strspn(text, "0123456789+-.eE")] == '\0';
}

/* Types whose text is JSON: int8, int2, int4, json. A bool is "t" or "f". */
enum { BOOL_OID = 16, INT8_OID = 20, INT2_OID = 21, INT4_OID = 23, JSON_OID = 114 };

static void add_value(struct buf *out, const char *value, Oid type)
{
    bool is_number = type == INT8_OID || type == INT2_OID || type == INT4_OID || type == JSON_OID;

    if (!value || (is_number && !is_plain(value)))
        buf_add_text(out, "null");
    else if (type == BOOL_OID)
        buf_add_text(out, *value == 't' ? "true" : "false");
    else if (is_number)
        buf_add_text(out, value);
    else
        buf_add_json(out, slice_of(value));
}

void json_rows_add(struct buf *out, const char *before, const PGresult *r)
{
    buf_add_text(out, before);
    buf_add_char(out, '[');
    for (int row = 0; row < PQntuples(r); row++) {
        const char *separator = "{";

        buf_add_text(out, row ? "," : "");
        for (int i = 0; i < PQnfields(r); i++) {
            if (*PQfname(r, i) == '_')
                continue;
            buf_printf(out, "%s\"%s\":", separator, PQfname(r, i));
            add_value(out, field_text(r, row, i), PQftype(r, i));
            separator = ",";
        }
        buf_add_char(out, '}');
    }
    buf_add_char(out, ']');
}

void fleet_add_json(const struct fleet *f, struct buf *out)
{
    const struct results *r = f->results;

    json_rows_add(out, "\"replicas\":", r->replicas);
    json_rows_add(out, ",\"levers\":", r->commands);
    json_rows_add(out, ",\"outbox\":", r->outbox);
}
