/* check --connect: tries everything that the configuration names, in sequence. */

#include "command/check.h"

#include "command/common.h"
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/table.h"
#include "onceward/base/wait.h"
#include "onceward/broker/arguments.h"
#include "onceward/broker/broker.h"
#include "onceward/broker/publisher.h"
#include "onceward/config/config.h"
#include "onceward/core/message.h"
#include "onceward/core/returns.h"
#include "onceward/forward/forward.h"
#include "onceward/sidecar/state_file.h"

#include <stdlib.h>
#include <string.h>

/* The probe itself ends a GET that hangs; this deadline guards against a bug. */
enum { PROBE_DEADLINE_MS = 30000 };

static void say(struct findings *s, bool ok, const char *text)
{
    check_tell(s, ok ? FINDING_OK : FINDING_FAILED, text);
}

static void check_database(const struct config *c, struct findings *s)
{
    const char **vhosts = mem_zalloc(c->n_queues + 1, sizeof *vhosts);
    char where[320];
    struct fault f = {0};
    struct admin *a;

    s->where = "database";
    for (size_t i = 0; i <= c->n_queues; i++) {
        const struct config_queue outbox = {.vhost = c->outbox.vhost};
        char *vhost = NULL;

        if (broker_vhost(&c->broker, i < c->n_queues ? &c->queues[i] : &outbox, &vhost, &f) == 0)
            vhosts[i] = vhost;
    }
    if (admin_open(&c->database, ADMIN_READS, &a, &f)) {
        say(s, false, f.text);
    } else {
        snprintf(where, sizeof where, "database %s", admin_where(a));
        s->where = where;
        if (admin_check(a, c, vhosts, check_tell, s, &f))
            say(s, false, f.text);
        admin_close(a);
    }
    for (size_t i = 0; i <= c->n_queues; i++)
        free((char *)vhosts[i]);
    free(vhosts);
}

/* Adds "amqp://host:5672": the URL without user, password, vhost and query. */
static void add_server(struct buf *out, const struct config_broker *c)
{
    char *url = NULL, *start, *end, *at;
    struct fault f = {0};

    if (config_text_read(&c->url, &url, &f) || !url || !(start = strstr(url, "://"))) {
        buf_add_text(out, "of broker.url");
        free(url);
        return;
    }
    start += 3;
    end = start + strcspn(start, "/?#");
    at = memrchr(start, '@', (size_t)(end - start));
    buf_add(out, url, (size_t)(start - url));
    buf_add(out, at ? at + 1 : start, (size_t)(end - (at ? at + 1 : start)));
    free(url);
}

static int configured_limit(const struct config *c, const struct config_queue *q)
{
    return returns_limit_of_key(q->delivery_limit >= 0 ? q->delivery_limit : c->broker.delivery_limit);
}

/* Could one of the next two deliveries exceed the delivery limit? Each sample is a delivery, and a quorum queue drops
 * a message beyond its limit. */
static bool is_near_the_limit(const struct returns *r, const struct message *m, struct buf *out)
{
    int64_t count = message_delivery_count(m);

    if (returns_limit(r) == LIMIT_UNKNOWN ? count < 1 : !returns_is_near(r, count + 1))
        return false;
    buf_printf(
        out,
        ". Do not sample it again: it had been delivered %lld time%s before, and the queue's delivery limit ",
        (long long)count, count == 1 ? "" : "s");
    if (returns_limit(r) == LIMIT_UNKNOWN)
        buf_add_text(out, "is not known (set delivery_limit)");
    else
        buf_printf(out, "is %d", returns_limit(r));
    buf_add_text(out, ": the broker drops a message that was delivered more often");
    return true;
}

/* Reads one message of the queue, and requeues it. Not for a queue that drops a message at its first return. */
static void check_sample(const struct config *c, const struct config_queue *q, struct returns *r,
                         struct findings *s)
{
    struct buf text = {0};
    struct fault f = {0};
    struct message *m = NULL;
    bool drops = returns_leave_none(r) && returns_are_counted(r);
    int answer = drops ? 1 : broker_sample(&c->broker, q, &m, &r->server_major, &f);
    enum finding kind = FINDING_OK;

