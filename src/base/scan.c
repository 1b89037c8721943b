/* Walking JSON text. Pure; any thread. Recursion ends at SCAN_DEPTH_MAX, since the text comes from
 * publishers. */

#include "onceward/base/scan.h"

#include "onceward/base/buf.h"

#include <stdint.h>

enum { EXPONENT_MOST = 1000000 }; /* no larger exponent is counted exactly */

static void skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r'))
        s->at++;
}

enum scan_kind scan_peek(struct scan *s)
{
    skip_space(s);
    if (s->at == s->end)
        return SCAN_BAD;
    switch (*s->at) {
    case '{':
        return SCAN_OBJECT;
    case '[':
        return SCAN_ARRAY;
    case '"':
        return SCAN_STRING;
    case 't':
        return SCAN_TRUE;
    case 'f':
        return SCAN_FALSE;
    case 'n':
        return SCAN_NULL;
    case '-':
    case '0' ... '9':
        return SCAN_NUMBER;
    default:
        return SCAN_BAD;
    }
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool scan_escape(struct scan *s)
{
    if (s->at == s->end || !strchr("\"\\/bfnrtu", *s->at) || !*s->at)
        return false;
    if (*s->at++ != 'u')
        return true;
    for (int i = 0; i < 4; i++, s->at++)
        if (s->at == s->end || hex_digit(*s->at) < 0)
            return false;
    return true;
}

bool scan_string(struct scan *s, struct slice *raw)
{
    skip_space(s);
    if (s->at == s->end || *s->at != '"')
        return false;
    const char *start = ++s->at;

    while (s->at < s->end) {
        char c = *s->at++;

        if (c == '"') {
            *raw = (struct slice){start, (size_t)(s->at - 1 - start)};
            return true;
        }
        if ((unsigned char)c < 0x20 || (c == '\\' && !scan_escape(s)))
            return false;
    }
    return false;
}

static uint32_t hex4(const char *p)
{
    uint32_t value = 0;

    for (int i = 0; i < 4; i++)
        value = value << 4 | (uint32_t)hex_digit(p[i]);
    return value;
}

static void add_utf8(struct buf *out, uint32_t c)
{
    if (c < 0x80) {
        buf_add_char(out, (char)c);
        return;
    }
    if (c < 0x800) {
        buf_add_char(out, (char)(0xC0 | c >> 6));
    } else {
        if (c < 0x10000) {
            buf_add_char(out, (char)(0xE0 | c >> 12));
        } else {
            buf_add_char(out, (char)(0xF0 | c >> 18));
            buf_add_char(out, (char)(0x80 | (c >> 12 & 0x3F)));
        }
        buf_add_char(out, (char)(0x80 | (c >> 6 & 0x3F)));
    }
    buf_add_char(out, (char)(0x80 | (c & 0x3F)));
}

/* Decodes the escape at p, which is behind "\u". Returns the number of bytes used. */
static size_t decode_unicode(struct buf *out, const char *p, size_t left)
{
    uint32_t c = hex4(p);

    if (c >= 0xD800 && c < 0xDC00 && left >= 10 && p[4] == '\\' && p[5] == 'u') {
        uint32_t low = hex4(p + 6);

        if (low >= 0xDC00 && low < 0xE000) {
            add_utf8(out, 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00));
            return 10;
        }
    }
    add_utf8(out, c >= 0xD800 && c < 0xE000 ? 0xFFFD : c);
    return 4;
}

