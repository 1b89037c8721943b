/* Connections to the application: reading, writing, and the exchange of each.
 *
 * A request is never sent twice. Once the kernel took a single byte of it, its exchange never gets another connection.
 * Another one replaces a kept connection only if that turns out to have been closed before it took a byte. */

#include "forward/connection.h"

#include "forward/connector.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    IDLE_MAX_MS = 3000, /* below 5 s, after which common servers close an idle connection */
    RECEIVE_SIZE = 16 * 1024,
    LINGER_MS = 1000, /* for the rest of a request or an error text, once the answer is known */
};

/* Over TLS an idle connection may receive records, so only its end counts there. */
static uint32_t events_idle(const struct connection *c)
{
    return c->tls ? EPOLLRDHUP : EPOLLIN | EPOLLRDHUP;
}

static void events_busy(struct connection *c)
{
    const struct exchange *x = c->x;
    bool reads = !reply_has_ended(&x->reply), writes = !exchange_is_sent(x) && !x->early;

    wait_change(c->wait, &c->watch, (reads ? EPOLLIN | EPOLLRDHUP : 0u) | (writes ? EPOLLOUT : 0u));
}

struct connection *connection_new(struct wait *wait, struct application *application, int fd,
                                  struct connector *tls, wait_ready *ready, struct fault *f)
{
    struct connection *c = mem_zalloc(1, sizeof(*c));

    c->wait = wait;
    c->application = application;
    c->fd = fd;
    c->tls = tls;
    c->idle_ms = clock_ms();
    if (wait_add(wait, &c->watch, fd, events_idle(c), ready, c, f) == 0)
        return c;
    connection_free(c);
    return NULL;
}

void connection_free(struct connection *c)
{
    wait_remove(c->wait, &c->watch);
    if (c->tls)
        connector_free(c->tls);
    else
        close(c->fd);
    free(c);
}

/* poll does not see bytes that TLS has decrypted already. */
static bool tls_has_more(struct connection *c)
{
    char byte;
    size_t n = 0;

    return curl_easy_recv(c->tls->easy, &byte, 1, &n) != CURLE_AGAIN;
}

int64_t connection_stale_ms(const struct connection *c)
{
    return c->idle_ms + IDLE_MAX_MS;
}

/* Was the connection closed, or did it send bytes unasked, since its last exchange? Such bytes would be taken
 * for the next answer. Over TLS some bytes are not part of an answer: session tickets, for example. */
bool connection_is_stale(struct connection *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN | POLLRDHUP};

    if (clock_ms() > connection_stale_ms(c))
        return true;
    if (poll(&p, 1, 0) <= 0)
        return false;
    return !c->tls || (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) || tls_has_more(c);
}

/* ---- reading and writing ---- */

enum { IO_AGAIN = -1, IO_FAILED = -2 };

static void error_set(struct exchange *x, const char *text, bool reset)
{
    snprintf(x->error, sizeof(x->error), "%s", text);
    x->reset = reset;
}

/* Returns the number of bytes taken, or IO_. */
static ssize_t tls_send(struct connection *c, const char *data, size_t len)
{
    size_t n = 0;
    CURLcode code = curl_easy_send(c->tls->easy, data, len, &n);

    if (code == CURLE_OK)
        return (ssize_t)n;
    if (code == CURLE_AGAIN)
        return IO_AGAIN;
    error_set(c->x, c->tls->error[0] ? c->tls->error : curl_easy_strerror(code), false);
    return IO_FAILED;
}

static ssize_t plain_send(struct connection *c, struct iovec *parts, size_t n_parts)
{
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = n_parts};
    ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n >= 0)
        return n;
    if (errno == EAGAIN || errno == EINTR)
        return IO_AGAIN;
    error_set(c->x, strerror(errno), false);
    return IO_FAILED;
}

/* Sends head and body together when they are small, so that they become one record. */
static ssize_t tls_send_some(struct connection *c, struct slice head, struct slice body)
{
    struct exchange *x = c->x;

    if (!x->sent && body.len && head.len + body.len <= TLS_RECORD_SAFE) {
        buf_add_slice(&x->request, body);
        x->head_len += body.len;
        x->body.len = 0;
        return tls_send(c, x->request.data, x->request.len);
    }
    return head.len ? tls_send(c, head.data, head.len) : tls_send(c, body.data, body.len);
}

/* Writes as much as the socket takes. False: writing failed. */
static bool send_all(struct connection *c, struct slice whole_head)
{
    struct exchange *x = c->x;

    while (!exchange_is_sent(x)) {
        size_t of_head = x->sent < x->head_len ? x->sent : x->head_len, of_body = x->sent - of_head;
        const char *start = c->tls ? x->request.data : whole_head.data;
        struct slice head = {start + of_head, x->head_len - of_head};
        struct slice body = {x->body.data + of_body, x->body.len - of_body};
        struct iovec parts[2] = {{(void *)head.data, head.len}, {(void *)body.data, body.len}};
        ssize_t n = c->tls ? tls_send_some(c, head, body)
                           : plain_send(c, parts + !head.len, (size_t)(head.len != 0) + (body.len != 0));

        if (n == IO_FAILED)
            return false;
        if (n == IO_AGAIN)
            return true;
        x->sent += (size_t)n;
    }
    return true;
}

