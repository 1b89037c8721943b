/* Log lines about what is missing before a queue's first start. This is not a failure yet, since services
 * start in any order. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"

static void missing(struct lane *l, enum waiting_for what, const char *text, bool is_refused)
{
    struct log_line line;
    enum waiting_line due =
        waiting_for(&l->waiting, what, text, is_refused, l->sidecar->now_ms, FAILPOINT_MS(WAITING));

    if (due == WAITING_NO_LINE)
        return;
    log_begin_at(&line, EVENT_WAITING, due == WAITING_WARNING ? LOG_WARNING : LOG_INFO, l->config->name);
    log_text(&line, "reason", waiting_reason(what));
    log_text(&line, "detail", text);
    log_end(&line);
}

static void look(struct sidecar *s, struct lane *l)
{
    const struct application *a = &s->applications[l->application];

    if (!l->link->broker && *l->link->dial.reason)
        missing(l, WAITING_BROKER, l->link->dial.reason, l->link->dial.is_refused);
    else if (l->link->broker)
        waiting_over(&l->waiting, WAITING_BROKER);
    if (!s->database.inbox && *s->database.dial.reason)
        missing(l, WAITING_DATABASE, s->database.dial.reason, s->database.dial.is_refused);
    else if (s->database.inbox)
        waiting_over(&l->waiting, WAITING_DATABASE);
    if (!a->reached && a->probe.n_failures)
        missing(l, WAITING_APPLICATION, l->core.pauses[PAUSE_APPLICATION].text, false);
    else if (a->reached)
        waiting_over(&l->waiting, WAITING_APPLICATION);
}

void first_start_step(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_lanes; i++)
        if (!s->lanes[i].core.ready && !s->lanes[i].core.drain)
            look(s, &s->lanes[i]);
}
