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

/* --config FILE, else ONCEWARD_CONFIG, else NULL. */
const char *command_config_default(const char *given);
