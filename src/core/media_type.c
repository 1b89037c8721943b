/* Checks a Content-Type value. Pure; any thread. */

#include "onceward/core/media_type.h"

static bool is_token_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static size_t token_len(struct slice s)
{
    size_t n = 0;

    while (n < s.len && is_token_byte(s.data[n]))
        n++;
    return n;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Field values are visible characters, blanks and tabs (RFC 9110, 5.5). That allows bytes above 0x7E only for
 * historical reasons, and servers interpret them differently, so they are refused. */
static bool is_field_text(struct slice s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((s.data[i] < ' ' && s.data[i] != '\t') || (unsigned char)s.data[i] > '~')
            return false;
    return true;
}

bool media_type_is_valid(struct slice s)
{
    size_t n = token_len(s);

    if (!n || s.len > MEDIA_TYPE_MAX || n == s.len || s.data[n] != '/' || is_blank(s.data[s.len - 1]) ||
        !is_field_text(s))
        return false;
    s.data += n + 1;
    s.len -= n + 1;
    n = token_len(s);
    if (!n)
        return false;
    while (n < s.len && is_blank(s.data[n]))
        n++;
    return n == s.len || s.data[n] == ';';
}
