#pragma once

#include <stdint.h>

/* The identity of a process. Its number alone is not enough, since the kernel reuses numbers. */

/* Start time of the process, in clock ticks since the machine started. 0: no such process, or only a zombie;
 * -1: unknown. */
int64_t process_started(int64_t pid);
