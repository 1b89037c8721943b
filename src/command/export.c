/* onceward export: rows, letters and stored messages as JSON lines, for archives before they are purged.
 *
 * An export covers times before its start, and waits until everything from then is committed. So the next export begins
 * at that time, and nothing between them is missed. Each line has its position, and the order behind a position never
 * changes: rows by id and consumer, letters in the order of death, messages by consumer in the order of arrival. So an
 * interrupted export continues behind the last complete line of its file, for the same time. */

#include "command/common.h"
#include "command/dead.h"
#include "command/export_file.h"
#include "command/json_line.h"
#include "command/since.h"

#include "onceward/base/buf.h"
#include "onceward/broker/decode.h"
#include "onceward/core/message.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *config, *consumer, *since, *until, *output, *after;
    bool rows, letters, messages, allow_compacted;
};

struct export_run {
    const struct options *options;
    struct admin *admin;
    struct export_file file;
    struct message_filter filter;
    struct pace pace;
    struct buf line;
    struct fault fault;
    int64_t n[N_EXPORT_KINDS];
};

/* --- lines --- */

static void line_begin(struct export_run *e, enum export_kind kind, struct slice first, struct slice second,
                       struct slice third)
{
    buf_reset(&e->line);
    buf_printf(&e->line, "{\"kind\":\"%s\",\"position\":\"", export_kind_name(kind));
    export_place_write(&e->line, kind, first, second, third);
    buf_add_char(&e->line, '"');
}

/* 1: the export ends. */
static int line_end(struct export_run *e, enum export_kind kind)
{
    buf_add_char(&e->line, '\n');
    errno = 0;
    if (fwrite(e->line.data, 1, e->line.len, e->file.out) != e->line.len)
        return fault_set(&e->fault, "cannot write to %s: %s",
                         e->options->output ? e->options->output : "standard output",
                         errno ? strerror(errno) : "it takes no more");
    e->n[kind]++;
    return pace_wait(&e->pace);
}

/* Appends the members of an object to those already written. */
static void add_members(struct buf *out, struct slice object)
{
    buf_add_char(out, ',');
    buf_add(out, object.data + 1, object.len - 1);
}

static int write_row(void *ctx, const char *consumer, const char *message_id, const char *json)
{
    struct export_run *e = ctx;

    line_begin(e, EXPORT_ROW, slice_of(consumer), slice_of(message_id), (struct slice){0});
    add_members(&e->line, slice_of(json));
    return line_end(e, EXPORT_ROW);
}

static int write_letter(void *ctx, const struct dead_letter *l)
{
    struct export_run *e = ctx;
    struct buf json = {0};
    char id[24];

    snprintf(id, sizeof id, "%" PRId64, l->id);
    line_begin(e, EXPORT_LETTER, slice_of(id), (struct slice){0}, (struct slice){0});
    letter_add_json(&json, l);
    add_members(&e->line, buf_slice(&json));
    buf_deinit(&json);
    return line_end(e, EXPORT_LETTER);
}

/* Converts the database's "2026-01-31 03:00:00.5+00", whose zone is UTC in our transactions. */
static void add_time(struct buf *out, const char *time)
{
    char text[MESSAGE_TIME_SIZE];
    char *plus;

    snprintf(text, sizeof text, "%s", time);
    if (strchr(text, ' '))
        *strchr(text, ' ') = 'T';
    if ((plus = strstr(text, "+00")))
        memcpy(plus, "Z", 2);
    json_add_text(out, "received_at", text);
}

