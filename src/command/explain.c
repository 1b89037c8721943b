/* onceward explain: what the log means, its events, and the fields of its stats lines. Made from the tables
 * of these, like the documentation. */

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/log.h"
#include "onceward/base/table.h"
#include "onceward/core/stats.h"

#include <getopt.h>
#include <string.h>

static const char help[] =
    "usage: onceward explain NAME\n"
    "       onceward explain [--list | --markdown] [--stats]\n"
    "Says what NAME means, and what to do about it: an event of the log, a field of its stats lines, or a\n"
    "value of their state. Without NAME: lists all of them.\n"
    "  --markdown   the table of events of the documentation\n"
    "  --stats      not the events, but the fields of stats lines and the values of state\n";

static void list_events(void)
{
    struct table t = {.n_columns = 3};

    table_add_text(&t, "EVENT");
    table_add_text(&t, "LEVEL");
    table_add_text(&t, "MEANS");
    for (int i = 0; i < N_EVENTS; i++) {
        const struct event_info *info = event_info(i);

        table_add_text(&t, info->name);
        table_add_text(&t, log_level_name(info->level));
        table_add_text(&t, info->sentence);
    }
    table_print(&t, stdout, text_width(stdout));
    table_deinit(&t);
}

/* "received, _total": the first key, and the endings of the others. */
static void add_keys(struct buf *out, enum stats_field f)
{
    char key[STATS_KEY_MAX];
    size_t len = strlen(stats_field_info(f)->name);

    for (size_t i = 0; stats_key(f, i, key); i++)
        buf_printf(out, "%s%s", i ? ", " : "", i ? key + len : key);
}

static void list_stats(void)
{
    struct table fields = {.n_columns = 2}, states = {.n_columns = 2};

    table_add_text(&fields, "FIELD OF STATS");
    table_add_text(&fields, "MEANS");
    for (int i = 0; i < N_STATS_FIELDS; i++) {
        struct buf keys = {0};

        add_keys(&keys, i);
        table_add(&fields, buf_slice(&keys));
        table_add_text(&fields, stats_field_info(i)->sentence);
        buf_deinit(&keys);
    }
    table_print(&fields, stdout, text_width(stdout));
    table_deinit(&fields);
    putchar('\n');
    table_add_text(&states, "STATE");
    table_add_text(&states, "MEANS");
    for (int i = 0; i < N_QUEUE_STATES; i++) {
        table_add_text(&states, queue_state_info(i)->name);
        table_add_text(&states, queue_state_info(i)->sentence);
    }
    table_print(&states, stdout, text_width(stdout));
    table_deinit(&states);
}

/* A bar would end the cell. */
static void print_cell(const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            putchar('\\');
        putchar(*text);
    }
}

/* The last two cells of a row. */
static void print_prose(const char *sentence, const char *advice)
{
    printf(" | ");
    print_cell(sentence);
    printf(" | ");
    print_cell(advice);
    puts(" |");
}

static void print_events(void)
{
    puts("| event | level | what happened | what to do |\n|---|---|---|---|");
    for (int i = 0; i < N_EVENTS; i++) {
        const struct event_info *info = event_info(i);

        printf("| `%s` | %s", info->name, log_level_name(info->level));
        print_prose(info->sentence, info->advice);
    }
}

static void print_stats(void)
{
    puts("| field of `stats` | what it says | when to worry, and what to do |\n|---|---|---|");
    for (int i = 0; i < N_STATS_FIELDS; i++) {
        char key[STATS_KEY_MAX];

        printf("|");
        for (size_t k = 0; stats_key(i, k, key); k++)
            printf("%s `%s`", k ? "," : "", key);
        print_prose(stats_field_info(i)->sentence, stats_field_info(i)->advice);
    }
    puts("\n| `state` | what the queue does | what to do |\n|---|---|---|");
    for (int i = 0; i < N_QUEUE_STATES; i++) {
        printf("| `%s`", queue_state_info(i)->name);
        print_prose(queue_state_info(i)->sentence, queue_state_info(i)->advice);
    }
}

static bool explain_event(const char *name)
{
    for (int i = 0; i < N_EVENTS; i++) {
        const struct event_info *info = event_info(i);

        if (strcmp(info->name, name) == 0) {
            printf("%s (%s)\n  %s\n  %s\n", info->name, log_level_name(info->level), info->sentence,
                   info->advice);
            return true;
        }
    }
    return false;
}

static bool explain_field(const char *name)
{
    int f = stats_field_find(name);
    struct buf keys = {0};

    if (f < 0)
        return false;
    const struct stats_field_info *info = stats_field_info(f);
    const char *endings = stats_kind_sentence(info->kind);

    add_keys(&keys, f);
    printf("%s (field of stats)\n  %s\n", buf_text(&keys), info->sentence);
    if (endings)
        printf("  %s\n", endings);
    printf("  %s\n", info->advice);
    buf_deinit(&keys);
    return true;
}

static bool explain_state(const char *name)
{
    for (int i = 0; i < N_QUEUE_STATES; i++) {
        const struct queue_state_info *info = queue_state_info(i);

        if (strcmp(info->name, name) == 0) {
            printf("%s (state of a queue, in stats)\n  %s\n  %s\n", info->name, info->sentence, info->advice);
            return true;
        }
    }
    return false;
}

/* Says other if it is like name. */
static void guess(const char *name, const char *other, bool *said)
{
    if (strlen(name) < 3 || (!strcasestr(other, name) && strncmp(other, name, 3) != 0))
        return;
    fprintf(stderr, *said ? ", %s" : "; did you mean %s", other);
    *said = true;
}

/* A name may be in more than one table: then all of them are meant. */
static int explain(const char *name)
{
    bool known = explain_event(name), said = false;

    known |= explain_field(name);
    known |= explain_state(name);
    if (known)
        return STATUS_DONE;
    fprintf(stderr, "onceward: there is no event or field \"%s\"", name);
    for (int i = 0; i < N_EVENTS; i++)
        guess(name, event_info(i)->name, &said);
    for (int i = 0; i < N_STATS_FIELDS; i++)
        guess(name, stats_field_info(i)->name, &said);
    fputs(said ? "?\n" : "; `onceward explain` lists them\n", stderr);
    return STATUS_USAGE;
}

int command_explain(int argc, char **argv)
{
    static const struct option options[] = {{"list", no_argument, NULL, 'l'},
                                            {"markdown", no_argument, NULL, 'm'},
                                            {"stats", no_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    bool markdown = false, list = false, stats = false;
    int option;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'm')
            markdown = true;
        else if (option == 'l')
            list = true;
        else if (option == 's')
            stats = true;
        else {
            fputs(help, option == 'h' ? stdout : stderr);
            return option == 'h' ? STATUS_DONE : STATUS_USAGE;
        }
    }
    if (optind + 1 < argc || (optind < argc && (markdown || list || stats))) {
        fputs(help, stderr);
        return STATUS_USAGE;
    }
    if (optind < argc)
        return explain(argv[optind]);
    if (markdown) {
        (stats ? print_stats : print_events)();
        return STATUS_DONE;
    }
    if (!stats) {
        list_events();
        putchar('\n');
    }
    list_stats();
    return STATUS_DONE;
}
