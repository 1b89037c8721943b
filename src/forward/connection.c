/* Connections to the application: made by libcurl (name resolution, connect, TLS, Unix socket), then read and
 * written here. A plain one is taken out of libcurl's hands as a bare socket; one with TLS is read and
 * written through the handle that made it.
 *
 * A request is never sent twice: once a single byte of it was taken, an exchange has seen its only
 * connection. It goes to another one only when the kept connection that it was given turns out to be closed
 * before that. */

#include "forward/exchange.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { IDLE_CONNECTORS_MAX = 2 };

/* ---- making connections ---- */

static int socket_close(void *p, curl_socket_t fd)
{
    struct connector *k = p;

    return fd == k->taken ? 0 : close(fd);
}

static void connector_free(struct connector *k)
{
    if (k->easy) {
        curl_multi_remove_handle(k->w->multi, k->easy);
        curl_easy_cleanup(k->easy);
    }
    free(k);
}

static struct connector *connector_new(struct forward *w, struct fault *f)
{
    struct connector *k = mem_zalloc(1, sizeof(*k));
    bool bad = false;

    k->w = w;
    k->taken = -1;
    k->easy = curl_easy_init();
    if (!k->easy) {
        fault_set(f, "libcurl gives no handle");
    } else if (transfer_setup(k->easy, &w->target, &w->q->forward, k->error, f) == 0) {
        bad |= curl_easy_setopt(k->easy, CURLOPT_CONNECT_ONLY, 1L) != CURLE_OK;
        bad |= curl_easy_setopt(k->easy, CURLOPT_FRESH_CONNECT, 1L) != CURLE_OK;
        bad |= curl_easy_setopt(k->easy, CURLOPT_CLOSESOCKETFUNCTION, socket_close) != CURLE_OK;
        bad |= curl_easy_setopt(k->easy, CURLOPT_CLOSESOCKETDATA, k) != CURLE_OK;
        bad |= curl_easy_setopt(k->easy, CURLOPT_PRIVATE, k) != CURLE_OK;
        if (!bad)
            return k;
        fault_set(f, "libcurl refuses an option it must have");
    }
    connector_free(k);
    return NULL;
}

static int connector_start(struct forward *w, struct fault *f)
{
    struct link *idle = list_first(&w->idle_connectors);
    struct connector *k = idle ? container_of(idle, struct connector, link) : connector_new(w, f);
    CURLMcode code;

    if (!k)
        return -1;
    if (idle)
        list_remove(&w->idle_connectors, idle);
    k->taken = -1;
    k->error[0] = '\0';
    code = curl_multi_add_handle(w->multi, k->easy);
    if (code != CURLM_OK) {
        connector_free(k);
        return fault_set(f, "libcurl makes no further connection: %s", curl_multi_strerror(code));
    }
    list_push(&w->connecting, &k->link);
    return 0;
}

static void connector_retire(struct connector *k)
{
    struct forward *w = k->w;

    curl_multi_remove_handle(w->multi, k->easy);
    if (w->idle_connectors.len < IDLE_CONNECTORS_MAX)
        list_push(&w->idle_connectors, &k->link);
    else
        connector_free(k);
}

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
static uint32_t events_idle(const struct connection *c)
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
static void connection_close(struct connection *c)
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
static void connection_offer(struct connection *c)
{
    struct forward *w = c->w;
    struct link *first = list_first(&w->waiting);

    list_push(&w->idle_connections, &c->link);
    c->idle_us = clock_us();
    if (!first) {
        events_set(c, events_idle(c));
        return;
    }
    if (c->was_used && is_stale(c)) {
        connection_close(c);
        return;
    }
    list_remove(&w->waiting, first);
    carry(c, container_of(first, struct exchange, queue));
}

/* The connector's connection as our own. -1: k->error says why not. */
static int connection_take(struct connector *k)
{
    struct forward *w = k->w;
    struct connection *c;
    struct epoll_event e;
    curl_socket_t fd = CURL_SOCKET_BAD;

    if (curl_easy_getinfo(k->easy, CURLINFO_ACTIVESOCKET, &fd) != CURLE_OK || fd == CURL_SOCKET_BAD) {
        snprintf(k->error, sizeof(k->error), "libcurl has lost the connection");
        return -1;
    }
    if (!w->target.tls) {
        k->taken = fd;
        curl_multi_remove_handle(w->multi, k->easy);
    }
    c = mem_zalloc(1, sizeof(*c));
    c->w = w;
    c->fd = fd;
    c->tls = w->target.tls ? k : NULL;
    c->events = events_idle(c);
    e = (struct epoll_event){.events = c->events, .data.ptr = c};
    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e) < 0) {
        snprintf(k->error, sizeof(k->error), "epoll: %s", strerror(errno));
        if (!c->tls)
            close(fd);
        free(c);
        return -1;
    }
    if (!c->tls)
        connector_retire(k);
    connection_offer(c);
    return 0;
}

/* A Unix socket takes no more connections at once than its backlog has room for, and says no to the others.
 * While the application has others of ours, it lives. */