static int write_message(void *ctx, const struct stored_message *stored)
{
    struct export_run *e = ctx;
    struct buf *out = &e->line;
    struct message *m = message_new();
    bool good = message_decode(m, stored->content_header) == 0;

    line_begin(e, EXPORT_MESSAGE, slice_of(stored->consumer), slice_of(stored->place.received_at),
               slice_of(stored->place.seq));
    json_add_text(out, "consumer", stored->consumer);
    json_add_text(out, "message_id", stored->message_id);
    add_time(out, stored->place.received_at);
    json_add_text(out, "exchange", stored->exchange);
    json_add_text(out, "routing_key", stored->routing_key);
    buf_add_text(out, ",\"properties\":");
    properties_to_json(out, m);
    buf_add_text(out, ",\"headers\":");
    fields_to_json(out, m->headers, m->n_headers, true);
    if (!good)
        buf_add_text(out, ",\"damaged\":true");
    buf_printf(out, ",\"body_bytes\":%zu", stored->body.len);
    json_add_body(out, stored->body);
    buf_add_char(out, '}');
    message_free(m);
    return line_end(e, EXPORT_MESSAGE);
}

/* --- the three kinds --- */

static const char *or_null(const char *text)
{
    return *text ? text : NULL;
}

static int export_rows(struct export_run *e)
{
    struct row_filter filter = {.consumer = e->options->consumer,
                                .since = or_null(e->filter.since),
                                .until = or_null(e->filter.until),
                                .after_consumer = buf_text(&e->file.after.first),
                                .after_id = buf_text(&e->file.after.second)};

    return admin_rows_each(e->admin, &filter, write_row, e, &e->fault);
}

static int export_letters(struct export_run *e)
{
    struct dead_filter filter = {.consumer = e->options->consumer,
                                 .since = or_null(e->filter.since),
                                 .older = or_null(e->filter.until)};

    if (e->file.after.kind == EXPORT_LETTER)
        filter.after = strtoll(buf_text(&e->file.after.first), NULL, 10);
    return admin_dead_each(e->admin, &filter, true, write_letter, e, &e->fault);
}

static int export_consumer(void *ctx, const char *consumer, const char *queue)
{
    struct export_run *e = ctx;
    struct message_place from;
    int order = e->file.after.kind == EXPORT_MESSAGE ? strcmp(consumer, buf_text(&e->file.after.first)) : 1;

    (void)queue;
    if (order < 0 || (e->options->consumer && strcmp(consumer, e->options->consumer) != 0))
        return 0;
    message_place_first(&from);
    if (order == 0) {
        snprintf(from.received_at, sizeof from.received_at, "%s", buf_text(&e->file.after.second));
        snprintf(from.seq, sizeof from.seq, "%s", buf_text(&e->file.after.third));
    }
    e->filter.consumer = consumer;
    return admin_messages_each(e->admin, &e->filter, &from, write_message, e, &e->fault);
}

static int export_messages(struct export_run *e)
{
    return admin_consumers(e->admin, export_consumer, e, &e->fault);
}

static int export_all(struct export_run *e)
{
    static int (*const kinds[N_EXPORT_KINDS])(struct export_run *) = {export_rows, export_letters,
                                                                      export_messages};
    const struct options *o = e->options;
    const int wanted[N_EXPORT_KINDS] = {o->rows, o->letters, o->messages};
    bool all = !o->rows && !o->letters && !o->messages;
    int answer = 0;

    for (int k = e->file.after.is_set ? (int)e->file.after.kind : 0; k < N_EXPORT_KINDS && !answer; k++)
        if (all || wanted[k])
            answer = kinds[k](e);
    return answer;
}

/* --- the request --- */

static void asked_text(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, "%c\"%s\":", out->len > 1 ? ',' : '{', key);
    if (value)
        buf_add_json(out, slice_of(value));
    else
        buf_add_text(out, "null");
}

/* The request as a JSON object: a continued export must have the same one. */
static void asked_write(struct buf *out, const struct options *o)
{
    bool all = !o->rows && !o->letters && !o->messages;

    asked_text(out, "consumer", o->consumer);
    asked_text(out, "since", o->since);
    asked_text(out, "until", o->until);
    buf_printf(out, ",\"rows\":%s,\"letters\":%s,\"messages\":%s}", all || o->rows ? "true" : "false",
               all || o->letters ? "true" : "false", all || o->messages ? "true" : "false");
}

