#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>

enum { MEDIA_TYPE_MAX = 255 };

/* Is the slice a valid Content-Type value? type "/" subtype, both tokens (RFC 9110, 8.3.1), then optionally ";" and
 * parameters of visible ASCII, blanks and tabs. At most MEDIA_TYPE_MAX bytes, without blanks at its ends. The
 * parameters are not checked further: publishers write them in many ways that applications understand. */
bool media_type_is_valid(struct slice s);
