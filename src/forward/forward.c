/* The adapter as a whole: the requests that are out, those that wait for use, and the wait. One thread, but
 * for forward_wake.
 *
 * forward_wait only sleeps; forward_step does what epoll, libcurl's timer and the deadlines of the exchanges
 * ask for, and then hands out the answers one by one. Neither sleeps while an answer is left. */

#include "onceward/forward/forward.h"

#include "forward/exchange.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { REFUSED_WAIT_MS = 20 };

void forward_global_init(void)
{
    CURLcode code = curl_global_init(CURL_GLOBAL_ALL);

    assert(code == CURLE_OK);
    (void)code;
}

int forward_new(const struct config_queue *q, struct forward **ret, struct fault *f)
{
    struct forward *w = mem_zalloc(1, sizeof(*w));

    w->q = q;
    w->epoll = w->wakeup = -1;
    w->next_deadline_ms = w->multi_due_ms = w->connect_at_ms = INT64_MAX;
    list_init(&w->out);
    list_init(&w->idle);
    list_init(&w->waiting);
    list_init(&w->ended);
    list_init(&w->connecting);
    list_init(&w->idle_connectors);
    list_init(&w->connections);
    list_init(&w->idle_connections);
    list_init(&w->graveyard);
    if (target_init(&w->target, q->forward.url, q->forward.unix_socket, f) < 0 ||
        connections_init(w, f) < 0 || request_init(w, f) < 0) {
        forward_free(w);
        return -1;
    }
    *ret = w;
    return 0;
}

void forward_free(struct forward *w)
{
    if (!w)
        return;
    probe_deinit(w);
    connections_deinit(w);
    list_each(&w->out, k) exchange_free(container_of(k, struct exchange, link));
    list_each(&w->idle, k) exchange_free(container_of(k, struct exchange, link));
    request_deinit(w);
    target_deinit(&w->target);
    hash_deinit(&w->by_ref);
    buf_deinit(&w->answered);
    free(w->waits);
    free(w);
}

static struct exchange *find(const struct forward *w, uint64_t ref)
{
    for (struct hash_link *k = hash_first(&w->by_ref, hash_number(ref)); k; k = hash_next(k)) {
        struct exchange *x = container_of(k, struct exchange, by_ref);

        if (x->ref == ref)
            return x;
    }
    return NULL;
}

/* Back among the idle ones, of which no more are kept than can be out. */
static void retire(struct forward *w, struct exchange *x)
{
    if (w->idle.len >= (size_t)w->q->forward.concurrency) {
        exchange_free(x);
        return;
    }
    exchange_reset(x);
    list_push(&w->idle, &x->link);
}

static void take_out(struct forward *w, struct exchange *x)
{
    hash_remove(&w->by_ref, &x->by_ref);
    list_remove(&w->out, &x->link);
}

/* The one used last: its memory is warm. */
static struct exchange *idle_take(struct forward *w)
{
    struct exchange *x;

    if (!w->idle.len)
        return exchange_new(w);
    x = container_of(w->idle.head.prev, struct exchange, link);
    list_remove(&w->idle, &x->link);
    return x;
}

int forward_send(struct forward *w, const struct forward_request *r, struct fault *f)
{
    struct exchange *x;

    assert(!find(w, r->ref));
    request_refresh(w);
    x = idle_take(w);
    exchange_begin(x, r);
    request_write(w, &w->scratch, r->headers, r->body.len);
    x->head_len = w->scratch.len;
    list_push(&w->out, &x->link);
    hash_insert(&w->by_ref, &x->by_ref, hash_number(r->ref));
    if (x->deadline_ms < w->next_deadline_ms)
        w->next_deadline_ms = x->deadline_ms;
    if (r->fresh)
        connections_end_idle(w);
    if (connection_find(w, x, f) == 0)
        return 0;
    take_out(w, x);
    retire(w, x);
    return -1;
}

size_t forward_in_flight(const struct forward *w)
{
    return w->out.len;
}

void forward_end(struct exchange *x, enum ending ending)
{
    assert(x->ending == ENDING_NONE);
    x->ending = ending;
    x->end_us = clock_us();
    connection_drop(x);
    list_push(&x->w->ended, &x->queue);
}

void forward_hurry(struct exchange *x, int64_t within_ms)
{
    int64_t deadline_ms = clock_ms() + within_ms;

    if (x->deadline_ms > deadline_ms)
        x->deadline_ms = deadline_ms;
    if (x->w->next_deadline_ms > deadline_ms)
        x->w->next_deadline_ms = deadline_ms;
}

static void answer(struct forward *w, struct exchange *x, struct forward_answer *a)
{
    struct buf body = w->answered;

    list_remove(&w->ended, &x->queue);
    exchange_answer(x, a);
    take_out(w, x);
    w->answered = x->answer;
    x->answer = body;
    retire(w, x);
}

static void messages_read(struct forward *w)
{
    struct CURLMsg *msg;
    int n;

    while ((msg = curl_multi_info_read(w->multi, &n))) {
        struct connector *k = NULL;
        CURLcode result = msg->data.result;

        if (msg->msg != CURLMSG_DONE)
            continue;
        if (msg->easy_handle == w->probe.easy) {
            probe_done(w, result);
            continue;
        }
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &k);
        connector_done(w, k, result);
    }
}