static ssize_t tls_receive(struct connection *c, char *data, size_t size)
{
    size_t n = 0;
    CURLcode code = curl_easy_recv(c->tls->easy, data, size, &n);
    const char *said = c->tls->error[0] ? c->tls->error : curl_easy_strerror(code);

    if (code == CURLE_OK)
        return (ssize_t)n;
    if (code == CURLE_AGAIN)
        return IO_AGAIN;
    error_set(c->x, said, strstr(said, strerror(ECONNRESET)) != NULL);
    c->x->certificate = strstr(said, "alert") && (strstr(said, "certificate") || strstr(said, "unknown ca"));
    return IO_FAILED;
}

static ssize_t plain_receive(struct connection *c, char *data, size_t size)
{
    ssize_t n = recv(c->fd, data, size, MSG_DONTWAIT);

    if (n >= 0)
        return n;
    if (errno == EAGAIN || errno == EINTR)
        return IO_AGAIN;
    error_set(c->x, strerror(errno), errno == ECONNRESET || errno == EPIPE);
    return IO_FAILED;
}

/* Reads the available bytes. */
static enum ending receive_all(struct connection *c)
{
    struct exchange *x = c->x;
    char received[RECEIVE_SIZE];
    enum ending ending = ENDING_NONE;
    size_t used;
    ssize_t n = 0;

    while (ending == ENDING_NONE && !reply_has_ended(&x->reply)) {
        n = c->tls ? tls_receive(c, received, sizeof(received))
                   : plain_receive(c, received, sizeof(received));
        if (n == IO_AGAIN)
            break;
        if (n == 0)
            reply_close(&x->reply);
        ending = n > 0                                     ? exchange_receive(x, received, (size_t)n, &used)
                 : n == 0 && x->reply.state == REPLY_WHOLE ? ENDING_REPLY
                 : n == 0                                  ? ENDING_CLOSED
                                                           : ENDING_RECEIVE;
        if (n > 0 && (used < (size_t)n || (c->tls && ending == ENDING_REPLY && tls_has_more(c))))
            x->reply.keep = false; /* bytes follow the end of the answer */
        /* A plain socket that gave less than there was room for is empty. */
        if (!c->tls && n > 0 && (size_t)n < sizeof(received))
            break;
    }
    if (ending != ENDING_NONE)
        return ending;
    if (x->reply.final && (x->early || reply_has_ended(&x->reply)))
        exchange_hurry(x, LINGER_MS);
    events_busy(c);
    return ENDING_NONE;
}

/* The rest of the request cannot be sent. The application may have sent its reason before it closed. */
static enum ending send_broke(struct connection *c)
{
    struct exchange *x = c->x;
    char error[sizeof(x->error)];
    enum ending ending;

    if (reply_has_ended(&x->reply))
        return ENDING_REPLY;
    memcpy(error, x->error, sizeof(error));
    ending = receive_all(c);
    if ((ending != ENDING_NONE && ending != ENDING_RECEIVE && ending != ENDING_CLOSED) || x->certificate)
        return ending;
    memcpy(x->error, error, sizeof(error));
    return ending == ENDING_NONE || !x->reply.begun ? ENDING_SEND : ending;
}

/* The process may have been stopped meanwhile, so a request whose time is over is not sent. */
enum ending connection_carry(struct connection *c, struct exchange *x, struct slice head)
{
    int64_t now_ms = clock_ms();

    c->x = x;
    x->c = c;
    if (now_ms >= x->deadline_ms || (x->send_by_ms && now_ms >= x->send_by_ms))
        return ENDING_TIME;
    if (c->tls && !x->request.len) { /* a small body is joined to the head */
        buf_add_slice(&x->request, head);
        head = buf_slice(&x->request);
    }
    x->offered = true;
    x->reused = c->was_used;
    if (!send_all(c, head))
        return c->was_used && exchange_is_unsent(x) ? ENDING_STALE : send_broke(c);
    if (!exchange_is_sent(x) && !x->request.len)
        buf_add_slice(&x->request, head);
    events_busy(c);
    return ENDING_NONE;
}

static enum ending send_more(struct connection *c)
{
    struct exchange *x = c->x;

    if (!send_all(c, buf_slice(&x->request)))
        return send_broke(c);
    if (exchange_is_sent(x) && reply_has_ended(&x->reply))
        return ENDING_REPLY;
    events_busy(c);
    return ENDING_NONE;
}

enum ending connection_turn(struct connection *c, uint32_t events)
{
    struct exchange *x = c->x;
    enum ending ending = ENDING_NONE;

    if ((events & ~(uint32_t)EPOLLOUT) && !reply_has_ended(&x->reply))
        ending = receive_all(c);
    if (ending == ENDING_NONE && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) && !exchange_is_sent(x) &&
        !x->early)
        ending = send_more(c);
    return ending;
}

void connection_rest(struct connection *c)
{
    c->x = NULL;
    c->was_used = true;
    c->idle_ms = clock_ms();
    wait_change(c->wait, &c->watch, events_idle(c));
}
