#pragma once

struct config;
struct texts;

/* Reads the configuration anew. NULL: it is not valid; the log says why, and faults, a line each. The caller
 * owns the result. */
typedef struct config *sidecar_load(const char *path, struct texts *faults);

/* Runs every queue until SIGTERM or SIGINT, then drains. A second of these ends the grace at once. SIGUSR1
 * drains, and it stays idle until one of them. SIGHUP (and SIGUSR2) checks the file at path, lets what is out
 * finish, and starts the program anew in its place: argv is its whole command. Keeps the state file, and
 * refuses to run where another sidecar has it. c is the sidecar's from now on. Logs; answers the exit status:
 * 0 drained, 1 it could not be started. */
int sidecar_run(struct config *c, sidecar_load *load, const char *path, char **argv);
