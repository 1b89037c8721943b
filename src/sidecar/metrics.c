/* The metrics page over HTTP, if `metrics.listen` is set: see metrics_page.c and prometheus.h.
 *
 * A client cannot stall the loop: sockets are non-blocking, at most CONNECTIONS are open, at most
 * CONNECTIONS_A_SECOND are accepted, and each ends after CONNECTION_MS. The page is made at most once a
 * second for all clients. No message is involved; without an address there is no socket. */
#include "sidecar/prometheus.h"
#include "sidecar/sidecar.h"

#include "onceward/base/clock.h"
#include "onceward/base/ip_address.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CONNECTIONS = 8,
    CONNECTIONS_A_SECOND = 32,
    CONNECTION_MS = 5000,
    SEND_BYTES = 64 << 10, /* kept by the kernel for a client that does not read */
    PAGE_MS = 1000,
    LISTEN_AGAIN_MS = 5000,
};

struct connection {
    struct metrics *metrics;
    int fd; /* -1: free */
    struct watch watch;
    int64_t ends_ms;
    struct buf request, response; /* response is empty until the request is complete */
    size_t n_sent;
};

struct metrics {
    struct sidecar *sidecar;
    int fd; /* -1: not listening */
    struct watch watch;
    int64_t listen_at_ms;
    bool failed; /* failed, and logged */
    int64_t second_ms;
    int n_accepted; /* since the start of the second */
    struct buf page;
    int64_t page_ms; /* time of the page; 0: none yet */
    struct connection connections[CONNECTIONS];
};

/* --- a connection --- */

static void connection_close(struct connection *c)
{
    if (c->fd < 0)
        return;
    wait_remove(c->metrics->sidecar->wait, &c->watch);
    close(c->fd);
    c->fd = -1;
    buf_deinit(&c->request);
    buf_deinit(&c->response);
    c->request = c->response = (struct buf){0};
    c->n_sent = 0;
}

static void answer(struct connection *c, enum scrape scrape)
{
    struct metrics *m = c->metrics;
    int64_t now_ms = m->sidecar->now_ms;

    if (scrape == SCRAPE_PAGE && (!m->page_ms || now_ms - m->page_ms >= PAGE_MS)) {
        buf_reset(&m->page);
        metrics_page(m->sidecar, &m->page);
        m->page_ms = now_ms;
    }
    scrape_answer(scrape, buf_slice(&m->page), &c->response);
    wait_change(m->sidecar->wait, &c->watch, EPOLLOUT);
}

/* Reads at most once per turn. */
static void request_read(struct connection *c)
{
    size_t room = SCRAPE_MAX - c->request.len;
    ssize_t n = read(c->fd, buf_reserve(&c->request, room), room);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        connection_close(c);
        return;
    }
    c->request.len += (size_t)n;
    enum scrape scrape = scrape_judge(buf_slice(&c->request));
    if (scrape != SCRAPE_PARTIAL)
        answer(c, scrape);
}

/* Ends a response. Bytes behind the request are read before the close: closing with unread bytes resets the
 * connection, and the client may lose the response. */
static void response_end(struct connection *c)
{
    char rest[SCRAPE_MAX];

    shutdown(c->fd, SHUT_WR);
    if (read(c->fd, rest, sizeof(rest)) < 0 && errno != EAGAIN)
        errno = 0;
    connection_close(c);
}

static void response_write(struct connection *c)
{
    ssize_t n =
        send(c->fd, c->response.data + c->n_sent, c->response.len - c->n_sent, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0) {
        connection_close(c);
        return;
    }
    c->n_sent += (size_t)n;
    if (c->n_sent == c->response.len)
        response_end(c);
}

static void connection_ready(void *owner, uint32_t events)
{
    struct connection *c = owner;

    c->metrics->sidecar->now_ms = clock_ms();
    if (c->response.len)
        response_write(c);
    else if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        request_read(c);
}

/* --- the listener --- */

static struct connection *free_connection(struct metrics *m)
{
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (m->connections[i].fd < 0)
            return &m->connections[i];
    return NULL;
}

static bool may_accept(struct metrics *m)
{
    return m->n_accepted < CONNECTIONS_A_SECOND && free_connection(m);
}

