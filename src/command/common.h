#pragma once

#include "command/options.h"
#include "onceward/base/fault.h"
#include "onceward/command/command.h"
#include "onceward/inbox/admin.h"

#include <stdio.h>

/* Shared by the subcommands. */

struct config;

/* The table of subcommands. */
extern const struct subcommand commands[];
extern const size_t n_commands;

/* The arguments of the program, for `run` to start itself with once more. */
extern char **command_argv;

/* Loads the configuration and connects to its database; prints errors to standard error. STATUS_DONE, or the
 * exit status. */
int command_open(const char *path, enum admin_use use, struct config **ret_config, struct admin **ret_admin);
void command_close(struct config *c, struct admin *a);

/* Prints "onceward: TEXT" to standard error. Returns STATUS_FAILED. */
int command_fail(const struct fault *f);

/* Points to the help after an error about the arguments. Returns STATUS_USAGE. */
int command_see_help(const char *command);

/* --config FILE, else ONCEWARD_CONFIG, else NULL. */
const char *command_config_default(const char *given);

/* Reads --config FILE, else ONCEWARD_CONFIG; further arguments are refused. 0, or 1: an error was printed. */
int command_config_named(int argc, char **argv, const char **path);

/* Parses the arguments of subcommands that take --config FILE, --help and at most one flag. Returns -1 to
 * continue, or the exit status. */
int command_parse(int argc, char **argv, const char *help, const char *flag, const char **ret_config,
                  int *ret_flag);
