/* One POST and its answer: a libcurl easy handle that is used again and again, the functions that libcurl
 * calls while the answer comes in, and what the end of the transfer means.
 *
 * A request is never sent twice. libcurl would: when a reused connection dies before the first byte of an
 * answer, it repeats the request on another one, whatever the method. It asks prereq_seen before every
 * attempt, so the second attempt is refused there (and socket_open before, so that it does not even connect),
 * unless the kernel had not taken a single byte of the first. The same call is the evidence that something
 * may have been sent.
 *
 * The body is given by pointer: below 64 KiB it leaves in one write with the header fields. */

#include "forward/exchange.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QUOTE_MAX = 160 };

/* Is it certain that the application saw no byte of the request? Over TLS a failed write may have sent whole
 * records before the one that failed, so that holds for a request of one record only: part of a record means
 * nothing to anybody. */
static bool is_unsent(struct exchange *x)
{
    long sent = 0;

    if (!x->begun)
        return true;
    curl_easy_getinfo(x->easy, CURLINFO_REQUEST_SIZE, &sent);
    return !sent && !x->status && (!x->w->target.tls || x->lines.len + x->body_len <= TLS_RECORD_SAFE);
}

static curl_socket_t socket_open(void *p, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct exchange *x = p;

    (void)purpose;
    if (!is_unsent(x))
        return CURL_SOCKET_BAD;
    x->fd = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    return x->fd;
}

/* Was the kept connection that libcurl chose closed meanwhile? From 8.22 on libcurl asks only once a second,
 * and in that time would use up one attempt for each connection that a restarted application had open. Plain
 * HTTP has nothing to say on a connection at rest; TLS may. */
static bool is_stale(const struct exchange *x)
{
    curl_socket_t fd = CURL_SOCKET_BAD;

    if (!x->w->looks_at_kept || x->fd >= 0 ||
        curl_easy_getinfo(x->easy, CURLINFO_ACTIVESOCKET, &fd) != CURLE_OK || fd == CURL_SOCKET_BAD)
        return false;
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (!x->w->target.tls || (p.revents & (POLLRDHUP | POLLHUP | POLLERR)));
}

static int prereq_seen(void *p, char *ip, char *local_ip, int port, int local_port)
{
    struct exchange *x = p;
    (void)ip, (void)local_ip, (void)port;

    if (!is_unsent(x))
        return CURL_PREREQFUNC_ABORT;
    /* The process may have been stopped since libcurl looked at its clock. What nobody waits for is not sent.
     */
    if (clock_ms() >= x->deadline_ms || (x->send_by_ms && clock_ms() >= x->send_by_ms))
        return CURL_PREREQFUNC_ABORT;
    x->stale = is_stale(x);
    if (x->stale)
        return CURL_PREREQFUNC_ABORT;
    x->local_port = local_port;
    x->begun = true;
    return CURL_PREREQFUNC_OK;
}

static bool line_is(const char *line, size_t len, const char *name, size_t name_len)
{
    return len > name_len && line[name_len] == ':' && strncasecmp(line, name, name_len) == 0;
}

static struct slice value_of(const char *line, size_t len, size_t name_len)
{
    struct slice v = {line + name_len + 1, len - name_len - 1};

    while (v.len && strchr(" \t\r\n", v.data[v.len - 1]))
        v.len--;
    while (v.len && (v.data[0] == ' ' || v.data[0] == '\t'))
        v.data++, v.len--;
    return v;
}

static int status_of(const char *line, size_t len)
{
    const char *p = memchr(line, ' ', len), *end = line + len;
    int status = 0;

    if (!p)
        return 0;
    while (p < end && *p == ' ')
        p++;
    for (int i = 0; i < 3; i++, p++) {
        if (p >= end || *p < '0' || *p > '9')
            return 0;
        status = status * 10 + (*p - '0');
    }
    return status;
}

/* The empty line behind a header. Interim answers are over with it. 101 was not asked for, so there is no
 * HTTP behind it. Answers false when the transfer has nothing more to give. */
