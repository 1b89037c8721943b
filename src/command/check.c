/* onceward check: checks the configuration, and with --connect everything that it names. */

#include "command/check.h"

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/cgroup.h"
#include "onceward/base/fault.h"
#include "onceward/base/table.h"
#include "onceward/config/config.h"
#include "onceward/config/memory.h"

#include <getopt.h>
#include <string.h>

static const char help[] =
    "usage: onceward check --config FILE [--connect [--sample]] [--effective] [--json]\n"
    "Validates the configuration and lists all of its errors at once.\n"
    "  --connect    also try the state file, the database (roles, schema, consumers), the broker with each queue, and each\n"
    "               application\n"
    "  --sample     also take one message of each queue and return it: prints the id that `message_id` finds, or the fields\n"
    "               of the message and the settings that would find one. The broker counts this as a delivery: the message\n"
    "               is marked as redelivered, and on a quorum queue it counts towards the delivery limit\n"
    "  --effective  print every key with its value and its source: the file, `defaults` or the built-in default. Secrets are\n"
    "               masked\n"
    "  --json       print one JSON object per line: result (ok, warn or fail), where, path (of a key), text\n"
    "FILE may be - for standard input. Without --config it is the value of ONCEWARD_CONFIG.\n";

struct check_options {
    const char *path;
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

/* NULL: it has errors, which were listed. */
static struct config *load(const struct check_options *o, struct config_values *values)
{
    struct config_report report = {0};
    struct config *c = NULL;
    int failed = config_load_values(o->path, admin_check_url, &c, &report, values);

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

/* A hint: no key is needed if the publishers set the property. */
static void hint_content_types(const struct config *c, struct findings *s)
{
    char where[320];

    s->where = where;
    for (size_t i = 0; i < c->n_queues; i++) {
        snprintf(where, sizeof(where), "queue %s", c->queues[i].name);
        if (!c->queues[i].forward.content_type)
            check_tell(
                s, FINDING_HINT,
                "messages without a content type go as application/octet-stream, since "
                "forward.content_type is not set; most frameworks want application/json, and answer 415 "
                "or 422");
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

static int check(const struct check_options *o)
{
    struct findings s = {.json = o->json, .where = "configuration"};
    struct config_values values = {0};
    struct config *c = load(o, o->effective ? &values : NULL);
    int status = STATUS_DONE;
    struct buf text = {0};

    if (!c) {
        config_values_deinit(&values);
        return STATUS_USAGE;
    }
    buf_printf(&text, "%s: %zu queue%s", o->path, c->n_queues, c->n_queues == 1 ? "" : "s");
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

static int usage(FILE *to, int status)
{
    fputs(help, to);
    return status;
}

int command_check(int argc, char **argv)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"connect", no_argument, NULL, 'n'},
                                            {"sample", no_argument, NULL, 's'},
                                            {"effective", no_argument, NULL, 'e'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct check_options o = {0};
    int option;

    while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        if (option == 'c')
            o.path = optarg;
        else if (option == 'n')
            o.connect = true;
        else if (option == 's')
            o.sample = true;
        else if (option == 'e')
            o.effective = true;
        else if (option == 'j')
            o.json = true;
        else
            return option == 'h' ? usage(stdout, STATUS_DONE) : command_see_help(argv[0]);
    }
    if (command_config_named(argc, argv, &o.path))
        return command_see_help(argv[0]);
    if (o.sample && !o.connect) {
        fprintf(stderr, "check: --sample is for --connect\n");
        return command_see_help(argv[0]);
    }
    return check(&o);
}
