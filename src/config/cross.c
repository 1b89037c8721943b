/* Impossible combinations of keys. A combination is reported once, at the key that was given, or in the defaults if
 * it was given there. A key that is invalid by itself is ignored. */

#include "config/cross.h"

#include "config/applications.h"
#include "config/checks.h"
#include "config/exposed.h"
#include "config/report.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/config/pattern.h"
#include "onceward/core/identity.h"
#include "onceward/core/row.h"
#include "onceward/core/token.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { CONSUMER_MAX = 255 };

/* A token has room for the longest consumer name, NUL and the longest message id in base64url. */
_Static_assert(4 + ((CONSUMER_MAX + 1 + MESSAGE_ID_MAX) * 4 + 2) / 3 + 1 + 22 <= TOKEN_MAX,
               "the longest token");

struct shown {
    char text[32];
};

static struct shown show_ms(int64_t ms)
{
    struct buf b = {0};
    struct shown s;

    duration_write(&b, ms);
    snprintf(s.text, sizeof(s.text), "%s", buf_text(&b));
    buf_deinit(&b);
    return s;
}

static struct shown show_bytes(size_t bytes)
{
    struct buf b = {0};
    struct shown s;

    size_write(&b, bytes);
    snprintf(s.text, sizeof(s.text), "%s", buf_text(&b));
    buf_deinit(&b);
    return s;
}

/* --- TLS --- */

static void check_tls_file(const struct reading *r, const char *key, const char *file)
{
    if (file && access(file, R_OK) != 0)
        cross_report(r, true, key, NULL, "cannot be read now: %s", strerror(errno));
}

/* names: ca_file, cert_file, key_file, verify as paths. */
static void check_tls(const struct reading *r, const struct config_tls *t, const char *const names[4],
                      bool secure)
{
    check_tls_file(r, names[0], t->ca_file);
    check_tls_file(r, names[1], t->cert_file);
    check_tls_file(r, names[2], t->key_file);
    if (!t->cert_file != !t->key_file)
        cross_report(r, false, names[1], names[2], "expected %s and %s together", names[1], names[2]);
    for (int i = 0; i < 3; i++)
        if (!secure && reading_is_set(r, names[i]))
            cross_report(r, true, names[i], NULL, "has no effect: the URL's scheme is not one with TLS");
    if (secure && !t->verify)
        cross_report(r, true, names[3], NULL, "is false: any server that answers at that address is trusted");
}

static bool is_secure(const char *url, const char *scheme)
{
    return url && !strncasecmp(url, scheme, strlen(scheme)) && url[strlen(scheme)] == ':';
}

/* Makes only `check` fail: a running sidecar continues, and protects as many messages as it can. */
static void check_delivery_limit(const struct reading *r, const char *key, int limit)
{
    if (limit <= 0 || limit >= CONFIG_DELIVERY_LIMIT_MIN)
        return;
    cross_report(
        r, true, key, NULL,
        "with a limit of %d the broker drops messages after so few crashes that no sidecar can prevent it; "
        "expected at least %d (x-delivery-limit of the queue, or its policy)",
        limit, CONFIG_DELIVERY_LIMIT_MIN);
    report_fails_check(r->report);
}

static bool has_name(const struct config_names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->items[i], name) == 0)
            return true;
    return false;
}

/* Requires `mandatory`: without it the broker drops a message silently, and its successors would close the gap. */
static void check_ordered(const struct reading *root, const struct config_outbox *o)
{
    for (size_t i = 0; i < o->ordered.n; i++) {
        const char *name = o->ordered.items[i];

        if (has_name(&o->not_mandatory, name))
            cross_report(root, false, "outbox.ordered", "outbox.not_mandatory",
                         "'%s' is in both: without `mandatory` the broker drops messages silently", name);
        if (o->exchanges.n && !has_name(&o->exchanges, name))
            cross_report(root, false, "outbox.ordered", "outbox.exchanges",
                         "'%s' is not in outbox.exchanges: the outbox may not publish to it", name);
    }
}

void cross_check_root(const struct reading *root, config_database_check *check)
{
    static const char *const names[] = {"broker.tls.ca_file", "broker.tls.cert_file", "broker.tls.key_file",
                                        "broker.tls.verify"};
    const struct config *c = root->target;
    struct fault f = {0};
    int database = check && reading_is_set(root, "database.url") ? check(c->database.url.value, &f) : 0;

    if (database < 0)
        cross_report(root, false, "database.url", NULL, "%s", f.text);
    exposed_check_root(root, database > 0);
    if (c->broker.url.value)
        check_tls(root, &c->broker.tls, names, is_secure(c->broker.url.value, "amqps"));
    check_delivery_limit(root, "broker.delivery_limit", c->broker.delivery_limit);
    check_ordered(root, &c->outbox);
}

