#pragma once

#include <stdbool.h>
#include <stdint.h>

struct config;
struct fault;

/* Fits held messages into the memory limit of the process's control group: the sum of `max_bytes`, plus twice
 * the largest `max_message` for a dead letter that is being written, the batches in flight and the rows of the outbox
 * may take three quarters of it. Larger settings are lowered, `max_bytes` in proportion. True: they were lowered, and text has the figures. */
bool memory_fit(struct config *c, uint64_t limit, struct fault *text);