static bool header_end(struct exchange *x)
{
    curl_off_t sent = 0;

    if (x->status < 200 && x->status != 101)
        return true;
    x->final = true;
    if (x->status == 101)
        return false;
    if (x->status < 300 || !exchange_is_large(x))
        return true;
    curl_easy_getinfo(x->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    x->early = (size_t)sent < x->body_len;
    return !x->early || !x->empty;
}

static size_t header_seen(char *line, size_t one, size_t len, void *p)
{
    struct exchange *x = p;

    (void)one;
    x->header_bytes += len;
    if (x->header_bytes > RESPONSE_HEADERS_MAX) {
        x->final = x->cut = x->status >= 200;
        return 0;
    }
    if (x->final) /* a trailer */
        return len;
    if (len >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        x->status = status_of(line, len);
        x->retry_after_ms = -1;
    } else if (line[0] == '\r' || line[0] == '\n') {
        if (!header_end(x)) {
            x->cut = true;
            return 0;
        }
    } else if (line_is(line, len, "Retry-After", 11)) {
        struct slice v = value_of(line, len, 11);

        x->retry_after_ms = retry_after_ms(v.data, v.len, clock_wall_ms(), RETRY_AFTER_MAX_MS);
    } else if (line_is(line, len, "Content-Length", 14)) {
        x->empty = slice_equal(value_of(line, len, 14), SLICE("0"));
    }
    return len;
}

static size_t body_seen(char *data, size_t one, size_t len, void *p)
{
    struct exchange *x = p;
    size_t room = x->w->q->forward.max_response_bytes - x->body.len;

    (void)one;
    buf_add(&x->body, data, len < room ? len : room);
    if (len <= room && !x->early)
        return len;
    x->cut = true;
    return 0;
}

bool exchange_is_large(const struct exchange *x)
{
    return x->body_len >= SMALL_BODY_MAX;
}

static int port_of(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);

    if (getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        return 0;
    return a.ss_family == AF_INET    ? ntohs(((struct sockaddr_in *)&a)->sin_port)
           : a.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&a)->sin6_port)
                                     : 0;
}

/* The exchange whose connection this is, among those that may have been refused in the middle of their body.
 */
static struct exchange *sender_of(struct forward *w, int fd)
{
    int port = w->target.unix_socket ? 0 : port_of(fd);

    list_each(&w->out, k)
    {
        struct exchange *x = container_of(k, struct exchange, link);

        if (exchange_is_large(x) && x->begun && !x->final &&
            (w->target.unix_socket ? x->fd == fd : port && x->local_port == port))
            return x;
    }
    return NULL;
}

static void last_words_parse(struct exchange *x, char *text, size_t len)
{
    char *end = memmem(text, len, "\r\n\r\n", 4), *line = text;

    if (!end || len < 5 || memcmp(text, "HTTP/", 5) != 0)
        return;
    for (char *eol; !x->final && line < end + 4; line = eol + 1) {
        eol = memchr(line, '\n', (size_t)(end + 4 - line));
        if (!header_seen(line, 1, (size_t)(eol + 1 - line), x))
            break;
    }
    if (x->final && line < text + len)
        body_seen(line, 1, (size_t)(text + len - line), x);
}

/* An application that refuses a large body, say with 413, answers and closes while the body is still coming.
 * libcurl may see the broken connection first and would close it with the answer unread. */
static int socket_close(void *p, curl_socket_t fd)
{
    struct forward *w = p;
    struct exchange *x = w->n_large && !w->target.tls ? sender_of(w, fd) : NULL;
    char text[16 * 1024];
    ssize_t n = x ? recv(fd, text, sizeof(text), MSG_DONTWAIT) : 0;

    if (n > 0)
        last_words_parse(x, text, (size_t)n);
    return close(fd);
}

static int options_set(struct exchange *x, struct fault *f)
{
    CURL *easy = x->easy;
    bool bad = false;

    if (transfer_setup(easy, &x->w->target, &x->w->q->forward, x->error, f) < 0)
        return -1;
    bad |= curl_easy_setopt(easy, CURLOPT_PRIVATE, x) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_POST, 1L) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, socket_open) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, x) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, socket_close) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, x->w) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, prereq_seen) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_PREREQDATA, x) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, header_seen) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_HEADERDATA, x) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, body_seen) != CURLE_OK;
    bad |= curl_easy_setopt(easy, CURLOPT_WRITEDATA, x) != CURLE_OK;
    return bad ? fault_set(f, "libcurl refuses an option it must have") : 0;
}

struct exchange *exchange_new(struct forward *w, struct fault *f)
{
    struct exchange *x = mem_zalloc(1, sizeof(*x));

    x->w = w;
    x->easy = curl_easy_init();
    if (!x->easy)
        fault_set(f, "libcurl gives no handle");
    else if (options_set(x, f) == 0)
        return x;
    exchange_free(x);
    return NULL;
}

void exchange_free(struct exchange *x)
{
    curl_easy_cleanup(x->easy);
    buf_deinit(&x->lines);
    buf_deinit(&x->body);
    free(x->nodes);
    free(x);
}

