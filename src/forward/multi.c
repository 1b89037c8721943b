/* Runs libcurl on the thread's wait: curl_multi_socket_action for its sockets and its timer. */

#include "forward/multi.h"

#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/wait.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/epoll.h>

/* A socket that libcurl wants watched. */
struct socket {
    struct multi *m;
    struct watch watch;
};

/* Drives libcurl. An error of the whole multi handle is misuse or out of memory, and leaves every connection in
 * doubt. */
static void action(struct multi *m, curl_socket_t fd, int what)
{
    int n;
    CURLMcode code = curl_multi_socket_action(m->curl, fd, what, &n);

    assert(code == CURLM_OK);
    (void)code;
    m->was_turned = true;
}

static void socket_ready(void *owner, uint32_t events)
{
    struct socket *s = owner;

    action(s->m, s->watch.fd,
           (events & EPOLLIN ? CURL_CSELECT_IN : 0) | (events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
               (events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0));
}

/* A socket that the kernel refuses to watch stays unwatched: its transfer ends by timeout. */
static int socket_set(CURL *easy, curl_socket_t fd, int what, void *p, void *known)
{
    struct multi *m = p;
    struct socket *s = known;
    uint32_t events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    struct fault ignored;

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (s)
            wait_remove(m->wait, &s->watch);
        free(s);
        return 0;
    }
    if (!s) {
        s = mem_zalloc(1, sizeof(*s));
        s->m = m;
        curl_multi_assign(m->curl, fd, s);
    }
    if (watch_is_on(&s->watch))
        wait_change(m->wait, &s->watch, events);
    else
        wait_add(m->wait, &s->watch, fd, events, socket_ready, s, &ignored);
    return 0;
}

static int timer_set(CURLM *curl, long timeout_ms, void *p)
{
    struct multi *m = p;

    (void)curl;
    m->due_ms = timeout_ms < 0 ? INT64_MAX : clock_ms() + timeout_ms;
    return 0;
}

int multi_init(struct multi *m, struct wait *wait, struct fault *f)
{
    bool bad = false;

    *m = (struct multi){.wait = wait, .due_ms = INT64_MAX, .curl = curl_multi_init()};
    if (!m->curl)
        return fault_set(f, "libcurl gives no multi handle");
    bad |= curl_multi_setopt(m->curl, CURLMOPT_PIPELINING, CURLPIPE_NOTHING) != CURLM_OK;
    bad |= curl_multi_setopt(m->curl, CURLMOPT_SOCKETFUNCTION, socket_set) != CURLM_OK;
    bad |= curl_multi_setopt(m->curl, CURLMOPT_SOCKETDATA, m) != CURLM_OK;
    bad |= curl_multi_setopt(m->curl, CURLMOPT_TIMERFUNCTION, timer_set) != CURLM_OK;
    bad |= curl_multi_setopt(m->curl, CURLMOPT_TIMERDATA, m) != CURLM_OK;
    return bad ? fault_set(f, "libcurl refuses an option of the multi handle") : 0;
}

void multi_deinit(struct multi *m)
{
    if (m->curl)
        curl_multi_cleanup(m->curl);
    m->curl = NULL;
}

int multi_add(struct multi *m, CURL *easy, struct transfer *t, struct fault *f)
{
    CURLMcode code = CURLM_INTERNAL_ERROR;

    if (curl_easy_setopt(easy, CURLOPT_PRIVATE, t) == CURLE_OK)
        code = curl_multi_add_handle(m->curl, easy);
    if (code == CURLM_OK)
        return 0;
    return fault_set(f, "libcurl makes no further connection: %s", curl_multi_strerror(code));
}

void multi_turn(struct multi *m, int64_t now_ms)
{
    if (now_ms < m->due_ms)
        return;
    m->due_ms = INT64_MAX;
    action(m, CURL_SOCKET_TIMEOUT, 0);
}

struct transfer *multi_next(struct multi *m, CURLcode *ret_code)
{
    struct CURLMsg *msg;
    int n;

    while (m->was_turned && (msg = curl_multi_info_read(m->curl, &n))) {
        struct transfer *t = NULL;

        if (msg->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &t);
        *ret_code = msg->data.result;
        return t;
    }
    m->was_turned = false;
    return NULL;
}
