/* Housekeeping: the purge of what is past the retention, the sweep of tokens that nobody came back for, and
 * what is said about both.
 *
 * One bounded call at a time, then a rest; the calls stand in the same pipeline as the claims, so each is
 * short. Which sidecar does it is decided in the database (sidecar_keep_house); the others only ask now and
 * then. */
#include "worker.h"

#include "onceward/base/random.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    FIRST_MS = 1000,  /* after connecting, with as much jitter */
    BUDGET_US = 300,  /* of a call: hardly longer than a claim */
    BUSY_MS = 50,     /* the database answers this slowly: put off */
    PUT_OFF_MS = 100, /* again and again, but */
    PUT_OFF_MAX_MS = 10000,
    FAILED_MS = 10000, /* after a failed statement, doubling to 8 times that */
    AWAY_MIN_MS = 100,
    AWAY_MAX_MS = 60000,
    LATE_MIN_MS = 60 * 1000,
    LATE_NEW_MS = 10 * 60 * 1000, /* on a connection younger than LATE_MIN_MS */
    CLOCKS_MS = 5000,             /* between two looks at clocks that differ */
    MANY_ROWS = 100 * 1000,       /* failed and waiting ones of a consumer: worth a line */
    MANY_BYTES = 1 << 30,         /* of dead letters */
};

/* A row that is processing for so long after its window is given up by its holder: a live one settles, fails
 * or extends it within the window, or has its delivery back by then. When the database has been away, its
 * holders come first: they may have completions to settle, and connect later than this one. */
static int64_t late_ms(const struct worker *w)
{
    int64_t ms = 10 * w->q->token_window_ms,
            least = w->now_ms - w->to_inbox.up_ms < LATE_MIN_MS ? LATE_NEW_MS : LATE_MIN_MS;

    return ms > least ? ms : least;
}

static void say(struct worker *w, enum event e, struct tally *t)
{
    struct log_line l;

    if (!t->n || (w->now_ms < t->not_before_ms && !w->drain))
        return;
    log_begin(&l, e, w->q->name);
    log_int(&l, "n", t->n);
    log_end(&l);
    t->n = 0;
    t->not_before_ms = w->now_ms + w->config->log.stats_interval_ms;
}

/* Is that above the bound, and twice what was said before? */
static bool has_grown(int64_t *told, int64_t value, int64_t bound)
{
    if (value < bound)
        *told = 0;
    if (value < bound || (*told && value / 2 < *told))
        return false;
    *told = value;
    return true;
}

static void rows_are_counted(struct worker *w, int64_t n)
{
    char reason[512];

    if (!has_grown(&w->housekeeping.told_unfinished, n, MANY_ROWS))
        return;
    snprintf(reason, sizeof(reason),
             "%" PRId64
             " rows of consumer %s are failed or waiting: see `onceward status`; where their messages "
             "are in no queue any more, SELECT onceward.orphans_remove(consumer, '7 days') forgets them",
             n, w->q->consumer);
    report_text(w, EVENT_LIMITS, reason);
}

void worker_letters_are_weighed(struct worker *w)
{
    char reason[256];

    if (!has_grown(&w->housekeeping.told_bytes, w->figures.dead_letter_bytes, MANY_BYTES))
        return;
    snprintf(reason, sizeof(reason),
             "the dead letters of this database take %" PRId64
             " MiB, and nothing but a command makes them fewer: see "
             "`onceward dead list`, then `dead redrive` or `dead discard --older 30d`",
             w->figures.dead_letter_bytes >> 20);
    report_text(w, EVENT_LIMITS, reason);
}

/* Once an interval, by each sidecar for itself: its own clock may be the wrong one. */
static void clocks_differ(struct worker *w, int64_t ahead_ms)
{
    struct housekeeping *h = &w->housekeeping;
    struct log_line l;

    h->at_ms = w->now_ms + CLOCKS_MS;
    if (w->now_ms < h->clocks_told_ms)
        return;
    h->clocks_told_ms = w->now_ms + w->config->log.stats_interval_ms;
    log_begin(&l, EVENT_CLOCKS_DIFFER, w->q->name);
    log_int(&l, "ahead_ms", ahead_ms);
    log_end(&l);
}

