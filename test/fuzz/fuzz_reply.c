/* Any bytes as an application's answer: whole, in pieces and byte by byte they are the same reply, with the
 * same body and end, and only a complete reply leaves a reusable connection. The first byte selects the size
 * of the pieces and whether the connection is closed at the end; 0xFF puts a head of nearly the largest size
 * before. */

#include "forward/reply.h"
#include "fuzz.h"

#include <string.h>

struct account {
    struct reply reply;
    struct buf body;
    size_t n_used;
};

/* Invariants. */
static void reply_must_hold(const struct reply *r)
{
    MUST(!r->final || r->status >= 200 || r->status == 101 || r->state == REPLY_TOO_LONG);
    MUST(r->status >= 0 && r->status <= 999);
    MUST(r->state != REPLY_WHOLE || r->final);
    MUST((r->state == REPLY_BAD) == (r->error != NULL));
    MUST(!r->keep || (r->state != REPLY_BAD && r->state != REPLY_TOO_LONG && r->state != REPLY_TO_CLOSE));
    /* Contradictory lengths could be used to smuggle in a second answer. */
    MUST(!r->keep || !r->final || !(r->chunked && r->has_length));
    MUST(memchr(r->retry_after, '\0', sizeof(r->retry_after)));
    MUST(r->line.len <= REPLY_HEAD_MAX);
}

/* Feeds copies of the exact size, so that a sanitizer notices a read beyond the end. */
static void piece_feed(struct account *a, const char *data, size_t len)
{
    char *copy = malloc(len);

    memcpy(copy, data, len);
    for (size_t at = 0; at < len;) {
        bool had_ended = reply_has_ended(&a->reply);
        struct slice body;
        size_t n = reply_feed(&a->reply, copy + at, len - at, &body);

        reply_must_hold(&a->reply);
        MUST(n <= len - at && (n == 0) == had_ended);
        if (body.len) {
            MUST(body.data >= copy + at && body.data + body.len <= copy + at + n && a->reply.final);
            buf_add_slice(&a->body, body);
        }
        if (!n)
            break;
        a->n_used += n;
        at += n;
    }
    free(copy);
}

/* n_whole: bytes fed at once before the pieces. */
static void feed(struct account *a, struct slice s, size_t n_whole, size_t piece, bool closed)
{
    reply_reset(&a->reply);
    buf_reset(&a->body);
    a->n_used = 0;
    if (n_whole)
        piece_feed(a, s.data, n_whole);
    for (size_t at = n_whole; at < s.len; at += piece)
        piece_feed(a, s.data + at, s.len - at < piece ? s.len - at : piece);
    if (closed)
        reply_close(&a->reply);
    reply_must_hold(&a->reply);
    MUST(!closed || !a->reply.keep);
}

static void must_be_same(const struct account *a, const struct account *b, bool is_long)
{
    const struct reply *r = &a->reply, *other = &b->reply;

    MUST(slice_equal(buf_slice(&a->body), buf_slice(&b->body)));
    MUST(r->keep == other->keep && r->begun == other->begun);
    MUST(r->final == other->final || is_long);
    if (is_long && r->state >= REPLY_TOO_LONG && other->state >= REPLY_TOO_LONG)
        return; /* the pieces may decide which of two faults is found first */
    MUST(r->state == other->state && r->status == other->status && r->error == other->error);
    MUST(!strcmp(r->retry_after, other->retry_after));
    MUST(r->state >= REPLY_TOO_LONG || a->n_used == b->n_used);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct account whole = {0}, pieces = {0};
    struct buf text = {0};

    if (!size)
        return 0;
    bool is_long = *data == 0xFF, closed = *data & 1;
    size_t piece = 2 + (*data >> 1) % 30;
    if (is_long) {
        buf_add_text(&text, "HTTP/1.1 200 OK\r\nX: ");
        memset(buf_reserve(&text, REPLY_HEAD_MAX - 100), 'x', REPLY_HEAD_MAX - 100);
        text.len += REPLY_HEAD_MAX - 100;
    }
    size_t n_filled = text.len;
    buf_add(&text, data + 1, size - 1);
    feed(&whole, buf_slice(&text), text.len, 1, closed);
    feed(&pieces, buf_slice(&text), n_filled, 1, closed);
    must_be_same(&whole, &pieces, is_long);
    feed(&pieces, buf_slice(&text), n_filled, piece, closed); /* the second reply of a connection */
    must_be_same(&whole, &pieces, is_long);
    reply_deinit(&whole.reply);
    reply_deinit(&pieces.reply);
    buf_deinit(&whole.body);
    buf_deinit(&pieces.body);
    buf_deinit(&text);
    return 0;
}
