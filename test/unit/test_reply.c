/* The reader of HTTP responses: every row is fed whole, byte by byte, and cut in two at every place. */

#include "cmocka_all.h"
#include "forward/reply.h"

#include <stdio.h>
#include <string.h>

enum { CLOSE = 1, MORE = 2 }; /* the connection is closed behind it; bytes are left over */

static const struct row {
    const char *name, *bytes;
    int flags;
    enum reply_state state;
    int status;
    bool final, keep;
    const char *body, *retry_after;
} rows[] = {
    {"204", "HTTP/1.1 204 No Content\r\n\r\n", 0, REPLY_WHOLE, 204, true, true, "", ""},
    {"no reason", "HTTP/1.1 204\r\n\r\n", 0, REPLY_WHOLE, 204, true, true, "", ""},
    {"line feeds alone", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 0, REPLY_WHOLE, 200, true, true, "ok",
     ""},
    {"304 has no body", "HTTP/1.1 304 Same\r\nContent-Length: 10\r\n\r\n", 0, REPLY_WHOLE, 304, true, false,
     "", ""},
    {"204 that announces a body", "HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", 0, REPLY_WHOLE, 204, true,
     false, "", ""},
    {"204 that announces chunks", "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n", 0, REPLY_WHOLE,
     204, true, false, "", ""},
    {"204 of length 0", "HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", 0, REPLY_WHOLE, 204, true, true, "",
     ""},
    {"length and chunks of an interim answer do not hold for the next",
     "HTTP/1.1 103 Hints\r\nContent-Length: 5\r\n\r\nHTTP/1.1 204 No\r\n\r\n", 0, REPLY_WHOLE, 204, true,
     true, "", ""},
    {"length", "HTTP/1.1 200 OK\r\ncontent-length:3\r\n\r\nabc", 0, REPLY_WHOLE, 200, true, true, "abc", ""},
    {"length 0", "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", 0, REPLY_WHOLE, 500, true, true, "", ""},
    {"the same length twice", "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\nContent-Length: 1\r\n\r\nx", 0,
     REPLY_WHOLE, 200, true, true, "x", ""},
    {"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy", MORE, REPLY_BAD,
     200, false, false, "", ""},
    {"a length that is none", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", MORE, REPLY_BAD, 200, false,
     false, "", ""},
    {"a length that is too large", "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\n", MORE,
     REPLY_BAD, 200, false, false, "", ""},
    {"an empty length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", MORE, REPLY_BAD, 200, false, false, "",
     ""},
    {"body cut short", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", CLOSE, REPLY_LENGTH, 200, true,
     false, "abc", ""},
    {"one more answer", "HTTP/1.1 204 No\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", MORE, REPLY_WHOLE, 204, true, true,
     "", ""},
    {"to the close", "HTTP/1.1 200 OK\r\n\r\nabc", CLOSE, REPLY_WHOLE, 200, true, false, "abc", ""},
    {"to a close that is still to come", "HTTP/1.1 200 OK\r\n\r\nabc", 0, REPLY_TO_CLOSE, 200, true, false,
     "abc", ""},
    {"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 0, REPLY_WHOLE, 200, true, false, "x", ""},
    {"HTTP/1.0, kept", "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx", 0,
     REPLY_WHOLE, 200, true, true, "x", ""},
    {"Connection: close",
     "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nCONNECTION: foo , Close\r\nContent-Length: "
     "1\r\n\r\nx",
     0, REPLY_WHOLE, 200, true, false, "x", ""},
    {"close outranks keep-alive",
     "HTTP/1.1 200 OK\r\nConnection: close, keep-alive\r\nContent-Length: 1\r\n\r\nx", 0, REPLY_WHOLE, 200,
     true, false, "x", ""},
    {"chunks",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0A ; "
     "x=\"y\"\r\n0123456789\r\n0\r\n\r\n",
     0, REPLY_WHOLE, 200, true, true, "abc0123456789", ""},
    {"trailers are no fields",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nRetry-After: 1\r\nConnection: "
     "close\r\n\r\n",
     0, REPLY_WHOLE, 200, true, true, "a", ""},
    {"chunks outrank the length",
     "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", 0,
     REPLY_WHOLE, 200, true, false, "ab", ""},
    {"gzip, chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", 0,
     REPLY_WHOLE, 200, true, true, "ab", ""},
    {"gzip alone goes on to the close",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nContent-Length: 1\r\n\r\nab", CLOSE, REPLY_WHOLE, 200,
     true, false, "ab", ""},
    {"chunk without size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", 0, REPLY_BAD, 200,
     true, false, "", ""},
    {"chunk of nonsense", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1x\r\n", 0, REPLY_BAD, 200,
     true, false, "", ""},
    {"chunk of a size beyond all",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", 0, REPLY_BAD, 200, true,
     false, "", ""},
    {"chunk longer than it said", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", MORE,
     REPLY_BAD, 200, true, false, "a", ""},
    {"chunks cut short", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", CLOSE,
     REPLY_CHUNK_SIZE, 200, true, false, "a", ""},
    {"interim answers",
     "HTTP/1.1 100 Continue\r\nContent-Length: 5\r\nConnection: close\r\n\r\nHTTP/1.1 103 "
     "Hints\r\nRetry-After: "
     "9\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
     0, REPLY_WHOLE, 204, true, true, "", ""},
    {"only interim", "HTTP/1.1 100 Continue\r\n\r\n", CLOSE, REPLY_STATUS, 0, false, false, "", ""},
    {"101", "HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n\x81\x05", MORE, REPLY_WHOLE, 101, true, false, "",
     ""},
    {"Retry-After", "HTTP/1.1 503 No\r\nRetry-After:  7 \r\nContent-Length: 0\r\n\r\n", 0, REPLY_WHOLE, 503,
     true, true, "", "7"},
    {"Retry-After, too long",
     "HTTP/1.1 503 No\r\nRetry-After: "
     "0000000000000000000000000000000000000000000000000000000000000000\r\nContent-Length: "
     "0\r\n\r\n",
     0, REPLY_WHOLE, 503, true, true, "", ""},
    {"continued and nameless lines",
     "HTTP/1.1 200 OK\r\nX: a\r\n Content-Length: 9\r\nnonsense\r\n: x\r\nContent-Length: "
     "0\r\n\r\n",
     0, REPLY_WHOLE, 200, true, true, "", ""},
    {"status 999", "HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n", 0, REPLY_WHOLE, 999, true, true, "", ""},
    {"status 099", "HTTP/1.1 099 What\r\n", 0, REPLY_BAD, 0, false, false, "", ""},
    {"four digits", "HTTP/1.1 2000 OK\r\n", 0, REPLY_BAD, 0, false, false, "", ""},
    {"status of letters", "HTTP/1.1 abc def\r\n", 0, REPLY_BAD, 0, false, false, "", ""},
    {"HTTP/2", "HTTP/2 200\r\n", MORE, REPLY_BAD, 0, false, false, "", ""},
    {"another protocol", "SSH-2.0", MORE, REPLY_BAD, 0, false, false, "", ""},
    {"an empty line first", "\r\nHTTP/1.1 200 OK\r\n", MORE, REPLY_BAD, 0, false, false, "", ""},
    {"the start of one", "HTTP/1.", CLOSE, REPLY_STATUS, 0, false, false, "", ""},
    {"nothing", "", CLOSE, REPLY_STATUS, 0, false, false, "", ""},
};

/* Feeds in pieces of at most `piece` bytes, the first one of `first` bytes. Returns the number of bytes used. */
static size_t feed(struct reply *r, const struct row *row, size_t first, size_t piece, char *body,
                   size_t *n_body)
{
    size_t len = strlen(row->bytes), at = 0;

    *n_body = 0;
    for (size_t end = first; at < len && !reply_has_ended(r); end = at + piece) {
        while (at < len && at < end && !reply_has_ended(r)) {
            struct slice part;
            size_t used = reply_feed(r, row->bytes + at, (end < len ? end : len) - at, &part);

            assert_true(used > 0);
            if (part.len)
                memcpy(body + *n_body, part.data, part.len);
            *n_body += part.len;
            at += used;
        }
    }
    if (row->flags & CLOSE)
        reply_close(r);
    return at;
}

static void check(const struct row *row, size_t first, size_t piece)
{
    struct reply r = {0};
    char body[256];
    size_t n_body, used;

    reply_reset(&r);
    used = feed(&r, row, first, piece, body, &n_body);
    if (r.state != row->state || r.status != row->status || r.final != row->final)
        fail_msg("%s, %zu and %zu: state %d, status %d, final %d", row->name, first, piece, (int)r.state,
                 r.status, r.final);
    if (r.state == REPLY_WHOLE || r.state == REPLY_BAD)
        assert_int_equal(r.keep, row->keep);
    assert_true(r.state != REPLY_BAD || (r.error && *r.error));
    assert_int_equal(n_body, strlen(row->body));
    assert_memory_equal(n_body ? body : "", row->body, n_body);
    if (r.state == REPLY_WHOLE)
        assert_string_equal(r.retry_after, row->retry_after);
    if (!(row->flags & MORE))
        assert_int_equal(used, strlen(row->bytes));
    else if (r.state == REPLY_WHOLE)
        assert_true(used < strlen(row->bytes));
    reply_deinit(&r);
}

static int64_t batch_of(const char *fields)
{
    char text[256];
    struct reply r = {0};
    struct slice body;

    snprintf(
        text, sizeof(text),
        "HTTP/1.1 100 Continue\r\nOnceward-Batch: 7\r\n\r\nHTTP/1.1 200 OK\r\n%sContent-Length: 0\r\n\r\n",
        fields);
    reply_reset(&r);
    for (size_t at = 0; at < strlen(text) && !reply_has_ended(&r);)
        at += reply_feed(&r, text + at, strlen(text) - at, &body);
    assert_int_equal(r.state, REPLY_WHOLE);
    int64_t n = r.batch;
    reply_deinit(&r);
    return n;
}

static void test_the_count_of_a_batch(void **state)
{
    assert_int_equal(batch_of(""), -1);
    assert_int_equal(batch_of("Onceward-Batch: 100\r\n"), 100);
    assert_int_equal(batch_of("onceward-batch:0\r\n"), 0);
    assert_int_equal(batch_of("Onceward-Batch: 5\r\nOnceward-Batch: 5\r\n"), 5);
    assert_int_equal(batch_of("Onceward-Batch: 5\r\nOnceward-Batch: 6\r\n"), -1);
    static const char *const bad[] = {"", "-1", "1e2", "5, 5", "0x5", "1234567890"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char field[64];

        snprintf(field, sizeof(field), "Onceward-Batch: %s\r\n", bad[i]);
        assert_int_equal(batch_of(field), -1);
    }
}

static void test_rows(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t len = strlen(rows[i].bytes);

        check(&rows[i], len + 1, len + 1);
        check(&rows[i], 1, 1);
        for (size_t cut = 1; cut < len; cut++)
            check(&rows[i], cut, len);
    }
}

