#pragma once

#include "onceward/config/config.h"

struct texts;

/* Reads the configuration anew. NULL: it is not valid; the log says why, and faults, a line each. The caller
 * owns the result. */
typedef struct config *supervisor_load(const char *path, struct texts *faults);

/* Runs every queue's worker until SIGTERM or SIGINT, then drains. A second of these ends the grace at once.
 * SIGUSR1 drains, and stays idle until one of them. SIGHUP (and SIGUSR2) reads path anew by load, and starts
 * again what changed. Keeps the state file that `health`, `drain` and `reload` read, and refuses to run where
 * another sidecar has it. c is the supervisor's from now on. Logs; answers the exit status: 0 drained, 1 it
 * could not be started. */
int supervisor_run(struct config *c, supervisor_load *load, const char *path);
