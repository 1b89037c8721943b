#pragma once

#include "broker/library.h"

struct message;

/* Copies a content header into a message: properties and headers, every kind as it came. Tables nested deeper
 * than 64 levels are replaced by the string "(nested too deeply)". */
void message_decode(struct message *m, const amqp_basic_properties_t *p);
