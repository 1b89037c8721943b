#pragma once

/* A subcommand: a file in src/command/ and a row of the table in command.c. */

enum { STATUS_DONE = 0, STATUS_FAILED = 1, STATUS_USAGE = 2 };

struct subcommand {
    const char *name;
    const char *arguments; /* as in --help */
    const char *does;
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand; answers the exit status */
    const char *options; /* "config= connect": those that it takes besides --help; =: with a value */
    const char *words;   /* "list show": what may stand behind it; NULL: nothing of the kind */
};

/* argv to command. */
int command_main(int argc, char **argv);

int command_run(int argc, char **argv);
int command_check(int argc, char **argv);
int command_migrate(int argc, char **argv);
int command_status(int argc, char **argv);
int command_top(int argc, char **argv);
int command_dead(int argc, char **argv);
int command_pause(int argc, char **argv);
int command_resume(int argc, char **argv);
int command_retry(int argc, char **argv);
int command_give_up(int argc, char **argv);
int command_forget(int argc, char **argv);
int command_replay(int argc, char **argv);
int command_export(int argc, char **argv);
int command_try(int argc, char **argv);
int command_health(int argc, char **argv);
int command_drain(int argc, char **argv);
int command_reload(int argc, char **argv);
int command_explain(int argc, char **argv);
int command_version(int argc, char **argv);
int command_schema(int argc, char **argv);
int command_example(int argc, char **argv);
int command_completion(int argc, char **argv);

/* The manual page, in roff, on standard output: from the table of subcommands and their help, the keys of the
 * configuration and the errors of the functions for applications. */
int command_manual(void);

struct config;

/* Loads the configuration for a command: prints every fault to standard error as "KEY: TEXT". NULL:
 * STATUS_USAGE is due. */
struct config *command_config(const char *path);
