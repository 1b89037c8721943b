#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The largest number of messages, and of bytes of the envelope, that an application can handle in one request,
 * learned from its answers. A value; no I/O, no clock.
 *
 * A request that was not answered within its window halves the number, because each message may take that long. 413
 * halves both. Neither counts for requests that were sent before the latest halving. Each success of a full request
 * adds a tenth, up to the configured sizes. */
struct batch_size {
    double messages, bytes;
    size_t most_messages, most_bytes;
    uint64_t n_cuts; /* recorded with a request when it is sent */
};

void batch_size_init(struct batch_size *s, size_t most_messages, size_t most_bytes);

/* At least 1. */
size_t batch_size_messages(const struct batch_size *s);
size_t batch_size_bytes(const struct batch_size *s);

/* A request that was sent after n_cuts halvings succeeded. is_full: there was no room for more messages. Returns
 * whether the size is the configured one again. */
bool batch_size_good(struct batch_size *s, bool is_full, uint64_t n_cuts);

/* A request had no answer within its window, or the answer was 413. Returns whether the size was halved: a request
 * with a single message does not count. */
bool batch_size_window_over(struct batch_size *s, size_t n, uint64_t n_cuts);
bool batch_size_too_large(struct batch_size *s, size_t n, uint64_t n_cuts);
