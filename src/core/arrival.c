#include "onceward/core/arrival.h"

#include "onceward/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct arrival *arrival_new(struct slice id)
{
    struct arrival *a = mem_zalloc(1, sizeof(*a) + id.len + 1);

    if (id.len)
        memcpy(a->id, id.data, id.len);
    a->id_len = id.len;
    a->no_id = DEAD_NONE;
    return a;
}

void arrival_free(struct arrival *a)
{
    message_free(a->message);
    free(a);
}
