/* Log lines until the shell takes them: see notes.h. */
#include "core/notes.h"

#include "onceward/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_A_SECOND = 10 };

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
