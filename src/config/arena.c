/* The memory of a configuration: a list of allocations, which is enough for small data that are read once. */

#include "config/arena.h"

#include "onceward/base/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct config_arena {
    struct config_arena *next;
    _Alignas(max_align_t) char data[];
};

struct config_arena *arena_new(void)
{
    return mem_zalloc(1, sizeof(struct config_arena));
}

void arena_free(struct config_arena *a)
{
    while (a) {
        struct config_arena *next = a->next;

        free(a);
        a = next;
    }
}

void *arena_alloc(struct config_arena *a, size_t n, size_t size)
{
    struct config_arena *piece = mem_zalloc(1, sizeof(*piece) + n * size);

    piece->next = a->next;
    a->next = piece;
    return piece->data;
}

char *arena_copy(struct config_arena *a, const char *data, size_t len)
{
    char *copy = arena_alloc(a, len + 1, 1);

    if (len)
        memcpy(copy, data, len);
    return copy;
}
