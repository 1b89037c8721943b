#pragma once

#include <stdint.h>

/* Sends the same random calls to the simulated inbox and to the real functions. driver: test/system/inbox_calls;
 * connection: a migrated database, whose inbox is emptied. Runs for that many seconds, and longer on a slow machine
 * until each kind of queue had an episode. 0: all answers were equal. */
int differential_run(const char *driver, const char *connection, uint64_t seed, double seconds);
