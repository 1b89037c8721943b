#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads AMQP's encoded fields, front to back. Every function returns false when the bytes end too early; the
 * cursor is unusable afterwards. See decode.c. */
struct cursor {
    const char *at, *end;
};

/* Takes a big-endian number of n bytes, at most 8. */
bool number_take(struct cursor *c, size_t n, uint64_t *ret);

/* Takes bytes with a length prefix of `size` bytes: 1 in a short string, 4 everywhere else. */
bool bytes_take(struct cursor *c, size_t size, struct slice *ret);

/* Takes a field's kind and its encoded value. */
bool value_take(struct cursor *c, char *ret_kind, struct slice *ret_value);
