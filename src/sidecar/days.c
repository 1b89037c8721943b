/* Drops partitions of stored messages past their retention on a side connection: the commit waits until large files
 * are deleted, and everything later on the connection waits for the commit. When the default partition is large, new
 * partitions are made there too, since PostgreSQL reads it for each. A partition that another session reads cannot be
 * dropped: the drop is retried after store.c has asked again, and reported when that has lasted. */
#include "sidecar/sidecar.h"

#include "onceward/base/log.h"

#include <stdio.h>
#include <string.h>

enum {
    MORE_MS = 1000,
    TRIES_MAX = 10, /* failed tries before the report */
};

static void tell_dropped(const char *partition)
{
    struct log_line line;

    log_begin(&line, EVENT_DAY_DROPPED, NULL);
    log_text(&line, "partition", partition);
    log_end(&line);
}

static void tell_stuck(struct sidecar *s, const char *partition)
{
    char reason[320];

    if (++s->store.n_stuck % TRIES_MAX)
        return;
    snprintf(reason, sizeof(reason),
             "onceward.%s is past its retention, and could not be dropped in %d tries: a long transaction "
             "reads stored messages (a dump?), see pg_stat_activity",
             partition, s->store.n_stuck);
    report_reason(&s->queues[0], EVENT_LIMITS, reason);
}

static void answered(struct sidecar *s)
{
    struct sidecar_store *t = &s->store;
    struct inbox_kept_messages kept;
    struct fault f = {0};
    int got = inbox_kept_messages(t->side.inbox, &kept, &f);

    if (!got)
        return;
    t->drops = false;
    t->drop_at_ms = s->now_ms + MORE_MS;
    t->due = got > 0 && kept.more;
    if (got < 0) {
        store_failed(s, &f);
        return;
    }
    if (*kept.dropped)
        tell_dropped(kept.dropped);
    if (*kept.stuck)
        tell_stuck(s, kept.stuck);
    else
        t->n_stuck = 0;
}

static bool wants_to_drop(const struct sidecar *s)
{
    return s->store.due && s->ending == ENDING_NO;
}

void days_step(struct sidecar *s)
{
    struct sidecar_store *t = &s->store;
    struct inbox_row row;

    side_step(s, &t->side, wants_to_drop(s));
    if (!t->side.inbox)
        return;
    if (side_next(s, &t->side, &row) < 0) {
        t->drops = false;
        return;
    }
    if (t->drops)
        answered(s);
    if (!t->drops && !wants_to_drop(s)) {
        side_close(s, &t->side);
    } else if (!t->drops && s->now_ms >= t->drop_at_ms) {
        inbox_ask_keep_messages(t->side.inbox);
        t->drops = true;
        t->side.readable = true; /* the connection may be lost already */
    }
    if (t->side.inbox)
        side_sent(s, &t->side);
}

int64_t days_due_ms(const struct sidecar *s)
{
    const struct sidecar_store *t = &s->store;
    int64_t due = side_due_ms(s, &t->side, wants_to_drop(s));

    return t->side.inbox && !t->drops && wants_to_drop(s) && t->drop_at_ms < due ? t->drop_at_ms : due;
}

void days_close(struct sidecar *s)
{
    side_close(s, &s->store.side);
    s->store.drops = false;
}