/* --- a queue --- */

static void check_windows(const struct reading *r, const struct config_queue *q)
{
    int64_t held_ms = q->token_window_ms + TAKEOVER_GRACE_MS + q->commit_grace_ms;

    if (q->max_window_ms < q->token_window_ms)
        cross_report(r, false, "max_window", "token_window",
                     "max_window (%s) is below token_window (%s); expected at least as much",
                     show_ms(q->max_window_ms).text, show_ms(q->token_window_ms).text);
    if (held_ms > q->max_hold_ms)
        cross_report(
            r, false, "token_window", "max_hold",
            "token_window (%s) with 2s of grace and commit_grace (%s) is above max_hold (%s); expected at "
            "most as much",
            show_ms(q->token_window_ms).text, show_ms(q->commit_grace_ms).text, show_ms(q->max_hold_ms).text);
    else if (q->max_window_ms > q->max_hold_ms)
        cross_report(
            r, true, "max_window", "max_hold",
            "max_window (%s) is above max_hold (%s): a job that is extended so far outlives its delivery",
            show_ms(q->max_window_ms).text, show_ms(q->max_hold_ms).text);
    if (q->max_hold_ms > q->consumer_timeout_ms)
        cross_report(r, true, "max_hold", "consumer_timeout",
                     "max_hold (%s) is above consumer_timeout (%s): the broker takes the delivery back first",
                     show_ms(q->max_hold_ms).text, show_ms(q->consumer_timeout_ms).text);
    if (q->pause_hold_ms > q->max_hold_ms)
        cross_report(r, true, "pause_hold", "max_hold",
                     "pause_hold (%s) is above max_hold (%s), which comes first",
                     show_ms(q->pause_hold_ms).text, show_ms(q->max_hold_ms).text);
}

/* Sum of all waits between a message's attempts, each at its longest. */
static int64_t longest_retry_ms(const struct config_queue *q)
{
    int64_t sum_ms = 0, wait_ms = q->backoff_ms;

    for (int n = 1; n < q->max_attempts; n++) {
        sum_ms += wait_ms < q->max_backoff_ms ? wait_ms : q->max_backoff_ms;
        if (wait_ms < q->max_backoff_ms)
            wait_ms *= 2;
    }
    return sum_ms;
}

/* Retention counts from the completion, which an application may write at the start of its transaction. A message
 * that is forgotten before the transaction commits, or while a copy of the delivery is held, would be processed
 * twice. */
static void check_retention(const struct reading *r, const struct config_queue *q)
{
    const char *other =
        reading_origin(r, "max_hold") > reading_origin(r, "max_window") ? "max_hold" : "max_window";

    if (q->retention_ms >= q->max_window_ms + q->max_hold_ms || reading_origin(r, "max_hold") == ORIGIN_BAD ||
        reading_origin(r, "max_window") == ORIGIN_BAD)
        return;
    cross_report(
        r, false, "retention", other,
        "retention (%s) is below max_window (%s) with max_hold (%s): a message could be forgotten while its "
        "transaction or a copy of it is under way, and be done twice; expected at least %s",
        show_ms(q->retention_ms).text, show_ms(q->max_window_ms).text, show_ms(q->max_hold_ms).text,
        show_ms(q->max_window_ms + q->max_hold_ms).text);
}

/* A used token is reported as used as long as its row exists. A late call of an application, or a held copy of the
 * delivery, arrives within max_window and max_hold; the hour is for clock differences and suspended machines. */
