/* See reply.h. The state names the element that the next byte belongs to. Complete lines are read in place;
 * the start of an incomplete one is kept in r->line. */

#include "forward/reply.h"

#include <string.h>
#include <strings.h>

static const char prefix[] = "HTTP/1.";
enum { PREFIX_LEN = sizeof(prefix) - 1 };

void reply_reset(struct reply *r)
{
    struct buf line = r->line;

    buf_reset(&line);
    *r = (struct reply){.state = REPLY_STATUS, .line = line};
}

void reply_deinit(struct reply *r)
{
    buf_deinit(&r->line);
}

bool reply_has_ended(const struct reply *r)
{
    return r->state >= REPLY_WHOLE;
}

static void bad(struct reply *r, const char *why)
{
    r->state = REPLY_BAD;
    r->error = why;
    r->keep = false;
}

static struct slice trim(const char *data, size_t len)
{
    while (len && (data[len - 1] == ' ' || data[len - 1] == '\t'))
        len--;
    while (len && (*data == ' ' || *data == '\t'))
        data++, len--;
    return (struct slice){data, len};
}

static bool same_text(struct slice a, const char *b, size_t len)
{
    return a.len == len && strncasecmp(a.data, b, len) == 0;
}

#define IS(s, literal) same_text(s, literal, sizeof(literal) - 1)

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* "HTTP/1.1 200 OK" (RFC 9112, section 4). */
static void status_line(struct reply *r, struct slice s)
{
    const char *p = s.data + PREFIX_LEN;

    if (s.len < PREFIX_LEN + 5 || memcmp(s.data, prefix, PREFIX_LEN) != 0 || !is_digit(p[0]) || p[1] != ' ' ||
        !is_digit(p[2]) || !is_digit(p[3]) || !is_digit(p[4]) || (s.len > PREFIX_LEN + 5 && p[5] != ' ') ||
        p[2] == '0') {
        bad(r, "no status line");
        return;
    }
    r->status = (p[2] - '0') * 100 + (p[3] - '0') * 10 + (p[4] - '0');
    r->keep = p[0] != '0';
    r->chunked = r->to_close = r->closing = r->has_length = false;
    r->left = 0;
    r->retry_after[0] = '\0';
    r->batch = -1;
    r->has_batch = false;
    r->state = REPLY_FIELDS;
}

/* Removes the next element of a comma-separated list (RFC 9110, section 5.6.1). */
static bool element_take(struct slice *list, struct slice *element)
{
    const char *comma;

    if (!list->len)
        return false;
    comma = memchr(list->data, ',', list->len);
    if (!comma) {
        *element = trim(list->data, list->len);
        list->len = 0;
        return true;
    }
    *element = trim(list->data, (size_t)(comma - list->data));
    list->len -= (size_t)(comma + 1 - list->data);
    list->data = comma + 1;
    return true;
}

static void length_field(struct reply *r, struct slice list)
{
    struct slice one;
    bool any = false;

    while (element_take(&list, &one)) {
        uint64_t n = 0;

        if (!one.len || one.len > 18) {
            bad(r, "a Content-Length that is not a number");
            return;
        }
        for (size_t i = 0; i < one.len; i++) {
            if (!is_digit(one.data[i])) {
                bad(r, "a Content-Length that is not a number");
                return;
            }
            n = n * 10 + (uint64_t)(one.data[i] - '0');
        }
        if (r->has_length && n != r->left) {
            bad(r, "two lengths that differ");
            return;
        }
        r->left = n;
        r->has_length = any = true;
    }
    if (!any)
        bad(r, "a Content-Length that is not a number");
}

static void coding_field(struct reply *r, struct slice list)
{
    struct slice one;

    while (element_take(&list, &one)) {
        if (!one.len || IS(one, "identity"))
            continue;
        r->chunked = IS(one, "chunked");
        r->to_close = !r->chunked;
    }
}

static void connection_field(struct reply *r, struct slice list)
{
    struct slice one;

    while (element_take(&list, &one)) {
        if (IS(one, "close"))
            r->closing = true;
        else if (IS(one, "keep-alive"))
            r->keep = true;
    }
}

/* Reads Onceward-Batch. Two fields with different values count as none. */
static void batch_field(struct reply *r, struct slice value, bool again)
{
    enum { DIGITS_MAX = 9 };
    int64_t n = value.len && value.len <= DIGITS_MAX ? 0 : -1;

    for (size_t i = 0; i < value.len && n >= 0; i++)
        n = value.data[i] >= '0' && value.data[i] <= '9' ? n * 10 + (value.data[i] - '0') : -1;
    r->batch = again && n != r->batch ? -1 : n;
}

static void field(struct reply *r, struct slice s)
{
    const char *colon = memchr(s.data, ':', s.len);
    struct slice name, value;

    /* Continued lines (obsolete) and lines without a name are ignored. */
    if (!colon || s.data[0] == ' ' || s.data[0] == '\t')
        return;
    name = trim(s.data, (size_t)(colon - s.data));
    value = trim(colon + 1, s.len - (size_t)(colon + 1 - s.data));
    switch (name.len) {
    case 10:
        if (IS(name, "Connection"))
            connection_field(r, value);
        break;
    case 11:
        if (IS(name, "Retry-After") && value.len < sizeof(r->retry_after)) {
            memcpy(r->retry_after, value.data, value.len);
            r->retry_after[value.len] = '\0';
        }
        break;
    case 14:
        if (IS(name, "Content-Length")) {
            length_field(r, value);
        } else if (IS(name, "Onceward-Batch")) {
            batch_field(r, value, r->has_batch);
            r->has_batch = true;
        }
        break;
    case 17:
        if (IS(name, "Transfer-Encoding"))
            coding_field(r, value);
        break;
    default:
        break;
    }
}

