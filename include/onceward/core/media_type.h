#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>

enum { MEDIA_TYPE_MAX = 255 };

/* Is it what a Content-Type field may hold: type "/" subtype, both tokens (RFC 9110, 8.3.1), then nothing, or
 * a ";" and parameters of visible ASCII, blanks and tabs; at most MEDIA_TYPE_MAX bytes, without blanks at its
 * ends? The parameters are not looked at more closely, since publishers write them in many ways and
 * applications understand most of them. */
bool media_type_is_valid(struct slice s);
