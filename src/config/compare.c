/* Two configurations side by side, key by key of the table: what differs, and what may be taken over. Pure,
 * but for the atomic fields that config_apply_now writes. */

#include "config/arena.h"
#include "config/read.h"
#include "onceward/base/buf.h"
#include "onceward/config/config.h"

#include <stdatomic.h>

/* --- values --- */

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
        return same_sources(
            ((const struct config_queue *)a)->message_id, ((const struct config_queue *)a)->n_message_id,
            ((const struct config_queue *)b)->message_id, ((const struct config_queue *)b)->n_message_id);
    case TYPE_STATUSES:
        return same_statuses(a, b);
    }
    return false;
}

/* A name that was not given is made anew at every reading. */
static bool same_root_value(const struct key *k, const struct config *a, const struct config *b)
{
    if (k->offset == offsetof(struct config, instance) && !a->instance_is_set && !b->instance_is_set)
        return true;
    return key_is_same(k, a, b);
}

/* --- the whole --- */

const struct config_queue *config_find_queue(const struct config *c, const char *name)
{
    for (size_t i = 0; i < c->n_queues; i++)
        if (!strcmp(c->queues[i].name, name))
            return &c->queues[i];
    return NULL;
}

/* Does every queue have to start again? */
static bool compare_root(const struct config *running, const struct config *next, struct config_diff *d)
{
    bool all = false;

    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];

        if (k->scope != SCOPE_ROOT || same_root_value(k, running, next))
            continue;
        texts_add(k->effect == EFFECT_RESTART ? &d->needs_restart : &d->changed_keys, k->path);
        all |= k->effect == EFFECT_QUEUES;
    }
    return all;
}

/* Does it differ in a key of its own? */
static bool compare_queue(const struct config_queue *running, const struct config_queue *next,
                          struct config_diff *d)
{
    struct buf path = {0};
    bool differs = false;

    for (size_t i = 0; i < n_keys; i++) {
        if (keys[i].scope != SCOPE_QUEUE || key_is_same(&keys[i], running, next))
            continue;
        buf_reset(&path);
        buf_add_text(&path, "queues");
        path_add(&path, next->name);
        buf_add_char(&path, '.');
        buf_add_text(&path, keys[i].path);
        texts_add(&d->changed_keys, buf_text(&path));
        differs = true;
    }
    buf_deinit(&path);
    return differs;
}

void config_compare(const struct config *running, const struct config *next, struct config_diff *ret)
{
    *ret = (struct config_diff){0};
    bool all = compare_root(running, next, ret);

    for (size_t i = 0; i < running->n_queues; i++)
        if (!config_find_queue(next, running->queues[i].name))
            texts_add(&ret->removed, running->queues[i].name);
    for (size_t i = 0; i < next->n_queues; i++) {
        const struct config_queue *q = &next->queues[i], *before = config_find_queue(running, q->name);

        if (!before)
            texts_add(&ret->added, q->name);
        else if (compare_queue(before, q, ret) || all)
            texts_add(&ret->changed, q->name);
        else
            texts_add(&ret->unchanged, q->name);
    }
}

void config_diff_deinit(struct config_diff *d)
{
    texts_deinit(&d->changed_keys);
    texts_deinit(&d->needs_restart);
    texts_deinit(&d->unchanged);
    texts_deinit(&d->changed);
    texts_deinit(&d->added);
    texts_deinit(&d->removed);
}

static size_t size_of(const struct key *k)
{
    switch (k->type) {
    case TYPE_INT:
    case TYPE_PORT:
    case TYPE_CHOICE:
        return sizeof(int);
    case TYPE_BOOL:
    case TYPE_FLAG:
        return sizeof(bool);
    case TYPE_DURATION:
    case TYPE_DURATION_OFF:
        return sizeof(int64_t);
    default:
        return sizeof(size_t);
    }
}

static char *keep_text(struct config *next, const char *text)
{
    return text ? arena_copy(next->arena, text, strlen(text)) : NULL;
}

static void keep_value(const struct key *k, struct config *next, const struct config *running)
{
    void *to = (char *)next + k->offset;
    const void *from = (const char *)running + k->offset;

    if (k->type == TYPE_TEXT || k->type == TYPE_PATH) {
        *(char **)to = keep_text(next, *(char *const *)from);
    } else if (k->type == TYPE_SECRET) {
        const struct config_text *t = from;

        *(struct config_text *)to = (struct config_text){keep_text(next, t->value), keep_text(next, t->file)};
    } else {
        memcpy(to, from, size_of(k)); /* the lists are keys of queues */
    }
}

void config_keep(struct config *next, const struct config *running)
{
    for (size_t i = 0; i < n_keys; i++)
        if (keys[i].effect == EFFECT_RESTART)
            keep_value(&keys[i], next, running);
    next->instance_is_set = running->instance_is_set;
}

void config_apply_now(struct config *running, const struct config *next)
{
    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];
        void *to = (char *)running + k->offset;
        const void *from = (const char *)next + k->offset;

        if (k->effect != EFFECT_NOW)
            continue;
        if (size_of(k) == sizeof(int))
            atomic_store((_Atomic int *)to, *(const int *)from);
        else
            atomic_store((_Atomic int64_t *)to, *(const int64_t *)from);
    }
}
