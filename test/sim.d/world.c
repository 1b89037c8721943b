/* Time and scheduled events: see world.h. */
#include "world.h"

#include "random.h"

#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_BYTES = 1 << 18 };

static bool before(const struct happening *a, const struct happening *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void heap_up(struct happening *heap, size_t i)
{
    struct happening h = heap[i];

    for (; i > 1 && before(&h, &heap[i / 2]); i /= 2)
        heap[i] = heap[i / 2];
    heap[i] = h;
}

static void heap_down(struct happening *heap, size_t n)
{
    struct happening h = heap[1];
    size_t i = 1;

    for (size_t child = 2; child <= n; i = child, child *= 2) {
        if (child < n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &h))
            break;
        heap[i] = heap[child];
    }
    heap[i] = h;
}

static void push(struct world *w, const struct happening *h)
{
    if (w->n_heap + 2 > w->heap_cap) {
        w->heap_cap = w->heap_cap ? w->heap_cap * 2 : 1024;
        w->heap = mem_realloc(w->heap, w->heap_cap * sizeof(*w->heap));
    }
    w->heap[++w->n_heap] = *h;
    heap_up(w->heap, w->n_heap);
}

void world_at(struct world *w, int64_t at_us, event_fn *fn, void *object, uint64_t a, uint64_t b)
{
    struct happening h = {at_us > w->now_us ? at_us : w->now_us, ++w->order, fn, object, a, b};

    push(w, &h);
}

void world_postpone(struct world *w, int64_t until_us)
{
    struct happening h = w->present;

    h.at_us = until_us;
    push(w, &h);
}

bool world_step(struct world *w)
{
    if (!w->n_heap || w->ended)
        return false;
    struct happening h = w->present = w->heap[1];

    w->heap[1] = w->heap[w->n_heap--];
    if (w->n_heap)
        heap_down(w->heap, w->n_heap);
    w->now_us = h.at_us;
    w->counts.n_events++;
    h.fn(w, h.object, h.a, h.b);
    return !w->ended;
}

void *world_alloc(struct world *w, size_t size)
{
    size = (size + 15) & ~(size_t)15;
    if (!w->blocks || w->blocks->used + size > BLOCK_BYTES) {
        size_t cap = size > BLOCK_BYTES ? size : BLOCK_BYTES;
        struct block *b = calloc(1, sizeof(*b) + cap);

        if (!b)
            abort();
        b->next = w->blocks;
        w->blocks = b;
    }
    void *p = w->blocks->data + w->blocks->used;

    w->blocks->used += size;
    return p;
}

void world_init(struct world *w, const struct plan *p)
{
    *w = (struct world){.plan = p, .random = random_mix(p->seed ^ 0x5eed)};
    w->now_us = WORLD_START_US; /* a clock that has run for a while: 0 means "never" in the core */
}

void world_deinit(struct world *w)
{
    free(w->heap);
    for (struct block *b = w->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
}

void world_tell(struct world *w, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    trace_line(&w->trace, w->now_us - WORLD_START_US, format, args);
    va_end(args);
}
