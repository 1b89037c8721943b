/* onceward check: checks the configuration, and with --connect everything that it names. */

#include "command/check.h"

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/cgroup.h"
#include "onceward/base/fault.h"
#include "onceward/base/table.h"
#include "onceward/config/config.h"
#include "onceward/config/memory.h"

#include <string.h>

struct check_options {
    const char *config;
    bool connect, sample, effective, json;
};

static void print_values(const struct config_values *v, bool json)
{
    struct table t = {.n_columns = 3};
    struct buf line = {0};

    if (!json) {
        printf("\n");
        table_add_text(&t, "KEY");
        table_add_text(&t, "VALUE");
        table_add_text(&t, "FROM");
    }
    for (size_t i = 0; i < v->n; i++) {
        const struct config_value *value = &v->items[i];

        if (!json) {
            table_add_text(&t, value->path);
            table_add_text(&t, value->value);
            table_add_text(&t, value->from);
            continue;
        }
        buf_reset(&line);
        buf_add_text(&line, "{\"result\":\"ok\",\"where\":\"effective\",\"path\":");
        buf_add_json(&line, slice_of(value->path));
        buf_add_text(&line, ",\"text\":");
        buf_add_json(&line, slice_of(value->value));
        buf_printf(&line, ",\"from\":\"%s\"}", value->from);
        printf("%s\n", buf_text(&line));
    }
    if (!json)
        table_print(&t, stdout, text_width(stdout));
    table_deinit(&t);
    buf_deinit(&line);
}

static void tell_key(const struct config_finding *finding, const struct check_options *o)
{
    bool is_warning = finding->warning && !finding->fails_check;

    if (o->json)
        check_tell_json(is_warning ? FINDING_WARNING : FINDING_FAILED, "configuration", finding->path,
                        finding->text);
    else
        fprintf(stderr, "%s%s%s%s\n", is_warning ? "warning: " : "", finding->path,
                *finding->path ? ": " : "", finding->text);
}

/* Loads the configuration. NULL: it has errors, which were listed. */
static struct config *load(const struct check_options *o, struct config_values *values)
{
    struct config_report report = {0};
    struct config *c = NULL;
    int failed = config_load_values(o->config, admin_check_url, &c, &report, values);

    for (size_t i = 0; i < report.n; i++) {
        tell_key(&report.findings[i], o);
        if (report.findings[i].fails_check)
            failed = -1;
    }
    config_report_deinit(&report);
    if (failed && c) {
        config_free(c);
        c = NULL;
    }
    return c;
}

static void check_memory(struct config *c, struct findings *s)
{
    struct fault text = {0};
    uint64_t limit;

    s->where = "memory";
    if (cgroup_memory_limit("", &limit) && memory_fit(c, limit, &text))
        check_tell(s, FINDING_WARNING, text.text);
    s->where = NULL;
}

/* Hints at the key for a content type, which is not needed if the publishers set the property. Once per entry: its
 * partitions have the same value. */
static void hint_content_types(const struct config *c, struct findings *s)
{
    char where[320];

    s->where = where;
    for (size_t i = 0; i < c->n_queues; i += c->queues[i].n_partitions) {
        snprintf(where, sizeof(where), "queue %s", c->queues[i].name);
        if (!c->queues[i].forward.content_type)
            check_tell(
                s, FINDING_HINT,
                "forward.content_type is not set, so messages without a content type are sent as "
                "application/octet-stream; most frameworks expect application/json, and answer 415 or 422");
    }
    s->where = NULL;
}

static void summarize(const struct findings *s)
{
    printf("\n");
    if (s->n_warnings)
        printf("%d of these %s.\n", s->n_warnings, s->n_warnings == 1 ? "is a warning" : "are warnings");
    if (s->n_failed)
        printf("%d %s to be corrected.\n", s->n_failed, s->n_failed == 1 ? "failure has" : "failures have");
    else
        printf("Everything answers.\n");
}

static int check_run(void *options)
{
    const struct check_options *o = options;
    struct findings s = {.json = o->json, .where = "configuration"};
    struct config_values values = {0};
    struct config *c = load(o, o->effective ? &values : NULL);
    int status = STATUS_DONE;
    struct buf text = {0};

    if (!c) {
        config_values_deinit(&values);
        return STATUS_USAGE;
    }
    buf_printf(&text, "%s: %zu queue%s", o->config, c->n_queues, c->n_queues == 1 ? "" : "s");
    if (o->json) {
        check_tell_json(FINDING_OK, "configuration", "", buf_text(&text));
    } else {
        printf("ok   configuration %s\n", buf_text(&text));
    }
    hint_content_types(c, &s);
    check_memory(c, &s);
    if (o->effective)
        print_values(&values, o->json);
    fflush(stdout);
    if (o->connect) {
        status = check_connections(c, o->sample, &s);
        if (!o->json)
            summarize(&s);
    }
    config_values_deinit(&values);
    buf_deinit(&text);
    config_free(c);
    return status;
}

#define OPTIONS struct check_options

static const struct command_option check_options[] = {
    CONFIG_OPTION(.rules = OPTION_REQUIRED),
    {"connect", NULL,
     "also test the state file, the database (roles, schema, consumers), the broker with each queue, and "
     "each application",
     OPTION(FLAG, connect)},
    {"sample", NULL,
     "also take one message from each queue and return it, and print the id that `message_id` finds, or the "
     "fields of the message and the settings that would find one. The broker counts this as a delivery: the message is marked "
     "as redelivered, and on "
     "a quorum queue it counts towards the delivery limit",
     OPTION(FLAG, sample), OPTION_WITH},
    {"effective", NULL,
     "print every key with its value and its source: the file, `defaults` or the built-in default. "
     "Secrets are masked",
     OPTION(FLAG, effective)},
    JSON_OPTION("one JSON object per line: result (ok, warn or fail), where, path (of a key), text"),
    {0},
};

const struct command check_command = {
    .name = "check",
    .does = "validate the configuration and test its servers",
    .about = "Validates the configuration and lists all of its errors.",
    .options = check_options,
    .size = sizeof(struct check_options),
    .run = check_run,
};
