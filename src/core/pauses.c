/* Pauses of a queue: see pauses.h. */
#include "core/pauses.h"
#include "core/notes.h"

#include <stdio.h>
#include <string.h>

bool pause_is_on(const struct queue *q, enum pause_reason r)
{
    return q->pauses[r].since_ms != 0;
}

void pause_begin(struct queue *q, int64_t now_ms, enum pause_reason r, const char *text)
{
    struct queue_pause *p = &q->pauses[r];

    if (!p->since_ms)
        p->since_ms = now_ms ? now_ms : 1;
    snprintf(p->text, sizeof(p->text), "%.*s",
             (int)slice_cut(slice_of(text ? text : ""), sizeof(p->text) - 1).len, text ? text : "");
}

void pause_end(struct queue *q, int64_t now_ms, enum pause_reason r)
{
    struct queue_pause *p = &q->pauses[r];

    if (p->told) {
        struct note *n = notes_tell(q, EVENT_RESUMED, NULL);

        n->reason = pause_reasons[r].name;
        n->ms = now_ms - p->since_ms;
    }
    memset(p, 0, sizeof(*p));
}

bool pause_needs_message(const struct queue *q)
{
    return !q->application->gone && !q->application->probe.failing && !q->lever.paused;
}
