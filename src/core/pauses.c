/* Pauses of a queue: see pauses.h. */
#include "core/pauses.h"
#include "core/notes.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

bool pause_is_on(const struct queue *q, enum pause_reason r)
{
    return q->pauses[r].since_ms != 0;
}

bool pause_is_any_on(const struct queue *q)
{
    for (int r = 0; r < N_PAUSE_REASONS; r++)
        if (q->pauses[r].since_ms)
            return true;
    return false;
}

void pause_begin(struct queue *q, int64_t now_ms, enum pause_reason r, const char *text)
{
    struct queue_pause *p = &q->pauses[r];

    assert(r < N_PAUSE_REASONS);
    if (!p->since_ms)
        p->since_ms = now_ms ? now_ms : 1;
    snprintf(p->text, sizeof(p->text), "%.*s",
             (int)slice_cut(slice_of(text ? text : ""), sizeof(p->text) - 1).len, text ? text : "");
}

/* Is the pause that of one partition? Every other one has a reason that all of them share. */
static bool pause_is_of_partition(enum pause_reason r)
{
    return r == PAUSE_STREAM || r == PAUSE_RENEWAL_LOOP || r == PAUSE_TOO_LARGE ||
           r == PAUSE_DELIVERY_LIMIT || r == PAUSE_NOT_EXCLUSIVE;
}

bool pause_is_first(struct queue *q, enum pause_reason r)
{
    return q->share->n_told[r]++ == 0 || pause_is_of_partition(r);
}

/* Is the end of this pause logged? Not while it continues in another partition. */
static bool pause_is_last(struct queue *q, enum pause_reason r)
{
    assert(!q->pauses[r].told || q->share->n_told[r] > 0);
    return q->pauses[r].told && (--q->share->n_told[r] == 0 || pause_is_of_partition(r));
}

void pause_tell_again(struct queue *q, enum pause_reason r)
{
    assert(!q->pauses[r].told || q->share->n_told[r] > 0);
    if (q->pauses[r].told)
        q->share->n_told[r]--;
    q->pauses[r].told = false;
}

void pause_end(struct queue *q, int64_t now_ms, enum pause_reason r)
{
    struct queue_pause *p = &q->pauses[r];

    if (pause_is_last(q, r)) {
        struct note *n = notes_tell(q, EVENT_RESUMED, NULL);

        n->reason = pause_reasons[r].name;
        n->ms = now_ms - p->since_ms;
    }
    memset(p, 0, sizeof(*p));
}

bool pause_needs_message(const struct queue *q)
{
    return !q->application->gone && !q->application->probe.failing && !q->commands.paused;
}

bool pause_rests(const struct queue *q)
{
    const struct returns *r = &q->returns;

    return q->commands.paused && r->no_renewal && !returns_may_need_consumer(r) && returns_are_counted(r) &&
           returns_limit(r) != LIMIT_NONE;
}
