/* A POST and its answer: the bytes sent and received, and the meaning of its end. No I/O: connection.c
 * moves the bytes. */

#include "forward/exchange.h"

#include "forward/retry_after.h"
#include "forward/target.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"
#include "onceward/forward/forward.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    QUOTE_MAX = 256,
    REQUEST_KEEP_MAX = 8192, /* a larger buffer is freed after the exchange */
    BODY_KEEP_MAX = 4096,    /* the same for the answer's body */
    RETRY_AFTER_MAX_MS = 60 * 60 * 1000,
};

struct exchange *exchange_new(void)
{
    return mem_zalloc(1, sizeof(struct exchange));
}

void exchange_free(struct exchange *x)
{
    reply_deinit(&x->reply);
    buf_deinit(&x->request);
    buf_deinit(&x->answer);
    free(x);
}

void exchange_begin(struct exchange *x, const struct forward_request *r, const struct config_queue *q,
                    const struct target *target, size_t head_len)
{
    int64_t timeout_ms = r->timeout_ms < 1 ? 1 : r->timeout_ms > INT_MAX ? INT_MAX : r->timeout_ms;

    x->q = q;
    x->target = target;
    x->c = NULL;
    x->reused = false;
    x->ref = r->ref;
    x->start_us = clock_us();
    x->end_us = 0;
    x->deadline_ms = x->start_us / 1000 + timeout_ms;
    x->send_by_ms = r->send_by_ms;
    x->head_len = head_len;
    x->body = r->body;
    x->sent = 0;
    x->ending = ENDING_NONE;
    x->offered = x->early = x->cut = x->reset = x->certificate = false;
    x->error[0] = '\0';
    reply_reset(&x->reply);
}

bool exchange_is_sent(const struct exchange *x)
{
    return x->sent == x->head_len + x->body.len;
}

int64_t exchange_due_ms(const struct exchange *x)
{
    return !x->c && x->send_by_ms && x->send_by_ms < x->deadline_ms ? x->send_by_ms : x->deadline_ms;
}

void exchange_hurry(struct exchange *x, int64_t within_ms)
{
    int64_t deadline_ms = clock_ms() + within_ms;

    if (x->deadline_ms > deadline_ms)
        x->deadline_ms = deadline_ms;
}

/* Over TLS a failed write may have sent whole records before the one that failed. So the exchange is unsent only if
 * the first write (the head, with a small body joined to it) is one record: the application cannot decrypt part of a
 * record. */
bool exchange_is_unsent(const struct exchange *x)
{
    return !x->offered ||
           (!x->sent && !x->reply.begun && (!x->target->tls || x->head_len <= TLS_RECORD_SAFE));
}

bool exchange_leaves_clean(const struct exchange *x)
{
    return x->ending == ENDING_REPLY && x->reply.state == REPLY_WHOLE && x->reply.keep && !x->early &&
           exchange_is_sent(x);
}

/* After an error before the whole request was sent, the application does not want the rest. Onceward stops sending,
 * and waits a little for the error's text. After a success the rest is still sent, because its reader expects it. */
static bool refusal_notice(struct exchange *x)
{
    x->early = x->early || (x->reply.final && x->reply.status >= 300 && !exchange_is_sent(x));
    return x->early && x->answer.len;
}

enum ending exchange_receive(struct exchange *x, const char *data, size_t len, size_t *used)
{
    size_t bound = x->q->forward.max_response_bytes;
    struct slice body;

    *used = 0;
    while (*used < len && !reply_has_ended(&x->reply)) {
        *used += reply_feed(&x->reply, data + *used, len - *used, &body);
        if (!body.len)
            continue;
        size_t room = bound - x->answer.len;

        buf_add(&x->answer, body.data, body.len < room ? body.len : room);
        if (body.len > room || refusal_notice(x)) {
            x->cut = true;
            return ENDING_CUT;
        }
    }
    refusal_notice(x);
    if (!reply_has_ended(&x->reply))
        return ENDING_NONE;
    x->cut = x->early || x->reply.status == 101 || (x->reply.state == REPLY_TOO_LONG && x->reply.final);
    return x->early || exchange_is_sent(x) || x->reply.state != REPLY_WHOLE ? ENDING_REPLY : ENDING_NONE;
}

static enum answer_kind kind_of(struct exchange *x)
{
    if (x->reply.final && (x->reply.state == REPLY_WHOLE || x->cut))
        return ANSWER_STATUS;
    /* An error's status is complete even if its text broke off. A success counts only when it is whole. libcurl does
     * not report how TLS ended, so over TLS a body without a length is always taken as whole when the connection
     * closes. */
    if (x->reply.final && x->reply.status >= 300) {
        x->cut = true;
        return ANSWER_STATUS;
    }
    /* With TLS 1.3 the server checks the client's certificate after the client has sent its first record. An
     * alert about it means that the handshake failed: the application got nothing. */
    if (exchange_is_unsent(x) || (x->certificate && !x->reply.begun))
        return ANSWER_UNREACHABLE;
    return x->ending == ENDING_TIME ? ANSWER_TIMEOUT : ANSWER_DIED;
}

