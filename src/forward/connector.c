/* Makes connections through libcurl, which resolves names, connects, does TLS and supports Unix sockets. */

#include "forward/connector.h"

#include "forward/target.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <stdlib.h>
#include <unistd.h>

static int socket_close(void *p, curl_socket_t fd)
{
    struct connector *k = p;

    return fd == k->taken ? 0 : close(fd);
}

static int options_set(struct connector *k, struct fault *f)
{
    bool bad = false;

    bad |= curl_easy_setopt(k->easy, CURLOPT_CONNECT_ONLY, 1L) != CURLE_OK;
    bad |= curl_easy_setopt(k->easy, CURLOPT_FRESH_CONNECT, 1L) != CURLE_OK;
    bad |= curl_easy_setopt(k->easy, CURLOPT_CLOSESOCKETFUNCTION, socket_close) != CURLE_OK;
    bad |= curl_easy_setopt(k->easy, CURLOPT_CLOSESOCKETDATA, k) != CURLE_OK;
    return bad ? fault_set(f, "libcurl refuses an option it must have") : 0;
}

struct connector *connector_new(struct multi *m, struct application *application, const struct target *t,
                                const struct config_tls *tls, int64_t connect_timeout_ms, struct fault *f)
{
    struct connector *k = mem_zalloc(1, sizeof(*k));

    k->transfer.kind = TRANSFER_CONNECT;
    k->multi = m;
    k->application = application;
    k->is_tls = t->tls;
    k->taken = -1;
    k->easy = curl_easy_init();
    if (!k->easy)
        fault_set(f, "libcurl gives no handle");
    else if (transfer_setup(k->easy, t, tls, connect_timeout_ms, k->error, f) == 0 && options_set(k, f) == 0)
        return k;
    connector_free(k);
    return NULL;
}

void connector_free(struct connector *k)
{
    if (k->easy) {
        curl_multi_remove_handle(k->multi->curl, k->easy);
        curl_easy_cleanup(k->easy);
    }
    free(k);
}

int connector_start(struct connector *k, struct fault *f)
{
    k->taken = -1;
    k->error[0] = '\0';
    return multi_add(k->multi, k->easy, &k->transfer, f);
}

void connector_stop(struct connector *k)
{
    curl_multi_remove_handle(k->multi->curl, k->easy);
}

int connector_take(struct connector *k)
{
    curl_socket_t fd = CURL_SOCKET_BAD;

    if (curl_easy_getinfo(k->easy, CURLINFO_ACTIVESOCKET, &fd) != CURLE_OK || fd == CURL_SOCKET_BAD)
        return -1;
    if (!k->is_tls) {
        k->taken = fd;
        connector_stop(k);
    }
    return fd;
}

int connector_errno(const struct connector *k)
{
    long number = 0;

    curl_easy_getinfo(k->easy, CURLINFO_OS_ERRNO, &number);
    return (int)number;
}
