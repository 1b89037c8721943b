#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct fault;

/* Appends the payload of a content header frame for publishing a message again: the properties (flags and
 * list) as they came, byte for byte, but persistent; without `expiration` unless it is kept (the message would
 * expire again),
 * without headers of an earlier journey (header_is_spent), and without a `user_id` that is
 * not `user` (the broker refuses it). -1: the bytes have not AMQP's form; out is then unusable. */
int content_header_edit(struct buf *out, struct slice properties, uint64_t body_len, struct slice user,
                        bool keeps_expiration, struct fault *f);
