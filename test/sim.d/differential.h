#pragma once

#include <stdint.h>

/* Asks the simulated inbox and the real functions the same at random: driver is test/system/inbox_calls,
 * connection a migrated database, whose inbox is emptied. Runs for so many seconds. 0: they answered alike.
 */
int differential_run(const char *driver, const char *connection, uint64_t seed, double seconds);