    buf_printf(&text, "sample of queue %s: ", q->queue);
    if (drops) {
        buf_add_text(&text,
                     "not taken: with a delivery limit of 0 the broker drops a message at its first return");
        kind = FINDING_FAILED;
    } else if (answer < 0) {
        text_add_safe(&text, slice_of(f.text));
        kind = FINDING_WARNING;
    } else if (answer > 0) {
        buf_add_text(&text, "no message is ready in it, so there is no sample");
    } else {
        kind = sample_describe(q, m, &text) ? FINDING_OK : FINDING_FAILED;
        buf_add_text(&text, ". It was returned");
        if (returns_are_counted(r)) {
            buf_add_text(&text, ", which counts as a delivery");
            if (is_near_the_limit(r, m, &text))
                kind = FINDING_FAILED;
        }
    }
    check_tell(s, kind, buf_text(&text));
    message_free(m);
    buf_deinit(&text);
}

static bool check_lifetime(const struct broker_arguments *a, struct buf *text)
{
    if (a->auto_delete)
        buf_add_text(text, "; the broker deletes it, with its messages, when its last consumer leaves: "
                           "declare it without auto-delete");
    if (a->expires_ms != ARGUMENT_ABSENT)
        buf_printf(text,
                   "; the broker deletes it, with its messages, after %lld ms without a consumer: declare "
                   "it without x-expires",
                   (long long)a->expires_ms);
    return a->auto_delete || a->expires_ms != ARGUMENT_ABSENT;
}

static bool check_drop(const struct broker_arguments *a, int limit, struct buf *text)
{
    const char *warning = broker_arguments_drop_warning(a, limit);

    if (warning)
        buf_printf(text, "; %s", warning);
    return warning != NULL;
}

/* Does the broker accept the timeout from the consumer? If not, an administrator must set it. */
static bool check_timeout(const struct config_queue *q, const struct broker_arguments *a, struct buf *text)
{
    bool is_taken = a->kind == BROKER_KIND_QUORUM &&
                    (a->server_major > 4 || (a->server_major == 4 && a->server_minor >= 3));

    if (q->consumer_timeout_ms == CONFIG_CONSUMER_TIMEOUT_MS || is_taken)
        return false;
    buf_printf(
        text,
        "; set consumer_timeout at the broker, too, since only quorum queues of RabbitMQ 4.3 accept it "
        "from a consumer: consumer_timeout = %lld in rabbitmq.conf, or from 3.12 on the policy "
        "consumer-timeout",
        (long long)q->consumer_timeout_ms);
    return true;
}

/* Does the queue support order per key? a NULL: its arguments are unknown. */
static void check_order(const struct broker_arguments *a, int limit, bool holds_dead, struct buf *text,
                        enum finding *kind)
{
    const char *refusal = a ? broker_arguments_order_refusal(a, limit, holds_dead)
                            : broker_arguments_order_unread(limit, holds_dead);

    if (!refusal)
        return;
    buf_printf(text, "; %s", refusal);
    *kind = FINDING_FAILED;
}

/* Reports the delivery limit, as far as it is known, and whether a message near it can be renewed. */
static struct returns check_limit(const struct config *c, const struct config_queue *q, const char *vhost,
                                  struct findings *s)
{
    struct returns r = {.kind = KIND_QUORUM,
                        .configured = configured_limit(c, q)}; /* other kinds count no deliveries */
    struct broker_arguments a;
    enum arguments_answer answer = ARGUMENTS_UNREADABLE;
    enum finding kind = FINDING_OK;
    struct buf text = {0};
    struct fault f = {0};

