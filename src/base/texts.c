/* A list of texts: copies, in the order of their addition. */
#include "onceward/base/texts.h"

#include "onceward/base/mem.h"

#include <stdlib.h>
#include <string.h>

void texts_add(struct texts *t, const char *text)
{
    t->items = mem_realloc(t->items, (t->n + 1) * sizeof(*t->items));
    t->items[t->n++] = mem_copy(text, strlen(text));
}

bool texts_has(const struct texts *t, const char *text)
{
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->items[i], text))
            return true;
    return false;
}

void texts_deinit(struct texts *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->items[i]);
    mem_clear(&t->items);
    t->n = 0;
}
