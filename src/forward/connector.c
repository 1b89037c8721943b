/* Making connections: by libcurl, which resolves names, connects, does TLS and knows Unix sockets. A plain
 * one is taken out of its hands as a bare socket; one with TLS stays with the handle that made it.
 *
 * An exchange that waits gets the first connection that is there, whoever asked for it. While no
 * connect_at_ms is set, there are at least as many connectors connecting as exchanges waiting. */

#include "forward/exchange.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { IDLE_CONNECTORS_MAX = 2 };

static int socket_close(void *p, curl_socket_t fd)
{
    struct connector *k = p;

    return fd == k->taken ? 0 : close(fd);
}

void connector_free(struct connector *k)
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

int connector_start(struct forward *w, struct fault *f)
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
    c->events = connection_events_idle(c);
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
    list_each(&w->connections, k) connection_end(container_of(k, struct connection, link));
    list_each(&w->idle_connections, k) connection_end(container_of(k, struct connection, link));
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