/* Sets the time range, that of the first run if this one continues it. The range ends where everything is committed. */
static int find_time(struct export_run *e)
{
    const struct options *o = e->options;
    struct export_file *x = &e->file;
    struct message_filter *filter = &e->filter;

    if (admin_horizon(e->admin, filter->horizon, &e->fault))
        return -1;
    if (x->goes_on && strcmp(x->until, filter->horizon) > 0)
        return fault_set(&e->fault, "%s goes up to %s, and this server is at %s: a standby that is behind?",
                         x->path, x->until, filter->horizon);
    if (!x->goes_on && ((o->since && admin_time(e->admin, o->since, NULL, x->since, &e->fault)) ||
                        (o->until && admin_time(e->admin, o->until, NULL, x->until, &e->fault))))
        return -1;
    if (!x->goes_on && strcmp(x->since, filter->horizon) > 0)
        return fault_set(
            &e->fault,
            "--since is %s, and this server has committed everything only up to %s: its clock was "
            "set back, or it is a standby that lags behind",
            x->since, filter->horizon);
    if (!*x->until || strcmp(x->until, filter->horizon) > 0)
        snprintf(x->until, sizeof x->until, "%s", filter->horizon);
    snprintf(filter->since, sizeof filter->since, "%s", x->since);
    snprintf(filter->until, sizeof filter->until, "%s", x->until);
    return 0;
}

static void tell_end(const struct export_run *e, int answer)
{
    const struct options *o = e->options;
    const char *since = e->file.since;

    fprintf(stderr, "%" PRId64 " rows, %" PRId64 " letters, %" PRId64 " messages written, from before %s",
            e->n[EXPORT_ROW], e->n[EXPORT_LETTER], e->n[EXPORT_MESSAGE], e->file.until);
    if (!answer)
        fputs(".\n", stderr);
    else if (o->output)
        fputs("; ended early: run this again to continue\n", stderr);
    else
        fprintf(stderr,
                "; ended early: %s%s%s--until %s --after POSITION continues after the line with that "
                "position\n",
                *since ? "--since " : "", since, *since ? " " : "", e->file.until);
}

static int refuse_ended(const struct export_run *e)
{
    struct fault f = {0};

    fault_set(&f, "%s is complete, up to %s. Export later entries into another file: --since %s",
              e->file.path, e->file.until, e->file.until);
    return command_fail(&f);
}

/* --- compacted rows --- */

/* Exit status of an otherwise complete export. The database records the time up to which rows were replaced: the
 * configuration may have had another compact_after then, and another replica may have one now. */
static int tell_compacted(struct export_run *e)
{
    const struct options *o = e->options;
    char upto[MESSAGE_TIME_SIZE];
    struct fault f = {0};

    if (!o->rows && (o->letters || o->messages))
        return STATUS_DONE;
    if (admin_compacted_to(e->admin, o->consumer, upto, &f))
        return command_fail(&f);
    if (strcmp(e->file.since, upto) >= 0)
        return STATUS_DONE;
    fprintf(stderr,
            "Rows that were completed before %s may be missing: entries of the history have replaced them.\n",
            upto);
    if (o->allow_compacted)
        return STATUS_DONE;
    fputs(
        "Export more often, each time with --since at the end of the previous export, or accept the gap with "
        "--allow-compacted.\n",
        stderr);
    return STATUS_FAILED;
}

static int write_all(struct export_run *e, struct slice asked)
{
    int answer = export_file_begin(&e->file, asked, &e->fault);

    pace_catch_signals();
    if (!answer)
        answer = export_all(e);
    if (answer >= 0 && export_file_end(&e->file, answer == 0, &e->fault))
        answer = -1;
    if (answer < 0)
        command_fail(&e->fault);
    tell_end(e, answer);
    return answer ? STATUS_FAILED : tell_compacted(e);
}

