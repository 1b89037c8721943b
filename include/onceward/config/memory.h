#pragma once

#include <stdbool.h>
#include <stdint.h>

struct config;
struct fault;

/* Fits held messages into the memory limit of the process's control group: three quarters of it must hold the sum of
 * `max_bytes`, twice the largest `max_message` for a dead letter that is being written, the batches in flight (their
 * requests, and answers with results), and the rows of the outbox. Larger settings are lowered: `max_bytes` in
 * proportion, `max_message`, and `forward.concurrency` if answers with results take more than a quarter. True: some
 * were lowered, and text has the figures. */
bool memory_fit(struct config *c, uint64_t limit, struct fault *text);
