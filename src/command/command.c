/* The list of subcommands. Runs on the main thread; commands may block. Shared functions: common.c. */

#include "onceward/command/command.h"

#include "command/common.h"
#include "command/help.h"
#include "onceward/base/job.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { JOBS_MS = 1000 };

const struct command *const commands[] = {
    &run_command,        &check_command,   &migrate_command, &status_command,  &top_command,
    &dead_command,       &pause_command,   &resume_command,  &retry_command,   &give_up_command,
    &forget_command,     &replay_command,  &export_command,  &try_command,     &health_command,
    &drain_command,      &reload_command,  &explain_command, &example_command, &schema_command,
    &completion_command, &version_command,
};

const size_t n_commands = sizeof commands / sizeof *commands;

static void add_list(struct buf *out)
{
    buf_add_text(out,
                 "Onceward forwards the messages of a RabbitMQ queue to an application, and lets each one "
                 "through once.\n\n"
                 "usage: onceward COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < n_commands; i++)
        buf_printf(out, "  %-10s  %s\n", commands[i]->name, commands[i]->does);
    buf_add_text(
        out,
        "\nDetails: `onceward COMMAND --help`. Exit status: 0 done, 1 failed, 2 usage or configuration.\n");
}

static void add_markdown(struct buf *out)
{
    buf_add_text(out, "| command | effect |\n|---|---|\n");
    for (size_t i = 0; i < n_commands; i++)
        help_add_row(out, commands[i]);
}

static int print(void (*add)(struct buf *), FILE *to)
{
    struct buf out = {0};

    add(&out);
    fputs(buf_text(&out), to);
    buf_deinit(&out);
    return to == stdout ? STATUS_DONE : STATUS_USAGE;
}

static const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < n_commands; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    fprintf(stderr, "onceward: there is no command \"%s\"; see `onceward --help`\n", name);
    return NULL;
}

static int command_help(int argc, char **argv)
{
    static char flag[] = "--help";

    if (argc < 2)
        return print(add_list, stdout);
    if (argc == 2 && strcmp(argv[1], "--man") == 0)
        return print(manual_add, stdout);
    if (argc == 2 && strcmp(argv[1], "--markdown") == 0)
        return print(add_markdown, stdout);
    const struct command *c = command_find(argv[1]);
    char *args[] = {argv[1], flag, NULL};

    return c ? command_call(c, 2, args) : STATUS_USAGE;
}

static int command_choose(int argc, char **argv)
{
    static char version[] = "version";
    char *only_version[] = {version, NULL};
    const char *name = argc > 1 ? argv[1] : NULL;

    if (!name)
        return print(add_list, stderr);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return command_help(argc - 1, argv + 1);
    if (strcmp(name, "--version") == 0)
        return command_call(&version_command, 1, only_version);
    const struct command *c = command_find(name);

    return c ? command_call(c, argc - 1, argv + 1) : STATUS_USAGE;
}

char **command_argv;

int command_main(int argc, char **argv)
{
    command_argv = argv;
    int status = command_choose(argc, argv);

    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "onceward: cannot write to standard output%s%s\n", errno ? ": " : "",
                errno ? strerror(errno) : "");
        status = status == STATUS_DONE ? STATUS_FAILED : status;
    }
    if (!job_wait_all(JOBS_MS))
        _exit(status); /* a connection attempt may still be in a call that cannot be interrupted, such as name
                          resolution */
    return status;
}
