/* Log lines about what is missing before a queue's first start. This is not a failure yet, since services
 * start in any order. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"

static void missing(struct sidecar_queue *sq, enum waiting_for what, const char *text, bool is_refused)
{
    struct log_line line;
    enum waiting_line due =
        waiting_for(&sq->waiting, what, text, is_refused, sq->sidecar->now_ms, FAILPOINT_MS(WAITING));

    if (due == WAITING_NO_LINE)
        return;
    log_begin_at(&line, EVENT_WAITING, due == WAITING_WARNING ? LOG_WARNING : LOG_INFO, sq->config->name);
    log_text(&line, "reason", waiting_reason(what));
    log_text(&line, "detail", text);
    log_end(&line);
}

static void look(struct sidecar *s, struct sidecar_queue *sq)
{
    const struct application *a = &s->applications[sq->application];

    if (!sq->link->broker && *sq->link->dial.reason)
        missing(sq, WAITING_BROKER, sq->link->dial.reason, sq->link->dial.is_refused);
    else if (sq->link->broker)
        waiting_over(&sq->waiting, WAITING_BROKER);
    if (!s->database.inbox && *s->database.dial.reason)
        missing(sq, WAITING_DATABASE, s->database.dial.reason, s->database.dial.is_refused);
    else if (s->database.inbox)
        waiting_over(&sq->waiting, WAITING_DATABASE);
    if (!a->reached && a->probe.n_failures)
        missing(sq, WAITING_APPLICATION, sq->core.pauses[PAUSE_APPLICATION].text, false);
    else if (a->reached)
        waiting_over(&sq->waiting, WAITING_APPLICATION);
}

void first_start_step(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (!s->queues[i].core.ready && !s->queues[i].core.drain)
            look(s, &s->queues[i]);
}
