/* Letters above LETTER_LARGE_BYTES, one at a time, on a connection of their own: on the queues' common one
 * the claims and completions of all of them would wait for as long as a slow database takes such a letter.
 *
 * It is opened when a letter waits for it, and closed when none has come for a moment: libpq's buffers, which
 * never shrink, go with it. What is out on it when it is lost is answered as unknown, like any other item. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"

#include <string.h>

enum {
    IDLE_MS = 2000,
    SILENT_MS = 500, /* what is silent for so long is read, so that an answer that is overdue is seen */
};

static void socket_ready(void *owner, uint32_t events)
{
    (void)events;
    ((struct sidecar_letters *)owner)->readable = true;
}

static void forget(struct sidecar *s)
{
    struct sidecar_letters *c = &s->letters;

    wait_remove(s->wait, &c->watch);
    inbox_free(c->inbox);
    c->inbox = NULL;
    c->batch.n = 0;
    buf_deinit(&c->large.properties);
    buf_deinit(&c->large.headers);
}

static void arrive(struct sidecar *s, void *result)
{
    struct sidecar_letters *c = &s->letters;
    struct fault f = {0};

    if (inbox_attempt_take(result, &c->inbox, &f) != INBOX_CONNECTED) {
        dial_failed(s, &c->dial, f.text);
        return;
    }
    if (wait_add(s->wait, &c->watch, inbox_fd(c->inbox), EPOLLIN, socket_ready, c, &f)) {
        forget(s);
        dial_failed(s, &c->dial, f.text);
        return;
    }
    c->used_ms = s->now_ms;
    c->dial.since_ms = 0;
    c->dial.n_failures = 0;
}

static void read_answers(struct sidecar *s)
{
    struct sidecar_letters *c = &s->letters;
    struct inbox_row row;
    struct fault f = {0};
    int got;

    if (!c->readable && !inbox_is_lost(c->inbox) && inbox_waiting_ms(c->inbox) < SILENT_MS)
        return;
    c->readable = false;
    while ((got = inbox_next(c->inbox, &row, &f)) > 0) {
        c->used_ms = s->now_ms;
        database_answered(s, &row);
    }
    if (got == 0)
        return;
    forget(s);
    dial_failed(s, &c->dial, f.text);
}

void letters_step(struct sidecar *s)
{
    struct sidecar_letters *c = &s->letters;
    void *result;

    if (!c->inbox && c->wanted && s->database.inbox && dial_is_due(s, &c->dial))
        database_dial(s, &c->dial);
    if (dial_result(s, &c->dial, &result))
        arrive(s, result);
    if (!c->inbox)
        return;
    read_answers(s);
    if (c->inbox && !c->wanted && inbox_is_free(c->inbox, INBOX_BURY) && s->now_ms - c->used_ms >= IDLE_MS)
        forget(s);
    c->wanted = false; /* whoever still waits says so again */
}

bool letters_can(const struct sidecar *s, const struct lane *l)
{
    const struct sidecar_letters *c = &s->letters;

    return c->inbox && !c->batch.n && inbox_is_free(c->inbox, INBOX_BURY) &&
           inbox_registration(c->inbox, l->index, NULL) == INBOX_REGISTERED;
}

void letters_send(struct sidecar *s)
{
    struct sidecar_letters *c = &s->letters;
    struct fault f = {0};

    if (!c->inbox)
        return;
    if (c->batch.n) {
        FAILPOINT_AT(c->batch.failpoint + FAILPOINT_STEP_BEFORE);
        inbox_submit(c->inbox, INBOX_BURY, c->batch.items, c->batch.n, &f); /* a loss answers by a row */
        FAILPOINT_AT(c->batch.failpoint + FAILPOINT_STEP_SENT);
        c->batch.n = 0;
        c->readable = true; /* it may be lost already */
    }
    wait_change(s->wait, &c->watch, EPOLLIN | (inbox_wants_write(c->inbox) ? EPOLLOUT : 0));
}

int64_t letters_due_ms(const struct sidecar *s)
{
    const struct sidecar_letters *c = &s->letters;

    if (c->inbox)
        return c->readable ? s->now_ms : INT64_MAX;
    return c->wanted && !c->dial.job && s->database.inbox ? c->dial.at_ms : INT64_MAX;
}

void letters_close(struct sidecar *s)
{
    dial_deinit(s, &s->letters.dial);
    if (s->letters.inbox)
        forget(s);
}
