#include "onceward/base/slice.h"

#include <stdint.h>

int slice_compare(struct slice a, struct slice b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n ? memcmp(a.data, b.data, n) : 0;

    if (order)
        return order;
    return a.len < b.len ? -1 : a.len > b.len;
}

/* Length of the well-formed sequence at p, or 0. The bounds of the second byte exclude overlong forms, surrogates and
 * code points above U+10FFFF (RFC 3629, section 4). */
static size_t utf8_sequence(const uint8_t *p, size_t left)
{
    uint8_t low = 0x80, high = 0xBF;
    size_t len;

    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        len = 2;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        len = 3;
        low = p[0] == 0xE0 ? 0xA0 : 0x80;
        high = p[0] == 0xED ? 0x9F : 0xBF;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        len = 4;
        low = p[0] == 0xF0 ? 0x90 : 0x80;
        high = p[0] == 0xF4 ? 0x8F : 0xBF;
    } else {
        return 0;
    }
    if (left < len || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if (p[i] < 0x80 || p[i] > 0xBF)
            return 0;
    return len;
}

size_t slice_utf8_step(struct slice s, size_t at)
{
    return utf8_sequence((const uint8_t *)s.data + at, s.len - at);
}

uint32_t slice_code_point(struct slice s, size_t at, size_t step)
{
    const uint8_t *u = (const uint8_t *)s.data + at;

    switch (step) {
    case 1:
        return u[0];
    case 2:
        return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    case 3:
        return (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    default:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
    }
}

bool code_point_acts(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x061C || (c >= 0x200E && c <= 0x200F) ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

bool slice_is_utf8(struct slice s)
{
    for (size_t i = 0; i < s.len;) {
        size_t step = slice_utf8_step(s, i);

        if (!step)
            return false;
        i += step;
    }
    return true;
}

bool slice_is_text(struct slice s)
{
    return !(s.len && memchr(s.data, 0, s.len)) && slice_is_utf8(s);
}

struct slice slice_cut(struct slice s, size_t most)
{
    if (s.len > most)
        for (s.len = most; s.len && ((unsigned char)s.data[s.len] & 0xC0) == 0x80;)
            s.len--;
    return s;
}