static void check_compact(const struct reading *r, const struct config_queue *q)
{
    int64_t least_ms = q->max_window_ms + q->max_hold_ms + INT64_C(3600000);

    if (!q->compact_ms)
        return;
    if (q->compact_ms >= q->retention_ms && reading_origin(r, "retention") != ORIGIN_BAD)
        cross_report(r, false, "compact_after", "retention",
                     "compact_after (%s) is not below retention (%s): nothing would ever be compacted",
                     show_ms(q->compact_ms).text, show_ms(q->retention_ms).text);
    else if (q->compact_ms < least_ms && reading_origin(r, "max_hold") != ORIGIN_BAD &&
             reading_origin(r, "max_window") != ORIGIN_BAD)
        cross_report(
            r, false, "compact_after",
            reading_origin(r, "max_hold") > reading_origin(r, "max_window") ? "max_hold" : "max_window",
            "compact_after (%s) is below max_window (%s) with max_hold (%s) and 1h: a token that was used "
            "would be answered as one that is unknown; expected at least %s",
            show_ms(q->compact_ms).text, show_ms(q->max_window_ms).text, show_ms(q->max_hold_ms).text,
            show_ms(least_ms).text);
}

static void check_retry(const struct reading *r, const struct config_queue *q)
{
    int64_t longest_ms = longest_retry_ms(q);

    if (q->max_backoff_ms < q->backoff_ms)
        cross_report(r, false, "retry.max_backoff", "retry.backoff",
                     "retry.max_backoff (%s) is below retry.backoff (%s); expected at least as much",
                     show_ms(q->max_backoff_ms).text, show_ms(q->backoff_ms).text);
    if (q->retention_ms < longest_ms && reading_origin(r, "retry.max_backoff") != ORIGIN_BAD)
        cross_report(
            r, false, "retention", "retry.max_attempts",
            "retention (%s) is below the longest retry, the waits between %d attempts (retry.max_attempts) "
            "from %s (retry.backoff) to %s (retry.max_backoff); expected at least %s",
            show_ms(q->retention_ms).text, q->max_attempts, show_ms(q->backoff_ms).text,
            show_ms(q->max_backoff_ms).text, show_ms(longest_ms).text);
    else
        check_retention(r, q);
}

static void check_amounts(const struct reading *r, const struct config_queue *q)
{
    if (q->prefetch < q->forward.concurrency && q->n_partitions == 1)
        cross_report(r, false, "prefetch", "forward.concurrency",
                     "prefetch (%d) is below forward.concurrency (%d); expected at least as much",
                     q->prefetch, q->forward.concurrency);
    else if ((size_t)q->prefetch * q->n_partitions < (size_t)q->forward.concurrency)
        cross_report(
            r, false, "prefetch", "forward.concurrency",
            "prefetch (%d) of %zu partitions is below forward.concurrency (%d); expected at least as much "
            "in all",
            q->prefetch, q->n_partitions, q->forward.concurrency);
    check_delivery_limit(r, "delivery_limit", q->delivery_limit);
    if (q->store_response_bytes > q->forward.max_response_bytes)
        cross_report(r, false, "store_response", "forward.max_response",
                     "store_response (%s) is above forward.max_response (%s); expected at most as much",
                     show_bytes(q->store_response_bytes).text,
                     show_bytes(q->forward.max_response_bytes).text);
    if (q->store_response_bytes && q->transaction)
        cross_report(r, true, "store_response", "completion",
                     "has no effect with completion \"transaction\": the application keeps a result with "
                     "onceward.complete(token, result)");
}

static void check_forward(const struct reading *r, const struct config_queue *q)
{
    static const char *const names[] = {"forward.tls.ca_file", "forward.tls.cert_file",
                                        "forward.tls.key_file", "forward.tls.verify"};
    const struct config_forward *w = &q->forward;

    if (w->connect_timeout_ms >= q->token_window_ms)
        cross_report(
            r, false, "forward.connect_timeout", "token_window",
            "forward.connect_timeout (%s) is not below token_window (%s): the window would be over before "
            "the "
            "message is sent; expected less",
            show_ms(w->connect_timeout_ms).text, show_ms(q->token_window_ms).text);
    if (reading_is_set(r, "forward.url"))
        check_tls(r, &w->tls, names, is_secure(w->url, "https") || is_secure(q->ready_url, "https"));
    for (size_t i = 0; i < w->n_headers; i++)
        if (w->authorization.value && !strcasecmp(w->headers[i].name, "Authorization"))
            cross_report(
                r, false, "forward.authorization", "forward.headers",
                "forward.authorization is given together with an Authorization field in forward.headers; expected "
                "only one of the two");
}

