/* Log lines until the shell takes them, and the error texts of deliveries: see notes.h. */
#include "core/notes.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_A_SECOND = 10, LOOKED_AT = 32, TOLD = 3 };

struct note *notes_tell(struct queue *q, enum event e, const struct delivery *d)
{
    struct queue_notes *notes = &q->notes;

    if (notes->n == notes->cap) {
        notes->cap = notes->cap ? notes->cap * 2 : 16;
        notes->items = mem_realloc(notes->items, notes->cap * sizeof(*notes->items));
    }
    struct note *n = &notes->items[notes->n++];
    *n = (struct note){.event = e, .d = d, .ms = -1, .n = -1};
    return n;
}

/* An application at its limit answers "not now" all the time, which is no fault: after the first lines, one a second
 * is enough. */
static int lines_left_over(const struct queue_notes *notes, enum event e, int64_t n_seconds)
{
    if (e != EVENT_GIVEN_BACK || n_seconds >= notes->n_lines[e])
        return 0;
    return notes->n_lines[e] - (int)n_seconds;
}

struct note *notes_tell_limited(struct queue *q, int64_t now_ms, enum event e, const struct delivery *d)
{
    struct queue_notes *notes = &q->notes;
    int64_t second = now_ms / 1000 + 1;

    if (notes->second[e] != second) {
        notes->n_lines[e] = lines_left_over(notes, e, second - notes->second[e]);
        notes->second[e] = second;
    }
    if (notes->n_lines[e] >= LINES_A_SECOND) {
        q->counts.suppressed.total++;
        return NULL;
    }
    notes->n_lines[e]++;
    return notes_tell(q, e, d);
}

void note_text(struct note *n, const char *format, ...)
{
    char text[512];
    va_list args;

    if (!n)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    free(n->text);
    n->text = mem_copy(text, strlen(text));
}

void note_clear(struct note *n)
{
    free(n->text);
    n->text = NULL;
    texts_deinit(&n->errors);
}

void notes_deinit(struct queue *q)
{
    for (size_t i = 0; i < q->notes.n; i++)
        note_clear(&q->notes.items[i]);
    free(q->notes.items);
}

/* --- error texts --- */

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
