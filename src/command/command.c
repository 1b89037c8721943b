/* The table of subcommands, and what they share. Runs on the main thread; commands block. */

#include "onceward/command/command.h"

#include "command/common.h"
#include "onceward/base/job.h"
#include "onceward/config/config.h"
#include "onceward/inbox/admin.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOBS_MS = 1000 };

#define FILTER "config= consumer= reason= since= older= limit= rate= dry-run new-id all body= json"
#define STATE  "state= config="
#define LEVER  "config= consumer= by= json"

const struct command commands[] = {
    {"run", "--config FILE", "run the sidecar", command_run, "config=", NULL},
    {"check", "--config FILE [--connect]", "validate the configuration; try what it names", command_check,
     "config= connect sample effective json", NULL},
    {"migrate", "--config FILE [--database URL]", "bring the database schema up to date", command_migrate,
     "config= database=", NULL},
    {"status", "--config FILE [--json]", "replicas, counts, dead letters, and the oldest unfinished messages",
     command_status, "config= json", NULL},
    {"top", "--config FILE", "what each queue of each replica does, live", command_top, "config= once", NULL},
    {"dead", "list|show|redrive|discard ...", "look at dead letters, bring them back, or drop them",
     command_dead, FILTER, "list show redrive discard"},
    {"pause", "--consumer C [--reason TEXT]", "stop taking messages of a consumer, on all replicas",
     command_pause, LEVER " reason=", NULL},
    {"resume", "--consumer C", "go on, on all replicas", command_resume, LEVER, NULL},
    {"retry", "--consumer C [ID...]", "try failed and waiting messages now", command_retry, LEVER, NULL},
    {"give-up", "--consumer C ID...|--held", "make dead letters of messages that nobody can wait for",
     command_give_up, LEVER " held", NULL},
    {"replay", "--consumer C --to QUEUE ...", "publish stored messages again, for another consumer",
     command_replay, "config= consumer= to= since= until= type= id= rate= dry-run name= json", NULL},
    {"export", "[--output FILE] [--since T] ...", "write rows, letters and stored messages as JSON lines",
     command_export, "config= rows letters messages consumer= since= until= output= after=", NULL},
    {"try", "--queue NAME [--effect SQL] ...", "prove that an application keeps its side of the contract",
     command_try, "config= queue= effect= effect-database= message= content-type= json markdown", NULL},
    {"health", "--started|--live|--ready", "for exec probes: how the running sidecar is", command_health,
     "started live ready " STATE, NULL},
    {"drain", "[--exit]", "for a preStop hook: drain the running sidecar and wait", command_drain,
     "exit " STATE, NULL},
    {"reload", "[--now]", "let the running sidecar read its file anew, and say how that went", command_reload,
     "now " STATE, NULL},
    {"explain", "[NAME]", "what an event or figure of the log means, or a configuration key", command_explain,
     "list markdown reasons stats codes keys", NULL},
    {"example", "[--completion transaction]", "print a small configuration to begin with", command_example,
     "completion=", NULL},
    {"schema", "", "print the JSON Schema of the configuration", command_schema, "", NULL},
    {"completion", "bash|zsh|fish", "print the completion of commands for a shell", command_completion, "",
     "bash zsh fish"},
    {"version", "", "print the version", command_version, "", NULL},
};

const size_t n_commands = sizeof commands / sizeof *commands;

static void help_print(FILE *to)
{
    fputs(
        "Onceward stands between a RabbitMQ queue and an application, and lets each message through once.\n\n"
        "usage: onceward COMMAND [OPTIONS]\n\n",
        to);
    for (size_t i = 0; i < n_commands; i++) {
        const struct command *c = &commands[i];

        fprintf(to, "  %-10s %-31s %s\n", c->name, c->arguments, c->does);
    }
    fputs("\n`onceward COMMAND --help` says more. Exit status: 0 done, 1 it failed, 2 usage or "
          "configuration.\n",
          to);
}

static const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < n_commands; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int command_help(int argc, char **argv)
{
    static char flag[] = "--help";
    const struct command *c = argc > 1 ? command_find(argv[1]) : NULL;

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
    const struct command *c;

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

int command_main(int argc, char **argv)
{
    int status = command_choose(argc, argv);

    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "onceward: cannot write to standard output%s%s\n", errno ? ": " : "",
                errno ? strerror(errno) : "");
        status = status == STATUS_DONE ? STATUS_FAILED : status;
    }
    if (!job_wait_all(JOBS_MS))
        _exit(status); /* a connection attempt that nothing can interrupt, such as name resolution */
    return status;
}

struct config *command_config(const char *path)
{
    struct config_report report = {0};
    struct config *c = NULL;
    int failed = config_load(path, admin_check_url, &c, &report);

    /* The warnings are what `check` and the log of `run` are for. */
    for (size_t i = 0; i < report.n; i++)
        if (!report.findings[i].warning)
            fprintf(stderr, "%s%s%s\n", report.findings[i].path, *report.findings[i].path ? ": " : "",
                    report.findings[i].text);
    config_report_deinit(&report);
    return failed ? NULL : c;
}

int command_fail(const struct fault *f)
{
    fprintf(stderr, "onceward: %s\n", f->text);
    return STATUS_FAILED;
}

int command_open(const char *path, enum admin_use use, struct config **ret_config, struct admin **ret_admin)
{
    struct fault f = {0};
    struct config *c = command_config(path);

    if (!c)
        return STATUS_USAGE;
    if (admin_open(&c->database, use, ret_admin, &f)) {
        config_free(c);
        return command_fail(&f);
    }
    *ret_config = c;
    return STATUS_DONE;
}

void command_close(struct config *c, struct admin *a)
{
    admin_close(a);
    config_free(c);
}

static int usage(FILE *to, const char *help, int status)
{
    fputs(help, to);
    return status;
}

const char *command_config_default(const char *given)
{
    const char *named = getenv("ONCEWARD_CONFIG");

    return given ? given : named && *named ? named : NULL;
}

int command_config_named(int argc, char **argv, const char **path)
{
    *path = command_config_default(*path);
    if (optind < argc)
        fprintf(stderr, "%s: \"%s\" is one argument too many\n", argv[0], argv[optind]);
    else if (!*path)
        fprintf(stderr, "%s: --config FILE is missing, and ONCEWARD_CONFIG is not set\n", argv[0]);
    else
        return 0;
    return 1;
}

int command_parse(int argc, char **argv, const char *help, const char *flag, const char **ret_config,
                  int *ret_flag)
{
    const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                     {"help", no_argument, NULL, 'h'},
                                     {flag, no_argument, NULL, 'f'},
                                     {0}};
    int option;

    while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        if (option == 'h')
            return usage(stdout, help, STATUS_DONE);
        else if (option == 'c')
            *ret_config = optarg;
        else if (option == 'f')
            *ret_flag = 1;
        else
            return usage(stderr, help, STATUS_USAGE);
    }
    return command_config_named(argc, argv, ret_config) ? usage(stderr, help, STATUS_USAGE) : -1;
}
