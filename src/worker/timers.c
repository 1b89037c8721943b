/* The timers of deliveries: a binary heap by time, each delivery at most once. */
#include "worker.h"

#include "onceward/base/mem.h"

static void timer_place(struct timers *t, size_t i, struct delivery *d)
{
    t->heap[i] = d;
    d->timer_slot = i;
}

static void timer_sift(struct timers *t, size_t i, struct delivery *d)
{
    for (; i > 1 && t->heap[i / 2]->timer_ms > d->timer_ms; i /= 2)
        timer_place(t, i, t->heap[i / 2]);
    for (size_t child; (child = i * 2) <= t->n; i = child) {
        if (child < t->n && t->heap[child + 1]->timer_ms < t->heap[child]->timer_ms)
            child++;
        if (t->heap[child]->timer_ms >= d->timer_ms)
            break;
        timer_place(t, i, t->heap[child]);
    }
    timer_place(t, i, d);
}

void delivery_clear_timer(struct worker *w, struct delivery *d)
{
    struct timers *t = &w->timers;
    size_t i = d->timer_slot;

    if (!i)
        return;
    struct delivery *last = t->heap[t->n--];
    d->timer_slot = 0;
    if (last != d)
        timer_sift(t, i, last);
}

void delivery_set_timer(struct worker *w, struct delivery *d, int64_t at_ms)
{
    struct timers *t = &w->timers;

    delivery_clear_timer(w, d);
    if (t->n + 2 > t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->heap = mem_realloc(t->heap, t->cap * sizeof(struct delivery *));
    }
    d->timer_ms = at_ms;
    t->n++;
    timer_sift(t, t->n, d);
}

int64_t worker_next_timer_ms(const struct worker *w)
{
    return w->timers.n ? w->timers.heap[1]->timer_ms : INT64_MAX;
}

struct delivery *worker_take_due(struct worker *w)
{
    struct delivery *d = w->timers.n ? w->timers.heap[1] : NULL;

    if (!d || d->timer_ms > w->now_ms)
        return NULL;
    delivery_clear_timer(w, d);
    return d;
}