static void took_place(struct worker *w, const struct inbox_housekept *kept)
{
    struct housekeeping *h = &w->housekeeping;
    bool found = kept->n_purged || kept->n_swept, ended = kept->next_page == 0;

    h->page = kept->next_page;
    h->purged.n += kept->n_purged;
    h->swept.n += kept->n_swept;
    h->n_orphans += kept->n_orphans;
    h->n_unfinished += kept->n_unfinished;
    if (ended) {
        h->orphans.n = h->n_orphans;
        rows_are_counted(w, h->n_unfinished);
        h->n_orphans = h->n_unfinished = 0;
    }
    h->at_ms =
        w->now_ms + pace_rest_ms(&h->pace, kept->took_us, found, ended, pace_between_ms(w->q->retention_ms));
}

static void somebody_else_does(struct worker *w, const struct inbox_housekept *kept)
{
    struct housekeeping *h = &w->housekeeping;
    int64_t wait = kept->away_ms;

    if (wait > AWAY_MAX_MS)
        wait = AWAY_MAX_MS;
    if (wait < AWAY_MIN_MS)
        wait = AWAY_MIN_MS;
    if (kept->away_ms > AWAY_MIN_MS) { /* not just another consumer's call: the walk is no longer ours */
        h->page = -1;
        h->n_orphans = h->n_unfinished = 0;
    }
    h->at_ms = w->now_ms + wait + (int64_t)random_below((uint64_t)wait / 4);
}

static void failed(struct worker *w, const struct fault *f)
{
    struct housekeeping *h = &w->housekeeping;
    struct log_line l;

    h->at_ms = w->now_ms + (FAILED_MS << (h->n_failures < 3 ? h->n_failures : 3));
    h->n_failures++;
    if (!worker_may_say(w, EVENT_DATABASE_ERROR))
        return;
    log_begin(&l, EVENT_DATABASE_ERROR, w->q->name);
    log_text(&l, "sqlstate", f->code);
    log_text(&l, "reason", f->text);
    log_text(&l, "during", "housekeeping");
    log_end(&l);
}

static void answer_read(struct worker *w)
{
    struct inbox_housekept kept;
    struct fault f = {0};
    int got = inbox_housekept(w->inbox, &kept, &f);

    if (!got)
        return;
    w->housekeeping.asked = false;
    if (got < 0) {
        failed(w, &f);
        return;
    }
    w->housekeeping.n_failures = 0;
    if (kept.ahead_ms)
        clocks_differ(w, kept.ahead_ms);
    else if (kept.away_ms)
        somebody_else_does(w, &kept);
    else
        took_place(w, &kept);
}

/* Not now: the rows in flight go first. A database that is slow for ever is no reason never to purge. */
static bool is_put_off(struct worker *w)
{
    struct housekeeping *h = &w->housekeeping;

    if (w->pauses & 1u << PAUSE_DATABASE) {
        h->at_ms = w->now_ms + FIRST_MS;
        return true;
    }
    if (inbox_waiting_ms(w->inbox) < BUSY_MS) {
        h->put_off_since_ms = 0;
        return false;
    }
    if (!h->put_off_since_ms)
        h->put_off_since_ms = w->now_ms;
    if (w->now_ms - h->put_off_since_ms >= PUT_OFF_MAX_MS) {
        h->put_off_since_ms = 0;
        return false;
    }
    h->at_ms = w->now_ms + PUT_OFF_MS;
    return true;
}

void worker_keep_house(struct worker *w)
{
    struct housekeeping *h = &w->housekeeping;

    if (w->inbox && h->asked && h->inbox_life == w->inbox_life)
        answer_read(w);
    say(w, EVENT_PURGED, &h->purged);
    say(w, EVENT_SWEPT, &h->swept);
    say(w, EVENT_ORPHANS, &h->orphans);
    if (!w->inbox)
        return;
    if (h->inbox_life != w->inbox_life) {
        h->inbox_life = w->inbox_life;
        h->asked = false;
        h->page = -1;
        h->n_orphans = h->n_unfinished = 0;
        h->at_ms = w->now_ms + FIRST_MS + (int64_t)random_below(FIRST_MS);
    }
    if (h->asked || w->drain || w->now_ms < h->at_ms || is_put_off(w))
        return;
    struct inbox_housekeep ask = {.retention_ms = w->q->retention_ms,
                                  .late_ms = late_ms(w),
                                  .from_page = h->page,
                                  .budget_us = BUDGET_US};

    inbox_ask_housekeep(w->inbox, &ask);
    h->asked = true;
}

int64_t worker_next_housekeeping_ms(const struct worker *w)
{
    return w->inbox && !w->housekeeping.asked && !w->drain ? w->housekeeping.at_ms : INT64_MAX;
}
