/* Presence: every few seconds one call for all queues reports this instance's state. It reads operator commands,
 * whether other instances may consume, and whether claim owners still exist.
 *
 * A claim owner is an instance whose claim has delayed one here. It counts as gone when three consecutive calls, over
 * ten seconds of this side's clock, found its counter unchanged. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"
#include "onceward/base/hash.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    /* Operators are promised five seconds between two calls: TIME(PRESENCE) plus the duration of the call. */
    GONE_MS = 10000,
    N_SAME = 3,
    HURRY_MS =
        1000, /* between two calls, the latter for news: a claim owner, a subscription, a change of the replicas */
    NEWS_MS = 100,   /* the same, for a queue that has stopped: the next crash may come soon */
    COUNTED_MS = 50, /* per replica, between two calls that count them: n replicas read 20 n rows a second */
    HOST_BYTES = 256,
};

/* --- claim owners --- */

static struct claim_owner *owner_find(struct sidecar_presence *p, struct slice instance)
{
    for (size_t i = 0; i < p->n_owners; i++)
        if (slice_equal(slice_of(p->owners[i].instance), instance))
            return &p->owners[i];
    return NULL;
}

/* Takes a free entry, or else that of the owner that was met longest ago. */
static struct claim_owner *owner_add(struct sidecar_presence *p)
{
    struct claim_owner *oldest = &p->owners[0];

    if (p->n_owners < OWNERS_MAX)
        return &p->owners[p->n_owners++];
    for (size_t i = 1; i < p->n_owners; i++)
        if (p->owners[i].met_ms < oldest->met_ms)
            oldest = &p->owners[i];
    free(oldest->instance);
    return oldest;
}

void replicas_hurry(struct sidecar *s)
{
    struct sidecar_presence *p = &s->presence;

    if (p->at_ms > p->asked_ms + HURRY_MS)
        p->at_ms = p->asked_ms + HURRY_MS;
}

void replicas_met(struct sidecar *s, struct slice claimed_by)
{
    struct sidecar_presence *p = &s->presence;
    const char *slash = claimed_by.len ? memrchr(claimed_by.data, '/', claimed_by.len) : NULL;
    struct slice instance = {claimed_by.data, slash ? (size_t)(slash - claimed_by.data) : 0};
    struct claim_owner *h;

    if (!instance.len || slice_equal(instance, slice_of(s->config->instance)))
        return;
    h = owner_find(p, instance);
    if (!h) {
        h = owner_add(p);
        *h = (struct claim_owner){
            .instance = mem_copy(instance.data, instance.len), .counter = -1, .changed_ms = s->now_ms};
        replicas_hurry(s);
    }
    h->met_ms = s->now_ms;
}

/* Latest counter of an owner. An instance without a row has not called for long, so its counter counts as unchanged. */
static int64_t counter_of(const struct inbox_presence *p, const struct claim_owner *h)
{
    for (size_t i = 0; i < p->n_owners; i++)
        if (!strcmp(p->owners[i].instance, h->instance))
            return p->owners[i].counter;
    return h->counter;
}

static void saw(struct sidecar *s, struct claim_owner *h, int64_t counter)
{
    if (counter != h->counter) {
        h->counter = counter;
        h->changed_ms = s->now_ms;
        h->n_same = 0;
        h->gone = false;
        return;
    }
    h->n_same++;
    h->gone = h->n_same >= N_SAME && s->now_ms - h->changed_ms >= GONE_MS;
}

static void tell_gone(struct sidecar *s, const struct inbox_presence *answer)
{
    struct sidecar_presence *p = &s->presence;
    const char *gone[OWNERS_MAX];
    size_t n = 0;

    for (size_t i = 0; i < p->n_owners; i++) {
        if (p->owners[i].asked)
            saw(s, &p->owners[i], counter_of(answer, &p->owners[i]));
        if (p->owners[i].gone)
            gone[n++] = p->owners[i].instance;
    }
    inbox_set_gone(s->database.inbox, gone, n);
}

/* --- others that may consume --- */

static void tell_others(struct sidecar *s, const struct inbox_presence *p)
{
    if (!p->n_others)
        return;
    for (size_t i = 0; i < s->n_queues; i++)
        if (!s->queues[i].core.rules.ordered)
            queue_presence(&s->queues[i].core, s->now_ms, p->n_others[s->queues[i].config->entry]);
    s->presence.count_at_ms = s->presence.asked_ms + p->n_counted * COUNTED_MS;
}

/* Passes the figures of other replicas that are subscribed to ordered queues, for not_exclusive. */
static void tell_peers(struct sidecar *s, const struct inbox_presence *p)
{
    for (size_t k = 0; k < p->n_peers; k++)
        for (size_t i = 0; i < s->n_queues; i++) {
            struct sidecar_queue *sq = &s->queues[i];
            const struct inbox_peer *peer = &p->peers[k];

            if (!sq->core.rules.ordered || strcmp(sq->config->queue, peer->queue) != 0 ||
                sq->config->entry != peer->entry)
                continue;
            sq->touched = true;
            queue_peer(&sq->core, s->now_ms, hash_bytes(peer->instance, strlen(peer->instance)),
                       peer->subscription, peer->received);
        }
}

