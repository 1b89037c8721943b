/* The arguments that queues were declared with. After a channel was opened, a helper thread asks for them on a
 * short-lived connection, since each informative question closes its channel. A queue is not consumed before its
 * answer, which may be that nothing can be known.
 *
 * Each such question is an error line in the broker's log. So an answer holds for the life of the connection, unless
 * the queue was deleted: a new one of its name may have other arguments, and no event reports that while the
 * connection is lost. */
#include "sidecar/sidecar.h"

#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/broker/arguments.h"

#include <stdlib.h>

enum { JOB_EXTRA_MS = 15000 /* for name resolution */, REFUSED_AGAIN_MS = 15000 };

void arguments_forget(struct sidecar_queue *sq)
{
    sq->arguments_known = false;
}

void arguments_want(struct sidecar_queue *sq)
{
    if (sq->arguments_known)
        return;
    sq->arguments_wanted = true;
    queue_limits_await(&sq->core);
}

static void job_ready(void *owner, uint32_t events)
{
    (void)owner;
    (void)events; /* arguments_step reads the result */
}

static void warn(const struct sidecar_queue *sq, const struct broker_arguments *a)
{
    int limit = returns_limit(&sq->core.returns);
    const char *drop = broker_arguments_drop_warning(a, limit),
               *small = broker_arguments_limit_warning(limit);

    if (drop)
        report_reason(sq, EVENT_LIMITS, drop);
    if (small && !sq->config->order.key.n) /* otherwise the queue is refused */
        report_reason(sq, EVENT_LIMITS, small);
}

/* An ordered queue is not consumed while its arguments do not allow that. They are read again until they do. */
static void judge_order(struct sidecar_queue *sq, const struct arguments_found *found)
{
    int64_t now_ms = sq->sidecar->now_ms;
    bool was_refused = sq->core.pauses[PAUSE_NOT_ORDERED].since_ms != 0,
         read = found && found->answer == ARGUMENTS_READ,
         readable = !found || found->answer != ARGUMENTS_NO_QUEUE;
    int limit = returns_limit(&sq->core.returns);
    const char *refusal = NULL;

    if (!sq->config->order.key.n || !readable)
        return;
    if (read)
        refusal = broker_arguments_order_refusal(&found->arguments, limit, sq->config->order.holds_dead);
    else if (!sq->core.returns.limits.read)
        refusal = broker_arguments_order_unread(limit, sq->config->order.holds_dead);
    queue_refused(&sq->core, now_ms, PAUSE_NOT_ORDERED, refusal);
    if (refusal && !was_refused)
        report_reason(sq, EVENT_REFUSED, refusal);
    sq->arguments_again_ms = refusal ? now_ms + REFUSED_AGAIN_MS : 0;
}

/* Passes the arguments to the core and logs them. found NULL: not read, so the earlier ones stay. */
static void tell(struct sidecar_queue *sq, const struct arguments_found *found)
{
    struct queue_limits limits = sq->core.returns.limits;
    int limit_before = returns_limit(&sq->core.returns);

    if (found && found->answer == ARGUMENTS_READ) {
        broker_arguments_limits(&found->arguments, &limits);
        if (found->arguments.kind == BROKER_KIND_QUORUM)
            queue_kind_known(&sq->core, KIND_QUORUM);
        else if (found->arguments.kind == BROKER_KIND_CLASSIC)
            queue_kind_known(&sq->core, KIND_CLASSIC);
    }
    sq->touched = true;
    queue_limits_known(&sq->core, &limits);
    judge_order(sq, found);
    sq->arguments_known = found && found->answer != ARGUMENTS_NO_QUEUE && !sq->arguments_again_ms;
    if (found && found->answer == ARGUMENTS_READ &&
        (!sq->core.ready || returns_limit(&sq->core.returns) != limit_before))
        warn(sq, &found->arguments);
}

static void begin(struct sidecar *s, struct broker_link *k)
{
    struct broker_queue *queues = mem_zalloc(s->n_queues, sizeof(*queues));
    struct fault f = {0};
    size_t n = 0;

    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];

        if (sq->link != k || !sq->arguments_wanted)
            continue;
        queues[n++] = (struct broker_queue){.name = sq->config->queue, .number = (uint32_t)i};
        sq->arguments_wanted = false;
        sq->arguments_asked = true;
    }
    if (n)
        k->arguments.job = arguments_start(&s->config->broker, k->vhost, queues, n, s->config->instance, &f);
    free(queues);
    if (!k->arguments.job)
        return;
    k->arguments.deadline_ms = s->now_ms + s->config->broker.connect_timeout_ms + JOB_EXTRA_MS;
    wait_add(s->wait, &k->arguments.watch, job_fd(k->arguments.job), EPOLLIN, job_ready, k, &f);
}

/* Passes the results to the queues that were asked about. */
static void end(struct sidecar *s, struct broker_link *k, const struct arguments_found *found, size_t n)
{
    k->arguments.job = NULL;
    for (size_t i = 0; i < n; i++) {
        tell(&s->queues[found[i].number], &found[i]);
        s->queues[found[i].number].arguments_asked = false;
    }
    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];

        if (sq->link == k && sq->arguments_asked)
            tell(sq, NULL);
        if (sq->link == k)
            sq->arguments_asked = false;
    }
}

static void answered(struct sidecar *s, struct broker_link *k)
{
    struct arguments_found *found = NULL;
    struct fault f = {0};
    void *result = NULL;
    size_t n = 0;

    if (job_take(k->arguments.job, &result)) {
        wait_remove(s->wait, &k->arguments.watch);
        arguments_attempt_take(result, &found, &n, &f); /* the queue's own connection reports the fault */
    } else if (s->now_ms < k->arguments.deadline_ms) {
        return;
    } else {
        wait_remove(s->wait, &k->arguments.watch);
        job_abandon(k->arguments.job);
    }
    end(s, k, found, n);
    free(found);
}

static bool is_wanted(const struct sidecar *s, const struct broker_link *k)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].link == k && s->queues[i].arguments_wanted)
            return true;
    return false;
}

void arguments_step(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];

        if (sq->arguments_again_ms && s->now_ms >= sq->arguments_again_ms && sq->link->broker) {
            sq->arguments_again_ms = 0;
            arguments_want(sq);
        }
    }
    for (size_t i = 0; i < s->n_links; i++) {
        struct broker_link *k = &s->links[i];

        if (k->arguments.job)
            answered(s, k);
        if (!k->arguments.job && !k->closing && is_wanted(s, k)) {
            begin(s, k);
            if (!k->arguments.job)
                end(s, k, NULL, 0);
        }
    }
}

void arguments_close(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_links; i++) {
        struct broker_link *k = &s->links[i];

        if (!k->arguments.job)
            continue;
        wait_remove(s->wait, &k->arguments.watch);
        job_abandon(k->arguments.job);
        k->arguments.job = NULL;
    }
}
