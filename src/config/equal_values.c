/* Compares a key's values of two queues. Queues that share an application must agree in some keys. */

#include "config/keys.h"
#include "onceward/config/config.h"

#include <string.h>

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static bool same_secret(const struct config_text *a, const struct config_text *b)
{
    if (a->file && b->file)
        return same_text(a->file, b->file);
    return !a->file && !b->file && same_text(a->value, b->value);
}

static bool same_headers(const struct config_forward *a, const struct config_forward *b)
{
    if (a->n_headers != b->n_headers)
        return false;
    for (size_t i = 0; i < a->n_headers; i++)
        if (!same_text(a->headers[i].name, b->headers[i].name) ||
            !same_text(a->headers[i].value, b->headers[i].value))
            return false;
    return true;
}

static bool same_sources(const struct identity_source *a, size_t n_a, const struct identity_source *b,
                         size_t n_b)
{
    if (n_a != n_b)
        return false;
    for (size_t i = 0; i < n_a; i++)
        if (a[i].kind != b[i].kind || !slice_equal(a[i].name, b[i].name) ||
            !same_sources(a[i].parts, a[i].n_parts, b[i].parts, b[i].n_parts))
            return false;
    return true;
}

static bool same_statuses(const struct config_queue *a, const struct config_queue *b)
{
    return a->n_permanent_status == b->n_permanent_status &&
           (!a->n_permanent_status || !memcmp(a->permanent_status, b->permanent_status,
                                              a->n_permanent_status * sizeof(*a->permanent_status)));
}

static bool same_names(const struct config_names *a, const struct config_names *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!same_text(a->items[i], b->items[i]))
            return false;
    return true;
}

bool key_is_same(const struct key *k, const void *a, const void *b)
{
    const void *x = (const char *)a + k->offset, *y = (const char *)b + k->offset;

    switch (k->type) {
    case TYPE_TEXT:
    case TYPE_PATH:
        return same_text(*(char *const *)x, *(char *const *)y);
    case TYPE_SECRET:
        return same_secret(x, y);
    case TYPE_INT:
    case TYPE_PORT:
    case TYPE_CHOICE:
        return *(const int *)x == *(const int *)y;
    case TYPE_BOOL:
    case TYPE_FLAG:
        return *(const bool *)x == *(const bool *)y;
    case TYPE_DURATION:
    case TYPE_DURATION_OFF:
        return *(const int64_t *)x == *(const int64_t *)y;
    case TYPE_SIZE:
    case TYPE_SIZE_NONE:
        return *(const size_t *)x == *(const size_t *)y;
    case TYPE_HEADERS:
        return same_headers(&((const struct config_queue *)a)->forward,
                            &((const struct config_queue *)b)->forward);
    case TYPE_IDENTITIES:
        return same_sources(((const struct config_sources *)x)->items, ((const struct config_sources *)x)->n,
                            ((const struct config_sources *)y)->items, ((const struct config_sources *)y)->n);
    case TYPE_STATUSES:
        return same_statuses(a, b);
    case TYPE_NAMES:
        return same_names(x, y);
    }
    return false;
}