int exchange_begin(struct exchange *x, const struct forward_request *r, struct fault *f)
{
    int64_t timeout_ms = r->timeout_ms < 1 ? 1 : r->timeout_ms > INT_MAX ? INT_MAX : r->timeout_ms;
    bool bad = false;

    x->ref = r->ref;
    x->start_us = clock_us();
    x->deadline_ms = x->start_us / 1000 + timeout_ms;
    x->send_by_ms = r->send_by_ms;
    x->body_len = r->body.len;
    x->fd = -1;
    x->local_port = 0;
    x->header_bytes = 0;
    x->status = 0;
    x->retry_after_ms = -1;
    x->begun = x->stale = x->final = x->empty = x->early = x->cut = false;
    x->error[0] = '\0';
    bad |= curl_easy_setopt(x->easy, CURLOPT_HTTPHEADER, request_lines(x, r->headers)) != CURLE_OK;
    bad |= curl_easy_setopt(x->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body.len) != CURLE_OK;
    bad |= curl_easy_setopt(x->easy, CURLOPT_POSTFIELDS, r->body.len ? r->body.data : "") != CURLE_OK;
    bad |= curl_easy_setopt(x->easy, CURLOPT_TIMEOUT_MS, (long)timeout_ms) != CURLE_OK;
    /* A Unix socket has no port to know it by (see sender_of), and a new one is cheap beside such a body. */
    bad |= curl_easy_setopt(x->easy, CURLOPT_FRESH_CONNECT,
                            x->w->target.unix_socket && exchange_is_large(x) ? 1L : 0L) != CURLE_OK;
    return bad ? fault_set(f, "libcurl refuses the request") : 0;
}

/* With TLS 1.3 the server judges the client's certificate after the client's first record has left, and its
 * alert about it says that the handshake failed: nothing was handed to the application. */
static bool is_certificate_alert(const struct exchange *x)
{
    return x->w->target.tls && !x->status && strstr(x->error, "alert") &&
           (strstr(x->error, "certificate") || strstr(x->error, "unknown ca"));
}

static enum answer_kind kind_of(struct exchange *x, CURLcode code)
{
    if (x->final && (code == CURLE_OK || x->cut))
        return ANSWER_STATUS;
    /* An error was said in full; that the text behind it broke off changes nothing. A success counts when it
     * is whole. */
    if (x->final && x->status >= 300) {
        x->cut = true;
        return ANSWER_STATUS;
    }
    if (is_unsent(x) || is_certificate_alert(x))
        return ANSWER_UNREACHABLE;
    return code == CURLE_OPERATION_TIMEDOUT ? ANSWER_TIMEOUT : ANSWER_DIED;
}

/* Is the letter at `at` fit for a log line? C1 control characters hide in two bytes of UTF-8. */
static bool is_control(struct slice s, size_t at, size_t len)
{
    unsigned char c = (unsigned char)s.data[at];

    return len == 1 ? c < ' ' || c == 0x7F : c == 0xC2 && (unsigned char)s.data[at + 1] < 0xA0;
}

/* Adds the start of a body in quotes when it is text. Runs of blanks and control characters become one blank.
 */
static void quote_add(struct forward_answer *a, struct slice body)
{
    char text[QUOTE_MAX + 1];
    size_t n = 0, used = strlen(a->error);
    bool blank = true;

    if (body.len && memchr(body.data, '\0', body.len < QUOTE_MAX ? body.len : QUOTE_MAX))
        return;
    for (size_t at = 0, len; at < body.len && n < QUOTE_MAX; at += len) {
        len = slice_utf8_step(body, at);
        if (!len) {
            /* a letter that the cut went through is no sign of binary content */
            if (a->cut && body.len - at < 4 && at)
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
        snprintf(a->error + used, sizeof(a->error) - used, ": \"%s\"", text);
}

void exchange_answer(struct exchange *x, CURLcode code, struct forward_answer *a)
{
    a->ref = x->ref;
    a->kind = kind_of(x, code);
    a->status = 0;
    a->retry_after_ms = -1;
    a->body = (struct slice){NULL, 0};
    a->cut = false;
    a->error[0] = a->brief[0] = '\0';
    a->took_us = clock_us() - x->start_us;
    if (a->kind != ANSWER_STATUS) {
        transfer_text(a->error, sizeof(a->error), &x->w->target, x->easy, code, x->begun, x->error);
        snprintf(a->brief, sizeof(a->brief), "%.*s", (int)sizeof(a->brief) - 1, a->error);
        return;
    }
    a->status = x->status;
    a->retry_after_ms = x->retry_after_ms;
    a->cut = x->cut;
    a->body = buf_slice(&x->body);
    if (a->status < 200 || a->status >= 300) {
        snprintf(a->error, sizeof(a->error), "answered %d", a->status);
        snprintf(a->brief, sizeof(a->brief), "answered %d", a->status);
        quote_add(a, a->body);
    }
}

void exchange_reset(struct exchange *x)
{
    buf_reset(&x->body);
    if (x->body.cap > BUF_KEEP_MAX)
        buf_deinit(&x->body);
    if (x->lines.cap > BUF_KEEP_MAX * 2)
        buf_deinit(&x->lines);
}
