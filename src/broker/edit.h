#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct fault;

/* Appends the payload of a content header frame for publishing a message again. The properties (flags and
 * list) stay as received, byte for byte, with these exceptions: the message becomes persistent; `expiration`
 * is removed unless it is kept (the message would expire again); headers of an earlier journey
 * (header_is_spent) and a `user_id` other than `user` (the broker refuses it) are removed. -1: malformed
 * AMQP; out is then unusable. */
int content_header_edit(struct buf *out, struct slice properties, uint64_t body_len, struct slice user,
                        bool keeps_expiration, struct fault *f);
