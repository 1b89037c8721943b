/* A binary heap by time: see timers.h. */
#include "onceward/core/timers.h"

#include "onceward/base/mem.h"

#include <stdlib.h>

void timers_deinit(struct timers *t)
{
    free(t->heap);
    *t = (struct timers){0};
}

static void place(struct timers *t, size_t i, struct delivery *d)
{
    t->heap[i] = d;
    d->timer_slot = i;
}

static void sift(struct timers *t, size_t i, struct delivery *d)
{
    for (; i > 1 && t->heap[i / 2]->timer_ms > d->timer_ms; i /= 2)
        place(t, i, t->heap[i / 2]);
    for (size_t child; (child = i * 2) <= t->n; i = child) {
        if (child < t->n && t->heap[child + 1]->timer_ms < t->heap[child]->timer_ms)
            child++;
        if (t->heap[child]->timer_ms >= d->timer_ms)
            break;
        place(t, i, t->heap[child]);
    }
    place(t, i, d);
}

void timers_clear(struct timers *t, struct delivery *d)
{
    size_t i = d->timer_slot;

    if (!i)
        return;
    struct delivery *last = t->heap[t->n--];
    d->timer_slot = 0;
    if (last != d)
        sift(t, i, last);
}

void timers_set(struct timers *t, struct delivery *d, int64_t at_ms)
{
    timers_clear(t, d);
    if (at_ms == INT64_MAX)
        return;
    if (t->n + 2 > t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->heap = mem_realloc(t->heap, t->cap * sizeof(struct delivery *));
    }
    d->timer_ms = at_ms;
    t->n++;
    sift(t, t->n, d);
}

int64_t timers_next_ms(const struct timers *t)
{
    return t->n ? t->heap[1]->timer_ms : INT64_MAX;
}

struct delivery *timers_take_due(struct timers *t, int64_t now_ms)
{
    struct delivery *d = t->n ? t->heap[1] : NULL;

    if (!d || d->timer_ms > now_ms)
        return NULL;
    timers_clear(t, d);
    return d;
}
