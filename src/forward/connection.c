/* Connections to the application: reading, writing, and which exchange each carries.
 *
 * A request is never sent twice: once a single byte of it was taken, an exchange has seen its only
 * connection. It goes to another one only when the kept connection that it was given turns out to be closed
 * before that. */

#include "forward/exchange.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- a connection and what epoll watches it for ---- */

static void events_set(struct connection *c, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = c};

    if (c->events == events)
        return;
    /* A change of what is watched takes no memory, so it does not fail. */
    epoll_ctl(c->w->epoll, EPOLL_CTL_MOD, c->fd, &e);
    c->events = events;
}

/* TLS has things to say on a connection at rest, so there only its end counts. */
uint32_t connection_events_idle(const struct connection *c)
{
    return c->tls ? EPOLLRDHUP : EPOLLIN | EPOLLRDHUP;
}

static void events_busy(struct connection *c)
{
    const struct exchange *x = c->x;
    bool reads = !reply_has_ended(&x->reply), writes = !exchange_is_sent(x) && !x->early;

    events_set(c, (reads ? EPOLLIN | EPOLLRDHUP : 0) | (writes ? EPOLLOUT : 0));
}

/* Closed connections stay until the events at hand were gone through: some may speak of them. */
void connection_end(struct connection *c)
{
    struct forward *w = c->w;

    list_remove(c->x ? &w->connections : &w->idle_connections, &c->link);
    if (c->x)
        c->x->c = NULL;
    c->x = NULL;
    epoll_ctl(w->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    if (c->tls)
        connector_free(c->tls);
    else
        close(c->fd);
    c->tls = NULL;
    c->fd = -1;
    list_push(&w->graveyard, &c->link);
}

void connections_end_idle(struct forward *w)
{
    list_each(&w->idle_connections, k) connection_end(container_of(k, struct connection, link));
}

void graveyard_empty(struct forward *w)
{
    list_each(&w->graveyard, k) free(container_of(k, struct connection, link));
    list_init(&w->graveyard);
}

/* The socket says nothing about what is decrypted already. */
static bool tls_has_more(struct connection *c)
{
    char byte;
    size_t n = 0;

    return curl_easy_recv(c->tls->easy, &byte, 1, &n) != CURLE_AGAIN;
}

/* Was it closed, or did it say something unasked, since its last exchange? That would be taken for the next
 * answer. Over TLS not all that comes is for us: session tickets, for one. */
static bool is_stale(struct connection *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN | POLLRDHUP};

    if (clock_us() - c->idle_us > IDLE_MAX_MS * 1000)
        return true;
    if (poll(&p, 1, 0) <= 0)
        return false;
    return !c->tls || (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) || tls_has_more(c);
}

static void carry(struct connection *c, struct exchange *x);

/* A connection without an exchange: to the first that waits for one, or among the idle ones. */
void connection_offer(struct connection *c)
{
    struct forward *w = c->w;
    struct link *first = list_first(&w->waiting);

    list_push(&w->idle_connections, &c->link);
    c->idle_us = clock_us();
    if (!first) {
        events_set(c, connection_events_idle(c));
        return;
    }
    if (c->was_used && is_stale(c)) {
        connection_end(c);
        return;
    }
    list_remove(&w->waiting, first);
    carry(c, container_of(first, struct exchange, queue));
}

/* ---- reading and writing ---- */

enum { IO_AGAIN = -1, IO_FAILED = -2 };

static void error_set(struct exchange *x, const char *text, bool reset)
{
    snprintf(x->error, sizeof(x->error), "%s", text);
    x->reset = reset;
}

/* How many bytes more were taken, or IO_. */
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

/* Head and body in one piece where that is small, so that it becomes one record. */
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

/* Writes what the socket takes. False: it broke. */
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

/* Reads what is there. Whatever ends the exchange leaves the connection closed, but for a whole reply to a
 * request that was sent whole: then it is free for the next one. */
static void receive_all(struct connection *c)
{
    struct forward *w = c->w;
    struct exchange *x = c->x;
    enum ending ending = ENDING_NONE;
    size_t used;
    ssize_t n = 0;

    while (ending == ENDING_NONE && !reply_has_ended(&x->reply)) {
        n = c->tls ? tls_receive(c, w->received, sizeof(w->received))
                   : plain_receive(c, w->received, sizeof(w->received));
        if (n == IO_AGAIN)
            break;
        if (n == 0)
            reply_close(&x->reply);
        ending = n > 0 ? exchange_receive(x, w->received, (size_t)n, &used)
                 : n == 0 && x->reply.state == REPLY_WHOLE ? ENDING_REPLY
                 : n == 0                                  ? ENDING_CLOSED
                                                           : ENDING_RECEIVE;
        if (n > 0 && (used < (size_t)n || (c->tls && ending == ENDING_REPLY && tls_has_more(c))))
            x->reply.keep = false; /* bytes that nobody asked for */
        /* A plain socket that gave less than there was room for is empty. */
        if (!c->tls && n > 0 && (size_t)n < sizeof(w->received))
            break;
    }
    if (ending != ENDING_NONE) {
        forward_end(x, ending);
        return;
    }
    if (x->reply.final && (x->early || reply_has_ended(&x->reply)))
        forward_hurry(x, LINGER_MS);
    events_busy(c);
}

