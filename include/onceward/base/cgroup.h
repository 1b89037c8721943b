#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The memory limit of this process's control group, version 1 or 2, with that of the groups around it. root:
 * what stands before /proc and /sys, "" outside tests. False: there is none, or it cannot be read. */
bool cgroup_memory_limit(const char *root, uint64_t *ret);