static bool is_crowded(const struct forward *w, CURL *easy, CURLcode code)
{
    long os_errno = 0;

    if (!w->target.unix_socket || code != CURLE_COULDNT_CONNECT || !(w->connections.len || w->connecting.len))
        return false;
    curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &os_errno);
    return os_errno != ECONNREFUSED && os_errno != ENOENT && os_errno != EACCES;
}

void connections_try_again(struct forward *w)
{
    struct fault f = {0};

    w->connect_at_ms = INT64_MAX;
    while (w->connecting.len < w->waiting.len) {
        struct link *first = list_first(&w->waiting);

        if (connector_start(w, &f) == 0)
            continue;
        struct exchange *x = container_of(first, struct exchange, queue);

        snprintf(x->error, sizeof(x->error), "%.*s", (int)sizeof(x->error) - 1, f.text);
        forward_end(x, ENDING_CONNECT);
    }
}

void connector_done(struct forward *w, struct connector *k, CURLcode code)
{
    struct link *first;

    list_remove(&w->connecting, &k->link);
    if (code == CURLE_OK && connection_take(k) == 0)
        return;
    first = list_first(&w->waiting);
    if (first && is_crowded(w, k->easy, code)) {
        if (w->connect_at_ms == INT64_MAX)
            w->connect_at_ms = clock_ms() + CONNECT_AGAIN_MS;
    } else if (first) {
        struct exchange *x = container_of(first, struct exchange, queue);

        connect_text(x->error, sizeof(x->error), &w->target, k->easy, code, k->error);
        forward_end(x, ENDING_CONNECT);
    }
    connector_retire(k);
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

    connection_close(c);
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
        connection_close(c);
    }
    if (w->connecting.len <= w->waiting.len && connector_start(w, f) < 0)
        return -1;
    if (!x->request.len)
        buf_add_slice(&x->request, buf_slice(&w->scratch));
    list_push(&w->waiting, &x->queue);
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
        connection_close(c);
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
        connection_close(c);
        return;
    }
    if ((events & ~(uint32_t)EPOLLOUT) && !reply_has_ended(&x->reply))
        receive_all(c);
    if (c->fd >= 0 && c->x == x && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) && !exchange_is_sent(x) &&
        !x->early)
        send_more(c);
}

/* ---- all of them ---- */

/* What libcurl wants to know of its sockets. They are told from connections by the lowest bit. */
static int socket_watch(CURL *easy, curl_socket_t fd, int what, void *p, void *known)
{
    struct forward *w = p;
    struct epoll_event e = {.data.u64 = (uint64_t)fd << 1 | 1};

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (known)
            epoll_ctl(w->epoll, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    e.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    if (known ? epoll_ctl(w->epoll, EPOLL_CTL_MOD, fd, &e) : epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e))
        return 0; /* unwatched, it ends at its time */
    curl_multi_assign(w->multi, fd, w);
    return 0;
}

static int timer_set(CURLM *multi, long timeout_ms, void *p)
{
    struct forward *w = p;

    (void)multi;
    w->multi_due_ms = timeout_ms < 0 ? INT64_MAX : clock_ms() + timeout_ms;
    return 0;
}

int connections_init(struct forward *w, struct fault *f)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
    struct connector *k;
    bool bad = false;

    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->epoll < 0 || w->wakeup < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->wakeup, &e) < 0)
        return fault_set(f, "epoll: %s", strerror(errno));
    w->multi = curl_multi_init();
    if (!w->multi)
        return fault_set(f, "libcurl gives no multi handle");
    bad |= curl_multi_setopt(w->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING) != CURLM_OK;
    bad |= curl_multi_setopt(w->multi, CURLMOPT_SOCKETFUNCTION, socket_watch) != CURLM_OK;
    bad |= curl_multi_setopt(w->multi, CURLMOPT_SOCKETDATA, w) != CURLM_OK;
    bad |= curl_multi_setopt(w->multi, CURLMOPT_TIMERFUNCTION, timer_set) != CURLM_OK;
    bad |= curl_multi_setopt(w->multi, CURLMOPT_TIMERDATA, w) != CURLM_OK;
    if (bad)
        return fault_set(f, "libcurl refuses an option of the multi handle");
    /* The first connector shows whether libcurl takes all options, while somebody can still be told. */
    k = connector_new(w, f);
    if (!k)
        return -1;
    list_push(&w->idle_connectors, &k->link);
    return 0;
}

void connections_deinit(struct forward *w)
{
    list_each(&w->connections, k) connection_close(container_of(k, struct connection, link));
    list_each(&w->idle_connections, k) connection_close(container_of(k, struct connection, link));
    graveyard_empty(w);
    list_each(&w->connecting, k) connector_free(container_of(k, struct connector, link));
    list_each(&w->idle_connectors, k) connector_free(container_of(k, struct connector, link));
    if (w->multi)
        curl_multi_cleanup(w->multi);
    if (w->wakeup >= 0)
        close(w->wakeup);
    if (w->epoll >= 0)
        close(w->epoll);
}