static void failed(struct metrics *m, const char *doing)
{
    const struct sidecar *s = m->sidecar;
    struct log_line l;
    int error = errno;

    if (!m->failed) {
        log_begin(&l, EVENT_METRICS_FAILED, NULL);
        log_text(&l, "address", s->config->metrics.listen);
        log_text(&l, "during", doing);
        log_text(&l, "reason", strerror(error));
        log_end(&l);
    }
    m->failed = true;
    m->listen_at_ms = s->now_ms + LISTEN_AGAIN_MS;
}

static void stop_listening(struct metrics *m)
{
    if (m->fd < 0)
        return;
    wait_remove(m->sidecar->wait, &m->watch);
    close(m->fd);
    m->fd = -1;
}

static void accept_one(struct metrics *m, struct connection *c)
{
    struct sidecar *s = m->sidecar;
    struct fault f = {0};
    int fd = accept4(m->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
            return;
        failed(m, "accept"); /* out of descriptors or memory: a listener that stays ready would spin */
        stop_listening(m);
        return;
    }
    int most = SEND_BYTES;

    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof(most)); /* a refusal leaves the system's default */
    m->n_accepted++;
    c->fd = fd;
    c->ends_ms = s->now_ms + CONNECTION_MS;
    if (wait_add(s->wait, &c->watch, fd, EPOLLIN, connection_ready, c, &f))
        connection_close(c);
}

/* Accepts one connection per turn; others stay in the kernel's queue. */
static void listener_ready(void *owner, uint32_t events)
{
    struct metrics *m = owner;

    (void)events;
    m->sidecar->now_ms = clock_ms();
    if (may_accept(m))
        accept_one(m, free_connection(m));
    if (!may_accept(m))
        wait_change(m->sidecar->wait, &m->watch, 0);
}

static int listen_on(const struct ip_address *address)
{
    int one = 1, fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) &&
        !bind(fd, (const struct sockaddr *)&address->storage, address->len) && !listen(fd, CONNECTIONS))
        return fd;
    int error = errno;

    close(fd);
    errno = error;
    return -1;
}

/* Listens. An address in use is tried again, because a sidecar that is ending may still have it. */
static void start_listening(struct metrics *m)
{
    struct sidecar *s = m->sidecar;
    struct ip_address address;
    struct fault f = {0};

    if (!ip_address_parse(s->config->metrics.listen, &address))
        return;
    m->fd = listen_on(&address);
    if (m->fd < 0) {
        failed(m, "listen");
        return;
    }
    if (wait_add(s->wait, &m->watch, m->fd, EPOLLIN, listener_ready, m, &f)) {
        failed(m, "watch");
        stop_listening(m);
        return;
    }
    m->failed = false;
}

/* --- for the loop --- */

void metrics_begin(struct sidecar *s)
{
    struct metrics *m;

    if (!s->config->metrics.listen)
        return;
    m = mem_zalloc(1, sizeof(*m));
    *m = (struct metrics){.sidecar = s, .fd = -1};
    for (size_t i = 0; i < CONNECTIONS; i++)
        m->connections[i] = (struct connection){.metrics = m, .fd = -1};
    s->metrics = m;
    start_listening(m);
}

void metrics_step(struct sidecar *s)
{
    struct metrics *m = s->metrics;

    if (!m)
        return;
    for (size_t i = 0; i < CONNECTIONS; i++)
        if (m->connections[i].fd >= 0 && s->now_ms >= m->connections[i].ends_ms)
            connection_close(&m->connections[i]);
    if (s->now_ms - m->second_ms >= 1000) {
        m->second_ms = s->now_ms;
        m->n_accepted = 0;
    }
    if (m->fd < 0 && s->now_ms >= m->listen_at_ms)
        start_listening(m);
    if (m->fd >= 0 && may_accept(m))
        wait_change(s->wait, &m->watch, EPOLLIN);
}

void metrics_free(struct sidecar *s)
{
    struct metrics *m = s->metrics;

    if (!m)
        return;
    for (size_t i = 0; i < CONNECTIONS; i++)
        connection_close(&m->connections[i]);
    stop_listening(m);
    buf_deinit(&m->page);
    free(m);
    s->metrics = NULL;
}
