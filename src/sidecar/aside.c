/* A connection to the database beside the common one, for what may take long: on that one the claims and
 * completions of all queues would wait for it. Large letters have one, and the drop of a day of stored
 * messages.
 *
 * It is opened when somebody wants it, and closed by him; it is opened only while the common one is there. */
#include "sidecar/sidecar.h"

enum { SILENT_MS = 500 }; /* what is silent for so long is read, so that an answer that is overdue is seen */

static void socket_ready(void *owner, uint32_t events)
{
    (void)events;
    ((struct aside *)owner)->readable = true;
}

void aside_close(struct sidecar *s, struct aside *a)
{
    dial_deinit(s, &a->dial);
    if (!a->inbox)
        return;
    wait_remove(s->wait, &a->watch);
    inbox_free(a->inbox);
    a->inbox = NULL;
}

static void arrive(struct sidecar *s, struct aside *a, void *result)
{
    struct fault f = {0};

    if (inbox_attempt_take(result, &a->inbox, &f) != INBOX_CONNECTED) {
        dial_failed(s, &a->dial, f.text);
        return;
    }
    if (wait_add(s->wait, &a->watch, inbox_fd(a->inbox), EPOLLIN, socket_ready, a, &f)) {
        aside_close(s, a);
        dial_failed(s, &a->dial, f.text);
        return;
    }
    a->used_ms = s->now_ms;
    a->dial.since_ms = 0;
    a->dial.n_failures = 0;
}

void aside_step(struct sidecar *s, struct aside *a, bool wanted)
{
    void *result;

    if (!a->inbox && wanted && s->database.inbox && dial_is_due(s, &a->dial))
        database_dial(s, &a->dial);
    if (dial_result(s, &a->dial, &result))
        arrive(s, a, result);
}

int aside_next(struct sidecar *s, struct aside *a, struct inbox_row *row)
{
    struct fault f = {0};
    int got;

    if (!a->readable && !inbox_is_lost(a->inbox) && inbox_waiting_ms(a->inbox) < SILENT_MS)
        return 0;
    got = inbox_next(a->inbox, row, &f);
    a->readable = got > 0;
    if (got > 0)
        a->used_ms = s->now_ms;
    if (got >= 0)
        return got;
    aside_close(s, a);
    dial_failed(s, &a->dial, f.text);
    return -1;
}

void aside_sent(struct sidecar *s, struct aside *a)
{
    wait_change(s->wait, &a->watch, EPOLLIN | (inbox_wants_write(a->inbox) ? EPOLLOUT : 0));
}

int64_t aside_due_ms(const struct sidecar *s, const struct aside *a, bool wanted)
{
    if (a->inbox)
        return a->readable ? s->now_ms : INT64_MAX;
    return wanted && !a->dial.job && s->database.inbox ? a->dial.at_ms : INT64_MAX;
}
