#pragma once

#include "onceward/base/slice.h"

/* W3C Trace Context, as far as Onceward passes it on: https://www.w3.org/TR/trace-context-2/. */

/* Versions above 00 follow the rules for unknown versions: the known part must be valid, more may follow a
 * "-". */
bool traceparent_is_valid(struct slice s);

/* A list of 1 to 32 members key=value with different keys, empty members allowed. */
bool tracestate_is_valid(struct slice s);