/* Determines which body follows (RFC 9112, section 6.3). */
static void head_end(struct reply *r)
{
    if (r->status < 200 && r->status != 101) {
        r->status = 0;
        r->n_interim += r->n_head;
        r->n_head = 0;
        r->state = REPLY_STATUS;
        if (r->n_interim > REPLY_INTERIM_MAX)
            bad(r, "too many interim answers");
        return;
    }
    r->final = true;
    r->keep = r->keep && !r->closing && !(r->chunked && r->has_length); /* contradictory framing */
    if (r->status == 101 || r->status == 204 || r->status == 304) {
        /* No body follows. If a length is announced nevertheless, the bytes may come late and would be taken for the
         * next answer. */
        r->keep = r->keep && r->status != 101 && !r->left && !r->chunked && !r->to_close;
        r->state = REPLY_WHOLE;
    } else if (r->chunked) {
        r->state = REPLY_CHUNK_SIZE;
    } else if (r->to_close || !r->has_length) {
        r->keep = false;
        r->state = REPLY_TO_CLOSE;
    } else {
        r->state = r->left ? REPLY_LENGTH : REPLY_WHOLE;
    }
}

static int hex_digit(char c)
{
    return is_digit(c)            ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* "1a3;extension" */
static void chunk_size(struct reply *r, struct slice s)
{
    size_t n = 0;

    r->left = 0;
    for (; n < s.len && hex_digit(s.data[n]) >= 0; n++) {
        if (r->left >> 56) {
            bad(r, "a chunk without a size");
            return;
        }
        r->left = r->left * 16 + (uint64_t)hex_digit(s.data[n]);
    }
    s = trim(s.data + n, s.len - n);
    if (!n || (s.len && s.data[0] != ';'))
        bad(r, "a chunk without a size");
    else
        r->state = r->left ? REPLY_CHUNK : REPLY_TRAILERS;
}

static void line(struct reply *r, struct slice s)
{
    switch (r->state) {
    case REPLY_STATUS:
        status_line(r, s);
        break;
    case REPLY_FIELDS:
        if (s.len)
            field(r, s);
        else
            head_end(r);
        break;
    case REPLY_CHUNK_SIZE:
        chunk_size(r, s);
        break;
    case REPLY_CHUNK_END:
        if (s.len)
            bad(r, "a chunk longer than its size");
        else
            r->state = REPLY_CHUNK_SIZE;
        break;
    default: /* REPLY_TRAILERS */
        if (!s.len)
            r->state = REPLY_WHOLE;
    }
}

/* Do these bytes certainly not begin a status line? */
static bool is_no_status(const struct reply *r, const char *data, size_t len)
{
    size_t known = r->line.len;

    for (size_t i = 0; i < len && known + i < PREFIX_LEN; i++)
        if (data[i] != prefix[known + i])
            return true;
    return false;
}

static size_t line_feed(struct reply *r, const char *data, size_t len)
{
    const char *end = memchr(data, '\n', len);
    size_t used = end ? (size_t)(end + 1 - data) : len;
    bool head = r->state != REPLY_CHUNK_SIZE && r->state != REPLY_CHUNK_END;
    struct slice s = {data, used - (end != NULL)};

    if (head && r->n_head + used > REPLY_HEAD_MAX) {
        r->state = REPLY_TOO_LONG;
        r->final = r->status >= 200;
        r->keep = false;
        return used;
    }
    r->n_head += head ? used : 0;
    if (r->state == REPLY_STATUS && is_no_status(r, data, used)) {
        bad(r, "no status line");
        return used;
    }
    if (!head && r->line.len + used > REPLY_LINE_MAX) {
        bad(r, "a chunk without a size");
        return used;
    }
    if (memchr(s.data, '\0', s.len)) {
        bad(r, "a NUL in its header");
        return used;
    }
    if (!end || r->line.len) {
        buf_add_slice(&r->line, s);
        s = buf_slice(&r->line);
    }
    if (!end)
        return used;
    if (s.len && s.data[s.len - 1] == '\r')
        s.len--;
    line(r, s);
    buf_reset(&r->line);
    return used;
}

static size_t body_feed(struct reply *r, const char *data, size_t len, struct slice *body)
{
    size_t n = r->state != REPLY_TO_CLOSE && r->left < len ? (size_t)r->left : len;

    *body = (struct slice){data, n};
    if (r->state == REPLY_TO_CLOSE)
        return n;
    r->left -= n;
    if (!r->left)
        r->state = r->state == REPLY_LENGTH ? REPLY_WHOLE : REPLY_CHUNK_END;
    return n;
}

size_t reply_feed(struct reply *r, const char *data, size_t len, struct slice *body)
{
    *body = (struct slice){NULL, 0};
    if (reply_has_ended(r) || !len)
        return 0;
    r->begun = true;
    if (r->state == REPLY_LENGTH || r->state == REPLY_CHUNK || r->state == REPLY_TO_CLOSE)
        return body_feed(r, data, len, body);
    return line_feed(r, data, len);
}

void reply_close(struct reply *r)
{
    r->keep = false;
    r->at_close = r->state == REPLY_TO_CLOSE;
    if (r->at_close)
        r->state = REPLY_WHOLE;
}