static int export(struct options *o, struct export_run *e)
{
    struct config *c;
    struct buf asked = {0};
    int status = command_open(o->config, ADMIN_READS, &c, &e->admin);

    if (status)
        return status;
    if (admin_check_schema(e->admin, &e->fault) ||
        command_use_formers(c, e->admin, &o->consumer, &e->fault)) {
        command_close(c, e->admin);
        return command_fail(&e->fault);
    }
    status = command_check_consumer("export", o->config, c, e->admin, o->consumer);
    if (status) {
        command_close(c, e->admin);
        return status;
    }
    asked_write(&asked, o);
    if (export_file_open(&e->file, o->output, buf_slice(&asked), &e->fault) ||
        (!e->file.has_ended && find_time(e)))
        status = command_fail(&e->fault);
    else
        status = e->file.has_ended ? refuse_ended(e) : write_all(e, buf_slice(&asked));
    buf_deinit(&asked);
    command_close(c, e->admin);
    return status;
}

/* --- arguments --- */

static bool is_duration(const char *time)
{
    int64_t ago_ms;

    return time && config_duration(time, &ago_ms) == 0;
}

static int check(const struct options *o, struct export_run *e)
{
    struct fault f = {0};

    if (o->after && (is_duration(o->since) || is_duration(o->until)))
        return command_wrong(
            "export",
            "--after continues the time range of the first run: expected --since and --until as that run "
            "printed them, because \"2h\" ago is a different time now");
    if (o->after && o->output)
        return command_wrong(
            "export", "--after is for standard output; --output continues after the last line of its file");
    if (o->after && export_place_read(&e->file.after, slice_of(o->after), &f))
        return command_wrong("export", "--after: %s", f.text);
    return STATUS_DONE;
}

static int export_run(void *options)
{
    struct export_run e = {.options = options};
    int status = check(options, &e);

    if (!status)
        status = export(options, &e);
    export_file_deinit(&e.file);
    buf_deinit(&e.line);
    return status;
}

#define OPTIONS struct options

static const struct command_option export_options[] = {
    CONFIG_OPTION(.rules = OPTION_REQUIRED),
    {"rows", NULL, "rows; without --rows, --letters and --messages: all three", OPTION(FLAG, rows)},
    {"letters", NULL, "dead letters", OPTION(FLAG, letters)},
    {"messages", NULL, "stored messages", OPTION(FLAG, messages)},
    {"consumer", "C", "of this consumer", OPTION(TEXT, consumer)},
    {"since", "T", "first seen, dead or arrived since then: \"2h\" ago, or 2026-01-31T03:00:00Z",
     OPTION(TIME, since)},
    {"until", "T",
     "before then, and never later than now; the last line has the exact time, for the next --since. The "
     "export waits up to a minute for open "
     "transactions",
     OPTION(TIME, until)},
    {"output", "FILE",
     "write to FILE. An interrupted export continues after the last whole line when the same command is "
     "run again. The first line has the options; a complete file ends with a line of kind \"end\"",
     OPTION(FILE, output)},
    {"after", "POSITION", "continue after the line with this \"position\"", OPTION(TEXT, after)},
    {"allow-compacted", NULL,
     "exit with status 0 even if history entries may have replaced rows of that time",
     OPTION(FLAG, allow_compacted)},
    {0},
};

const struct command export_command = {
    .name = "export",
    .does = "write rows, dead letters and stored messages as JSON lines",
    .about = "Writes inbox rows, dead letters and stored messages (`store.retention`) as one JSON object per "
             "line, in this order: rows by id and "
             "consumer, dead letters by time, messages by consumer and arrival. Changes nothing.",
    .after = "Tokens are left out. A body that is not text is written as body_base64url.",
    .options = export_options,
    .size = sizeof(struct options),
    .run = export_run,
};
