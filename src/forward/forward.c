/* The adapter as a whole: the multi handle, the requests that are out and those that wait for use, and the
 * wait. One thread, but for forward_wake.
 *
 * An exchange is in exactly one of the two lists; it is in by_ref exactly while it is out. libcurl does not
 * announce a finished transfer to the wait, so forward_wait does not sleep until forward_step has answered 0.
 */

#include "onceward/forward/forward.h"

#include "forward/exchange.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>

enum { REFUSED_WAIT_MS = 20 };

void forward_global_init(void)
{
    CURLcode code = curl_global_init(CURL_GLOBAL_ALL);

    assert(code == CURLE_OK);
    (void)code;
}

static int start(struct forward *w, struct fault *f)
{
    const struct config_forward *c = &w->q->forward;

    w->looks_at_kept = curl_version_info(CURLVERSION_NOW)->version_num >= CURL_VERSION_BITS(8, 22, 0);
    w->multi = curl_multi_init();
    if (!w->multi)
        return fault_set(f, "libcurl gives no multi handle");
    if (curl_multi_setopt(w->multi, CURLMOPT_MAXCONNECTS, (long)c->concurrency) != CURLM_OK ||
        curl_multi_setopt(w->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING) != CURLM_OK)
        return fault_set(f, "libcurl refuses an option of the multi handle");
    if (target_init(&w->target, c->url, c->unix_socket, f) < 0)
        return -1;
    return request_init(w, f);
}

int forward_new(const struct config_queue *q, struct forward **ret, struct fault *f)
{
    struct forward *w = mem_zalloc(1, sizeof(*w));
    struct exchange *x = NULL;

    w->q = q;
    list_init(&w->out);
    list_init(&w->idle);
    /* The first exchange shows whether libcurl takes all options, while somebody can still be told. */
    if (start(w, f) < 0 || !(x = exchange_new(w, f))) {
        forward_free(w);
        return -1;
    }
    list_push(&w->idle, &x->link);
    *ret = w;
    return 0;
}

void forward_free(struct forward *w)
{
    if (!w)
        return;
    w->n_large = 0; /* sockets that are closed from here on have nobody to tell */
    list_each(&w->out, k)
    {
        struct exchange *x = container_of(k, struct exchange, link);

        curl_multi_remove_handle(w->multi, x->easy);
        exchange_free(x);
    }
    list_each(&w->idle, k) exchange_free(container_of(k, struct exchange, link));
    probe_deinit(w);
    if (w->multi)
        curl_multi_cleanup(w->multi);
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
    curl_multi_remove_handle(w->multi, x->easy);
    hash_remove(&w->by_ref, &x->by_ref);
    list_remove(&w->out, &x->link);
    w->n_large -= exchange_is_large(x);
}

/* The one used last: its memory is warm. */
static struct exchange *idle_take(struct forward *w, struct fault *f)
{
    struct exchange *x;

    if (!w->idle.len)
        return exchange_new(w, f);
    x = container_of(w->idle.head.prev, struct exchange, link);
    list_remove(&w->idle, &x->link);
    return x;
}

int forward_send(struct forward *w, const struct forward_request *r, struct fault *f)
{
    struct exchange *x;
    CURLMcode code;

    assert(!find(w, r->ref));
    request_refresh(w);
    x = idle_take(w, f);
    if (!x)
        return -1;
    if (exchange_begin(x, r, f) < 0) {
        retire(w, x);
        return -1;
    }
    code = curl_multi_add_handle(w->multi, x->easy);
    if (code != CURLM_OK) {
        retire(w, x);
        return fault_set(f, "libcurl takes no further request: %s", curl_multi_strerror(code));
    }
    list_push(&w->out, &x->link);
    w->n_large += exchange_is_large(x);
    hash_insert(&w->by_ref, &x->by_ref, hash_number(r->ref));
    return 0;
}

size_t forward_in_flight(const struct forward *w)
{
    return w->out.len;
}

static void answer(struct forward *w, struct exchange *x, CURLcode code, struct forward_answer *a)
{
    struct buf body = w->answered;

    exchange_answer(x, code, a);
    take_out(w, x);
    w->answered = x->body;
    x->body = body;
    retire(w, x);
}

/* With the closed connection gone libcurl takes the next, or makes one. Each time there is one less. */
static bool start_again(struct forward *w, struct exchange *x)
{
    if (!x->stale)
        return false;
    x->stale = false;
    curl_multi_remove_handle(w->multi, x->easy);
    return curl_multi_add_handle(w->multi, x->easy) == CURLM_OK;
}

int forward_step(struct forward *w, struct forward_answer *a)
{
    struct CURLMsg *msg;
    CURLMcode code;
    int n;

    if (!w->undrained) {
        /* Errors of the whole multi handle are misuse or the end of memory; every request would be in doubt.
         */
        code = curl_multi_perform(w->multi, &n);
        assert(code == CURLM_OK);
        (void)code;
        w->undrained = true;
    }
    while ((msg = curl_multi_info_read(w->multi, &n))) {
        struct exchange *x = NULL;
        CURLcode result = msg->data.result;

        if (msg->msg != CURLMSG_DONE)
            continue;
        if (msg->easy_handle == w->probe.easy) {
            probe_done(w, result);
            continue;
        }
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &x);
        if (start_again(w, x))
            continue;
        answer(w, x, result, a);
        return 1;
    }
    w->undrained = false;
    return 0;
}

void forward_abandon(struct forward *w, uint64_t ref)
{
    struct exchange *x = find(w, ref);

    if (!x)
        return;
    take_out(w, x);
    retire(w, x);
}

void forward_wait(struct forward *w, struct pollfd *fds, size_t n, int64_t timeout_ms)
{
    int timeout = timeout_ms < 0 || w->undrained ? 0 : timeout_ms > INT_MAX ? INT_MAX : (int)timeout_ms;
    unsigned n_waits = 0;
    int n_ready = 0;

    if (n > w->n_waits) {
        w->waits = mem_realloc(w->waits, n * sizeof(*w->waits));
        w->n_waits = n;
    }
    for (size_t i = 0; i < n; i++) {
        fds[i].revents = 0;
        if (fds[i].fd >= 0)
            w->waits[n_waits++] = (struct curl_waitfd){.fd = fds[i].fd, .events = fds[i].events};
    }
    if (curl_multi_poll(w->multi, w->waits, n_waits, timeout, &n_ready) != CURLM_OK) {
        /* The kernel refused so many descriptors, or memory: not worse than a short nap. */
        poll(fds, n, timeout < REFUSED_WAIT_MS ? timeout : REFUSED_WAIT_MS);
        return;
    }
    /* libcurl does not hand on POLLHUP and POLLERR. */
    if (n_ready > 0 && n_waits > 0)
        poll(fds, n, 0);
}

void forward_wake(struct forward *w)
{
    curl_multi_wakeup(w->multi);
}
