/* Housekeeping: purges rows past the retention, sweeps tokens whose owner never completed them, replaces old completed
 * rows by history entries, deletes expired entries, and logs about these.
 *
 * There is one walk per consumer through the inbox, and one for all through the history with a pace of its own, so that
 * neither delays the other. The process makes one bounded call at a time and then rests. The calls share the pipeline
 * with the claims, so each is short. The database decides which sidecar keeps house (sidecar_keep_house); the others
 * only ask now and then. */
#include "sidecar/sidecar.h"

#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"
#include "onceward/base/random.h"
#include "onceward/inbox/outbox.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    FIRST_MS = 1000,  /* after connecting, plus as much jitter */
    BUDGET_US = 300,  /* per call: hardly longer than a claim */
    BUSY_MS = 50,     /* above this latency of the database, housekeeping is postponed */
    PUT_OFF_MS = 100, /* repeatedly, but not for longer than */
    PUT_OFF_MAX_MS = 10000,
    AWAY_MIN_MS = 100,
    AWAY_MAX_MS = 60000,
    CLOCKS_MS = 5000,       /* between two checks while the clocks differ */
    MANY_ROWS = 100 * 1000, /* failed and waiting rows of a consumer that deserve a warning */
    MANY_BYTES = 1 << 30,   /* of dead letters */
    RELAYED_MS = 20000,     /* between two checks for a relay of the outbox */
    UNRELAYED_MS = 15000,   /* age of the oldest message: a lease lasts as long, and may be changing owners */
    UNRELAYED_AGAIN_MS = 60000,
    LATE_MIN_MS = 60 * 1000,
    EXPIRY_MS = 24 * 3600 * 1000, /* between two walks through the history */
    LATE_NEW_MS = 10 * 60 * 1000, /* on a connection younger than LATE_MIN_MS */
};

/* Time after the end of its window from which a processing row counts as abandoned: a live owner completes, fails or
 * extends it within the window, or has its delivery returned by then. After an outage of the database, owners get
 * time to act first. */
static int64_t late_ms(const struct sidecar *s, const struct sidecar_queue *sq)
{
    int64_t ms = 10 * sq->config->token_window_ms,
            least = s->now_ms - s->database.dial.up_ms < LATE_MIN_MS ? LATE_NEW_MS : LATE_MIN_MS;

    return ms > least ? ms : least;
}

static void say(struct sidecar_queue *sq, enum event e, struct tally *t)
{
    struct sidecar *s = sq->sidecar;
    struct log_line line;

    if (!t->n || (s->now_ms < t->not_before_ms && !sq->core.drain))
        return;
    log_begin(&line, e, sq->config->name);
    log_int(&line, "n", t->n);
    log_end(&line);
    t->n = 0;
    t->not_before_ms = s->now_ms + s->config->log.stats_interval_ms;
}

/* Is the value above the bound, and twice the latest reported one? */
static bool has_grown(int64_t *told, int64_t value, int64_t bound)
{
    if (value < bound)
        *told = 0;
    if (value < bound || (*told && value / 2 < *told))
        return false;
    *told = value;
    return true;
}

static void rows_are_counted(struct sidecar_queue *sq, int64_t n)
{
    char reason[512];

    if (!has_grown(&sq->house.told_unfinished, n, MANY_ROWS))
        return;
    snprintf(reason, sizeof(reason),
             "%" PRId64 " rows of consumer %s are failed or waiting: see `onceward status`; if their "
             "messages are no longer in any queue, SELECT onceward.orphans_remove(consumer, '7 "
             "days') forgets them",
             n, sq->config->consumer);
    report_reason(sq, EVENT_LIMITS, reason);
}

void housekeeping_weigh(struct sidecar *s)
{
    char reason[256];

    if (!has_grown(&s->database.told_bytes, s->database.figures.dead_letter_bytes, MANY_BYTES))
        return;
    snprintf(reason, sizeof(reason),
             "the dead letters of this database take %" PRId64
             " MiB, and only a command reduces that: see `onceward dead list`, "
             "then `dead redrive` or `dead discard --older 30d`",
             s->database.figures.dead_letter_bytes >> 20);
    report_reason(&s->queues[0], EVENT_LIMITS, reason);
}

/* Logged once per interval by each sidecar: its own clock may be the wrong one. */
static void clocks_differ(struct sidecar_queue *sq, int64_t ahead_ms)
{
    struct sidecar *s = sq->sidecar;
    struct housekeeping *h = &sq->house;
    struct log_line line;

    h->at_ms = s->now_ms + CLOCKS_MS;
    if (s->now_ms < h->clocks_told_ms)
        return;
    h->clocks_told_ms = s->now_ms + s->config->log.stats_interval_ms;
    log_begin(&line, EVENT_CLOCKS_DIFFER, sq->config->name);
    log_int(&line, "ahead_ms", ahead_ms);
    log_end(&line);
}

