/* A connection that is restored indefinitely: the times of the attempts, and the log lines about them. */
#include "sidecar/sidecar.h"

#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"
#include "onceward/base/random.h"
#include "onceward/core/backoff.h"

#include <stdio.h>
#include <string.h>

enum {
    PROVEN_MS = 10000, /* a connection that lasts this long resets the count of failures */
    FIRST_MS = 250,
    LAST_MS = 5000,
};

static void job_ready(void *owner, uint32_t events)
{
    (void)owner;
    (void)events; /* dial_result checks the job */
}

bool dial_is_due(const struct sidecar *s, const struct dial *d)
{
    return !d->job && s->now_ms >= d->at_ms;
}

void dial_began(struct sidecar *s, struct dial *d, struct job *job, int64_t most_ms)
{
    struct fault f = {0};

    d->job = job;
    d->deadline_ms = s->now_ms + most_ms;
    wait_add(s->wait, &d->watch, job_fd(job), EPOLLIN, job_ready, d,
             &f); /* on failure, the job is checked once a second */
}

static void log_peer(struct log_line *l, enum event e, const struct dial *d)
{
    log_begin(l, e, NULL);
    log_text(l, "peer", d->peer);
    if (d->vhost)
        log_text(l, "vhost", d->vhost);
}

void dial_later(struct sidecar *s, struct dial *d, int64_t wait_ms)
{
    d->at_ms = s->now_ms + wait_ms;
    d->up_ms = 0;
    if (!d->since_ms)
        d->since_ms = s->now_ms;
}

static bool somebody_was_ready(const struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].core.ready)
            return true;
    return !s->n_queues;
}

void dial_failed(struct sidecar *s, struct dial *d, const char *reason)
{
    int64_t most = FAILPOINT_MS(REDIAL_LAST) < LAST_MS ? FAILPOINT_MS(REDIAL_LAST) : LAST_MS;
    int64_t wait = backoff_ms(FIRST_MS, most, ++d->n_failures, random_below(UINT64_MAX));
    struct log_line l;

    dial_later(s, d, wait);
    snprintf(d->reason, sizeof(d->reason), "%s", reason);
    d->is_refused = false;
    if (!somebody_was_ready(s))
        return; /* first_start.c reports the failure */
    log_peer(&l, EVENT_DISCONNECTED, d);
    log_text(&l, "reason", reason);
    log_int(&l, "next_try_ms", wait);
    log_end(&l);
}

/* SQLSTATE: class 28 is the login, 3D000 an unknown database, 42501 a missing permission. AMQP: 403 is
 * ACCESS_REFUSED; 530 NOT_ALLOWED means an unknown virtual host, or one that this user may not use. */
static bool is_refusal(const char *code)
{
    static const char *const codes[] = {"28", "3D000", "42501", "403", "530"};

    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++)
        if (!strncmp(code, codes[i], strlen(codes[i])))
            return true;
    return false;
}

void dial_fault(struct sidecar *s, struct dial *d, const struct fault *f)
{
    dial_failed(s, d, f->text);
    d->is_refused = is_refusal(f->code);
}

void dial_succeeded(struct sidecar *s, struct dial *d, const char *version)
{
    struct log_line l;

    d->n_reconnects += d->was_up;
    d->was_up = true;
    log_peer(&l, EVENT_CONNECTED, d);
    if (version)
        log_text(&l, "version", version);
    if (d->since_ms)
        log_int(&l, "after_ms", s->now_ms - d->since_ms);
    log_end(&l);
    d->up_ms = s->now_ms;
    d->since_ms = 0;
}

bool dial_result(struct sidecar *s, struct dial *d, void **result)
{
    if (!d->job)
        return false;
    if (job_take(d->job, result)) {
        wait_remove(s->wait, &d->watch);
        d->job = NULL;
        return true;
    }
    if (s->now_ms > d->deadline_ms) {
        wait_remove(s->wait, &d->watch);
        job_abandon(d->job);
        d->job = NULL;
        dial_failed(s, d, "no answer within the connect timeout");
    }
    return false;
}

void dial_time(struct sidecar *s, struct dial *d)
{
    if (d->up_ms && s->now_ms - d->up_ms >= PROVEN_MS)
        d->n_failures = 0;
}

void dial_deinit(struct sidecar *s, struct dial *d)
{
    if (!d->job)
        return;
    wait_remove(s->wait, &d->watch);
    job_abandon(d->job);
    d->job = NULL;
}
