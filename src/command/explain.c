/* onceward explain: what the events of the log mean. Made from the table of events, like the documentation.
 */

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/log.h"
#include "onceward/base/table.h"

#include <getopt.h>
#include <string.h>

static const char help[] =
    "usage: onceward explain EVENT\n"
    "       onceward explain [--list | --markdown]\n"
    "Says what an event of the log means, and what to do about it. Without EVENT: lists all of them.\n"
    "  --markdown   the table of the documentation\n";

static void print_list(void)
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

/* A bar would end the cell. */
static void print_cell(const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            putchar('\\');
        putchar(*text);
    }
}

static void print_markdown(void)
{
    puts("| event | level | what happened | what to do |\n|---|---|---|---|");
    for (int i = 0; i < N_EVENTS; i++) {
        const struct event_info *info = event_info(i);

        printf("| `%s` | %s | ", info->name, log_level_name(info->level));
        print_cell(info->sentence);
        printf(" | ");
        print_cell(info->advice);
        puts(" |");
    }
}

static int explain_event(const char *name)
{
    bool said = false;

    for (int i = 0; i < N_EVENTS; i++) {
        const struct event_info *info = event_info(i);

        if (strcmp(info->name, name) == 0) {
            printf("%s (%s)\n  %s\n  %s\n", info->name, log_level_name(info->level), info->sentence,
                   info->advice);
            return STATUS_DONE;
        }
    }
    fprintf(stderr, "onceward: there is no event \"%s\"", name);
    for (int i = 0; i < N_EVENTS; i++) {
        const char *other = event_info(i)->name;

        if (strlen(name) < 3 || (!strcasestr(other, name) && strncmp(other, name, 3) != 0))
            continue;
        fprintf(stderr, said ? ", %s" : "; did you mean %s", other);
        said = true;
    }
    fputs(said ? "?\n" : "; `onceward explain` lists them\n", stderr);
    return STATUS_USAGE;
}

int command_explain(int argc, char **argv)
{
    static const struct option options[] = {{"list", no_argument, NULL, 'l'},
                                            {"markdown", no_argument, NULL, 'm'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    bool markdown = false, list = false;
    int option;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'm')
            markdown = true;
        else if (option == 'l')
            list = true;
        else {
            fputs(help, option == 'h' ? stdout : stderr);
            return option == 'h' ? STATUS_DONE : STATUS_USAGE;
        }
    }
    if (optind + 1 < argc || (optind < argc && (markdown || list))) {
        fputs(help, stderr);
        return STATUS_USAGE;
    }
    if (optind < argc)
        return explain_event(argv[optind]);
    if (markdown)
        print_markdown();
    else
        print_list();
    return STATUS_DONE;
}
