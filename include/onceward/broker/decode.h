#pragma once

#include "onceward/base/slice.h"

struct message;

/* Takes a content header's property flags and property list into a message: the bytes as they are
 * (content_header), and properties and headers, every kind as it came, which point into them. Tables nested
 * deeper than 64 levels are decoded as the string "(nested too deeply)".
 *
 * 0; or -1: the bytes have not AMQP's form. What stands before the fault is decoded, and the bytes are there.
 */
int message_decode(struct message *m, struct slice properties);
