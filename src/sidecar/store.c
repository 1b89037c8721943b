/* The partitions of stored messages: made ahead and dropped by a function of the schema's owner, which is
 * called once a minute, and at once on a new connection, in front of the first claims.
 *
 * A sidecar that stores nothing calls it once an hour, so that what was stored before goes all the same. What
 * cannot be dropped because somebody reads it is tried again each minute, and told when that has lasted. */
#include "sidecar/sidecar.h"

#include "onceward/base/log.h"

#include <stdio.h>
#include <string.h>

enum {
    EVERY_MS = 60 * 1000,
    SELDOM_MS = 60 * EVERY_MS, /* where nothing is stored */
    MORE_MS = 1000,
    TRIES_MAX = 10, /* in vain, until it is told */
};

static bool stores_any(const struct sidecar *s)
{
    for (size_t i = 0; i < s->n_lanes; i++)
        if (s->lanes[i].config->store_ms)
            return true;
    return false;
}

void store_linked(struct sidecar *s)
{
    struct sidecar_store *t = &s->store;

    t->asked = false;
    t->at_ms = stores_any(s) ? s->now_ms : s->now_ms + EVERY_MS;
    store_ask(s);
}

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
             "onceward.%s is past its retention, and could not be dropped in %d tries: somebody reads stored "
             "messages in a long transaction (a dump?), see pg_stat_activity",
             partition, s->store.n_stuck);
    report_reason(&s->lanes[0], EVENT_LIMITS, reason);
}

/* The housekeeping of rows tells when clocks differ. */
static void answered(struct sidecar *s, const struct inbox_kept_messages *kept)
{
    if (*kept->dropped)
        tell_dropped(kept->dropped);
    if (*kept->stuck)
        tell_stuck(s, kept->stuck);
    else
        s->store.n_stuck = 0;
    s->store.at_ms = s->now_ms + (kept->more ? MORE_MS : stores_any(s) ? EVERY_MS : SELDOM_MS);
}

static void failed(struct sidecar *s, const struct fault *f)
{
    char reason[1024];

    snprintf(reason, sizeof(reason), "the partitions of stored messages could not be looked after: %s (%s)",
             f->text, f->code);
    report_reason(&s->lanes[0], EVENT_LIMITS, reason);
    s->store.at_ms = s->now_ms + EVERY_MS;
}

void store_ask(struct sidecar *s)
{
    if (s->store.asked || s->now_ms < s->store.at_ms || s->is_idle)
        return;
    inbox_ask_keep_messages(s->database.inbox);
    s->store.asked = true;
}

void store_step(struct sidecar *s)
{
    struct inbox_kept_messages kept;
    struct fault f = {0};
    int got;

    if (!s->database.inbox)
        return;
    if (s->store.asked && (got = inbox_kept_messages(s->database.inbox, &kept, &f))) {
        s->store.asked = false;
        if (got > 0)
            answered(s, &kept);
        else
            failed(s, &f);
    }
    store_ask(s);
}