    buf_printf(&text, "queue %s: ", q->queue);
    if (broker_arguments(&c->broker, vhost, q->queue, &a, &answer, &f)) {
        buf_printf(&text, "its arguments were not read: %s", f.text);
        kind = FINDING_WARNING;
    } else if (answer == ARGUMENTS_READ && (a.kind == BROKER_KIND_CLASSIC || a.exclusive)) {
        r.kind = KIND_CLASSIC;
        buf_add_text(&text, "a classic queue, which has no delivery limit");
    } else {
        r.kind = KIND_QUORUM;
        r.server_major = a.server_major;
        r.server_minor = a.server_minor;
        if (answer == ARGUMENTS_READ)
            broker_arguments_limits(&a, &r.limits);
        returns_limit_words(&r, &text);
        if (answer == ARGUMENTS_FORBIDDEN)
            buf_add_text(&text,
                         "; its arguments cannot be read: this user has no configure permission on it");
        else if (answer != ARGUMENTS_READ)
            buf_printf(&text, "; its arguments cannot be read: %s", f.text);
        if (returns_limit(&r) == LIMIT_UNKNOWN || returns_limit_is_assumed(&r))
            kind = FINDING_WARNING;
        if (r.limits.drops_head && returns_limit(&r) != LIMIT_NONE) {
            buf_add_text(&text,
                         "; a full queue drops its oldest message, so a message near the limit becomes a "
                         "dead letter: declare it with x-overflow reject-publish");
            kind = FINDING_WARNING;
        }
        if (returns_limit(&r) != LIMIT_UNKNOWN && returns_limit(&r) < CONFIG_DELIVERY_LIMIT_MIN) {
            buf_printf(&text, "; expected at least %d, or the broker drops messages after that many crashes",
                       CONFIG_DELIVERY_LIMIT_MIN);
            kind = FINDING_FAILED;
        }
    }
    if (q->order.key.n)
        check_order(answer == ARGUMENTS_READ && !a.exclusive ? &a : NULL, returns_limit(&r),
                    q->order.holds_dead, &text, &kind);
    if (answer == ARGUMENTS_READ && !a.exclusive) {
        bool lifetime = check_lifetime(&a, &text);
        bool drop = check_drop(&a, returns_limit(&r), &text);
        bool timeout = check_timeout(q, &a, &text);

        if ((lifetime || drop || timeout) && kind == FINDING_OK)
            kind = FINDING_WARNING;
    }
    check_tell(s, kind, buf_text(&text));
    buf_deinit(&text);
    return r;
}

static void check_broker(const struct config *c, const struct config_queue *q, bool sample,
                         struct findings *s)
{
    struct buf where = {0};
    char text[1200];
    char *vhost = NULL;
    struct fault f = {0};
    bool ok = broker_vhost(&c->broker, q, &vhost, &f) == 0 && broker_check(&c->broker, q, &f) == 0;

    buf_add_text(&where, "broker ");
    add_server(&where, &c->broker);
    buf_printf(&where, ", vhost %s", vhost ? vhost : "?");
    if (ok)
        snprintf(text, sizeof text, "queue %s exists", q->queue);
    else
        snprintf(text, sizeof text, "queue %s: %s", q->queue, f.text);
    s->where = buf_text(&where);
    say(s, ok, text);
    struct returns r = {0};
    if (ok)
        r = check_limit(c, q, vhost, s);
    if (ok && sample && q->order.key.n)
        say(s, false,
            "no message of an ordered queue is sampled: it would be returned alone, and may be "
            "redelivered out of order. The log counts and describes messages without a key: `onceward "
            "explain unkeyed`");
    else if (ok && sample)
        check_sample(c, q, &r, s);
    buf_deinit(&where);
    free(vhost);
}

/* May the user publish to that exchange? The broker checks permissions and the exchange first, the expiration last.
 * So an invalid expiration leads to 406 from an exchange that would accept messages, and nothing is routed. */
static bool check_exchange(const struct config *c, const char *vhost, const char *exchange, struct fault *f)
{
    struct message *m = message_new();
    struct publisher *p;
    bool ok = false;

    m->properties[PROPERTY_EXPIRATION] = SLICE("none: onceward check");
    if (publisher_open(&c->broker, vhost, "check", &p, f) == 0) {
        ok = publisher_send_to(p, slice_of(exchange), SLICE(""), m, f) < 0 && !strcmp(f->code, "406");
        publisher_close(p);
    }
    message_free(m);
    return ok;
}

static void check_outbox(const struct config *c, struct findings *s)
{
    const struct config_names *names = &c->outbox.exchanges;
    struct buf where = {0};
    char text[1200];
    char *vhost = NULL;
    struct fault f = {0};
    bool ok = broker_vhost(&c->broker, &(struct config_queue){.vhost = c->outbox.vhost}, &vhost, &f) == 0;

    buf_add_text(&where, "broker ");
    add_server(&where, &c->broker);
    buf_printf(&where, ", vhost %s", vhost ? vhost : "?");
    s->where = buf_text(&where);
    for (size_t i = 0; ok && i < (names->n ? names->n : 1); i++) {
        const char *exchange = names->n ? names->items[i] : "";
        bool may = check_exchange(c, vhost, exchange, &f);

        if (!may && !names->n && strstr(f.text, "ACCESS_REFUSED")) {
            /* All exchanges are allowed, so only an example can be checked. */
            snprintf(
                text, sizeof text,
                "the outbox reaches the broker; it may not publish to the default exchange, and no other was "
                "tried: outbox.exchanges names none");
            may = true;
        } else if (may)
            snprintf(text, sizeof text, "the outbox may publish to %s%s",
                     *exchange ? "exchange " : "the default exchange", exchange);
        else
            snprintf(text, sizeof text, "outbox, exchange \"%s\": %s", exchange, f.text);
        say(s, may, text);
    }
    if (!ok)
        say(s, false, f.text);
    buf_deinit(&where);
    free(vhost);
}

