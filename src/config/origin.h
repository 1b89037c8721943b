#pragma once

#include "config/read.h"

/* Where the value of a key came from; and whether it was given, by the file or in its defaults, and is right.
 */
uint8_t reading_origin(const struct reading *r, const char *path);
bool reading_is_set(const struct reading *r, const char *path);

/* Reports that a and b (NULL: none) do not go together: at the one that was given, or in the defaults.
 * Nothing is said where one of them is wrong by itself. */
void cross_report(const struct reading *r, bool warning, const char *a, const char *b, const char *format,
                  ...) __attribute__((format(printf, 5, 6)));
