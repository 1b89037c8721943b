/* Dead letters above LETTER_LARGE_BYTES, written one at a time on a side connection. On the common connection, all
 * claims and completions would wait while a slow database takes such a letter.
 *
 * The connection is opened for a waiting letter and closed when none has followed for a moment, which frees libpq's
 * buffers (they never shrink). When it is lost, items in flight are answered as unknown, like all others. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"

#include <string.h>

enum { IDLE_MS = 2000 };

static void forget(struct sidecar *s)
{
    struct sidecar_letters *c = &s->letters;

    side_close(s, &c->side);
    c->batch.n = 0;
    buf_deinit(&c->large.properties);
    buf_deinit(&c->large.headers);
}

void letters_step(struct sidecar *s)
{
    struct sidecar_letters *c = &s->letters;
    struct inbox_row row;
    int got = 0;

    side_step(s, &c->side, c->wanted);
    if (!c->side.inbox)
        return;
    while ((got = side_next(s, &c->side, &row)) > 0)
        database_answered(s, &row);
    if (got < 0 || (!c->wanted && inbox_is_free(c->side.inbox, INBOX_DEAD_LETTER) &&
                    s->now_ms - c->side.used_ms >= IDLE_MS))
        forget(s);
    c->wanted = false; /* set again while a dead letter waits */
}

bool letters_can(const struct sidecar *s, const struct sidecar_queue *sq)
{
    const struct sidecar_letters *c = &s->letters;

    return c->side.inbox && !c->batch.n && inbox_is_free(c->side.inbox, INBOX_DEAD_LETTER) &&
           inbox_registration(c->side.inbox, sq->config->entry, NULL) == INBOX_REGISTERED;
}

void letters_send(struct sidecar *s)
{
    struct sidecar_letters *c = &s->letters;
    struct fault f = {0};

    if (!c->side.inbox)
        return;
    if (c->batch.n) {
        FAILPOINT_AT(c->batch.failpoint + FAILPOINT_STEP_BEFORE);
        inbox_submit(c->side.inbox, INBOX_DEAD_LETTER, c->batch.items, c->batch.n,
                     &f); /* on a loss, a row answers the item */
        FAILPOINT_AT(c->batch.failpoint + FAILPOINT_STEP_SENT);
        c->batch.n = 0;
        c->side.readable = true; /* the connection may be lost already */
    }
    side_sent(s, &c->side);
}

int64_t letters_due_ms(const struct sidecar *s)
{
    return side_due_ms(s, &s->letters.side, s->letters.wanted);
}

void letters_close(struct sidecar *s)
{
    forget(s);
}
