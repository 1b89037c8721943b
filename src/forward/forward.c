/* The adapter as a whole: queues and their applications, the requests in flight, and their outcomes.
 *
 * Only this file handles the end of an exchange: it releases or closes the connection, and puts the exchange
 * into `ended` until forward_step returns its answer. Waiting exchanges get a connection in forward_send, and
 * in the first forward_step of a turn. */

#include "onceward/forward/forward.h"

#include "forward/application.h"
#include "forward/connection.h"
#include "forward/exchange.h"
#include "forward/multi.h"
#include "forward/probe.h"
#include "forward/request.h"
#include "forward/target.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/hash.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"
#include "onceward/core/timers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

/* A queue's way to its application. */
struct route {
    struct forward *w;
    size_t number;
    const struct config_queue *q;
    struct application *application;
    struct target target;
    struct request_form form;
};

struct forward {
    struct multi multi;
    struct route **routes;
    size_t n_routes;
    struct application **applications;
    size_t n_applications;

    struct list out, idle; /* exchanges */
    size_t max_idle;       /* sum of the queues' concurrency */
    struct list ended;     /* ended, answer not returned yet */
    struct list probed;    /* probes with a result */
    struct hash by_ref;
    int64_t next_deadline_ms;    /* no exchange in flight is due earlier */
    int64_t applications_due_ms; /* no application is due earlier */
    bool undrained;              /* forward_step has not returned FORWARD_NOTHING since the last check */

    struct buf scratch;  /* the head under construction */
    struct buf answered; /* the last answer's body */
    struct exchange_words words;
};

void forward_global_init(void)
{
    CURLcode code = curl_global_init(CURL_GLOBAL_ALL);

    assert(code == CURLE_OK);
    (void)code;
}

int forward_new(struct wait *wait, struct forward **ret, struct fault *f)
{
    struct forward *w = mem_zalloc(1, sizeof(*w));

    w->next_deadline_ms = w->applications_due_ms = INT64_MAX;
    list_init(&w->out);
    list_init(&w->idle);
    list_init(&w->ended);
    list_init(&w->probed);
    if (multi_init(&w->multi, wait, f) < 0) {
        forward_free(w);
        return -1;
    }
    *ret = w;
    return 0;
}

static void route_free(struct route *r)
{
    request_form_deinit(&r->form);
    target_deinit(&r->target);
    free(r);
}

void forward_free(struct forward *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_applications; i++)
        application_free(w->applications[i]);
    multi_deinit(&w->multi);
    list_each(&w->out, k) exchange_free(container_of(k, struct exchange, link));
    list_each(&w->idle, k) exchange_free(container_of(k, struct exchange, link));
    for (size_t i = 0; i < w->n_routes; i++)
        route_free(w->routes[i]);
    free(w->applications);
    free(w->routes);
    hash_deinit(&w->by_ref);
    buf_deinit(&w->scratch);
    buf_deinit(&w->answered);
    free(w);
}

/* ---- the end of an exchange ---- */

static void deadline_note(struct forward *w, const struct exchange *x)
{
    int64_t due_ms = exchange_due_ms(x);

    if (due_ms < w->next_deadline_ms)
        w->next_deadline_ms = due_ms;
}

/* Detaches an exchange from its connection, or from the exchanges that wait for one. */
static void let_go(struct exchange *x)
{
    struct application *a = x->route->application;
    struct connection *c = x->c;

    if (!c) {
        list_remove(&a->waiting, &x->queue);
        return;
    }
    x->c = NULL;
    c->x = NULL;
    application_release(a, c, exchange_leaves_clean(x));
}

/* Ends an exchange that waits for a connection or had one. */
static void over(struct exchange *x, enum ending ending)
{
    assert(x->ending == ENDING_NONE);
    x->ending = ending;
    x->end_us = clock_us();
    let_go(x);
    list_push(&x->route->w->ended, &x->queue);
}

