#pragma once

#include "command/options.h"
#include "onceward/base/fault.h"
#include "onceward/command/command.h"
#include "onceward/inbox/admin.h"

#include <stdio.h>

/* Shared by the subcommands. */

struct config;

/* All subcommands, in the order of the help: each of them is in the file with its name, or with its relatives. */
extern const struct command *const commands[];
extern const size_t n_commands;

extern const struct command run_command, check_command, migrate_command, status_command, top_command,
    dead_command, pause_command, resume_command, retry_command, give_up_command, forget_command,
    replay_command, export_command, try_command, health_command, drain_command, reload_command,
    explain_command, example_command, schema_command, completion_command, version_command;

/* The manual page, in roff: from the tables of the subcommands, the events, the keys of the configuration and the
 * errors of the functions for applications. */
void manual_add(struct buf *out);

/* Loads the configuration for a command, and prints every fault to standard error as "KEY: TEXT". NULL: the command
 * must end with STATUS_USAGE. */
struct config *command_config(const char *path);

/* Arguments of the program, with which `run` restarts itself. */
extern char **command_argv;

/* Loads the configuration and connects to its database; prints errors to standard error. STATUS_DONE, or the exit
 * status. */
int command_open(const char *path, enum admin_use use, struct config **ret_config, struct admin **ret_admin);
void command_close(struct config *c, struct admin *a);

/* Replaces each consumer name whose rows are under a former one, which takes_over names, as sidecars do. Also replaces
 * *io_consumer, a name that the operator typed; NULL: none. The schema must exist. 0, or -1 with f. */
int command_use_formers(struct config *c, struct admin *a, const char **io_consumer, struct fault *f);

bool command_is_configured(const struct config *c, const char *consumer);

/* Prints that there is no consumer of this name. Returns STATUS_FAILED. */
int command_no_consumer(const char *command, const char *path, const char *consumer);

/* Refuses a name that neither the configuration nor the database knows: a typing error. NULL: any consumer. The schema
 * must exist. STATUS_DONE, or the exit status after an error on standard error. */
int command_check_consumer(const char *command, const char *path, const struct config *c, struct admin *a,
                           const char *consumer);

/* Prints "onceward: TEXT" to standard error. Returns STATUS_FAILED. */
int command_fail(const struct fault *f);

/* --config FILE, else ONCEWARD_CONFIG, else NULL. */
const char *command_config_default(const char *given);
