#pragma once

#include <stdbool.h>
#include <stdint.h>

struct config;
struct fault;

/* Messages held by the queues must fit into the memory limit of the process's control group: the sum of
 * `max_bytes`, and twice the largest `max_message` for a dead letter that is being written, take three
 * quarters of it at the most. Larger settings are lowered, `max_bytes` in proportion. True: they were
 * lowered, and text has the figures. */
bool memory_fit(struct config *c, uint64_t limit, struct fault *text);
