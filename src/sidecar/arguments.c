/* The arguments that queues were declared with: asked when a channel has been opened, on a short-lived connection of a
 * helper thread, since each question that learns something closes its channel. Nothing is consumed from a queue
 * before its answer, which may be that nothing can be known.
 *
 * Each such question is an error line in the broker's log. So an answer holds for the life of the connection, unless
 * the queue was deleted: the next one of its name may have other arguments, and no event reports that while there is no
 * connection. */
#include "sidecar/sidecar.h"

#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/broker/arguments.h"

#include <stdlib.h>

enum { JOB_EXTRA_MS = 15000 /* for name resolution */, REFUSED_AGAIN_MS = 15000 };

void arguments_forget(struct lane *l)
{
    l->arguments_known = false;
}

void arguments_want(struct lane *l)
{
    if (l->arguments_known)
        return;
    l->arguments_wanted = true;
    queue_limits_await(&l->core);
}

static void job_ready(void *owner, uint32_t events)
{
    (void)owner;
    (void)events; /* arguments_step reads the result */
}

static void warn(const struct lane *l, const struct broker_arguments *a)
{
    int limit = returns_limit(&l->core.returns);
    const char *drop = broker_arguments_drop_warning(a, limit),
               *small = broker_arguments_limit_warning(limit);

    if (drop)
        report_reason(l, EVENT_LIMITS, drop);
    if (small && !l->config->order.key.n) /* refused otherwise */
        report_reason(l, EVENT_LIMITS, small);
}

/* An ordered queue is not consumed while its arguments do not allow that. It is asked again until they do. */
static void judge_order(struct lane *l, const struct arguments_found *found)
{
    int64_t now_ms = l->sidecar->now_ms;
    bool was_refused = l->core.pauses[PAUSE_NOT_ORDERED].since_ms != 0,
         read = found && found->answer == ARGUMENTS_READ,
         readable = !found || found->answer != ARGUMENTS_NO_QUEUE;
    int limit = returns_limit(&l->core.returns);
    const char *refusal = NULL;

    if (!l->config->order.key.n || !readable)
        return;
    if (read)
        refusal = broker_arguments_order_refusal(&found->arguments, limit, l->config->order.holds_dead);
    else if (!l->core.returns.limits.read)
        refusal = broker_arguments_order_unread(limit, l->config->order.holds_dead);
    queue_refused(&l->core, now_ms, PAUSE_NOT_ORDERED, refusal);
    if (refusal && !was_refused)
        report_reason(l, EVENT_REFUSED, refusal);
    l->arguments_again_ms = refusal ? now_ms + REFUSED_AGAIN_MS : 0;
}

/* found NULL: not read, so the earlier arguments stay. */
static void tell(struct lane *l, const struct arguments_found *found)
{
    struct queue_limits limits = l->core.returns.limits;
    int limit_before = returns_limit(&l->core.returns);

    if (found && found->answer == ARGUMENTS_READ) {
        broker_arguments_limits(&found->arguments, &limits);
        if (found->arguments.kind == BROKER_KIND_QUORUM)
            queue_kind_known(&l->core, KIND_QUORUM);
        else if (found->arguments.kind == BROKER_KIND_CLASSIC)
            queue_kind_known(&l->core, KIND_CLASSIC);
    }
    l->touched = true;
    queue_limits_known(&l->core, &limits);
    judge_order(l, found);
    l->arguments_known = found && found->answer != ARGUMENTS_NO_QUEUE && !l->arguments_again_ms;
    if (found && found->answer == ARGUMENTS_READ &&
        (!l->core.ready || returns_limit(&l->core.returns) != limit_before))
        warn(l, &found->arguments);
}

static void begin(struct sidecar *s, struct broker_link *k)
{
    struct broker_queue *queues = mem_zalloc(s->n_lanes, sizeof(*queues));
    struct fault f = {0};
    size_t n = 0;

    for (size_t i = 0; i < s->n_lanes; i++) {
        struct lane *l = &s->lanes[i];

        if (l->link != k || !l->arguments_wanted)
            continue;
        queues[n++] = (struct broker_queue){.name = l->config->queue, .number = (uint32_t)i};
        l->arguments_wanted = false;
        l->arguments_asked = true;
    }
    if (n)
        k->arguments.job = arguments_start(&s->config->broker, k->vhost, queues, n, s->config->instance, &f);
    free(queues);
    if (!k->arguments.job)
        return;
    k->arguments.deadline_ms = s->now_ms + s->config->broker.connect_timeout_ms + JOB_EXTRA_MS;
    wait_add(s->wait, &k->arguments.watch, job_fd(k->arguments.job), EPOLLIN, job_ready, k, &f);
}

/* Passes a result to every queue that was asked about. */
static void end(struct sidecar *s, struct broker_link *k, const struct arguments_found *found, size_t n)
{
    k->arguments.job = NULL;
    for (size_t i = 0; i < n; i++) {
        tell(&s->lanes[found[i].number], &found[i]);
        s->lanes[found[i].number].arguments_asked = false;
    }
    for (size_t i = 0; i < s->n_lanes; i++) {
        struct lane *l = &s->lanes[i];

        if (l->link == k && l->arguments_asked)
            tell(l, NULL);
        if (l->link == k)
            l->arguments_asked = false;
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
    for (size_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i].link == k && s->lanes[i].arguments_wanted)
            return true;
    return false;
}

void arguments_step(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_lanes; i++) {
        struct lane *l = &s->lanes[i];

        if (l->arguments_again_ms && s->now_ms >= l->arguments_again_ms && l->link->broker) {
            l->arguments_again_ms = 0;
            arguments_want(l);
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