static void connection_ready(void *owner, uint32_t events)
{
    struct connection *c = owner;
    struct exchange *x = c->x;
    enum ending ending;

    if (!x) {
        application_close_idle(c->application, c);
        return;
    }
    ending = connection_turn(c, events);
    if (ending != ENDING_NONE)
        over(x, ending);
    else
        deadline_note(x->route->w, x);
}

/* ---- queues ---- */

static struct application *find_application(struct forward *w, const struct config_queue *q,
                                            const struct target *t)
{
    for (size_t i = 0; i < w->n_applications; i++)
        if (application_is_for(w->applications[i], q, t))
            return w->applications[i];
    return NULL;
}

static struct application *add_application(struct forward *w, const struct config_queue *q, struct fault *f)
{
    struct application *a;
    struct target target = {0};

    if (target_init(&target, q->forward.url, q->forward.unix_socket, f) < 0)
        return NULL;
    if (application_new(q, &target, &w->multi, connection_ready, &a, f) < 0) {
        target_deinit(&target);
        return NULL;
    }
    w->applications = mem_realloc(w->applications, (w->n_applications + 1) * sizeof(*w->applications));
    a->number = w->n_applications;
    w->applications[w->n_applications++] = a;
    return a;
}

int forward_add(struct forward *w, const struct config_queue *q, size_t *ret_application, struct fault *f)
{
    struct route *r = mem_zalloc(1, sizeof(*r));
    bool ok = target_init(&r->target, q->forward.url, q->forward.unix_socket, f) == 0 &&
              request_form_init(&r->form, q, r->target.path, r->target.host, f) == 0;

    if (ok && !(r->application = find_application(w, q, &r->target)))
        r->application = add_application(w, q, f);
    if (!r->application) {
        route_free(r);
        return -1;
    }
    r->w = w;
    r->q = q;
    r->number = w->n_routes;
    w->routes = mem_realloc(w->routes, (w->n_routes + 1) * sizeof(*w->routes));
    w->routes[w->n_routes++] = r;
    w->max_idle += q->partition ? 0 : (size_t)q->forward.concurrency; /* shared by all partitions */
    application_join(r->application, q);
    *ret_application = r->application->number;
    return 0;
}

const char *forward_application_name(const struct forward *w, size_t application)
{
    assert(application < w->n_applications);
    return w->applications[application]->target.name;
}

/* ---- requests ---- */

static uint64_t hash_of(size_t queue, uint64_t ref)
{
    return hash_number(ref ^ (uint64_t)queue << 48);
}

static struct exchange *find(const struct forward *w, size_t queue, uint64_t ref)
{
    for (struct hash_link *k = hash_first(&w->by_ref, hash_of(queue, ref)); k; k = hash_next(k)) {
        struct exchange *x = container_of(k, struct exchange, by_ref);

        if (x->ref == ref && x->route->number == queue)
            return x;
    }
    return NULL;
}

/* Moves an exchange from the requests in flight to the idle ones. As many idle ones are kept as can be in
 * flight. */
static void retire(struct forward *w, struct exchange *x)
{
    hash_remove(&w->by_ref, &x->by_ref);
    list_remove(&w->out, &x->link);
    if (!w->out.len)
        w->next_deadline_ms = INT64_MAX;
    if (w->idle.len >= w->max_idle) {
        exchange_free(x);
        return;
    }
    exchange_reset(x);
    list_push(&w->idle, &x->link);
}

/* Takes the exchange used last, because its memory is warm. */
static struct exchange *idle_take(struct forward *w)
{
    struct exchange *x;

    if (!w->idle.len)
        return exchange_new();
    x = container_of(w->idle.head.prev, struct exchange, link);
    list_remove(&w->idle, &x->link);
    return x;
}

/* Requires that the head is in x->request. */
static void wait_for_connection(struct exchange *x)
{
    list_push(&x->route->application->waiting, &x->queue);
    deadline_note(x->route->w, x);
}