/* Is the byte at `at` part of a control character? C1 control characters take two bytes in UTF-8. */
static bool is_control(struct slice s, size_t at, size_t len)
{
    unsigned char c = (unsigned char)s.data[at];

    return len == 1 ? c < ' ' || c == 0x7F : c == 0xC2 && (unsigned char)s.data[at + 1] < 0xA0;
}

/* Adds the start of a textual body in quotes. Runs of blanks and control characters become one blank. cut:
 * the body may end within a character. */
static void quote_add(char *out, size_t size, struct slice body, bool cut)
{
    char text[QUOTE_MAX + 1];
    size_t n = 0, used = strlen(out);
    bool blank = true;

    if (body.len && memchr(body.data, '\0', body.len < QUOTE_MAX ? body.len : QUOTE_MAX))
        return;
    for (size_t at = 0, len; at < body.len && n < QUOTE_MAX; at += len) {
        len = slice_utf8_step(body, at);
        if (!len) {
            /* the bytes of a character that was cut are no sign of binary content */
            if (cut && body.len - at < 4 && at)
                break;
            return;
        }
        if (body.data[at] == ' ' || is_control(body, at, len)) {
            if (!blank)
                text[n++] = ' ';
            blank = true;
            continue;
        }
        if (n + len > QUOTE_MAX)
            break;
        memcpy(text + n, body.data + at, len);
        n += len;
        blank = false;
    }
    if (n && text[n - 1] == ' ')
        n--;
    text[n] = '\0';
    if (n)
        snprintf(out + used, size - used, ": \"%s\"", text);
}

/* The alert's name, such as "certificate required" in "... routines::tlsv13 alert certificate required, errno
 * 0". */
static struct slice alert_of(const char *error)
{
    const char *alert = strstr(error, "alert ");

    alert = alert ? alert + strlen("alert ") : error;
    return (struct slice){alert, strcspn(alert, ",")};
}

/* Writes why there is no answer. */
static void reason_write(const struct exchange *x, char *out, size_t size)
{
    char name[101]; /* short, to leave room for the reason behind it */

    snprintf(name, sizeof(name), "%.100s", x->target->name);
    switch (x->ending) {
    case ENDING_CONNECT:
        snprintf(out, size, "%s", x->error);
        break;
    case ENDING_TIME:
        snprintf(out, size, x->sent ? "no answer from %s in time" : "no connection to %s in time", name);
        break;
    case ENDING_SEND:
        snprintf(out, size, "connection to %s broke while the request was sent: %.100s", name, x->error);
        break;
    case ENDING_RECEIVE:
        if (x->certificate)
            snprintf(out, size, "%.60s does not accept the client certificate: %.*s", name,
                     (int)alert_of(x->error).len, alert_of(x->error).data);
        else if (x->reset)
            snprintf(out, size, "connection reset by %s before the whole answer", name);
        else
            snprintf(out, size, "no whole answer from %s: %.100s", name, x->error);
        break;
    case ENDING_CLOSED:
        snprintf(out, size, "connection closed by %s %s", name,
                 x->reply.status || x->reply.line.len ? "in the middle of its answer" : "before an answer");
        break;
    default:
        snprintf(out, size, "the answer of %s is not HTTP: %s", name,
                 x->reply.error ? x->reply.error : "a header without an end");
    }
}

void exchange_answer(struct exchange *x, struct answer *a, struct exchange_words *words)
{
    a->ref = x->ref;
    a->kind = kind_of(x);
    a->status = 0;
    a->retry_after_ms = a->batch = -1;
    a->body = (struct slice){NULL, 0};
    a->cut = a->to_close = false;
    a->kept = exchange_leaves_clean(x);
    a->reused = x->reused;
    a->error = words->error;
    a->brief = words->brief;
    words->error[0] = words->brief[0] = '\0';
    a->took_us = x->end_us - x->start_us;
    a->refused = a->kind == ANSWER_UNREACHABLE && x->ending == ENDING_CONNECT;
    if (a->kind != ANSWER_STATUS) {
        reason_write(x, words->error, sizeof(words->error));
        snprintf(words->brief, sizeof(words->brief), "%.*s", (int)sizeof(words->brief) - 1, words->error);
        return;
    }
    a->status = x->reply.status;
    a->cut = x->cut;
    a->to_close = x->reply.at_close;
    a->body = buf_slice(&x->answer);
    a->batch = x->reply.batch;
    if (x->reply.retry_after[0])
        a->retry_after_ms = retry_after_ms(x->reply.retry_after, clock_wall_ms(), RETRY_AFTER_MAX_MS);
    if (a->status < 200 || a->status >= 300) {
        snprintf(words->error, sizeof(words->error), "answered %d", a->status);
        snprintf(words->brief, sizeof(words->brief), "answered %d", a->status);
        if (x->q->forward.error_body)
            quote_add(words->error, sizeof(words->error), a->body, a->cut);
    }
}

void exchange_reset(struct exchange *x)
{
    buf_reset(&x->answer);
    buf_reset(&x->request);
    if (x->answer.cap > BODY_KEEP_MAX)
        buf_deinit(&x->answer);
    if (x->request.cap > REQUEST_KEEP_MAX)
        buf_deinit(&x->request);
    if (x->reply.line.cap > BODY_KEEP_MAX)
        buf_deinit(&x->reply.line);
}