static void check_batch(const struct reading *r, const struct config_queue *q)
{
    const struct config_forward *w = &q->forward;

    if (!w->batch.max_messages) {
        if (reading_is_set(r, "forward.batch.max_bytes") &&
            reading_origin(r, "forward.batch.max_messages") == ORIGIN_NONE)
            cross_report(r, false, "forward.batch.max_bytes", NULL,
                         "needs forward.batch.max_messages, which is not set");
        return;
    }
    if (q->order.key.n && w->batch.max_messages > q->prefetch)
        cross_report(r, false, "forward.batch.max_messages", "order.key",
                     "is above the prefetch of an ordered queue (%d); expected at most as much", q->prefetch);
    size_t results = config_batch_results(q);

    if (results && w->max_response_bytes < BATCH_ANSWER_BYTES + results)
        cross_report(r, false, "forward.max_response", "store_response",
                     "forward.max_response (%s) cuts an answer with the results of %d messages, each of "
                     "store_response (%s); "
                     "expected at least %s",
                     show_bytes(w->max_response_bytes).text, w->batch.max_messages,
                     show_bytes(q->store_response_bytes).text, show_bytes(BATCH_ANSWER_BYTES + results).text);
    else if (w->max_response_bytes < (size_t)w->batch.max_messages * 64)
        cross_report(
            r, false, "forward.max_response", "forward.batch.max_messages",
            "forward.max_response (%s) cuts an answer that names %d messages; expected at least 64 B for each",
            show_bytes(w->max_response_bytes).text, w->batch.max_messages);
}

static void check_order(const struct reading *r, const struct config *c, const struct config_queue *q)
{
    int limit = q->delivery_limit >= 0 ? q->delivery_limit : c->broker.delivery_limit;
    static const struct {
        const char *key, *why;
    } useless[] = {
        {"prefetch",
         "cannot be set on an ordered queue: it is 256, the same for all replicas, since a replica "
         "with another one would return messages to other places"},
        {"max_parked", "has no effect on an ordered queue, where the prefetch bounds all that is held"},
        {"revive",
         "has no effect on an ordered queue: a message that was moved back goes behind its successors"},
    };
    size_t most = q->max_bytes / (size_t)q->prefetch / q->n_partitions;

    if (!q->order.key.n) {
        if (reading_is_set(r, "order.unkeyed") && reading_origin(r, "order.key") == ORIGIN_NONE)
            cross_report(r, false, "order.unkeyed", NULL, "needs order.key, which is not set");
        if (reading_is_set(r, "order.on_dead") && reading_origin(r, "order.key") == ORIGIN_NONE)
            cross_report(r, false, "order.on_dead", NULL, "needs order.key, which is not set");
        return;
    }
    for (size_t i = 0; i < sizeof(useless) / sizeof(useless[0]); i++)
        if (reading_origin(r, useless[i].key) == ORIGIN_GIVEN)
            cross_report(r, false, useless[i].key, "order.key", "%s", useless[i].why);
    if (q->pattern && q->order.key.n > 1)
        cross_report(
            r, false, "order.key", "queue",
            "has %zu sources; expected one with several partitions, the same that the exchange hashes on",
            q->order.key.n);
    if (q->max_message_bytes > most && q->pattern)
        cross_report(
            r, false, "max_message", "max_bytes",
            "max_message (%s) times prefetch (%d) times %zu partitions is above max_bytes (%s): an "
            "ordered queue returns nothing to the broker; expected max_message of at most %s, or a larger "
            "max_bytes",
            show_bytes(q->max_message_bytes).text, q->prefetch, q->n_partitions,
            show_bytes(q->max_bytes).text, show_bytes(most).text);
    else if (q->max_message_bytes > most)
        cross_report(r, false, "max_message", "max_bytes",
                     "max_message (%s) times prefetch (%d) is above max_bytes (%s): an ordered queue "
                     "returns nothing to the broker; expected max_message of at most %s, or a larger "
                     "max_bytes",
                     show_bytes(q->max_message_bytes).text, q->prefetch, show_bytes(q->max_bytes).text,
                     show_bytes(most).text);
    if (limit > 0 && limit < CONFIG_ORDERED_LIMIT_MIN)
        cross_report(r, false, "delivery_limit", "order.key",
                     "with a limit of %d after that many restarts the broker drops all messages that an "
                     "ordered queue holds; expected 0 (no limit) or at least %d",
                     limit, CONFIG_ORDERED_LIMIT_MIN);
    else if (limit > 0 && q->order.holds_dead)
        cross_report(r, false, "order.on_dead", "delivery_limit",
                     "hold needs a queue without a delivery limit (0), not one of %d: a held message is "
                     "delivered again after each max_hold",
                     limit);
}

