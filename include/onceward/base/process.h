#pragma once

#include <stdint.h>

/* Whether a process still is the one that it was: a number alone is given again. */

/* When the process started, in clock ticks since the machine did; 0: there is no such process, or only what
 * it leaves until its parent looks; -1: it cannot be told. */
int64_t process_started(int64_t pid);
