#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The smallest memory limit of this process's control group (version 1 or 2) and the groups above it. root:
 * prefix of /proc and /sys, "" outside tests. False: no limit is set, or none can be read. */
bool cgroup_memory_limit(const char *root, uint64_t *ret);