void scan_decode(struct buf *out, struct slice raw)
{
    static const char plain[256] = {['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
                                    ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t'};

    for (size_t i = 0; i < raw.len;) {
        const char *stop = memchr(raw.data + i, '\\', raw.len - i);
        size_t len = stop ? (size_t)(stop - raw.data) - i : raw.len - i;

        buf_add(out, raw.data + i, len);
        i += len;
        if (i == raw.len)
            break;
        char kind = raw.data[i + 1];

        i += 2;
        if (kind == 'u')
            i += decode_unicode(out, raw.data + i, raw.len - i);
        else
            buf_add_char(out, plain[(unsigned char)kind]);
    }
}

bool scan_equal(struct slice raw, struct slice text)
{
    if (!raw.len || !memchr(raw.data, '\\', raw.len))
        return slice_equal(raw, text);
    struct buf decoded = {0};

    scan_decode(&decoded, raw);
    bool equal = slice_equal(buf_slice(&decoded), text);
    buf_deinit(&decoded);
    return equal;
}

static bool skip_digits(struct scan *s)
{
    const char *start = s->at;

    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > start;
}

/* Reads an exponent to the end of its digits, and counts the zeros that it stands for; a negative one stands for
 * none. */
static bool skip_exponent(struct scan *s, size_t *zeros)
{
    bool negative = s->at < s->end && *s->at == '-';

    if (negative || (s->at < s->end && *s->at == '+'))
        s->at++;
    const char *start = s->at;

    if (!skip_digits(s))
        return false;
    for (; !negative && start < s->at && *zeros < EXPONENT_MOST; start++)
        *zeros = *zeros * 10 + (size_t)(*start - '0');
    return true;
}

bool scan_number(struct scan *s, struct slice *raw, bool *integer)
{
    skip_space(s);
    const char *start = s->at;
    size_t zeros = 0;

    *integer = true;
    if (s->at < s->end && *s->at == '-')
        s->at++;
    if (s->at < s->end && *s->at == '0')
        s->at++;
    else if (!skip_digits(s))
        return false;
    if (s->at < s->end && *s->at == '.') {
        *integer = false;
        s->at++;
        if (!skip_digits(s))
            return false;
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        *integer = false;
        s->at++;
        if (!skip_exponent(s, &zeros))
            return false;
    }
    *raw = (struct slice){start, (size_t)(s->at - start)};
    return !s->most_digits || raw->len + zeros <= s->most_digits;
}

bool scan_literal(struct scan *s)
{
    static const struct slice words[] = {{"true", 4}, {"false", 5}, {"null", 4}};

    skip_space(s);
    for (size_t i = 0; i < 3; i++) {
        if ((size_t)(s->end - s->at) >= words[i].len && !memcmp(s->at, words[i].data, words[i].len)) {
            s->at += words[i].len;
            return true;
        }
    }
    return false;
}

bool scan_open(struct scan *s)
{
    enum scan_kind kind = scan_peek(s);

    if ((kind != SCAN_OBJECT && kind != SCAN_ARRAY) || s->depth == SCAN_DEPTH_MAX)
        return false;
    s->at++;
    s->depth++;
    return true;
}

/* Skips the separator before the next element. */
static int next(struct scan *s, bool first, char close)
{
    skip_space(s);
    if (s->at == s->end)
        return -1;
    if (*s->at == close) {
        s->at++;
        s->depth--;
        return 0;
    }
    if (first)
        return 1;
    return *s->at++ == ',' ? 1 : -1;
}

int scan_next_item(struct scan *s, bool first)
{
    return next(s, first, ']');
}

int scan_next_member(struct scan *s, bool first, struct slice *raw_key)
{
    int result = next(s, first, '}');

    if (result != 1)
        return result;
    if (!scan_string(s, raw_key))
        return -1;
    skip_space(s);
    return s->at < s->end && *s->at++ == ':' ? 1 : -1;
}

static bool skip_children(struct scan *s, bool object)
{
    struct slice key;
    int more;

    if (!scan_open(s))
        return false;
    for (bool first = true;
         (more = object ? scan_next_member(s, first, &key) : scan_next_item(s, first)) == 1; first = false)
        if (!scan_skip(s))
            return false;
    return more == 0;
}

bool scan_skip(struct scan *s)
{
    struct slice raw;
    bool integer;

    switch (scan_peek(s)) {
    case SCAN_OBJECT:
        return skip_children(s, true);
    case SCAN_ARRAY:
        return skip_children(s, false);
    case SCAN_STRING:
        return scan_string(s, &raw);
    case SCAN_NUMBER:
        return scan_number(s, &raw, &integer);
    case SCAN_TRUE:
    case SCAN_FALSE:
    case SCAN_NULL:
        return scan_literal(s);
    case SCAN_BAD:
        break;
    }
    return false;
}

bool scan_at_end(struct scan *s)
{
    skip_space(s);
    return s->at == s->end;
}
