/* The partitions of stored messages, by functions of the schema's owner.
 *
 * The partitions of coming days are made here, on the common connection: once a minute, and at once on a new
 * connection, before the first claims. The answer reports whether a partition is past its retention, or takes long to
 * be made; days.c then drops or makes it.
 *
 * A sidecar that stores nothing asks once an hour, so that messages stored earlier expire too. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"

#include <stdio.h>
#include <string.h>

enum { SELDOM = 60 }; /* times rarer when nothing is stored */

static bool stores_any(const struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].config->store_ms)
            return true;
    return false;
}

void store_linked(struct sidecar *s)
{
    struct sidecar_store *t = &s->store;

    t->asked = false;
    t->at_ms = stores_any(s) ? s->now_ms : s->now_ms + FAILPOINT_MS(DAYS);
    store_ask(s);
}

void store_failed(struct sidecar *s, const struct fault *f)
{
    char reason[1024];

    snprintf(reason, sizeof(reason), "the partitions of stored messages could not be maintained: %s (%s)",
             f->text, f->code);
    report_reason(&s->queues[0], EVENT_LIMITS, reason);
}

void store_ask(struct sidecar *s)
{
    if (s->store.asked || s->now_ms < s->store.at_ms || s->is_idle)
        return;
    inbox_ask_make_messages(s->database.inbox);
    s->store.asked = true;
}

/* Logs an obstacle when it begins or changes, since only an operator can remove it. */
static void hindered(struct sidecar *s, const char *reason)
{
    struct sidecar_store *t = &s->store;

    if (strcmp(reason, t->hindered) == 0)
        return;
    snprintf(t->hindered, sizeof(t->hindered), "%s", reason);
    if (*reason)
        report_reason(&s->queues[0], EVENT_LIMITS, reason);
}

/* Housekeeping of rows logs differing clocks. */
void store_step(struct sidecar *s)
{
    struct sidecar_store *t = &s->store;
    struct fault f = {0};
    struct inbox_made_messages made;
    int got;

    if (!s->database.inbox)
        return;
    if (t->asked && (got = inbox_made_messages(s->database.inbox, &made, &f))) {
        t->asked = false;
        t->at_ms = s->now_ms + FAILPOINT_MS(DAYS) * (int64_t)(got < 0 || stores_any(s) ? 1 : SELDOM);
        if (got < 0) {
            store_failed(s, &f);
        } else {
            hindered(s, made.hindered);
            t->due |= made.due;
            t->n_stuck = made.due ? t->n_stuck : 0;
        }
    }
    store_ask(s);
}

int64_t store_due_ms(const struct sidecar *s)
{
    return s->database.inbox && !s->store.asked && !s->is_idle ? s->store.at_ms : INT64_MAX;
}
