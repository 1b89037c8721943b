#pragma once

#include <stddef.h>

struct buf;
struct fault;
struct message;

/* Appends the payload of a content header frame of class basic (AMQP 0-9-1, section 2.3.5.2): body size,
 * flags, properties, every header with its kind. -1: a name or property is longer than the protocol allows;
 * out is then unusable. */
int message_encode(struct buf *out, const struct message *m, struct fault *f);
