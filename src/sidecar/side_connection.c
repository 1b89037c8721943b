/* A second connection to the database, for slow work: on the common one it would delay the claims and completions of
 * all queues. Large dead letters have one, and so does the drop of a day of stored messages.
 *
 * Opened on demand while the common connection is up; the user closes it. */
#include "sidecar/sidecar.h"

enum {
    SILENT_MS = 500
}; /* a connection silent for this long is read, so that an overdue answer is noticed */

static void socket_ready(void *owner, uint32_t events)
{
    (void)events;
    ((struct side_connection *)owner)->readable = true;
}

void side_close(struct sidecar *s, struct side_connection *a)
{
    dial_deinit(s, &a->dial);
    if (!a->inbox)
        return;
    wait_remove(s->wait, &a->watch);
    inbox_free(a->inbox);
    a->inbox = NULL;
}

static void arrive(struct sidecar *s, struct side_connection *a, void *result)
{
    struct fault f = {0};

    if (inbox_attempt_take(result, &a->inbox, &f) != INBOX_CONNECTED) {
        dial_failed(s, &a->dial, f.text);
        return;
    }
    if (wait_add(s->wait, &a->watch, inbox_fd(a->inbox), EPOLLIN, socket_ready, a, &f)) {
        side_close(s, a);
        dial_failed(s, &a->dial, f.text);
        return;
    }
    a->used_ms = s->now_ms;
    a->dial.since_ms = 0;
    a->dial.n_failures = 0;
}

void side_step(struct sidecar *s, struct side_connection *a, bool wanted)
{
    void *result;

    if (!a->inbox && wanted && s->database.inbox && dial_is_due(s, &a->dial))
        database_dial(s, &a->dial);
    if (dial_result(s, &a->dial, &result))
        arrive(s, a, result);
}

int side_next(struct sidecar *s, struct side_connection *a, struct inbox_row *row)
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
    side_close(s, a);
    dial_failed(s, &a->dial, f.text);
    return -1;
}

void side_sent(struct sidecar *s, struct side_connection *a)
{
    wait_change(s->wait, &a->watch, EPOLLIN | (inbox_wants_write(a->inbox) ? EPOLLOUT : 0));
}

int64_t side_due_ms(const struct sidecar *s, const struct side_connection *a, bool wanted)
{
    if (a->inbox)
        return a->readable ? s->now_ms : INT64_MAX;
    return wanted && !a->dial.job && s->database.inbox ? a->dial.at_ms : INT64_MAX;
}