static void carry(struct connection *c, struct exchange *x, struct slice head)
{
    enum ending ending = connection_carry(c, x, head);

    if (ending == ENDING_NONE) {
        deadline_note(x->route->w, x);
        return;
    }
    if (ending != ENDING_STALE) {
        over(x, ending);
        return;
    }
    if (!x->request.len)
        buf_add_slice(&x->request, head);
    x->error[0] = '\0';
    let_go(x);
    wait_for_connection(x);
}

static void connect_failed(struct application *a, const char *error, enum ending ending)
{
    struct link *first = list_first(&a->waiting);
    struct exchange *x;

    if (!first)
        return;
    x = container_of(first, struct exchange, queue);
    snprintf(x->error, sizeof(x->error), "%.*s", (int)sizeof(x->error) - 1, error);
    over(x, ending);
}

/* Gives connections to waiting exchanges, and starts to make missing ones. */
static void serve(struct application *a)
{
    struct connection *c;
    struct fault f = {0};

    while (a->waiting.len && (c = application_take(a))) {
        struct exchange *x = container_of(list_first(&a->waiting), struct exchange, queue);

        list_remove(&a->waiting, &x->queue);
        carry(c, x, buf_slice(&x->request));
    }
    while (application_connect(a, &f) < 0)
        connect_failed(a, f.text, ENDING_CONNECT);
}

void forward_send(struct forward *w, const struct forward_request *r)
{
    assert(r->queue < w->n_routes && !find(w, r->queue, r->ref));
    struct route *route = w->routes[r->queue];
    struct application *a = route->application;
    struct exchange *x = idle_take(w);
    struct connection *c;

    if (route->q->forward.authorization.file)
        request_form_refresh(&route->form);
    request_write(&route->form, &w->scratch, r->headers, r->body.len);
    x->route = route;
    exchange_begin(x, r, route->q, &a->target, w->scratch.len);
    list_push(&w->out, &x->link);
    hash_insert(&w->by_ref, &x->by_ref, hash_of(r->queue, r->ref));
    if (r->fresh)
        application_close_all_idle(a);
    c = a->waiting.len ? NULL : application_take(a);
    if (c) {
        carry(c, x, buf_slice(&w->scratch));
    } else {
        buf_add_slice(&x->request, buf_slice(&w->scratch));
        wait_for_connection(x);
    }
    if (a->waiting.len)
        serve(a);
}

void forward_abandon(struct forward *w, size_t queue, uint64_t ref)
{
    struct exchange *x = find(w, queue, ref);

    if (!x)
        return;
    if (x->ending != ENDING_NONE)
        list_remove(&w->ended, &x->queue);
    else
        let_go(x);
    retire(w, x);
}

size_t forward_in_flight(const struct forward *w)
{
    return w->out.len;
}

/* ---- probes ---- */

void forward_probe(struct forward *w, size_t application)
{
    assert(application < w->n_applications);
    struct application *a = w->applications[application];
    struct probe *p = &a->probe;

    if (p->running || p->link.next)
        return;
    if (!probe_start(p, &w->multi, &a->question))
        list_push(&w->probed, &p->link);
}

static void probe_tell(struct forward *w, struct probe *p, struct forward_probed *ret)
{
    list_remove(&w->probed, &p->link);
    *ret = (struct forward_probed){.application = container_of(p, struct application, probe)->number,
                                   .result = p->result,
                                   .status = p->status,
                                   .error = p->error};
}

/* ---- time and answers ---- */

/* Received bytes are read before a deadline is checked: an answer that arrived before this check counts, even if the
 * process was stopped or slow. */