static int64_t between_walks_ms(const struct sidecar_queue *sq)
{
    int64_t ms = pace_between_ms(sq->config->retention_ms);

    return ms < FAILPOINT_MS(WALK) ? ms : FAILPOINT_MS(WALK);
}

/* Time limit of a walk; 0: compaction is off. At most a day, since the walk also does the sweep and the purge. */
static int64_t walk_goal_ms(const struct sidecar_queue *sq)
{
    int64_t ms = pace_goal_ms(sq->config->compact_ms);

    return ms < FAILPOINT_MS(WALK_GOAL) ? ms : FAILPOINT_MS(WALK_GOAL);
}

/* Logs once per interval while a walk takes more than twice its time limit. */
static void tell_lag(struct sidecar_queue *sq)
{
    struct sidecar *s = sq->sidecar;
    struct housekeeping *h = &sq->house;
    int64_t lag_ms = pace_lag_ms(&h->walk, s->now_ms, walk_goal_ms(sq));
    struct log_line line;

    if (!lag_ms || s->now_ms < h->lag_told_ms)
        return;
    h->lag_told_ms = s->now_ms + s->config->log.stats_interval_ms;
    log_begin(&line, EVENT_COMPACTION_LAGS, sq->config->name);
    log_int(&line, "lag_ms", lag_ms);
    log_int(&line, "pages_left", h->walk.n_pages - h->walk.page);
    log_end(&line);
}

/* Records a call's part of the walk. False: the walk is on time. */
static bool walk_is_behind(struct sidecar_queue *sq, const struct inbox_housekept *kept, bool ended)
{
    struct pace_walk *w = &sq->house.walk;

    if (!w->began_ms)
        w->began_ms = sq->sidecar->now_ms;
    w->n_pages = kept->n_pages;
    w->page = ended ? kept->n_pages : kept->next_page;
    tell_lag(sq);
    if (!ended)
        return pace_is_behind(w, sq->sidecar->now_ms, walk_goal_ms(sq));
    w->began_ms = 0;
    return false;
}

/* Sets the rest that all walks of this process share. */
static void pause(struct sidecar *s, int64_t took_us, bool behind)
{
    s->database.house_pause_ms = s->now_ms + pace_pause_ms(took_us, behind);
}

static void took_place(struct sidecar_queue *sq, const struct inbox_housekept *kept)
{
    struct housekeeping *h = &sq->house;
    bool found = kept->n_purged || kept->n_swept || kept->n_moved, ended = kept->next_page == 0,
         behind = walk_is_behind(sq, kept, ended);

    h->page = kept->next_page;
    h->purged.n += kept->n_purged;
    h->swept.n += kept->n_swept;
    h->compacted.n += kept->n_moved;
    h->n_orphans += kept->n_orphans;
    h->n_unfinished += kept->n_unfinished;
    if (ended) {
        h->orphans.n = h->n_orphans;
        rows_are_counted(sq, h->n_unfinished);
        h->n_orphans = h->n_unfinished = 0;
    }
    h->at_ms = sq->sidecar->now_ms +
               pace_rest_ms(&h->pace, kept->took_us, found, ended, behind, between_walks_ms(sq));
    pause(sq->sidecar, kept->took_us, behind);
    if (kept->history_is_due && !h->expiry.is_due) {
        h->expiry.is_due = true;
        h->expiry.at_ms = sq->sidecar->now_ms;
    }
}

static void expiry_forget(struct expiry *e)
{
    e->is_due = false;
    e->page = -1;
    e->walk.began_ms = 0;
}

static void expiry_took_place(struct sidecar_queue *sq, const struct inbox_history_expired *got)
{
    struct expiry *e = &sq->house.expiry;
    int64_t now_ms = sq->sidecar->now_ms;

    sq->house.expired.n += got->n_expired;
    if (got->next_page <= 0) {
        expiry_forget(e);
        return;
    }
    if (!e->walk.began_ms)
        e->walk.began_ms = now_ms;
    e->walk.page = e->page = got->next_page;
    e->walk.n_pages = got->n_pages;
    bool behind = pace_is_behind(&e->walk, now_ms, pace_goal_ms(EXPIRY_MS));
    e->at_ms = now_ms + pace_rest_ms(&e->pace, got->took_us, got->n_expired > 0, false, behind, 0);
    pause(sq->sidecar, got->took_us, behind);
}

