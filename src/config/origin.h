#pragma once

#include "config/read.h"

/* reading_origin: the origin of a key's value. reading_is_set: do the file or its defaults give it, validly? */
uint8_t reading_origin(const struct reading *r, const char *path);
bool reading_is_set(const struct reading *r, const char *path);

/* Reports that a and b (NULL: none) conflict: at the one that was given, or in the defaults. Reports nothing
 * if one of them is invalid by itself. */
void cross_report(const struct reading *r, bool warning, const char *a, const char *b, const char *format,
                  ...) __attribute__((format(printf, 5, 6)));
