#pragma once

struct config;
struct texts;

/* Reads the configuration again. NULL: it is invalid; the log and faults have the reasons, one per line. The caller
 * owns the result. */
typedef struct config *sidecar_load(const char *path, struct texts *faults);

/* Runs every queue until SIGTERM or SIGINT, then drains. A second of these signals ends the grace period at once.
 * SIGUSR1 drains, and the sidecar then stays idle until one of them. SIGHUP and SIGUSR2 reload: check the file at
 * path, let requests in flight finish, and replace the program by a new start with argv, the complete command. Keeps
 * the state file, and refuses to run if another sidecar has it. Takes c. Logs. Returns the exit status: 0 drained, 1
 * it could not be started. */
int sidecar_run(struct config *c, sidecar_load *load, const char *path, char **argv);