/* --- the call --- */

/* Logs the failure, since no work begins before the operator commands were read once. The call is repeated. */
static void failed(struct sidecar *s, const struct fault *f)
{
    enum { AGAIN_MS = 60000 };
    struct log_line l;

    if (s->presence.told_failed_ms && s->now_ms - s->presence.told_failed_ms < AGAIN_MS)
        return;
    s->presence.told_failed_ms = s->now_ms;
    log_begin(&l, EVENT_DATABASE_ERROR, NULL);
    log_text(&l, "sqlstate", f->code);
    log_text(&l, "reason", f->text);
    log_end(&l);
}

static void answered(struct sidecar *s)
{
    struct inbox_presence p;
    struct fault f = {0};
    int got = inbox_presence(s->database.inbox, &p, &f);

    if (!got)
        return;
    s->presence.asked = false;
    if (got < 0) {
        failed(s, &f);
        return;
    }
    tell_gone(s, &p);
    tell_others(s, &p);
    tell_peers(s, &p);
    if (p.n_others && handovers_tell(s, &p))
        replicas_hurry(s);
    controls_apply(s, &p);
    if (p.namesake && !s->presence.told_namesake && s->n_queues) {
        s->presence.told_namesake = true;
        report_reason(&s->queues[0], EVENT_LIMITS,
                      "another sidecar runs under this one's `instance`: give each its own, or none");
    }
}

/* Interval between two calls. Replicas of an ordered consumer share its partitions soon after one has joined. */
static int64_t interval_ms(const struct sidecar *s)
{
    enum { ORDERED_MS = 2500 };
    int64_t usual = FAILPOINT_MS(PRESENCE);

    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].core.rules.ordered && usual > ORDERED_MS)
            return ORDERED_MS;
    return usual;
}

static void ask(struct sidecar *s)
{
    struct sidecar_presence *p = &s->presence;
    const char *owners[OWNERS_MAX];
    char host[HOST_BYTES] = "";

    gethostname(host, sizeof(host) - 1);
    for (size_t i = 0; i < p->n_owners; i++) {
        p->owners[i].asked = true;
        owners[i] = p->owners[i].instance;
    }
    queue_states_write(s, &p->json);
    inbox_ask_registration(s->database.inbox, false);
    inbox_ask_presence(s->database.inbox, &(struct inbox_shown){.version = ONCEWARD_VERSION,
                                                                .host = host,
                                                                .queues_json = buf_slice(&p->json),
                                                                .owners = owners,
                                                                .n_owners = p->n_owners,
                                                                .count = s->now_ms >= p->count_at_ms});
    p->asked = true;
    p->asked_ms = s->now_ms;
    p->epoch = s->database.core.epoch;
    p->at_ms = s->now_ms + interval_ms(s);
}

/* Has a queue stopped? The other replicas must learn that soon. */
static bool has_news(const struct sidecar *s)
{
    const char *why;

    for (size_t i = 0; i < s->n_queues; i++)
        if (queue_stop_wanted(&s->queues[i].core, &why))
            return true;
    return false;
}

void replicas_step(struct sidecar *s)
{
    struct sidecar_presence *p = &s->presence;

    if (!s->database.inbox) {
        if (p->asked)
            for (size_t i = 0; i < s->n_queues; i++)
                queue_presence(&s->queues[i].core, s->now_ms, 0); /* unknown: assume no other instance */
        p->asked = false;
        return;
    }
    if (p->asked && p->epoch == s->database.core.epoch)
        answered(s);
    if (p->at_ms > p->asked_ms + NEWS_MS && has_news(s))
        p->at_ms = p->asked_ms + NEWS_MS;
    if (s->now_ms < p->at_ms || (p->asked && p->epoch == s->database.core.epoch))
        return;
    if (p->epoch != s->database.core.epoch) {
        for (size_t i = 0; i < p->n_owners; i++) /* without a database no instance can prove that it runs */
            p->owners[i].n_same = 0;
        p->count_at_ms = 0;
    }
    ask(s);
}

int64_t replicas_due_ms(const struct sidecar *s)
{
    return s->database.inbox && !s->presence.asked ? s->presence.at_ms : INT64_MAX;
}

void replicas_say_now(struct sidecar *s)
{
    if (s->ending == ENDING_DRAIN)
        s->presence.at_ms = 0;
}

bool replicas_have_said(const struct sidecar *s)
{
    return !s->database.inbox || (s->presence.at_ms && !s->presence.asked);
}

void replicas_deinit(struct sidecar *s)
{
    for (size_t i = 0; i < s->presence.n_owners; i++)
        free(s->presence.owners[i].instance);
    buf_deinit(&s->presence.json);
}
