/* Which death of the application a message is charged for.
 *
 * A message that was alone with the application when that died again may have killed it; or the application
 * was down all the time, behind something that accepts connections for it (a proxy, a service mesh, the
 * parent of several processes) and then resets them or answers 502 and 504. From one such death the two look
 * the same. So:
 *
 * - It is charged when the application had shown that it lived after the last death before the message was
 *   sent, whosever that was: it answered a request (any status but 502, 503, 504), its readiness URL answered
 *   2xx, or, without such a URL, nobody listened for a while and then somebody did.
 * - Else, when others died in the same way, it is the application. When the message is the only suspect known
 *   here and died twice in a row, it is charged, but rarely: at once, then half a second later, and each time
 * five times as long after the one before; one for all messages of the queue, until the application is seen
 *   alive. So a message that kills its application, in a queue without any other and behind such a proxy, is
 *   dead after three attempts within seconds, after eight within three hours; and an outage of ten minutes
 *   costs a lone message six attempts at most, one of an hour seven.
 * - What is not charged is given back. Either way the queue pauses with growing waits, and the message stands
 *   back: it goes again when the application has shown that it lives (others may go meanwhile), or when its
 *   death could be charged, half a minute later at most.
 *
 * A suspect that goes back to the broker is remembered by its id, so that it is still one when it returns;
 * else an application that starts for longer than pause_hold would never get rid of its killer. Another
 * sidecar, or this one after its own end, learns anew: at the price of one death. One worker, its thread. */
#include "worker.h"

#include "onceward/base/mem.h"
#include "onceward/base/random.h"

#include <stdlib.h>

enum { N_REMEMBERED = 1024, STAND_BACK_WAITS = 3, UNPROVEN_MS = 500, UNPROVEN_TIMES = 5, UNPROVEN_MOST = 8 };

struct suspicions {
    uint64_t ids[N_REMEMBERED];    /* their hashes, 0: none */
    uint64_t proofs[N_REMEMBERED]; /* target_proven when they left */
    int64_t left_ms[N_REMEMBERED];
    bool was_in_vain[N_REMEMBERED];
    size_t n, next;
};

static uint64_t id_of(const struct delivery *d)
{
    uint64_t id = hash_bytes(d->id, d->id_len);

    return id ? id : 1;
}

void suspect_remember(struct worker *w, struct delivery *d)
{
    struct suspicions *s = w->suspicions;

    if (!d->suspect)
        return;
    d->suspect = false;
    if (!s)
        s = w->suspicions = mem_zalloc(1, sizeof(*s));
    s->n += !s->ids[s->next];
    s->ids[s->next] = id_of(d);
    s->proofs[s->next] = target_proven(w);
    s->left_ms[s->next] = w->now_ms;
    s->was_in_vain[s->next] = d->was_in_vain;
    s->next = (s->next + 1) % N_REMEMBERED;
}

bool suspect_recall(struct worker *w, struct delivery *d)
{
    struct suspicions *s = w->suspicions;

    if (!s || !s->n)
        return false;
    uint64_t id = id_of(d);
    for (size_t i = 0; i < N_REMEMBERED; i++) {
        if (s->ids[i] != id)
            continue;
        d->suspect = true;
        d->was_in_vain = s->was_in_vain[i];
        d->n_spared = w->q->max_attempts;
        s->ids[i] = 0;
        s->n--;
        return true;
    }
    return false;
}

void worker_forget_suspects(struct worker *w)
{
    free(w->suspicions);
    w->suspicions = NULL;
}

/* --- proofs --- */

/* Nobody listens, as seen by something that began after so many deaths. */
void worker_saw_nobody(struct worker *w, uint64_t after_deaths)
{
    if (!w->is_gone || after_deaths > w->gone_after)
        w->gone_after = after_deaths;
    w->is_gone = true;
}

/* A probe that began after so many deaths was answered. */
void worker_saw_ready(struct worker *w, uint64_t after_deaths)
{
    if (w->q->ready_url)
        target_prove(w, after_deaths);
    else if (w->is_gone)
        target_prove(w, w->gone_after);
    w->is_gone = false;
}

/* Until the next unproven death may be charged, from the last one that was. */
static int64_t unproven_wait_ms(const struct worker *w)
{
    int64_t wait = UNPROVEN_MS;

    for (int i = 1; i < w->n_unproven && i < UNPROVEN_MOST; i++)
        wait *= UNPROVEN_TIMES;
    return wait;
}

/* Others died in the same way, and are here, or went back to the broker, and nothing has shown since that the
 * application lives. */
static bool has_fellows(const struct worker *w, uint64_t id, uint64_t proofs)
{
    const struct suspicions *s = w->suspicions;

    if (worker_n(w, DELIVERY_SUSPECT))
        return true;
    for (size_t i = 0; s && s->n && i < N_REMEMBERED; i++)
        if (s->ids[i] && s->ids[i] != id && s->proofs[i] == proofs &&
            w->now_ms - s->left_ms[i] < w->q->max_hold_ms) /* another replica may have done with it since */
            return true;
    return false;
}

static bool is_unproven_due(struct worker *w, const struct delivery *d)
{
    uint64_t proofs = target_proven(w), id = id_of(d);
    bool again = w->unproven_id == id && w->unproven_proofs == proofs;

    w->unproven_id = id;
    if (w->unproven_proofs != proofs)
        w->n_unproven = 0;
    w->unproven_proofs = proofs;
    if (!again || has_fellows(w, id, proofs))
        return false;
    if (w->n_unproven && w->now_ms - w->unproven_at_ms < unproven_wait_ms(w))
        return false;
    w->n_unproven++;
    w->unproven_at_ms = w->now_ms;
    return true;
}

enum lone_death suspect_judge(struct worker *w, const struct delivery *d)
{
    if (!d->suspect || !target_was_alone(w, d))
        return DEATH_AMONG_OTHERS;
    return target_proven(w) >= d->n_deaths_before || is_unproven_due(w, d) ? DEATH_CHARGED : DEATH_UNPROVEN;
}

/* A message that may be the killer must not be the first to come to an application that has just come back.
 */
void suspect_stand_back(struct worker *w, struct delivery *d)
{
    int64_t most = STAND_BACK_WAITS * probe_wait_max_ms(w), wait = unproven_wait_ms(w);

    if (wait < most)
        most = wait;
    d->stands_back_until_ms = w->now_ms + most / 2 + (int64_t)random_below((uint64_t)most / 2 + 1);
}

bool suspect_stands_back(const struct worker *w, const struct delivery *d)
{
    return d->stands_back_until_ms > w->now_ms && target_proven(w) < target_deaths(w);
}
