#pragma once

#include <stdint.h>

/* The value of a Retry-After field (RFC 9110, 10.2.3) without blanks around it: seconds, or an HTTP date (RFC
 * 9110, 5.6.7). Answers milliseconds from now_wall_ms (since 1970), 0 for a date that is past, at most
 * cap_ms, or -1: not well-formed. */
int64_t retry_after_ms(const char *text, int64_t now_wall_ms, int64_t cap_ms);
