#pragma once

#include "onceward/base/slice.h"

struct message;

/* Decodes a content header's property flags and property list into a message: keeps the bytes
 * (content_header), and decodes properties and headers, which point into them, with every kind preserved. A
 * table nested deeper than 64 levels becomes the string "(nested too deeply)".
 *
 * 0; or -1: malformed AMQP. Everything before the fault is decoded, and the bytes are kept. */
int message_decode(struct message *m, struct slice properties);
