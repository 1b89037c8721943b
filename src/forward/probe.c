/* See probe.h. The handle is created by the first probe and kept. */

#include "forward/probe.h"

#include "onceward/base/fault.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { PROBE_GET_MS = 2000, PROBE_BYTES_MAX = 64 * 1024 };

static int prereq_seen(void *p, char *ip, char *local_ip, int port, int local_port)
{
    (void)ip, (void)local_ip, (void)port, (void)local_port;
    ((struct probe *)p)->begun = true;
    return CURL_PREREQFUNC_OK;
}

/* Only the status counts; an endless body ends the probe. */
static size_t bytes_seen(char *data, size_t one, size_t len, void *p)
{
    struct probe *probe = p;

    (void)data, (void)one;
    probe->n_bytes += len;
    return probe->n_bytes > PROBE_BYTES_MAX ? 0 : len;
}

static int options_set(struct probe *p, const struct probe_question *q, struct fault *f)
{
    int64_t timeout_ms = q->connect_timeout_ms + (p->get ? PROBE_GET_MS : 0);
    bool bad = false;

    if (transfer_setup(p->easy, &p->target, q->tls, q->connect_timeout_ms, p->curl_error, f) < 0)
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

static int handle_make(struct probe *p, const struct probe_question *q, struct fault *f)
{
    const char *socket = q->unix_socket;

    p->transfer.kind = TRANSFER_PROBE;
    p->get = q->ready_url != NULL;
    if (socket && q->ready_url && !target_same_host(q->ready_url, q->url))
        socket = NULL;
    if (target_init(&p->target, q->ready_url ? q->ready_url : q->url, socket, f) < 0)
        return -1;
    p->easy = curl_easy_init();
    if (!p->easy)
        return fault_set(f, "libcurl gives no handle");
    return options_set(p, q, f);
}

void probe_deinit(struct probe *p, struct multi *m)
{
    if (p->running)
        curl_multi_remove_handle(m->curl, p->easy);
    p->running = false;
    if (p->easy)
        curl_easy_cleanup(p->easy);
    p->easy = NULL;
    curl_slist_free_all(p->headers);
    p->headers = NULL;
    target_deinit(&p->target);
}

bool probe_start(struct probe *p, struct multi *m, const struct probe_question *question)
{
    struct fault f = {0};

    p->begun = false;
    p->n_bytes = 0;
    p->status = 0;
    p->curl_error[0] = p->error[0] = '\0';
    if (!p->easy && handle_make(p, question, &f) < 0)
        probe_deinit(p, m);
    else if (multi_add(m, p->easy, &p->transfer, &f) == 0)
        p->running = true;
    if (p->running)
        return true;
    p->result = PROBE_UNREACHABLE;
    snprintf(p->error, sizeof(p->error), "%.*s", (int)sizeof(p->error) - 1, f.text);
    return false;
}

/* Writes why there is no answer. libcurl's texts contain no URL. */
static void reason_write(struct probe *p, CURLcode code)
{
    const char *name = p->target.name;

    if (!p->begun)
        connect_text(p->error, sizeof(p->error), &p->target, p->easy, code, p->curl_error);
    else if (code == CURLE_OPERATION_TIMEDOUT)
        snprintf(p->error, sizeof(p->error), "no answer from %s in time", name);
    else if (code == CURLE_GOT_NOTHING)
        snprintf(p->error, sizeof(p->error), "connection closed by %s before an answer", name);
    else
        snprintf(p->error, sizeof(p->error), "no whole answer from %s: %s", name,
                 p->curl_error[0] ? p->curl_error : curl_easy_strerror(code));
}

/* Removing a handle that only connected also closes its connection. */
void probe_end(struct probe *p, struct multi *m, CURLcode code)
{
    long status = 0;

    curl_multi_remove_handle(m->curl, p->easy);
    p->running = false;
    curl_easy_getinfo(p->easy, CURLINFO_RESPONSE_CODE, &status);
    if (p->n_bytes > PROBE_BYTES_MAX && status >= 200)
        code = CURLE_OK;
    p->status = (int)status;
    if (code != CURLE_OK) {
        reason_write(p, code);
        p->result = code == CURLE_OPERATION_TIMEDOUT ? PROBE_SILENT
                    : p->begun                       ? PROBE_NOT_READY
                                                     : PROBE_UNREACHABLE;
    } else if (p->get && (status < 200 || status >= 300)) {
        p->result = PROBE_NOT_READY;
        snprintf(p->error, sizeof(p->error), "%s answered %ld to GET %.*s", p->target.name, status,
                 (int)strcspn(p->target.path, "?"), p->target.path);
    } else {
        p->result = PROBE_READY;
    }
}
