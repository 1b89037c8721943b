#include "onceward/base/buf.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void buf_deinit(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

char *buf_reserve(struct buf *b, size_t n)
{
    if (b->cap - b->len < n || !b->data) { /* also when n is 0: NULL + 0 must not be returned */
        size_t cap = b->cap < 64 ? 64 : b->cap;

        while (cap - b->len < n)
            cap += cap / 2;
        b->data = mem_realloc(b->data, cap);
        b->cap = cap;
    }
    return b->data + b->len;
}

void buf_add(struct buf *b, const void *data, size_t len)
{
    if (!len)
        return;
    memcpy(buf_reserve(b, len), data, len);
    b->len += len;
}

void buf_add_char(struct buf *b, char c)
{
    *buf_reserve(b, 1) = c;
    b->len++;
}

void buf_add_text(struct buf *b, const char *text)
{
    buf_add(b, text, strlen(text));
}

void buf_add_slice(struct buf *b, struct slice s)
{
    buf_add(b, s.data, s.len);
}

void buf_add_number(struct buf *b, uint64_t n)
{
    char digits[20];
    size_t at = sizeof(digits);

    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n);
    buf_add(b, digits + at, sizeof(digits) - at);
}

void buf_printf(struct buf *b, const char *format, ...)
{
    va_list args, again;

    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n > 0) {
        vsnprintf(buf_reserve(b, (size_t)n + 1), (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

const char *buf_text(struct buf *b)
{
    *buf_reserve(b, 1) = '\0';
    return b->data;
}

static const char unreserved[256] = {
    ['-'] = 1, ['.'] = 1, ['_'] = 1, ['~'] = 1, ['0' ... '9'] = 1, ['A' ... 'Z'] = 1, ['a' ... 'z'] = 1,
};

void buf_add_percent(struct buf *b, struct slice s)
{
    static const char digits[] = "0123456789ABCDEF";
    char *at = buf_reserve(b, s.len * 3);
    char *p = at;

    for (size_t i = 0; i < s.len; i++) {
        uint8_t c = (uint8_t)s.data[i];

        if (unreserved[c]) {
            *p++ = (char)c;
        } else {
            *p++ = '%';
            *p++ = digits[c >> 4];
            *p++ = digits[c & 15];
        }
    }
    b->len += (size_t)(p - at);
}

void buf_add_base64url(struct buf *b, const void *data, size_t len)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const uint8_t *in = data;
    char *at = buf_reserve(b, len / 3 * 4 + 4);
    char *p = at;

    for (; len >= 3; len -= 3, in += 3) {
        *p++ = alphabet[in[0] >> 2];
        *p++ = alphabet[(in[0] & 3) << 4 | in[1] >> 4];
        *p++ = alphabet[(in[1] & 15) << 2 | in[2] >> 6];
        *p++ = alphabet[in[2] & 63];
    }
    if (len) {
        uint8_t second = len == 2 ? in[1] : 0;

        *p++ = alphabet[in[0] >> 2];
        *p++ = alphabet[(in[0] & 3) << 4 | second >> 4];
        if (len == 2)
            *p++ = alphabet[(second & 15) << 2];
    }
    b->len += (size_t)(p - at);
}

/* Bytes that a JSON string holds unescaped, single-byte UTF-8 only. */
static const char json_plain[256] = {
    [' ' ... '!'] = 1,
    ['#' ... '['] = 1,
    [']' ... '~'] = 1,
};

void buf_add_json(struct buf *b, struct slice s)
{
    buf_add_char(b, '"');
    for (size_t i = 0; i < s.len;) {
        size_t start = i;

        while (i < s.len && json_plain[(uint8_t)s.data[i]])
            i++;
        if (i > start) {
            buf_add(b, s.data + start, i - start);
            continue;
        }
        uint8_t c = (uint8_t)s.data[i];
        size_t step = slice_utf8_step(s, i);

        if (!step) {
            buf_add(b, "\xEF\xBF\xBD", 3);
            i++;
            continue;
        }
        if (c == '"' || c == '\\') {
            buf_add_char(b, '\\');
            buf_add_char(b, (char)c);
        } else if (code_point_acts(slice_code_point(s, i, step))) {
            buf_printf(b, "\\u%04x", (unsigned)slice_code_point(s, i, step));
        } else {
            buf_add(b, s.data + i, step);
        }
        i += step;
    }
    buf_add_char(b, '"');
}

void buf_add_hex(struct buf *b, const void *data, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *in = data;
    char *p = buf_reserve(b, len * 2);

    for (size_t i = 0; i < len; i++) {
        *p++ = digits[in[i] >> 4];
        *p++ = digits[in[i] & 15];
    }
    b->len += len * 2;
}

static void add_big_endian(struct buf *b, uint64_t v, size_t n)
{
    char *p = buf_reserve(b, n);

    for (size_t i = 0; i < n; i++)
        p[i] = (char)(v >> (8 * (n - 1 - i)));
    b->len += n;
}

void buf_add_u16(struct buf *b, uint16_t v)
{
    add_big_endian(b, v, sizeof(v));
}

void buf_add_u32(struct buf *b, uint32_t v)
{
    add_big_endian(b, v, sizeof(v));
}

void buf_set_length(struct buf *b, size_t at)
{
    assert(b->len >= at + 4);
    uint32_t n = (uint32_t)(b->len - at - 4);

    for (int i = 0; i < 4; i++)
        b->data[at + (size_t)i] = (char)(n >> (24 - 8 * i));
}

void buf_add_u64(struct buf *b, uint64_t v)
{
    add_big_endian(b, v, sizeof(v));
}