static void feed_text(struct reply *r, const char *text, size_t len)
{
    struct slice body;

    for (size_t at = 0; at < len && !reply_has_ended(r);)
        at += reply_feed(r, text + at, len - at, &body);
}

static void test_bounds(void **state)
{
    static const char *const starts[] = {"HTTP/1.1 103 Hints\r\n", "HTTP/1.1 200 OK\r\n",
                                         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"};
    struct reply r = {0};

    for (size_t i = 0; i < 3; i++) {
        size_t n = 0;

        reply_reset(&r);
        feed_text(&r, starts[i], strlen(starts[i]));
        for (; !reply_has_ended(&r) && n < 2 * REPLY_HEAD_MAX; n += 8)
            feed_text(&r, "X: abc\r\n", 8);
        assert_int_equal(r.state, REPLY_TOO_LONG);
        assert_int_equal(r.final, i > 0);
        assert_true(n <= REPLY_HEAD_MAX + 8);
    }
    /* a line without an end, and a chunk's size without one */
    reply_reset(&r);
    feed_text(&r, "HTTP/1.1 200 ", 13);
    for (size_t n = 0; n < 2 * REPLY_HEAD_MAX; n++)
        feed_text(&r, "x", 1);
    assert_int_equal(r.state, REPLY_TOO_LONG);
    assert_true(r.line.len <= REPLY_HEAD_MAX);
    reply_reset(&r);
    feed_text(&r, starts[2], strlen(starts[2]) - 3);
    for (size_t n = 0; n < 2 * REPLY_LINE_MAX; n++)
        feed_text(&r, "0", 1);
    assert_int_equal(r.state, REPLY_BAD);
    /* a long job, and one that goes too far */
    reply_reset(&r);
    for (size_t n = 0; n < 2 * REPLY_HEAD_MAX; n += 27)
        feed_text(&r, "HTTP/1.1 102 Processing\r\n\r\n", 27);
    feed_text(&r, "HTTP/1.1 204 No\r\n\r\n", 19);
    assert_int_equal(r.state, REPLY_WHOLE);
    assert_int_equal(r.status, 204);
    reply_reset(&r);
    for (size_t n = 0; n < 2 * REPLY_INTERIM_MAX && !reply_has_ended(&r); n += 27)
        feed_text(&r, "HTTP/1.1 102 Processing\r\n\r\n", 27);
    assert_int_equal(r.state, REPLY_BAD);
    /* NUL */
    reply_reset(&r);
    feed_text(&r, "HTTP/1.1 200 OK\r\nX: \0\r\n", 23);
    assert_int_equal(r.state, REPLY_BAD);
    /* and a used one can be used for the next */
    reply_reset(&r);
    feed_text(&r, "HTTP/1.1 204 No\r\n\r\n", 19);
    assert_int_equal(r.state, REPLY_WHOLE);
    reply_deinit(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_the_count_of_a_batch),
        cmocka_unit_test(test_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
