#pragma once

#include <stdint.h>

/* Parses a Retry-After value (RFC 9110, 10.2.3) without blanks around it: seconds, or an HTTP date (RFC 9110,
 * 5.6.7). Returns milliseconds from now_wall_ms (since 1970), 0 for a past date, at most cap_ms; -1:
 * malformed. */
int64_t retry_after_ms(const char *text, int64_t now_wall_ms, int64_t cap_ms);
