/* Finds deep nesting in encoded properties. Reads whatever is there; where it does not follow the format it
 * stops, and the library says what is wrong. Pure. */

#include "broker/nesting.h"

#include "broker/library.h"

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    LEVELS_MAX = 80, /* more than are handed on, fewer than the library takes */
    FLAGS_AT = 12    /* behind class, weight and size of the body */
};

struct cursor {
    char *at, *end;
};

static bool skip(struct cursor *c, size_t n)
{
    if ((size_t)(c->end - c->at) < n)
        return false;
    c->at += n;
    return true;
}

static bool name_skip(struct cursor *c)
{
    size_t len = c->at < c->end ? *(unsigned char *)c->at : 0;

    return skip(c, 1 + len);
}

/* The part that its length announces; the cursor goes behind it. */
static bool part_take(struct cursor *c, struct cursor *ret)
{
    uint32_t len;

    if ((size_t)(c->end - c->at) < sizeof(len))
        return false;
    memcpy(&len, c->at, sizeof(len));
    c->at += sizeof(len);
    ret->at = c->at;
    if (!skip(c, be32toh(len)))
        return false;
    ret->end = c->at;
    return true;
}

static bool list_cut(struct cursor c, bool has_names, int level);

/* One value with its kind before it. */
static bool value_cut(struct cursor *c, int level)
{
    struct cursor part;
    char *kind = c->at;

    if (!skip(c, 1))
        return false;
    switch (*kind) {
    case 't':
    case 'b':
    case 'B':
        return skip(c, 1);
    case 's':
    case 'u':
        return skip(c, 2);
    case 'I':
    case 'i':
    case 'f':
        return skip(c, 4);
    case 'D':
        return skip(c, 5);
    case 'l':
    case 'L':
    case 'd':
    case 'T':
        return skip(c, 8);
    case 'V':
        return true;
    case 'S':
    case 'x':
        return part_take(c, &part);
    case 'A':
    case 'F':
        if (!part_take(c, &part))
            return false;
        if (level < LEVELS_MAX)
            return list_cut(part, *kind == 'F', level + 1);
        *kind = 'x';
        return true;
    default:
        return false;
    }
}

static bool list_cut(struct cursor c, bool has_names, int level)
{
    while (c.at < c.end)
        if ((has_names && !name_skip(&c)) || !value_cut(&c, level))
            return false;
    return true;
}

void nesting_cut(char *payload, size_t len)
{
    struct cursor c = {payload, payload + len}, headers;
    unsigned flags;

    if (!skip(&c, FLAGS_AT + 2))
        return;
    flags = (unsigned)(unsigned char)c.at[-2] << 8 | (unsigned char)c.at[-1];
    for (bool more = flags & 1; more; more = c.at[-1] & 1)
        if (!skip(&c, 2))
            return;
    if (!(flags & AMQP_BASIC_HEADERS_FLAG) || ((flags & AMQP_BASIC_CONTENT_TYPE_FLAG) && !name_skip(&c)) ||
        ((flags & AMQP_BASIC_CONTENT_ENCODING_FLAG) && !name_skip(&c)) || !part_take(&c, &headers))
        return;
    list_cut(headers, true, 0);
}
