/* onceward explain: what the log means, its events, the reasons that it names, and the fields of its stats
 * lines. Made from the tables of these, like the documentation. */

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/log.h"
#include "onceward/base/table.h"
#include "onceward/core/reasons.h"
#include "onceward/core/stats.h"

#include <getopt.h>
#include <string.h>

static const char help[] =
    "usage: onceward explain NAME\n"
    "       onceward explain [--list | --markdown] [--reasons | --stats]\n"
    "Says what NAME means, and what to do about it: an event of the log, a reason for which a queue is "
    "paused\n"
    "or a message is dead, a field of the stats lines, or a value of their state. Without NAME: lists all "
    "of\n"
    "them.\n"
    "  --markdown   the table of events of the documentation\n"
    "  --reasons    not the events, but the reasons\n"
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

static void list_reasons(void)
{
    struct table pauses = {.n_columns = 2}, deaths = {.n_columns = 2};

    table_add_text(&pauses, "REASON OF A PAUSE");
    table_add_text(&pauses, "MEANS");
    for (int r = 0; r < N_PAUSE_REASONS; r++) {
        table_add_text(&pauses, pause_reason_info((enum pause_reason)r)->name);
        table_add_text(&pauses, pause_reason_info((enum pause_reason)r)->sentence);
    }
    table_print(&pauses, stdout, text_width(stdout));
    table_deinit(&pauses);
    putchar('\n');
    table_add_text(&deaths, "REASON OF A DEAD LETTER");
    table_add_text(&deaths, "MEANS");
    for (int r = 0; r < N_DEAD_REASONS; r++) {
        table_add_text(&deaths, dead_reason_info((enum dead_reason)r)->name);
        table_add_text(&deaths, dead_reason_info((enum dead_reason)r)->sentence);
    }
    table_print(&deaths, stdout, text_width(stdout));
    table_deinit(&deaths);
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

static void list_everything(void)
{
    list_events();
    putchar('\n');
    list_reasons();
    putchar('\n');
    list_stats();
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

static void print_reason(const struct reason_info *info)
{
    printf("| `%s`", info->name);
    print_prose(info->sentence, info->advice);
}

static void print_reasons(void)
{
    puts("| reason of a pause | what it means | what to do |\n|---|---|---|");
    for (int r = 0; r < N_PAUSE_REASONS; r++)
        print_reason(pause_reason_info((enum pause_reason)r));
    puts("\n| reason of a dead letter | what it means | what to do |\n|---|---|---|");
    for (int r = 0; r < N_DEAD_REASONS; r++)
        print_reason(dead_reason_info((enum dead_reason)r));
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

static bool explain_reason(const struct reason_info *info, const char *name, const char *of_what)
{
    if (strcmp(info->name, name) != 0)
        return false;
    printf("%s (reason of a %s)\n  %s\n  %s\n", info->name, of_what, info->sentence, info->advice);
    return true;
}

static bool explain_reasons(const char *name)
{
    bool known = false;

    for (int r = 0; r < N_PAUSE_REASONS; r++)
        known |= explain_reason(pause_reason_info((enum pause_reason)r), name, "pause");
    for (int r = 0; r < N_DEAD_REASONS; r++)
        known |= explain_reason(dead_reason_info((enum dead_reason)r), name, "dead letter");
    return known;
}

struct guesses {
    const char *names[8];
    size_t n;
};

static void guess(struct guesses *g, const char *name, const char *other)
{
    if (strlen(name) < 3 || (!strcasestr(other, name) && strncmp(other, name, 3) != 0))
        return;
    for (size_t i = 0; i < g->n; i++)
        if (strcmp(g->names[i], other) == 0)
            return;
    if (g->n < sizeof(g->names) / sizeof(g->names[0]))
        g->names[g->n++] = other;
}

/* A name may be in more than one table: then all of them are meant. */
static int explain(const char *name)
{
    bool known = explain_event(name);
    struct guesses g = {0};

    known |= explain_reasons(name);
    known |= explain_field(name);
    known |= explain_state(name);
    if (known)
        return STATUS_DONE;
    fprintf(stderr, "onceward: there is no event, reason or field \"%s\"", name);
    for (int i = 0; i < N_EVENTS; i++)
        guess(&g, name, event_info(i)->name);
    for (int i = 0; i < N_PAUSE_REASONS; i++)
        guess(&g, name, pause_reason_info((enum pause_reason)i)->name);
    for (int i = 0; i < N_DEAD_REASONS; i++)
        guess(&g, name, dead_reason_info((enum dead_reason)i)->name);
    for (int i = 0; i < N_STATS_FIELDS; i++)
        guess(&g, name, stats_field_info(i)->name);
    for (size_t i = 0; i < g.n; i++)
        fprintf(stderr, i ? ", %s" : "; did you mean %s", g.names[i]);
    fputs(g.n ? "?\n" : "; `onceward explain` lists them\n", stderr);
    return STATUS_USAGE;
}

int command_explain(int argc, char **argv)
{
    static const struct option options[] = {
        {"list", no_argument, NULL, 'l'},    {"markdown", no_argument, NULL, 'm'},
        {"reasons", no_argument, NULL, 'r'}, {"stats", no_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},    {0}};
    bool markdown = false, list = false, reasons = false, stats = false;
    int option;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'm')
            markdown = true;
        else if (option == 'l')
            list = true;
        else if (option == 'r')
            reasons = true;
        else if (option == 's')
            stats = true;
        else {
            fputs(help, option == 'h' ? stdout : stderr);
            return option == 'h' ? STATUS_DONE : STATUS_USAGE;
        }
    }
    if (optind + 1 < argc || (optind < argc && (markdown || list || reasons || stats)) ||
        (reasons && stats)) {
        fputs(help, stderr);
        return STATUS_USAGE;
    }
    if (optind < argc)
        return explain(argv[optind]);
    if (reasons)
        (markdown ? print_reasons : list_reasons)();
    else if (stats)
        (markdown ? print_stats : list_stats)();
    else if (markdown)
        print_events();
    else
        list_everything();
    return STATUS_DONE;
}
