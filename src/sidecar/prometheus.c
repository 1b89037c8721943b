/* See prometheus.h. Only the first line of a request counts: no field of its head changes the answer, and each
 * connection carries one request. */

#include "sidecar/prometheus.h"

#include <string.h>

/* Length of the head including its empty line; 0: incomplete. */
static size_t head_len(struct slice s)
{
    const char *long_end = memmem(s.data, s.len, "\r\n\r\n", 4), *end = memmem(s.data, s.len, "\n\n", 2);

    if (long_end && (!end || long_end < end))
        return (size_t)(long_end - s.data) + 4;
    return end ? (size_t)(end - s.data) + 2 : 0;
}

/* Takes the next word off a line, with one space behind it. */
static struct slice word_of(struct slice *line)
{
    const char *space = line->len ? memchr(line->data, ' ', line->len) : NULL;
    struct slice word = {line->data, space ? (size_t)(space - line->data) : line->len};
    size_t used = word.len + (space != NULL);

    line->data += used;
    line->len -= used;
    return word;
}

static bool begins_with(struct slice s, const char *text)
{
    size_t len = strlen(text);

    return s.len >= len && !memcmp(s.data, text, len);
}

static struct slice without_return(struct slice line)
{
    if (line.len && line.data[line.len - 1] == '\r')
        line.len--;
    return line;
}

static enum scrape judge_line(struct slice line)
{
    struct slice method = word_of(&line), target = word_of(&line), version = without_return(line);
    bool is_get = slice_equal(method, slice_of("GET")), is_head = slice_equal(method, slice_of("HEAD"));

    if (!method.len || !target.len || version.len != 8 || !begins_with(version, "HTTP/1."))
        return SCRAPE_BAD;
    if (!is_get && !is_head)
        return SCRAPE_NOT_ALLOWED;
    if (memchr(target.data, '?', target.len))
        target.len = (size_t)((const char *)memchr(target.data, '?', target.len) - target.data);
    if (!slice_equal(target, slice_of("/metrics")))
        return SCRAPE_NOT_FOUND;
    return is_get ? SCRAPE_PAGE : SCRAPE_HEAD;
}

enum scrape scrape_judge(struct slice bytes)
{
    struct slice seen = {bytes.data, bytes.len < SCRAPE_MAX ? bytes.len : SCRAPE_MAX};

    if (!seen.len)
        return SCRAPE_PARTIAL;
    if (!head_len(seen))
        return seen.len < SCRAPE_MAX ? SCRAPE_PARTIAL : SCRAPE_TOO_LONG;
    return judge_line(
        (struct slice){seen.data, (size_t)((const char *)memchr(seen.data, '\n', seen.len) - seen.data)});
}

void scrape_answer(enum scrape scrape, struct slice page, struct buf *ret)
{
    static const char *const statuses[N_SCRAPES] = {
        [SCRAPE_PAGE] = "200 OK",
        [SCRAPE_HEAD] = "200 OK",
        [SCRAPE_NOT_FOUND] = "404 Not Found",
        [SCRAPE_NOT_ALLOWED] = "405 Method Not Allowed",
        [SCRAPE_TOO_LONG] = "431 Request Header Fields Too Large",
        [SCRAPE_BAD] = "400 Bad Request",
    };
    bool is_page = scrape == SCRAPE_PAGE || scrape == SCRAPE_HEAD;

    buf_printf(ret, "HTTP/1.1 %s\r\n", statuses[scrape]);
    if (scrape == SCRAPE_NOT_ALLOWED)
        buf_add_text(ret, "Allow: GET, HEAD\r\n");
    if (is_page)
        buf_add_text(ret, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    buf_printf(ret, "Content-Length: %zu\r\nConnection: close\r\n\r\n", is_page ? page.len : 0);
    if (scrape == SCRAPE_PAGE)
        buf_add_slice(ret, page);
}

static void add_escaped(struct buf *b, struct slice s, bool in_quotes)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];

        if (c == '\n')
            buf_add_text(b, "\\n");
        else if (c == '\\' || (c == '"' && in_quotes))
            buf_printf(b, "\\%c", c);
        else
            buf_add_char(b, c);
    }
}

void prometheus_family(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_printf(b, "# HELP %s ", name);
    add_escaped(b, slice_of(help), false);
    buf_printf(b, "\n# TYPE %s %s\n", name, type);
}

void prometheus_label(struct buf *b, struct slice value)
{
    buf_add_char(b, '"');
    add_escaped(b, value, true);
    buf_add_char(b, '"');
}
