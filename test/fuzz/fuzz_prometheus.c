/* Any bytes as a request for the metrics page, and as the value of a label. A request is classified the same
 * in one piece and in each longer prefix, only "GET /metrics" is answered with the page, and an answer's
 * length is that of its body. A label reads back unchanged, in one line. */

#include "fuzz.h"
#include "sidecar/prometheus.h"

#include <string.h>

/* A copy of the exact size, so that a sanitizer notices a read beyond the end. */
static enum scrape judge_copy(const uint8_t *data, size_t len)
{
    char *copy = malloc(len);

    memcpy(copy, data, len);
    enum scrape scrape = scrape_judge((struct slice){copy, len});
    free(copy);
    return scrape;
}

static void answer_must_hold(enum scrape scrape)
{
    struct slice page = slice_of("a 1\n");
    struct buf b = {0};

    scrape_answer(scrape, page, &b);
    const char *text = buf_text(&b), *body = strstr(text, "\r\n\r\n"),
               *length = strstr(text, "Content-Length: ");
    bool is_page = scrape == SCRAPE_PAGE || scrape == SCRAPE_HEAD;

    MUST(body && length && length < body && strstr(text, "Connection: close\r\n"));
    MUST(strncmp(text, "HTTP/1.1 200 OK\r\n", 17) == 0 || !is_page);
    MUST(strtoul(length + 16, NULL, 10) == (is_page ? page.len : 0));
    MUST(strlen(body + 4) == (scrape == SCRAPE_PAGE ? page.len : 0));
    buf_deinit(&b);
}

static void requests_must_hold(const uint8_t *data, size_t size)
{
    enum scrape whole = judge_copy(data, size), before = SCRAPE_PARTIAL;

    for (size_t n = 0; n <= size; n += 1 + n / 16) {
        enum scrape scrape = judge_copy(data, n);

        MUST(before == SCRAPE_PARTIAL || scrape == before);
        MUST(scrape != SCRAPE_PARTIAL || n < SCRAPE_MAX);
        before = scrape;
    }
    MUST(before == SCRAPE_PARTIAL || before == whole);
    MUST(whole != SCRAPE_PAGE || (size > 12 && memcmp(data, "GET /metrics", 12) == 0));
    MUST(whole != SCRAPE_HEAD || (size > 13 && memcmp(data, "HEAD /metrics", 13) == 0));
    if (whole != SCRAPE_PARTIAL)
        answer_must_hold(whole);
}

static void label_must_hold(struct slice value)
{
    struct buf label = {0}, back = {0};

    prometheus_label(&label, value);
    MUST(label.len >= 2 && label.data[0] == '"' && label.data[label.len - 1] == '"');
    MUST(!memchr(label.data, '\n', label.len));
    for (size_t i = 1; i + 1 < label.len; i++) {
        bool escaped = label.data[i] == '\\';

        MUST(label.data[i] != '"');
        i += escaped;
        MUST(i + 1 < label.len);
        buf_add_char(&back, escaped && label.data[i] == 'n' ? '\n' : label.data[i]);
    }
    MUST(slice_equal(buf_slice(&back), value) || !value.len);
    buf_deinit(&label);
    buf_deinit(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    requests_must_hold(data, size);
    label_must_hold((struct slice){(const char *)data, size});
    return 0;
}