static void wait_for_other(struct sidecar_queue *sq, const struct inbox_housekept *kept)
{
    struct housekeeping *h = &sq->house;
    int64_t wait = kept->away_ms;

    if (wait > AWAY_MAX_MS)
        wait = AWAY_MAX_MS;
    if (wait < AWAY_MIN_MS)
        wait = AWAY_MIN_MS;
    if (kept->away_ms > AWAY_MIN_MS) { /* longer than another consumer's call: this walk has ended */
        h->page = -1;
        h->n_orphans = h->n_unfinished = 0;
        h->walk.began_ms = 0;
        expiry_forget(&h->expiry);
    }
    h->at_ms = sq->sidecar->now_ms + wait + (int64_t)random_below((uint64_t)wait / 4);
}

/* `onceward forget` has removed the record, while no replica of the consumer was seen. */
static void register_again(struct sidecar_queue *sq)
{
    struct sidecar *s = sq->sidecar;

    inbox_unregister(s->database.inbox, sq->config->entry);
    s->database.registered = false;
    s->presence.at_ms = 0; /* the same call registers */
    sq->house.at_ms = s->now_ms + FIRST_MS;
}

/* at_ms: time of the next call of the walk that failed. */
static void failed(struct sidecar_queue *sq, const struct fault *f, int64_t *at_ms)
{
    struct housekeeping *h = &sq->house;
    struct log_line line;

    *at_ms = sq->sidecar->now_ms + (FAILPOINT_MS(HOUSE_FAILED) << (h->n_failures < 3 ? h->n_failures : 3));
    h->n_failures++;
    log_begin(&line, EVENT_DATABASE_ERROR, sq->config->name);
    log_text(&line, "sqlstate", f->code);
    log_text(&line, "reason", f->text);
    log_text(&line, "during", "housekeeping");
    log_end(&line);
}

static void expiry_answered(struct sidecar *s)
{
    struct sidecar_queue *sq = &s->queues[s->database.housekeeps];
    struct inbox_history_expired got;
    struct fault f = {0};
    int n = inbox_history_expired(s->database.inbox, &got, &f);

    if (!n)
        return;
    s->database.housekeeps = SIZE_MAX;
    if (n < 0) {
        failed(sq, &f, &sq->house.expiry.at_ms);
        return;
    }
    sq->house.n_failures = 0;
    expiry_took_place(sq, &got);
}

static void answered(struct sidecar *s)
{
    struct sidecar_queue *sq = &s->queues[s->database.housekeeps];
    struct inbox_housekept kept;
    struct fault f = {0};
    int got = inbox_housekept(s->database.inbox, &kept, &f);

    if (!got)
        return;
    s->database.housekeeps = SIZE_MAX;
    if (got < 0) {
        failed(sq, &f, &sq->house.at_ms);
        return;
    }
    sq->house.n_failures = 0;
    if (kept.ahead_ms)
        clocks_differ(sq, kept.ahead_ms);
    else if (kept.is_forgotten)
        register_again(sq);
    else if (kept.away_ms)
        wait_for_other(sq, &kept);
    else
        took_place(sq, &kept);
}

/* Is housekeeping postponed? Rows in flight go first, but a database that stays slow must not prevent the purge
 * indefinitely. */
static bool is_put_off(struct sidecar *s, struct housekeeping *h, int64_t *at_ms)
{
    if (!database_is_up(&s->database.core)) {
        *at_ms = s->now_ms + FIRST_MS;
        return true;
    }
    if (inbox_waiting_ms(s->database.inbox) < BUSY_MS) {
        h->put_off_since_ms = 0;
        return false;
    }
    if (!h->put_off_since_ms)
        h->put_off_since_ms = s->now_ms;
    if (s->now_ms - h->put_off_since_ms >= PUT_OFF_MAX_MS) {
        h->put_off_since_ms = 0;
        return false;
    }
    *at_ms = s->now_ms + PUT_OFF_MS;
    return true;
}

static void restart_walk(struct sidecar *s, struct housekeeping *h)
{
    if (h->epoch == s->database.core.epoch)
        return;
    h->epoch = s->database.core.epoch;
    h->page = -1;
    h->n_orphans = h->n_unfinished = 0;
    h->walk.began_ms = 0;
    expiry_forget(&h->expiry);
    h->at_ms = s->now_ms + FIRST_MS + (int64_t)random_below(FIRST_MS);
}