static void multi_turn(struct forward *w, curl_socket_t fd, int what)
{
    int n;
    CURLMcode code = curl_multi_socket_action(w->multi, fd, what, &n);

    /* Errors of the whole multi handle are misuse or the end of memory; every connection would be in doubt.
     */
    assert(code == CURLM_OK);
    (void)code;
    messages_read(w);
}

static void event_take(struct forward *w, const struct epoll_event *e)
{
    uint64_t count;

    if (e->data.u64 & 1) {
        multi_turn(w, (curl_socket_t)(e->data.u64 >> 1),
                   (e->events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                       (e->events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                       (e->events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0));
    } else if (e->data.ptr) {
        connection_turn(e->data.ptr, e->events);
    } else if (read(w->wakeup, &count, sizeof(count)) < 0) {
        return; /* somebody else's wake was taken along */
    }
}

static void deadlines_check(struct forward *w)
{
    int64_t now_ms = clock_ms();

    if (now_ms < w->next_deadline_ms)
        return;
    w->next_deadline_ms = INT64_MAX;
    list_each(&w->out, k)
    {
        struct exchange *x = container_of(k, struct exchange, link);

        if (x->ending != ENDING_NONE)
            continue;
        int64_t due_ms = exchange_due_ms(x);

        if (now_ms >= due_ms)
            forward_end(x, ENDING_TIME);
        else if (due_ms < w->next_deadline_ms)
            w->next_deadline_ms = due_ms;
    }
}

/* What came is taken before a deadline is looked at: an answer that lies there when the process was stopped
 * for long, or was slow, is an answer. */
static void events_take(struct forward *w)
{
    struct epoll_event events[EVENTS_MAX];
    size_t most = w->connections.len + w->idle_connections.len + w->connecting.len;
    int n;

    do {
        n = epoll_wait(w->epoll, events, EVENTS_MAX, 0);
        for (int i = 0; i < n; i++)
            event_take(w, &events[i]);
        most -= most < EVENTS_MAX ? most : EVENTS_MAX;
    } while (n == EVENTS_MAX && most);
}

static void look(struct forward *w)
{
    events_take(w);
    if (clock_ms() >= w->multi_due_ms) {
        w->multi_due_ms = INT64_MAX;
        multi_turn(w, CURL_SOCKET_TIMEOUT, 0);
    }
    if (clock_ms() >= w->connect_at_ms)
        connections_try_again(w);
    deadlines_check(w);
    graveyard_empty(w);
}

int forward_step(struct forward *w, struct forward_answer *a)
{
    struct link *first;

    if (!w->undrained)
        look(w);
    first = list_first(&w->ended);
    w->undrained = first != NULL;
    if (!first)
        return 0;
    answer(w, container_of(first, struct exchange, queue), a);
    return 1;
}

void forward_abandon(struct forward *w, uint64_t ref)
{
    struct exchange *x = find(w, ref);

    if (!x)
        return;
    if (x->ending != ENDING_NONE)
        list_remove(&w->ended, &x->queue);
    else
        connection_drop(x);
    take_out(w, x);
    retire(w, x);
}

static int64_t earlier(int64_t timeout_ms, int64_t due_ms, int64_t now_ms)
{
    return due_ms - now_ms < timeout_ms ? due_ms - now_ms : timeout_ms;
}

void forward_wait(struct forward *w, struct pollfd *fds, size_t n, int64_t timeout_ms)
{
    int64_t now_ms = clock_ms();
    int n_ready;

    if (n + 1 > w->n_waits) {
        w->waits = mem_realloc(w->waits, (n + 1) * sizeof(*w->waits));
        w->n_waits = n + 1;
    }
    if (n)
        memcpy(w->waits, fds, n * sizeof(*fds));
    w->waits[n] = (struct pollfd){.fd = w->epoll, .events = POLLIN};
    timeout_ms = earlier(timeout_ms, w->next_deadline_ms, now_ms);
    timeout_ms = earlier(timeout_ms, w->multi_due_ms, now_ms);
    timeout_ms = earlier(timeout_ms, w->connect_at_ms, now_ms);
    if (timeout_ms < 0 || w->undrained || w->ended.len)
        timeout_ms = 0;
    n_ready = poll(w->waits, n + 1, timeout_ms > INT_MAX ? INT_MAX : (int)timeout_ms);
    for (size_t i = 0; i < n; i++)
        fds[i].revents = n_ready > 0 ? w->waits[i].revents : 0;
    if (n_ready < 0 && errno != EINTR) /* no memory for so many: not worse than a short nap */
        poll(NULL, 0, timeout_ms < REFUSED_WAIT_MS ? (int)timeout_ms : REFUSED_WAIT_MS);
}

void forward_wake(struct forward *w)
{
    uint64_t one = 1;

    if (write(w->wakeup, &one, sizeof(one)) < 0)
        return; /* full: it is awake already */
}
