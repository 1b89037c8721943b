#pragma once

#include "onceward/config/config.h"

/* Reads the configuration anew. NULL: it is not valid, and the log says why. The caller owns the result. */
typedef struct config *supervisor_load(const char *path);

/* Runs every queue's worker until SIGTERM or SIGINT, then drains. A second signal ends the grace at once.
 * SIGHUP reads path anew by load, and starts again what changed. Keeps the state file that `health` and
 * `drain` read. c is the supervisor's from now on. Logs; answers the exit status: 0 drained, 1 it could not
 * be started. */
int supervisor_run(struct config *c, supervisor_load *load, const char *path);
