/* The table of subcommands. Runs on the main thread; commands may block. Shared functions: common.c. */

#include "onceward/command/command.h"

#include "command/common.h"
#include "onceward/base/job.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { JOBS_MS = 1000 };

#define FILTER                                                                                               \
    "config= consumer= reason= since= older= limit= rate= dry-run new-id out-of-order all body= json"
#define STATE    "state= config="
#define OPERATOR "config= consumer= by= json"

const struct subcommand commands[] = {
    {"run", "--config FILE", "run the sidecar", command_run, "config=", NULL},
    {"check", "--config FILE [--connect]", "validate the configuration and try its servers", command_check,
     "config= connect sample effective json", NULL},
    {"migrate", "--config FILE | --database URL | --database-file FILE",
     "bring the database schema up to date", command_migrate, "config= database= database-file=", NULL},
    {"status", "--config FILE [--id ID] [--json]",
     "show replicas, counts, dead letters and the oldest unfinished messages, or one message id",
     command_status, "config= id= json", NULL},
    {"top", "--config FILE", "show each queue of each replica, live", command_top, "config= once", NULL},
    {"dead", "list|show|redrive|discard ...", "list, show, redrive or discard dead letters", command_dead,
     FILTER, "list show redrive discard"},
    {"pause", "--consumer C [--reason TEXT]", "stop taking messages of a consumer on all replicas",
     command_pause, OPERATOR " reason=", NULL},
    {"resume", "--consumer C", "end a pause on all replicas", command_resume, OPERATOR, NULL},
    {"retry", "--consumer C [ID...]", "try failed and waiting messages now", command_retry, OPERATOR, NULL},
    {"give-up", "--consumer C ID...|--held", "make dead letters of messages that keep failing",
     command_give_up, OPERATOR " held", NULL},
    {"forget", "--consumer C [--dead-letters]", "remove the data of a consumer that is no longer used",
     command_forget, "config= consumer= dead-letters json", NULL},
    {"replay", "--consumer C --to QUEUE ...", "publish stored messages again, for another consumer",
     command_replay, "config= consumer= to= since= until= type= id= rate= dry-run name= out-of-order json",
     NULL},
    {"export", "[--output FILE] [--since T] ...",
     "write rows, dead letters and stored messages as JSON lines", command_export,
     "config= rows letters messages consumer= since= until= output= after= allow-compacted", NULL},
    {"try", "--queue NAME [--effect SQL] ...", "prove that an application keeps its side of the contract",
     command_try,
     "config= queue= effect= effect-database= message= content-type= strict discard-published json markdown",
     NULL},
    {"health", "--started|--live|--ready|--consuming",
     "for exec probes: report the state of the running sidecar", command_health,
     "started live ready consuming " STATE, NULL},
    {"drain", "[--exit]", "for a preStop hook: drain the running sidecar and wait", command_drain,
     "exit " STATE, NULL},
    {"reload", "[--now]", "reload the configuration of the running sidecar", command_reload, "now " STATE,
     NULL},
    {"explain", "[NAME]", "explain an event or figure of the log, or a configuration key", command_explain,
     "list markdown reasons stats codes keys", NULL},
    {"example", "[--completion transaction]",
     "print a small configuration to start with, or an application for batches", command_example,
     "completion= batch", NULL},
    {"schema", "", "print the JSON Schema of the configuration", command_schema, "", NULL},
    {"completion", "bash|zsh|fish", "print the completion of commands for a shell", command_completion, "",
     "bash zsh fish"},
    {"version", "", "print the version", command_version, "", NULL},
};

const size_t n_commands = sizeof commands / sizeof *commands;

static void help_print(FILE *to)
{
    fputs("Onceward forwards the messages of a RabbitMQ queue to an application, each of them once.\n\n"
          "usage: onceward COMMAND [OPTIONS]\n\n",
          to);
    for (size_t i = 0; i < n_commands; i++) {
        const struct subcommand *c = &commands[i];

        fprintf(to, "  %-10s %-31s %s\n", c->name, c->arguments, c->does);
    }
    fputs("\nDetails: `onceward COMMAND --help`. Exit status: 0 done, 1 failed, 2 usage or "
          "configuration.\n",
          to);
}

static const struct subcommand *command_find(const char *name)
{
    for (size_t i = 0; i < n_commands; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int command_help(int argc, char **argv)
{
    static char flag[] = "--help";
    const struct subcommand *c = argc > 1 ? command_find(argv[1]) : NULL;

    if (argc == 2 && strcmp(argv[1], "--man") == 0)
        return command_manual();
    char *args[] = {argc > 1 ? argv[1] : NULL, flag, NULL};

    if (argc > 1 && !c) {
        fprintf(stderr, "onceward: there is no command \"%s\"; see `onceward --help`\n", argv[1]);
        return STATUS_USAGE;
    }
    if (c)
        return c->run(2, args);
    help_print(stdout);
    return STATUS_DONE;
}

static int command_choose(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    const struct subcommand *c;

    if (!name) {
        help_print(stderr);
        return STATUS_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return command_help(argc - 1, argv + 1);
    if (strcmp(name, "--version") == 0)
        return command_version(1, argv + 1);
    c = command_find(name);
    if (!c) {
        fprintf(stderr, "onceward: there is no command \"%s\"; see `onceward --help`\n", name);
        return STATUS_USAGE;
    }
    return c->run(argc - 1, argv + 1);
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
