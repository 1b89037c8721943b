/* W3C Trace Context: malformed values are not passed on as such. Pure. Valid ones contain only visible
 * characters, blanks and tabs, so they need no encoding in a field. */

#include "core/trace_context.h"

enum {
    TRACEPARENT_LEN = 55, /* 00-<32 hex>-<16 hex>-<2 hex> */
    MEMBERS_MAX = 32,
    KEY_MAX = 256,
    VALUE_MAX = 256,
};

/* n lower-case hex digits at p; zero: all zeros are allowed. */
static bool is_hex(const char *p, size_t n, bool zero)
{
    for (size_t i = 0; i < n; i++) {
        if (!(p[i] >= '0' && p[i] <= '9') && !(p[i] >= 'a' && p[i] <= 'f'))
            return false;
        zero |= p[i] != '0';
    }
    return zero;
}

bool traceparent_is_valid(struct slice s)
{
    const char *p = s.data;

    if (s.len < TRACEPARENT_LEN || p[2] != '-' || p[35] != '-' || p[52] != '-')
        return false;
    if (!is_hex(p, 2, true) || !is_hex(p + 3, 32, false) || !is_hex(p + 36, 16, false) ||
        !is_hex(p + 53, 2, true))
        return false;
    if (memcmp(p, "ff", 2) == 0 ||
        (s.len > TRACEPARENT_LEN && (memcmp(p, "00", 2) == 0 || p[TRACEPARENT_LEN] != '-')))
        return false;
    for (size_t i = TRACEPARENT_LEN; i < s.len; i++)
        if (p[i] <= ' ' || p[i] > '~')
            return false;
    return true;
}

static bool is_key(struct slice s)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');

        if (!letter && (i == 0 || c == '\0' || !strchr("_-*/@", c)))
            return false;
    }
    return s.len >= 1 && s.len <= KEY_MAX;
}

static bool is_value(struct slice s)
{
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] < ' ' || s.data[i] > '~' || s.data[i] == ',' || s.data[i] == '=')
            return false;
    return s.len >= 1 && s.len <= VALUE_MAX;
}

/* Takes the next member off, without surrounding blanks. */
static struct slice member_next(struct slice *left)
{
    const char *comma = memchr(left->data, ',', left->len);
    struct slice m = {left->data, comma ? (size_t)(comma - left->data) : left->len};
    size_t used = comma ? m.len + 1 : m.len;

    left->data += used;
    left->len -= used;
    while (m.len && (m.data[0] == ' ' || m.data[0] == '\t'))
        m.data++, m.len--;
    while (m.len && (m.data[m.len - 1] == ' ' || m.data[m.len - 1] == '\t'))
        m.len--;
    return m;
}

bool tracestate_is_valid(struct slice s)
{
    struct slice keys[MEMBERS_MAX];
    size_t n = 0;

    while (s.len) {
        struct slice m = member_next(&s);
        const char *equals = m.len ? memchr(m.data, '=', m.len) : NULL;

        if (!m.len)
            continue;
        if (!equals || n == MEMBERS_MAX)
            return false;
        struct slice key = {m.data, (size_t)(equals - m.data)};
        struct slice value = {equals + 1, m.len - key.len - 1};

        if (!is_key(key) || !is_value(value))
            return false;
        for (size_t i = 0; i < n; i++)
            if (slice_equal(keys[i], key))
                return false;
        keys[n++] = key;
    }
    return n > 0;
}
