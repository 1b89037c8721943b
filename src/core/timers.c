/* A binary heap by time: see timers.h. */
#include "onceward/core/timers.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdlib.h>

void timers_deinit(struct timers *t)
{
    free(t->heap);
    *t = (struct timers){0};
}

static void heap_place(struct timers *t, size_t i, struct timer *one)
{
    assert(i > 0 && i <= t->n);
    t->heap[i] = one;
    one->slot = i;
}

static void heap_sift(struct timers *t, size_t i, struct timer *one)
{
    for (; i > 1 && t->heap[i / 2]->at_ms > one->at_ms; i /= 2)
        heap_place(t, i, t->heap[i / 2]);
    for (size_t child; (child = i * 2) <= t->n; i = child) {
        if (child < t->n && t->heap[child + 1]->at_ms < t->heap[child]->at_ms)
            child++;
        if (t->heap[child]->at_ms >= one->at_ms)
            break;
        heap_place(t, i, t->heap[child]);
    }
    heap_place(t, i, one);
}

void timers_clear(struct timers *t, struct timer *one)
{
    size_t i = one->slot;

    if (!i)
        return;
    assert(i <= t->n && t->heap[i] == one);
    struct timer *last = t->heap[t->n--];
    one->slot = 0;
    if (last != one)
        heap_sift(t, i, last);
}

void timers_set(struct timers *t, struct timer *one, int64_t at_ms)
{
    timers_clear(t, one);
    if (at_ms == INT64_MAX)
        return;
    if (t->n + 2 > t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->heap = mem_realloc(t->heap, t->cap * sizeof(struct timer *));
    }
    assert(!one->slot && t->n + 1 < t->cap);
    one->at_ms = at_ms;
    t->n++;
    heap_sift(t, t->n, one);
}

int64_t timers_next_ms(const struct timers *t)
{
    return t->n ? t->heap[1]->at_ms : INT64_MAX;
}

struct timer *timers_take_due(struct timers *t, int64_t now_ms)
{
    struct timer *one = t->n ? t->heap[1] : NULL;

    assert(!one || one->slot == 1);
    if (!one || one->at_ms > now_ms)
        return NULL;
    timers_clear(t, one);
    return one;
}
