/* Which death of the application a message is charged for.
 *
 * A message that was alone with the application when that died again may have killed it; or the application
 * was down all the time, behind something that accepts connections for it (a proxy, a service mesh, the
 * parent of several processes) and then resets them or answers 502 and 504. From one such death the two look
 * the same. So:
 *
 *   - It is charged when the application had shown that it lived after the last death before the message was
 *     sent, whosever that was: it answered a request (any status but 502, 503, 504), its readiness URL
 *     answered 2xx, or, without such a URL, nobody listened for a while and then somebody did.
 *   - Else the attempt is given back, the queue pauses with growing waits, and the message stands back: it
 * goes again when the application has shown that it lives (others may go meanwhile), or after half a minute.
 *   - A message that kills the application whenever it comes, in a queue without any other and behind such a
 *     proxy, would go on for ever. So one unproven death is charged in UNPROVEN_HOLDS times max_hold (75
 *     minutes by default), one for all messages of the queue: no outage of an hour costs anybody an attempt,
 *     and the killer dies in the end (of 8 attempts in 10 hours; at once when anything proves the application
 *     alive).
 *
 * A suspect that goes back to the broker is remembered by its id, so that it is still one when it returns;
 * else an application that starts for longer than pause_hold would never get rid of its killer. Another
 * sidecar, or this one after its own end, learns anew: at the price of one death. One worker, its thread. */
#include "worker.h"

#include "onceward/base/mem.h"
#include "onceward/base/random.h"

#include <stdlib.h>

enum { N_REMEMBERED = 1024, UNPROVEN_HOLDS = 3, STAND_BACK_WAITS = 3 };

struct suspicions {
    uint64_t ids[N_REMEMBERED]; /* their hashes, 0: none */
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

/* Has it gone on for so long without any proof that one death must be charged all the same? */
static bool is_unproven_for_too_long(struct worker *w)
{
    uint64_t proofs = target_proven(w);

    if (!w->unproven_since_ms || w->unproven_proofs != proofs) {
        w->unproven_since_ms = w->now_ms;
        w->unproven_proofs = proofs;
        return false;
    }
    if (w->now_ms - w->unproven_since_ms < UNPROVEN_HOLDS * w->q->max_hold_ms)
        return false;
    w->unproven_since_ms = w->now_ms;
    return true;
}

enum lone_death suspect_judge(struct worker *w, const struct delivery *d)
{
    if (!d->suspect || !target_was_alone(w, d))
        return DEATH_AMONG_OTHERS;
    return target_proven(w) >= d->n_deaths_before || is_unproven_for_too_long(w) ? DEATH_CHARGED
                                                                                 : DEATH_UNPROVEN;
}

/* A message that may be the killer must not be the first to come to an application that has just come back.
 */
void suspect_stand_back(struct worker *w, struct delivery *d)
{
    int64_t most = STAND_BACK_WAITS * probe_wait_max_ms(w);

    d->stands_back_until_ms = w->now_ms + most / 2 + (int64_t)random_below((uint64_t)most / 2 + 1);
}

bool suspect_stands_back(const struct worker *w, const struct delivery *d)
{
    return d->stands_back_until_ms > w->now_ms && target_proven(w) < target_deaths(w);
}