/* The request cannot be sent to its end. The other side may have said why before it closed. */
static void send_broke(struct connection *c)
{
    struct exchange *x = c->x;
    char error[sizeof(x->error)];

    memcpy(error, x->error, sizeof(error));
    if (reply_has_ended(&x->reply)) {
        forward_end(x, ENDING_REPLY);
        return;
    }
    receive_all(c);
    if (x->ending != ENDING_NONE && x->ending != ENDING_RECEIVE && x->ending != ENDING_CLOSED)
        return;
    if (x->ending == ENDING_NONE)
        forward_end(x, ENDING_SEND);
    else if (!x->reply.begun)
        x->ending = ENDING_SEND;
    memcpy(x->error, error, sizeof(error));
}

/* ---- exchange and connection ---- */

/* The kept connection was closed before it took a byte: not the request's fault, and nobody has seen it. */
static void find_again(struct connection *c, struct exchange *x)
{
    struct fault f = {0};

    connection_end(c);
    x->error[0] = '\0';
    if (connection_find(x->w, x, &f) == 0)
        return;
    snprintf(x->error, sizeof(x->error), "%.*s", (int)sizeof(x->error) - 1, f.text);
    forward_end(x, ENDING_CONNECT);
}

/* An idle connection gets an exchange, and sends what it can. The head is in w->scratch or, when it had to
 * wait, in x->request. */
static void carry(struct connection *c, struct exchange *x)
{
    struct forward *w = c->w;
    int64_t now_ms = clock_ms();
    struct slice head;

    list_remove(&w->idle_connections, &c->link);
    list_push(&w->connections, &c->link);
    c->x = x;
    x->c = c;
    /* The process may have been stopped meanwhile. What nobody waits for is not sent. */
    if (now_ms >= x->deadline_ms || (x->send_by_ms && now_ms >= x->send_by_ms)) {
        forward_end(x, ENDING_TIME);
        return;
    }
    if (c->tls && !x->request.len) /* where the body joins it */
        buf_add_slice(&x->request, buf_slice(&w->scratch));
    head = x->request.len ? buf_slice(&x->request) : buf_slice(&w->scratch);
    x->offered = true;
    if (!send_all(c, head)) {
        if (c->was_used && exchange_is_unsent(x))
            find_again(c, x);
        else
            send_broke(c);
        return;
    }
    if (!exchange_is_sent(x) && !x->request.len)
        buf_add_slice(&x->request, head);
    events_busy(c);
}

int connection_find(struct forward *w, struct exchange *x, struct fault *f)
{
    while (w->idle_connections.len) {
        /* the one used last: the others may grow old */
        struct connection *c = container_of(w->idle_connections.head.prev, struct connection, link);

        if (!is_stale(c)) {
            carry(c, x);
            return 0;
        }
        connection_end(c);
    }
    if (w->connecting.len <= w->waiting.len && connector_start(w, f) < 0)
        return -1;
    if (!x->request.len)
        buf_add_slice(&x->request, buf_slice(&w->scratch));
    list_push(&w->waiting, &x->queue);
    if (exchange_due_ms(x) < w->next_deadline_ms)
        w->next_deadline_ms = exchange_due_ms(x);
    return 0;
}

/* May the next request go over it? */
static bool is_free(const struct connection *c)
{
    const struct forward *w = c->w;
    const struct exchange *x = c->x;

    return x->ending == ENDING_REPLY && x->reply.state == REPLY_WHOLE && x->reply.keep && !x->early &&
           exchange_is_sent(x) &&
           w->connections.len + w->idle_connections.len <= (size_t)w->q->forward.concurrency;
}

void connection_drop(struct exchange *x)
{
    struct connection *c = x->c;

    if (!c) {
        if (x->queue.next)
            list_remove(&x->w->waiting, &x->queue);
        return;
    }
    if (!is_free(c)) {
        connection_end(c);
        return;
    }
    list_remove(&c->w->connections, &c->link);
    c->x = NULL;
    c->was_used = true;
    x->c = NULL;
    connection_offer(c);
}

static void send_more(struct connection *c)
{
    struct exchange *x = c->x;

    if (!send_all(c, buf_slice(&x->request)))
        send_broke(c);
    else if (exchange_is_sent(x) && reply_has_ended(&x->reply))
        forward_end(x, ENDING_REPLY);
    else
        events_busy(c);
}

void connection_turn(struct connection *c, uint32_t events)
{
    struct exchange *x = c->x;

    if (c->fd < 0)
        return;
    if (!x) {
        connection_end(c);
        return;
    }
    if ((events & ~(uint32_t)EPOLLOUT) && !reply_has_ended(&x->reply))
        receive_all(c);
    if (c->fd >= 0 && c->x == x && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) && !exchange_is_sent(x) &&
        !x->early)
        send_more(c);
}