/* Checks the queue's own name when that is the consumer name, since no key gives it. */
static void check_default_consumer(const struct reading *r, const struct config_queue *q)
{
    const char *wrong = check_consumer(q->consumer);

    if (wrong && !reading_is_set(r, "consumer"))
        cross_report(r, false, "consumer", NULL, "the queue's name, \"%s\", is reserved; expected %s",
                     q->consumer, wrong);
}

void cross_check_queue(const struct reading *root, const struct queue_reading *q)
{
    const struct reading *r = &q->reading;
    const struct config *c = root->target;

    check_default_consumer(r, &q->queue);
    check_windows(r, &q->queue);
    check_retry(r, &q->queue);
    check_compact(r, &q->queue);
    check_amounts(r, &q->queue);
    check_forward(r, &q->queue);
    check_batch(r, &q->queue);
    check_order(r, c, &q->queue);
    exposed_check_queue(q);
    /* Reported only when one of the two was given: the defaults fit the 30 seconds that Kubernetes grants a
     * pod. */
    if (c->shutdown_grace_ms < q->queue.token_window_ms &&
        reading_origin(root, "shutdown_grace") != ORIGIN_BAD &&
        reading_origin(r, "token_window") != ORIGIN_BAD &&
        (reading_is_set(root, "shutdown_grace") || reading_is_set(r, "token_window")))
        report_warning(r->report, "shutdown_grace",
                       "shutdown_grace (%s) is below token_window (%s) of %s: work in flight may be cut off "
                       "at a shutdown",
                       show_ms(c->shutdown_grace_ms).text, show_ms(q->queue.token_window_ms).text, q->path);
}

/* --- queues among themselves --- */

static bool same_vhost(const char *a, const char *b, const char *of_url)
{
    if (!a)
        a = of_url;
    if (!b)
        b = of_url;
    return a == b || (a && b && !strcmp(a, b));
}

/* Does one of q's queues have that name? */
static bool has_queue(const struct config_queue *q, const char *name)
{
    struct pattern p;
    const char *wrong;

    if (!q->pattern)
        return !strcmp(q->queue, name);
    pattern_read(q->pattern, &p, &wrong);
    return pattern_has(&p, name);
}

/* Finds the first queue that belongs to both, and adds it to *ret. */
static bool queue_in_both(const struct config_queue *a, const struct config_queue *b, struct buf *ret)
{
    struct pattern p;
    const char *wrong;

    if (!b->pattern) {
        buf_add_text(ret, b->queue);
        return has_queue(a, b->queue);
    }
    pattern_read(b->pattern, &p, &wrong);
    for (size_t i = 0; i < pattern_count(&p); i++) {
        buf_reset(ret);
        pattern_add_name(ret, &p, i);
        if (has_queue(a, buf_text(ret)))
            return true;
    }
    return false;
}

static void check_pair(const struct queue_reading *first, const struct queue_reading *second,
                       const char *vhost)
{
    const struct reading *r = &second->reading;

    if (!strcmp(first->path, second->path)) /* given twice, already reported */
        return;
    struct buf shared = {0};
    bool same_queue = same_vhost(first->queue.vhost, second->queue.vhost, vhost) &&
                      queue_in_both(&first->queue, &second->queue, &shared);

    if (same_queue && reading_origin(r, "vhost") != ORIGIN_BAD &&
        (first->queue.pattern || second->queue.pattern))
        cross_report(r, false, "queue", NULL, "%s is a queue of %s, too; expected each queue once",
                     buf_text(&shared), first->path);
    else if (same_queue && reading_origin(r, "vhost") != ORIGIN_BAD)
        cross_report(r, false, "queue", NULL, "the same queue and vhost as %s; expected each queue once",
                     first->path);
    else if (!strcmp(first->queue.consumer, second->queue.consumer))
        cross_report(
            r, false, "consumer", NULL,
            "the same consumer name as %s; expected a name of its own, since messages of one queue would "
            "count as "
            "completed in the other",
            first->path);
    buf_deinit(&shared);
}

void cross_check_queues(const struct reading *root, const struct queue_reading *queues, size_t n)
{
    const struct config *c = root->target;
    char vhost[256];
    bool known = c->broker.url.value;

    if (known)
        broker_url_vhost(c->broker.url.value, vhost, sizeof(vhost));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            check_pair(&queues[k], &queues[i], known ? vhost : NULL);
    applications_check(queues, n);
}