static void expiry_ask(struct sidecar *s, struct sidecar_queue *sq)
{
    struct inbox_expire_history e = {.queue = sq->config->entry,
                                     .retention_ms = sq->config->retention_ms,
                                     .from_page = sq->house.expiry.page,
                                     .budget_us = BUDGET_US};

    inbox_ask_expire_history(s->database.inbox, &e);
    s->database.housekeeps = sq->index;
    s->database.expires_history = true;
}

static void ask(struct sidecar *s, struct sidecar_queue *sq)
{
    struct inbox_housekeep h = {.queue = sq->config->entry,
                                .retention_ms = sq->config->retention_ms,
                                .late_ms = late_ms(s, sq),
                                .compact_ms = sq->config->compact_ms,
                                .from_page = sq->house.page,
                                .budget_us = BUDGET_US};

    inbox_ask_housekeep(s->database.inbox, &h);
    s->database.housekeeps = sq->index;
    s->database.expires_history = false;
}

/* --- the relay of the outbox --- */

static bool keeps_house(const struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].house.page >= 0)
            return true;
    return false;
}

static void relay_is(struct sidecar *s, const struct inbox_outbox_gauge *g)
{
    struct log_line line;

    if (*g->holder || !g->waiting || g->lag_ms < UNRELAYED_MS ||
        (s->database.unrelayed_told_ms && s->now_ms - s->database.unrelayed_told_ms < UNRELAYED_AGAIN_MS))
        return;
    s->database.unrelayed_told_ms = s->now_ms;
    log_begin(&line, EVENT_OUTBOX_UNRELAYED, NULL);
    log_int(&line, "n", g->waiting);
    log_int(&line, "lag_ms", g->lag_ms);
    log_end(&line);
}

/* Checks for a relay, if this sidecar keeps house and has no outbox. A sidecar with one logs its figures anyway. */
static void relay_look(struct sidecar *s)
{
    struct inbox_outbox_gauge gauge;
    struct fault f = {0};

    if (s->outbox || s->is_idle)
        return;
    if (inbox_outbox_gauge(s->database.inbox, &gauge, &f) > 0)
        relay_is(s, &gauge);
    if (!keeps_house(s) ||
        (s->database.relay_asked_ms && s->now_ms - s->database.relay_asked_ms < RELAYED_MS))
        return;
    s->database.relay_asked_ms = s->now_ms;
    inbox_ask_outbox_gauge(s->database.inbox);
}

/* The next call. */
struct turn {
    size_t queue;
    bool is_expiry;
    int64_t at_ms; /* INT64_MAX: none */
};

static struct turn turn_next(const struct sidecar *s)
{
    struct turn t = {.at_ms = INT64_MAX};

    for (size_t i = 0; i < s->n_queues; i++) {
        const struct sidecar_queue *sq = &s->queues[i];
        const struct housekeeping *h = &sq->house;

        if (sq->first != sq || sq->core.drain || sq->refused_told)
            continue;
        if (h->at_ms < t.at_ms)
            t = (struct turn){i, false, h->at_ms};
        if (h->expiry.is_due && h->expiry.at_ms < t.at_ms)
            t = (struct turn){i, true, h->expiry.at_ms};
    }
    return t;
}

static void turn_take(struct sidecar *s, struct turn t)
{
    struct sidecar_queue *sq = &s->queues[t.queue];
    struct housekeeping *h = &sq->house;

    if (is_put_off(s, h, t.is_expiry ? &h->expiry.at_ms : &h->at_ms))
        return;
    if (t.is_expiry)
        expiry_ask(s, sq);
    else
        ask(s, sq);
}

void housekeeping_step(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];

        say(sq, EVENT_PURGED, &sq->house.purged);
        say(sq, EVENT_SWEPT, &sq->house.swept);
        say(sq, EVENT_ORPHANS, &sq->house.orphans);
        say(sq, EVENT_COMPACTED, &sq->house.compacted);
        say(sq, EVENT_HISTORY_EXPIRED, &sq->house.expired);
        restart_walk(s, &sq->house);
    }
    if (!s->database.inbox)
        return;
    relay_look(s);
    if (s->database.housekeeps != SIZE_MAX && s->database.expires_history)
        expiry_answered(s);
    else if (s->database.housekeeps != SIZE_MAX)
        answered(s);
    if (s->database.housekeeps == SIZE_MAX && s->now_ms >= housekeeping_due_ms(s))
        turn_take(s, turn_next(s));
}

int64_t housekeeping_due_ms(const struct sidecar *s)
{
    if (!s->database.inbox || s->database.housekeeps != SIZE_MAX)
        return INT64_MAX;
    int64_t at_ms = turn_next(s).at_ms;

    return at_ms > s->database.house_pause_ms ? at_ms : s->database.house_pause_ms;
}
