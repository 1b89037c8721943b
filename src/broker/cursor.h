#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads AMQP's encoded fields, front to back. Every function returns false when the bytes end too early; the
 * cursor is unusable afterwards. */
struct cursor {
    const char *at, *end;
};

static inline struct cursor cursor_of(struct slice s)
{
    return (struct cursor){s.data, s.data + s.len};
}

static inline bool cursor_skip(struct cursor *c, size_t n)
{
    if ((size_t)(c->end - c->at) < n)
        return false;
    c->at += n;
    return true;
}

/* Takes a big-endian number of n bytes, at most 8. */
static inline bool number_take(struct cursor *c, size_t n, uint64_t *ret)
{
    const char *at = c->at;
    uint64_t value = 0;

    if (!cursor_skip(c, n))
        return false;
    for (size_t i = 0; i < n; i++)
        value = value << 8 | (unsigned char)at[i];
    *ret = value;
    return true;
}

/* Takes bytes with a length prefix of `size` bytes: 1 in a short string, 4 everywhere else. */
static inline bool bytes_take(struct cursor *c, size_t size, struct slice *ret)
{
    uint64_t len;

    if (!number_take(c, size, &len))
        return false;
    ret->data = c->at;
    ret->len = (size_t)len;
    return cursor_skip(c, (size_t)len);
}

/* Takes a field's kind and its encoded value. */
bool value_take(struct cursor *c, char *ret_kind, struct slice *ret_value);
