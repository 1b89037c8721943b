/* What most of those that wait for their next attempt were told: for the line that says that there are too
 * many of them. */
#include "core/held.h"

#include <string.h>

enum { LOOKED_AT = 32, TOLD = 3 };

static const char *error_at(const struct link *k)
{
    const struct delivery *d = container_of((struct link *)k, struct delivery, in_list);

    return d->outcome.error ? d->outcome.error : "";
}

static size_t count_error(struct list *l, const char *error)
{
    size_t n = 0, looked = 0;

    list_each(l, k)
    {
        if (++looked > LOOKED_AT)
            break;
        n += !strcmp(error_at(k), error);
    }
    return n;
}

/* The commonest that is not in `told` yet; NULL: none. */
static const char *next_error(struct list *l, const struct texts *told)
{
    const char *best = NULL;
    size_t best_n = 0, looked = 0;

    list_each(l, k)
    {
        const char *error = error_at(k);

        if (++looked > LOOKED_AT)
            break;
        if (!*error || texts_has(told, error))
            continue;
        size_t n = count_error(l, error);

        if (n > best_n) {
            best_n = n;
            best = error;
        }
    }
    return best;
}

void held_commonest_errors(struct queue *q, struct texts *ret)
{
    const char *error;

    while (ret->n < TOLD && (error = next_error(&q->held.waiting[WAIT_DUE], ret)))
        texts_add(ret, error);
}
