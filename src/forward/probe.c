/* The readiness probe: a GET, or a connect alone, on the same multi handle. It never takes a connection of
 * the forwards and never leaves one to them: the test is whether a new one can be made. At most one probe at
 * a time. */

#include "forward/exchange.h"

#include <limits.h>
#include <stdio.h>

enum { PROBE_GET_MS = 2000, PROBE_BYTES_MAX = 64 * 1024 };

static int prereq_seen(void *p, char *ip, char *local_ip, int port, int local_port)
{
    (void)ip, (void)local_ip, (void)port, (void)local_port;
    ((struct probe *)p)->begun = true;
    return CURL_PREREQFUNC_OK;
}

/* The status is all that counts; an endless body ends the probe. */
static size_t bytes_seen(char *data, size_t one, size_t len, void *p)
{
    struct probe *probe = p;

    (void)data, (void)one;
    probe->n_bytes += len;
    return probe->n_bytes > PROBE_BYTES_MAX ? 0 : len;
}

static int options_set(struct forward *w, struct fault *f)
{
    struct probe *p = &w->probe;
    const struct config_forward *c = &w->q->forward;
    int64_t timeout_ms = c->connect_timeout_ms + (p->get ? PROBE_GET_MS : 0);
    bool bad = false;

    if (transfer_setup(p->easy, &p->target, c, p->error, f) < 0)
        return -1;
    p->headers = curl_slist_append(NULL, "Connection: close");
    bad |= curl_easy_setopt(p->easy, CURLOPT_TIMEOUT_MS,
                            (long)(timeout_ms > INT_MAX ? INT_MAX : timeout_ms)) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_FRESH_CONNECT, 1L) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_FORBID_REUSE, 1L) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_CONNECT_ONLY, p->get ? 0L : 1L) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_HTTPHEADER, p->headers) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_PREREQFUNCTION, prereq_seen) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_PREREQDATA, p) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_WRITEFUNCTION, bytes_seen) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_WRITEDATA, p) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_HEADERFUNCTION, bytes_seen) != CURLE_OK;
    bad |= curl_easy_setopt(p->easy, CURLOPT_HEADERDATA, p) != CURLE_OK;
    return bad || !p->headers ? fault_set(f, "libcurl refuses an option it must have") : 0;
}

/* The readiness URL is on the application's Unix socket when it names the same host and port as the forward
 * URL. */
static int probe_make(struct forward *w, struct fault *f)
{
    struct probe *p = &w->probe;
    const char *url = w->q->ready_url, *socket = w->q->forward.unix_socket;

    p->get = url != NULL;
    if (socket && url && !target_same_host(url, w->q->forward.url))
        socket = NULL;
    if (target_init(&p->target, url ? url : w->q->forward.url, socket, f) < 0)
        return -1;
    p->easy = curl_easy_init();
    if (!p->easy)
        return fault_set(f, "libcurl gives no handle");
    return options_set(w, f);
}

void probe_deinit(struct forward *w)
{
    struct probe *p = &w->probe;

    if (p->running)
        curl_multi_remove_handle(w->multi, p->easy);
    p->running = false;
    if (p->easy)
        curl_easy_cleanup(p->easy);
    p->easy = NULL;
    curl_slist_free_all(p->headers);
    p->headers = NULL;
    target_deinit(&p->target);
}

void forward_probe(struct forward *w)
{
    struct probe *p = &w->probe;

    if (p->running)
        return;
    p->result = PROBE_NONE;
    p->begun = false;
    p->n_bytes = 0;
    p->error[0] = '\0';
    if (!p->easy && probe_make(w, &p->fault) < 0) {
        probe_deinit(w);
        p->result = PROBE_NOT_READY;
        return;
    }
    if (curl_multi_add_handle(w->multi, p->easy) != CURLM_OK) {
        fault_set(&p->fault, "libcurl takes no further transfer");
        p->result = PROBE_NOT_READY;
        return;
    }
    p->running = true;
}

/* Why there is no answer. */
static void reason_write(const struct probe *p, CURLcode code, char *out, size_t size)
{
    const char *name = p->target.name;

    if (!p->begun)
        connect_text(out, size, &p->target, p->easy, code, p->error);
    else if (code == CURLE_OPERATION_TIMEDOUT)
        snprintf(out, size, "no answer from %s in time", name);
    else if (code == CURLE_GOT_NOTHING)
        snprintf(out, size, "connection closed by %s before an answer", name);
    else
        snprintf(out, size, "no whole answer from %s: %s", name,
                 p->error[0] ? p->error : curl_easy_strerror(code));
}

/* Removing a handle that only connected closes its connection. */
void probe_done(struct forward *w, CURLcode code)
{
    struct probe *p = &w->probe;
    char text[512];
    long status = 0;

    curl_multi_remove_handle(w->multi, p->easy);
    p->running = false;
    curl_easy_getinfo(p->easy, CURLINFO_RESPONSE_CODE, &status);
    if (p->n_bytes > PROBE_BYTES_MAX && status >= 200)
        code = CURLE_OK;
    p->result = PROBE_NOT_READY;
    if (code != CURLE_OK) {
        reason_write(p, code, text, sizeof(text));
        fault_set(&p->fault, "%s", text);
        snprintf(p->fault.code, sizeof(p->fault.code), "%s",
                 code == CURLE_OPERATION_TIMEDOUT ? "silent" : "");
    } else if (p->get && (status < 200 || status >= 300)) {
        fault_set(&p->fault, "%s answered %ld", p->target.url, status);
    } else {
        p->result = PROBE_READY;
    }
}

enum forward_probe_result forward_probe_result(struct forward *w, struct fault *f)
{
    enum forward_probe_result result = w->probe.result;

    if (result == PROBE_NOT_READY)
        *f = w->probe.fault;
    w->probe.result = PROBE_NONE;
    return result;
}