/* Waits until the probe ends, or its time is over. */
static int probe_wait(struct wait *wait, struct forward *w, struct fault *f)
{
    int64_t until = clock_ms() + PROBE_DEADLINE_MS;
    struct forward_event e;

    while (clock_ms() < until) {
        int64_t due = forward_due_ms(w);

        wait_turn(wait, due < until ? due : until);
        while (forward_step(w, &e))
            if (e.kind == FORWARD_PROBE)
                return e.probe.result == PROBE_READY ? 0 : fault_set(f, "%s", e.probe.error);
    }
    return fault_set(f, "no answer to the probe within %d s", PROBE_DEADLINE_MS / 1000);
}

/* Sends the probe that the sidecar sends before it consumes. */
static int probe(const struct config_queue *q, struct fault *f)
{
    struct wait *wait = NULL;
    struct forward *w = NULL;
    size_t application;
    int r = wait_new(&wait, f) || forward_new(wait, &w, f) || forward_add(w, q, &application, f) ? -1 : 0;

    if (r == 0) {
        forward_probe(w, application);
        r = probe_wait(wait, w, f);
    }
    forward_free(w);
    wait_free(wait);
    return r;
}

/* Checks the application. The URL is shown without its query, which may contain a key. */
static void check_application(const struct config_queue *q, struct findings *s)
{
    const char *url = q->ready_url ? q->ready_url : q->forward.url;
    int len = (int)strcspn(url, "?");
    char where[320], text[1200];
    struct fault f = {0};
    bool ok = probe(q, &f) == 0;

    snprintf(where, sizeof where, "application of %s", q->name);
    if (ok)
        snprintf(text, sizeof text, "%.*s %s", len, url,
                 q->ready_url ? "answers that it is ready" : "takes connections");
    else
        snprintf(text, sizeof text, "%.*s: %s", len, url, f.text);
    s->where = where;
    say(s, ok, text);
}

/* Can a sidecar lock and write the file here, or does one already? */
static void check_state_file(const struct config *c, struct findings *s)
{
    struct fault f = {0};
    int64_t pid = 0;
    char text[160] = "can be written";

    s->where = "state file";
    int answer = state_file_try(c->state_file, &pid, &f);
    if (answer == STATE_FILE_TAKEN && pid)
        snprintf(text, sizeof text, "a sidecar runs with it, process %lld", (long long)pid);
    else if (answer == STATE_FILE_TAKEN)
        snprintf(text, sizeof text, "a sidecar in another container runs with it");
    bool shares_default = answer == STATE_FILE_TAKEN && !c->state_file_is_set;
    if (answer < 0)
        fault_wrap(&f, "%s: health, drain and reload would not work", c->state_file);
    else
        fault_set(&f, "%s: %s%s", c->state_file, text,
                  shares_default ? ". Set state_file if that is a different sidecar: of two with the "
                                   "default, health, drain and reload find only the first"
                                 : "");
    check_tell(s, answer < 0 ? FINDING_FAILED : shares_default ? FINDING_WARNING : FINDING_OK, f.text);
}

int check_connections(const struct config *c, bool sample, struct findings *s)
{
    if (sample) {
        s->where = "sample";
        check_tell(
            s, FINDING_WARNING,
            "takes one message from each queue and returns it. A quorum queue before RabbitMQ 4.3 counts "
            "this as a delivery of the message");
    }
    check_state_file(c, s);
    check_database(c, s);
    for (size_t i = 0; i < c->n_queues; i++)
        check_broker(c, &c->queues[i], sample, s);
    if (c->outbox.is_there)
        check_outbox(c, s);
    forward_global_init();
    /* The partitions of an entry share its application. */
    for (size_t i = 0; i < c->n_queues; i += c->queues[i].n_partitions)
        check_application(&c->queues[i], s);
    return s->n_failed ? STATUS_FAILED : STATUS_DONE;
}