static void deadlines_check(struct forward *w, int64_t now_ms)
{
    if (now_ms < w->next_deadline_ms)
        return;
    w->next_deadline_ms = INT64_MAX;
    list_each(&w->out, k)
    {
        struct exchange *x = container_of(k, struct exchange, link);
        bool is_due = x->ending == ENDING_NONE && now_ms >= exchange_due_ms(x);
        enum ending ending = is_due && x->c ? connection_turn(x->c, EPOLLIN) : ENDING_NONE;

        if (is_due)
            over(x, ending != ENDING_NONE ? ending : ENDING_TIME);
        else if (x->ending == ENDING_NONE)
            deadline_note(w, x);
    }
}

static void transfers_take(struct forward *w)
{
    struct transfer *t;
    CURLcode code;

    while ((t = multi_next(&w->multi, &code))) {
        if (t->kind == TRANSFER_CONNECT) {
            struct connector *k = container_of(t, struct connector, transfer);
            struct application *a = k->application;
            char error[CURL_ERROR_SIZE];

            if (application_connected(a, k, code, error) < 0)
                connect_failed(a, error, code == CURLE_OPERATION_TIMEDOUT ? ENDING_TIME : ENDING_CONNECT);
        } else {
            struct probe *p = container_of(t, struct probe, transfer);

            probe_end(p, &w->multi, code);
            list_push(&w->probed, &p->link);
        }
    }
}

static void look(struct forward *w)
{
    int64_t now_ms = clock_ms();

    multi_turn(&w->multi, now_ms);
    transfers_take(w);
    deadlines_check(w, now_ms);
    w->applications_due_ms = INT64_MAX;
    for (size_t i = 0; i < w->n_applications; i++) {
        struct application *a = w->applications[i];

        if (now_ms >= a->connect_at_ms)
            a->connect_at_ms = INT64_MAX;
        if (a->waiting.len)
            serve(a);
        w->applications_due_ms = time_earlier(
            w->applications_due_ms, time_earlier(a->connect_at_ms, application_close_old(a, now_ms)));
    }
}

/* Explains a request without an answer. A server that refuses our certificate sends an alert and closes. When libcurl
 * sees the close first, it does not report the alert; then the earlier refusal is reported again. */
static void explain(struct application *a, const struct exchange *x, const struct answer *said,
                    struct exchange_words *words)
{
    if (x->certificate && said->kind == ANSWER_UNREACHABLE)
        snprintf(a->refusal, sizeof(a->refusal), "%.*s", (int)sizeof(a->refusal) - 1, words->brief);
    else if (a->refusal[0] && x->ending == ENDING_SEND && said->kind == ANSWER_UNREACHABLE) {
        snprintf(words->error, sizeof(words->error), "connection broke; before that, %s", a->refusal);
        snprintf(words->brief, sizeof(words->brief), "%.*s", (int)sizeof(words->brief) - 1, words->error);
    }
}

static void answer(struct forward *w, struct exchange *x, struct answer *a)
{
    struct application *application = x->route->application;
    struct buf body = w->answered;

    list_remove(&w->ended, &x->queue);
    a->queue = x->route->number;
    exchange_answer(x, a, &w->words);
    if (a->kind == ANSWER_STATUS)
        application->refusal[0] = '\0';
    else
        explain(application, x, a, &w->words);
    w->answered = x->answer;
    x->answer = body;
    retire(w, x);
}

enum forward_event_kind forward_step(struct forward *w, struct forward_event *e)
{
    if (!w->undrained)
        look(w);
    w->undrained = true;
    if (w->ended.len) {
        e->kind = FORWARD_ANSWER;
        answer(w, container_of(list_first(&w->ended), struct exchange, queue), &e->answer);
    } else if (w->probed.len) {
        e->kind = FORWARD_PROBE;
        probe_tell(w, container_of(list_first(&w->probed), struct probe, link), &e->probe);
    } else {
        e->kind = FORWARD_NOTHING;
        w->undrained = false;
    }
    return e->kind;
}

int64_t forward_due_ms(const struct forward *w)
{
    if (w->undrained || w->ended.len || w->probed.len)
        return 0;
    return time_earlier(time_earlier(w->next_deadline_ms, w->applications_due_ms), w->multi.due_ms);
}
