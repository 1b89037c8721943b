/* Requests to the applications, their answers, and the probes: from actions to HTTP and back to facts. */
#include "sidecar/sidecar.h"

#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"
#include "onceward/core/message.h"
#include "onceward/core/token.h"

#include <stdlib.h>

int requests_init(struct sidecar *s, struct fault *f)
{
    struct application_rules *rules = mem_zalloc(s->n_queues, sizeof(*rules));

    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];
        const struct config_queue *q = sq->config;
        struct application_rules *r;

        if (forward_add(s->forward, q, &sq->application, f)) {
            free(rules);
            return fault_wrap(f, "queues.%s", q->name);
        }
        r = &rules[sq->application];
        r->concurrency += q->partition ? 0 : q->forward.concurrency; /* shared by all partitions */
        r->has_ready_url |= q->ready_url != NULL;
        if (!r->ready_interval_ms || q->ready_interval_ms < r->ready_interval_ms)
            r->ready_interval_ms = q->ready_interval_ms;
        if (q->token_window_ms > r->window_ms)
            r->window_ms = q->token_window_ms;
        if ((size_t)q->forward.batch.max_messages > r->batch_messages)
            r->batch_messages = (size_t)q->forward.batch.max_messages;
        if (q->forward.batch.max_bytes > r->batch_bytes)
            r->batch_bytes = q->forward.batch.max_bytes;
        if (sq->application >= s->n_applications)
            s->n_applications = sq->application + 1;
    }
    s->applications = mem_zalloc(s->n_applications, sizeof(*s->applications));
    for (size_t i = 0; i < s->n_applications; i++)
        application_init(&s->applications[i], &rules[i], s->now_ms);
    free(rules);
    return 0;
}

/* Longest time of an exchange, as long as its window can be extended. The core's own timers end it earlier. */
static int64_t exchange_limit_ms(const struct config_queue *q)
{
    return q->max_window_ms + q->token_window_ms + TAKEOVER_GRACE_MS;
}

static void requests_send_batch(struct sidecar *s, struct sidecar_queue *sq, const struct request *sent)
{
    const struct config_queue *q = sq->config;
    const struct batch_facts facts = {
        .consumer = slice_of(q->consumer), .n = sent->n_sent, .window_ms = sent->window_ends_ms - s->now_ms};
    struct forward_request r = {
        .queue = sq->index,
        .ref = sent->ref,
        .headers = &s->headers,
        .body = buf_slice(&sent->body),
        .timeout_ms = exchange_limit_ms(q),
        .send_by_ms = sent->window_ends_ms,
        .fresh = request_first(sent)->claim->crashes > 0,
    };

    headers_write_batch(&s->headers, &facts);
    FAILPOINT(FORWARD_BEFORE);
    forward_send(s->forward, &r);
    FAILPOINT(FORWARD_SENT);
}

void requests_send(struct sidecar *s, struct sidecar_queue *sq, const struct request *sent)
{
    const struct delivery *d = request_first(sent);
    const struct config_queue *q = sq->config;

    if (sent->body.len) {
        requests_send_batch(s, sq, sent);
        return;
    }
    buf_reset(&s->token);
    token_write(&s->token, slice_of(q->consumer), delivery_slice(d), d->claim->token);
    struct request_facts facts = {
        .message_id = delivery_slice(d),
        .queue = slice_of(q->queue),
        .consumer = slice_of(q->consumer),
        .token = buf_slice(&s->token),
        .content_type = slice_of(q->forward.content_type),
        .window_ms = sent->window_ends_ms - s->now_ms,
        .attempt = d->claim->attempt + d->claim->takeovers,
    };
    headers_write(&s->headers, d->arrival->message, &facts);
    struct forward_request r = {
        .queue = sq->index,
        .ref = sent->ref,
        .headers = &s->headers,
        .body = {d->arrival->message->body, d->arrival->message->body_len},
        .timeout_ms = exchange_limit_ms(q),
        .send_by_ms = sent->window_ends_ms, /* later another owner's token may be valid */
        .fresh = d->claim->crashes > 0,     /* a crash must be this message's own, not the close of an old
                                               connection */
    };
    FAILPOINT(FORWARD_BEFORE);
    forward_send(s->forward, &r);
    FAILPOINT(FORWARD_SENT);
}

static void answered(struct sidecar *s, const struct answer *a)
{
    struct sidecar_queue *sq = &s->queues[a->queue];

    FAILPOINT(FORWARD_ANSWERED);
    if (a->kind == ANSWER_STATUS)
        histogram_add(&sq->first->forward_us, a->took_us);
    queue_answered(&sq->core, s->now_ms, a->ref, a);
    if (s->outbox)
        outbox_answered(s);
    sq->touched = true;
}

static void touch_all_of(struct sidecar *s, size_t application)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].application == application)
            s->queues[i].touched = true;
}

static void probed(struct sidecar *s, const struct forward_probed *p)
{
    bool ready = p->result == PROBE_READY, refused = p->result == PROBE_UNREACHABLE;
    struct application *a = &s->applications[p->application];

    application_probed(a, s->now_ms, ready, refused, random_below(UINT64_MAX));
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].application == p->application && !ready)
            queue_application_down(&s->queues[i].core, s->now_ms, p->error);
    touch_all_of(s, p->application);
}

void requests_step(struct sidecar *s)
{
    struct forward_event e;

    FAILPOINT_IF(forward_in_flight(s->forward), FORWARD_WAITING);
    for (;;) {
        switch (forward_step(s->forward, &e)) {
        case FORWARD_NOTHING:
            return;
        case FORWARD_ANSWER:
            answered(s, &e.answer);
            break;
        case FORWARD_PROBE:
            probed(s, &e.probe);
            break;
        }
    }
}

void requests_probe(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_applications; i++) {
        if (!application_wants_probe(&s->applications[i], s->now_ms))
            continue;
        application_probe_sent(&s->applications[i]);
        forward_probe(s->forward, i);
    }
}
