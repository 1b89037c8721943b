#pragma once

#include "onceward/config/config.h"

/* Runs every queue's worker until SIGTERM or SIGINT, then drains. A second signal ends the grace at once.
 * Keeps the state file that `health` and `drain` read. Logs; answers the exit status: 0 drained, 1 it could
 * not be started. */
int supervisor_run(const struct config *c);
