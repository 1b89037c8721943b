/* The effective values, key by key, with their origins, for people who trace a setting. Secrets are masked: people
 * with access can read them at their source. */

#include "config/values.h"

#include "config/checks.h"
#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"

#include <inttypes.h>
#include <stdlib.h>

#define MASK "***"

/* Appends a URL without its password; other texts that may contain one are masked entirely. */
static void add_url(struct buf *out, const char *url)
{
    const char *start = strstr(url, "://"), *rest = start ? start + 3 : url;
    size_t len = start ? strcspn(rest, "/?#") : 0;
    const char *at = start ? memrchr(rest, '@', len) : NULL;
    const char *colon = at ? memchr(rest, ':', (size_t)(at - rest)) : NULL;

    if (!start || strstr(at ? at : rest, "password")) {
        buf_add_text(out, strstr(url, "password") ? MASK : url);
        return;
    }
    if (!colon) {
        buf_add_text(out, url);
        return;
    }
    buf_add(out, url, (size_t)(colon + 1 - url));
    buf_add_text(out, MASK);
    buf_add_text(out, at);
}

static void add_secret(struct buf *out, const struct key *k, const struct config_text *t)
{
    size_t len = strlen(k->path);

    if (len >= 3 && !strcmp(k->path + len - 3, "url"))
        add_url(out, t->value);
    else if (len >= 4 && !strcmp(k->path + len - 4, "user"))
        buf_add_text(out, t->value);
    else
        buf_add_text(out, MASK);
}

/* Appends a text. The query of a URL may be a key, and is masked. */
static void add_text(struct buf *out, const struct key *k, const char *text)
{
    size_t len = k->check == check_http_url ? strcspn(text, "?") : strlen(text);

    buf_add(out, text, len);
    if (text[len])
        buf_add_text(out, "?" MASK);
}

static void add_headers(struct buf *out, const struct config_forward *w)
{
    buf_add_char(out, '{');
    for (size_t i = 0; i < w->n_headers; i++) {
        buf_add_text(out, i ? ", " : "");
        buf_add_json(out, slice_of(w->headers[i].name));
        buf_add_text(out, ": ");
        buf_add_json(out, w->headers[i].is_secret ? SLICE(MASK) : slice_of(w->headers[i].value));
    }
    buf_add_char(out, '}');
}

static void add_source(struct buf *out, const struct identity_source *s)
{
    struct buf name = {0};

    if (s->kind == IDENTITY_JOIN) {
        buf_add_char(out, '[');
        for (size_t i = 0; i < s->n_parts; i++) {
            buf_add_text(out, i ? ", " : "");
            add_source(out, &s->parts[i]);
        }
        buf_add_char(out, ']');
        return;
    }
    identity_source_add(&name, s);
    buf_add_json(out, buf_slice(&name));
    buf_deinit(&name);
}

static void add_names(struct buf *out, const struct config_names *names)
{
    buf_add_char(out, '[');
    for (size_t i = 0; i < names->n; i++) {
        buf_add_text(out, i ? ", " : "");
        buf_add_json(out, slice_of(names->items[i]));
    }
    buf_add_char(out, ']');
}

static void add_list(struct buf *out, const struct key *k, const struct config_queue *q)
{
    if (k->type == TYPE_HEADERS) {
        add_headers(out, &q->forward);
        return;
    }
    buf_add_char(out, '[');
    const struct config_sources *sources = (const void *)((const char *)q + k->offset);
    for (size_t i = 0; k->type == TYPE_IDENTITIES && i < sources->n; i++) {
        buf_add_text(out, i ? ", " : "");
        add_source(out, &sources->items[i]);
    }
    for (size_t i = 0; k->type == TYPE_STATUSES && i < q->n_permanent_status; i++)
        buf_printf(out, "%s%d", i ? ", " : "", q->permanent_status[i]);
    buf_add_char(out, ']');
}

static void add_number(struct buf *out, const struct key *k, const void *field)
{
    switch (k->type) {
    case TYPE_DURATION:
    case TYPE_DURATION_OFF:
        if (k->type == TYPE_DURATION_OFF && !*(const int64_t *)field)
            buf_add_text(out, "off");
        else
            duration_write(out, *(const int64_t *)field);
        return;
    case TYPE_SIZE:
    case TYPE_SIZE_NONE:
        if (k->type == TYPE_SIZE_NONE && !*(const size_t *)field)
            buf_add_text(out, "none");
        else
            size_write(out, *(const size_t *)field);
        return;
    default:
        buf_printf(out, "%d", *(const int *)field);
    }
}

/* Appends the value. False: the key has none. */
static bool add_value(struct buf *out, const struct key *k, const void *target)
{
    const void *field = (const char *)target + k->offset;

    switch (k->type) {
    case TYPE_TEXT:
    case TYPE_PATH:
        if (*(char *const *)field)
            add_text(out, k, *(char *const *)field);
        return *(char *const *)field;
    case TYPE_SECRET:
        if (((const struct config_text *)field)->value)
            add_secret(out, k, field);
        return ((const struct config_text *)field)->value;
    case TYPE_BOOL:
        buf_add_text(out, *(const bool *)field ? "true" : "false");
        return true;
    case TYPE_FLAG:
        buf_add_slice(out, key_word(k->range, *(const bool *)field));
        return true;
    case TYPE_CHOICE:
        buf_add_slice(out, key_word(k->range, (size_t) * (const int *)field));
        return true;
    case TYPE_HEADERS:
    case TYPE_IDENTITIES:
    case TYPE_STATUSES:
        add_list(out, k, target);
        return true;
    case TYPE_NAMES:
        add_names(out, field);
        return true;
    default:
        add_number(out, k, field);
        return true;
    }
}

static const char *from_of(const struct reading *r, size_t i)
{
    static const char *const given[][N_WAYS] = {
        [ORIGIN_NONE] = {"default", "default", "default"},
        [ORIGIN_DEFAULTS] = {"defaults", "defaults, environment", "defaults, by file"},
        [ORIGIN_GIVEN] = {"given", "given, environment", "given, by file"},
        [ORIGIN_BAD] = {"wrong", "wrong", "wrong"},
    };

    return given[r->origins[i]][r->ways[i]];
}

void values_note(const struct reading *r)
{
    struct config_values *v = r->values;
    struct buf path = {0}, value = {0};

    for (size_t i = 0; v && i < n_keys; i++) {
        const struct key *k = &keys[i];
        bool is_absent = k->presence != KEY_HAS && r->origins[i] == ORIGIN_NONE;

        if (k->scope != r->scope)
            continue;
        buf_reset(&path);
        buf_printf(&path, "%s%s%s", r->prefix, *r->prefix ? "." : "", k->path);
        buf_reset(&value);
        /* A default taken from the queue's name has been filled in; a number that was not given has no value. */
        if ((is_absent && k->type != TYPE_TEXT) || !add_value(&value, k, r->target)) {
            buf_reset(&value);
            buf_printf(&value, "(%s)", k->fallback);
        }
        v->items = mem_realloc(v->items, (v->n + 1) * sizeof(*v->items));
        v->items[v->n++] = (struct config_value){mem_copy(path.data, path.len),
                                                 mem_copy(value.data, value.len), from_of(r, i)};
    }
    buf_deinit(&path);
    buf_deinit(&value);
}

void config_values_deinit(struct config_values *v)
{
    for (size_t i = 0; i < v->n; i++) {
        free(v->items[i].path);
        free(v->items[i].value);
    }
    free(v->items);
    *v = (struct config_values){0};
}
