/* The error texts of a delivery, and the commonest ones of those that wait: see notes.h. */
#include "core/notes.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKED_AT = 32, TOLD = 3 };

void error_text_set(struct delivery *d, const char *error, const char *said)
{
    assert(error || !said); /* the application's text goes with an error */
    char *copy = error ? mem_copy(error, strlen(error)) : NULL; /* `error` may be the present text */
    char *copy_said = said ? mem_copy(said, strlen(said)) : NULL;

    free(d->outcome.error);
    free(d->outcome.said);
    d->outcome.error = copy;
    d->outcome.said = copy_said;
}

void error_text_set_last(struct delivery *d, const char *why, struct slice last)
{
    enum { LAST_MAX = 1024 };
    char error[LAST_MAX + 128], said[LAST_MAX + 128];
    int len = (int)(last.len < LAST_MAX ? last.len : LAST_MAX);
    int brief = (int)outcome_brief(last.len ? last.data : "", (size_t)len);
    const char *between = *why && len ? "; last: " : "";

    snprintf(error, sizeof(error), "%s%s%.*s", why, between, brief, brief ? last.data : "");
    snprintf(said, sizeof(said), "%s%s%.*s", why, between, len, len ? last.data : "");
    error_text_set(d, error, brief < len ? said : NULL);
}

/* --- the commonest --- */

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

/* Most frequent error that is not in `told` yet; NULL: none. */
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

void error_text_commonest(struct queue *q, struct texts *ret)
{
    const char *error;

    while (ret->n < TOLD && (error = next_error(&q->held.waiting[WAIT_DUE], ret)))
        texts_add(ret, error);
}
