#pragma once

#include "onceward/base/fault.h"
#include "onceward/command/command.h"
#include "onceward/inbox/admin.h"

#include <stdio.h>

/* What the subcommands share. */

struct config;

/* The table of subcommands. */
extern const struct command commands[];
extern const size_t n_commands;

/* Loads the configuration and opens its database; says what is wrong on standard error. STATUS_DONE, or the
 * exit status that is due. */
int command_open(const char *path, enum admin_use use, struct config **ret_config, struct admin **ret_admin);
void command_close(struct config *c, struct admin *a);

/* "onceward: TEXT" on standard error. Answers STATUS_FAILED. */
int command_fail(const struct fault *f);

/* Behind the line that says what is wrong: where the options stand. Answers STATUS_USAGE. */
int command_see_help(const char *command);

/* --config FILE, else ONCEWARD_CONFIG, else NULL. */
const char *command_config_default(const char *given);

/* The file that --config named, else that of ONCEWARD_CONFIG; nothing may be left behind the options. 0, or
 * 1: said on standard error. */
int command_config_named(int argc, char **argv, const char **path);

/* For the subcommands that take --config FILE and --help, and perhaps one flag: parses, and answers -1 to go
 * on, or the exit status. */
int command_parse(int argc, char **argv, const char *help, const char *flag, const char **ret_config,
                  int *ret_flag);
