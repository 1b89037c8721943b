/* The connections of an application: kept, made and closed. forward.c assigns them to exchanges. */

#include "forward/application.h"

#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPARE_CONNECTORS_MAX = 2, CONNECT_AGAIN_MS = 20 };

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool application_is_for(const struct application *a, const struct config_queue *q, const struct target *t)
{
    const struct config_tls *ours = a->question.tls, *theirs = &q->forward.tls;

    if (!target_is_same(&a->target, t))
        return false;
    return !t->tls ||
           (ours->verify == theirs->verify && same_text(ours->ca_file, theirs->ca_file) &&
            same_text(ours->cert_file, theirs->cert_file) && same_text(ours->key_file, theirs->key_file));
}

static struct connector *connector_make(struct application *a, struct fault *f)
{
    return connector_new(a->multi, a, &a->target, a->question.tls, a->question.connect_timeout_ms, f);
}

/* Makes the first connector now, so that an option that libcurl refuses is reported at the start. */
int application_new(const struct config_queue *q, struct target *target, struct multi *m, wait_ready *ready,
                    struct application **ret, struct fault *f)
{
    struct application *a = mem_zalloc(1, sizeof(*a));
    struct connector *k;

    a->wait = m->wait;
    a->multi = m;
    a->ready = ready;
    a->target = *target;
    a->question = (struct probe_question){.url = q->forward.url,
                                          .unix_socket = q->forward.unix_socket,
                                          .tls = &q->forward.tls,
                                          .connect_timeout_ms = q->forward.connect_timeout_ms};
    list_init(&a->waiting);
    list_init(&a->busy);
    list_init(&a->idle);
    list_init(&a->connecting);
    list_init(&a->spare);
    a->connect_at_ms = INT64_MAX;
    k = connector_make(a, f);
    if (!k) {
        free(a);
        return -1;
    }
    connector_free(k);
    *ret = a;
    return 0;
}

static void close_connections(struct list *l)
{
    list_each(l, k)
    {
        struct connection *c = container_of(k, struct connection, link);

        list_remove(l, k);
        connection_free(c);
    }
}

static void free_connectors(struct list *l)
{
    list_each(l, k) connector_free(container_of(k, struct connector, link));
}

void application_free(struct application *a)
{
    probe_deinit(&a->probe, a->multi);
    close_connections(&a->busy);
    close_connections(&a->idle);
    free_connectors(&a->connecting);
    free_connectors(&a->spare);
    target_deinit(&a->target);
    free(a);
}

void application_join(struct application *a, const struct config_queue *q)
{
    a->max_connections += q->partition ? 0 : (size_t)q->forward.concurrency;
    if (a->question.connect_timeout_ms < q->forward.connect_timeout_ms)
        a->question.connect_timeout_ms = q->forward.connect_timeout_ms;
    if (!a->question.ready_url)
        a->question.ready_url = q->ready_url;
}

/* ---- connections ---- */

/* Takes the connection used last, so that surplus connections grow old and are closed. */
struct connection *application_take(struct application *a)
{
    while (a->idle.len) {
        struct connection *c = container_of(a->idle.head.prev, struct connection, link);

        list_remove(&a->idle, &c->link);
        if (!c->was_used || !connection_is_stale(c)) {
            list_push(&a->busy, &c->link);
            return c;
        }
        connection_free(c);
    }
    return NULL;
}

void application_release(struct application *a, struct connection *c, bool is_clean)
{
    bool stays = is_clean && a->busy.len + a->idle.len <= a->max_connections;

    list_remove(&a->busy, &c->link);
    if (!stays) {
        connection_free(c);
        return;
    }
    connection_rest(c);
    list_push(&a->idle, &c->link);
}

void application_close_idle(struct application *a, struct connection *c)
{
    list_remove(&a->idle, &c->link);
    connection_free(c);
}

void application_close_all_idle(struct application *a)
{
    close_connections(&a->idle);
}

int64_t application_close_old(struct application *a, int64_t now_ms)
{
    struct link *first;

    while ((first = list_first(&a->idle))) {
        struct connection *c = container_of(first, struct connection, link);

        if (connection_stale_ms(c) >= now_ms)
            return connection_stale_ms(c) + 1;
        application_close_idle(a, c);
    }
    return INT64_MAX;
}

/* ---- new connections ---- */

static struct connector *connector_get(struct application *a, struct fault *f)
{
    struct link *spare = list_first(&a->spare);

    if (!spare)
        return connector_make(a, f);
    list_remove(&a->spare, spare);
    return container_of(spare, struct connector, link);
}

int application_connect(struct application *a, struct fault *f)
{
    while (a->connecting.len < a->waiting.len && a->connect_at_ms == INT64_MAX) {
        struct connector *k = connector_get(a, f);

        if (!k)
            return -1;
        if (connector_start(k, f) < 0) {
            connector_free(k);
            return -1;
        }
        list_push(&a->connecting, &k->link);
    }
    return 0;
}

static void retire(struct application *a, struct connector *k)
{
    connector_stop(k);
    if (a->spare.len < SPARE_CONNECTORS_MAX)
        list_push(&a->spare, &k->link);
    else
        connector_free(k);
}

/* Turns the connector's connection into an idle one. A plain connector becomes free; one with TLS stays with
 * it. */
static int take_over(struct application *a, struct connector *k, char *error)
{
    struct connection *c;
    struct fault f = {0};
    int fd = connector_take(k);
    bool is_tls = k->is_tls;

    if (fd < 0) {
        snprintf(error, CURL_ERROR_SIZE, "libcurl has lost the connection to %.100s", a->target.name);
        retire(a, k);
        return -1;
    }
    c = connection_new(a->wait, a, fd, is_tls ? k : NULL, a->ready, &f);
    if (!is_tls)
        retire(a, k);
    if (!c) {
        snprintf(error, CURL_ERROR_SIZE, "cannot connect to %.50s: %.150s", a->target.name, f.text);
        return -1;
    }
    if (a->idle.len < a->waiting.len || a->busy.len + a->idle.len < a->max_connections)
        list_push(&a->idle, &c->link);
    else
        connection_free(c); /* no exchange waits for the connection any more */
    return 0;
}

/* A Unix socket accepts no more connections at once than its backlog holds, and refuses the others. The
 * application is alive as long as it keeps other connections of ours. */
static bool is_crowded(const struct application *a, const struct connector *k, CURLcode code)
{
    int number;

    if (!a->target.unix_socket || code != CURLE_COULDNT_CONNECT || !(a->busy.len || a->connecting.len))
        return false;
    number = connector_errno(k);
    return number != ECONNREFUSED && number != ENOENT && number != EACCES;
}

int application_connected(struct application *a, struct connector *k, CURLcode code, char *error)
{
    int r = -1;

    list_remove(&a->connecting, &k->link);
    if (code == CURLE_OK)
        return take_over(a, k, error);
    if (a->waiting.len && is_crowded(a, k, code)) {
        if (a->connect_at_ms == INT64_MAX)
            a->connect_at_ms = clock_ms() + CONNECT_AGAIN_MS;
        r = 0;
    } else {
        connect_text(error, CURL_ERROR_SIZE, &a->target, k->easy, code, k->error);
    }
    retire(a, k);
    return r;
}
