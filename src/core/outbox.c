/* The relay's lease, its reading, and its position. See outbox.h. */
#include "core/outbox.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RESTART_MS = 100,      /* between two restarts */
    AGAIN_MS = 1000,       /* after a failed statement */
    RENEW_MS = 4500,       /* three renewals in a lease */
    WRITE_MS = 100,        /* between two writes of the position */
    WRITE_ROWS = 256,      /* or after this many rows */
    TURN_MS = 1000,        /* between two checks of the tables, while rows come */
    TURN_IDLE_MS = 5000,   /* and while none come */
    READ_ROWS = 256,       /* per read */
    SOON_MS = 5,           /* to the next poll while rows come, or */
    READING_SHARE = 3,     /* this multiple of a poll's duration, for other statements on the connection */
    SMOOTHING = 8,         /* polls in the average duration */
    SLOWEST_POLL_MS = 250, /* unless outbox.poll is larger */
    REFUSED_MS = 5000,     /* until the outbox of another virtual host is checked again */
};

void outbox_init(struct outbox *o, const struct outbox_rules *rules, int64_t now_ms)
{
    memset(o, 0, sizeof(*o));
    o->rules = *rules;
    o->reading.after = -1;
    o->reading.wait_ms = rules->poll_ms;
    o->reading.at_ms = o->lease.at_ms = now_ms;
    o->link.group = o->link.group_left = OUTBOX_OUT_MAX;
    list_init(&o->rows);
    list_init(&o->parked_rows);
    list_init(&o->unparks);
    list_init(&o->unparking);
    list_init(&o->wanted);
    list_init(&o->sent);
    list_init(&o->letters);
    list_init(&o->dead_lettering);
    list_init(&o->batches);
    list_init(&o->exchanges);
}

void outbox_deinit(struct outbox *o)
{
    rows_forget(o);
    exchanges_free(o);
    hash_deinit(&o->sent_by_look);
    hash_deinit(&o->keys);
    while (o->batches.len)
        rows_drop_batch(o);
}

/* --- restart --- */

static void ask_outdate(enum outbox_ask *ask)
{
    if (*ask == OUTBOX_ASKED)
        *ask = OUTBOX_STALE;
}

static void forget_all(struct outbox *o)
{
    rows_forget(o);
    exchanges_unstop(o);
    while (o->batches.len)
        rows_drop_batch(o);
    o->parked.known = false;
    o->parked.reading = NULL;
    o->parked.n = 0;
    o->parked.at_ms = 0;
    ask_outdate(&o->parked.list);
    ask_outdate(&o->parked.read);
    ask_outdate(&o->parked.delete);
    o->reading.batch = NULL;
    o->reading.after = -1;
    o->reading.idle = false;
    o->writing.dirty = false;
    o->writing.n = 0;
    o->link.quiet_since_ms = 0;
    ask_outdate(&o->reading.ask);
    ask_outdate(&o->writing.ask);
    ask_outdate(&o->letter);
    ask_outdate(&o->turning.ask);
    ask_outdate(&o->lease.restoring);
}

/* The lease is lost: everything that needed it stops. */
static void lease_leave(struct outbox *o, int64_t now_ms, int64_t wait_ms, const char *why)
{
    if (o->lease.number) {
        o->to_tell[OUTBOX_TOLD_LEFT] = true;
        o->to_tell[OUTBOX_TOLD_HELD] = false;
        if (why != o->why)
            snprintf(o->why, sizeof(o->why), "%s", why);
    }
    o->lease.number = 0;
    o->lease.restored = false;
    o->lease.at_ms = now_ms + wait_ms;
    o->offering = o->paused = false;
    forget_all(o);
}

bool outbox_holds(const struct outbox *o, int64_t now_ms)
{
    return o->lease.number && now_ms < o->lease.until_ms;
}

/* --- facts: the database --- */

void outbox_database(struct outbox *o, int64_t now_ms, bool is_there, const char *why)
{
    o->link.database = is_there;
    if (!is_there)
        lease_leave(o, now_ms, 0, why);
    o->reading.ask = o->writing.ask = o->letter = o->turning.ask = OUTBOX_IDLE;
    o->parked.list = o->parked.read = o->parked.delete = OUTBOX_IDLE;
    o->lease.ask = o->lease.registering = o->lease.restoring = OUTBOX_IDLE;
    o->lease.registered = false;
    o->reading.at_ms = o->lease.at_ms = now_ms;
}

void outbox_registered(struct outbox *o, int64_t now_ms, enum outbox_answer answer, const char *why)
{
    if (!outbox_take_answer(&o->lease.registering))
        return;
    if (answer == OUTBOX_LOST)
        lease_leave(o, now_ms, REFUSED_MS, why);
    o->lease.registered = answer == OUTBOX_DONE;
    o->lease.at_ms = now_ms + (answer == OUTBOX_DONE ? 0 : answer == OUTBOX_AGAIN ? AGAIN_MS : REFUSED_MS);
    if (answer != OUTBOX_LOST)
        return;
    o->to_tell[OUTBOX_TOLD_REFUSED] = strcmp(o->why, why) != 0;
    snprintf(o->why, sizeof(o->why), "%s", why);
}

static void lease_taken(struct outbox *o, int64_t now_ms, int64_t number, bool restored)
{
    forget_all(o);
    o->lease.number = number;
    o->lease.restored = restored;
    o->to_tell[OUTBOX_TOLD_HELD] = true;
    o->to_tell[OUTBOX_TOLD_RESTORED] = restored;
    o->reading.at_ms = o->turning.at_ms = o->writing.at_ms = now_ms;
    o->reading.wait_ms = o->rules.poll_ms;
}

void outbox_leased(struct outbox *o, int64_t now_ms, enum outbox_answer answer, int64_t number,
                   int64_t for_ms, bool restored)
{
    if (!outbox_take_answer(&o->lease.ask))
        return;
    switch (answer) {
    case OUTBOX_DONE:
        if (!number) { /* the lease was given up */
            lease_leave(o, now_ms, o->lease.at_ms - now_ms, o->why);
            return;
        }
        o->lease.until_ms = o->lease.asked_ms + for_ms;
        o->lease.at_ms = now_ms + RENEW_MS;
        if (number != o->lease.number || restored)
            lease_taken(o, now_ms, number, restored);
        return;
    case OUTBOX_AGAIN:
    case OUTBOX_RESTART:
        o->lease.at_ms = o->lease.not_before_ms = now_ms + AGAIN_MS;
        return;
    case OUTBOX_LOST:
        o->error = NULL;
        lease_leave(o, now_ms, RENEW_MS, "another sidecar has the lease");
        return;
    }
}

void outbox_pause(struct outbox *o, const char *why)
{
    if (!o->lease.number)
        return;
    o->offering = o->paused = true;
    snprintf(o->why, sizeof(o->why), "%s", why);
}

void outbox_restored(struct outbox *o, int64_t now_ms, enum outbox_answer answer)
{
    if (!outbox_take_answer(&o->lease.restoring))
        return;
    if (answer == OUTBOX_LOST)
        lease_leave(o, now_ms, AGAIN_MS, "another sidecar has the lease");
    o->lease.restored = answer == OUTBOX_AGAIN || answer == OUTBOX_RESTART;
    o->reading.at_ms = now_ms + (answer == OUTBOX_AGAIN ? AGAIN_MS : 0);
}

void outbox_batch_came(struct outbox *o, int64_t now_ms, struct slice text, bool over)
{
    struct outbox_batch *b = o->reading.batch;

    (void)now_ms;
    if (o->reading.ask != OUTBOX_ASKED)
        return;
    if (!b || o->reading.after < 0) {
        b = mem_zalloc(1, sizeof(*b));
        b->number = ++o->next_batch;
        list_push(&o->batches, &b->in_order);
        o->reading.batch = b;
    }
    free(b->text);
    b->text = mem_copy(text.data, text.len);
    b->over = over;
}

void outbox_row_came(struct outbox *o, int64_t now_ms, const struct outbox_new *row)
{
    if (o->reading.ask != OUTBOX_ASKED || !o->reading.batch)
        return;
    rows_add(o, now_ms, row);
    o->reading.after = row->seq;
    o->reading.n++;
}

/* The server no longer knows the batch, or there is no position: the lease shows which. */
static void read_again(struct outbox *o, int64_t now_ms)
{
    forget_all(o);
    o->lease.at_ms = now_ms;
    o->reading.at_ms = o->reading.not_before_ms = now_ms + RESTART_MS;
}

/* The interval between polls while rows come. */
static int64_t soon_ms(const struct outbox *o)
{
    int64_t share_ms = o->reading.took_us * READING_SHARE / 1000;
    int64_t ms = share_ms > SOON_MS ? share_ms : SOON_MS;

    return ms < o->rules.poll_ms ? ms : o->rules.poll_ms;
}

/* Schedules the poll after one that found nothing; the intervals grow. */
static void poll_later(struct outbox *o, int64_t now_ms)
{
    int64_t most_ms = o->rules.poll_ms * OUTBOX_POLL_GROWTH;

    most_ms = most_ms < SLOWEST_POLL_MS || o->rules.poll_ms > SLOWEST_POLL_MS ? most_ms : SLOWEST_POLL_MS;
    o->reading.at_ms = now_ms + o->reading.wait_ms;
    o->reading.wait_ms = o->reading.wait_ms * 2 < most_ms ? o->reading.wait_ms * 2 : most_ms;
}

/* Schedules the poll after an answer: rows were found, a hint came meanwhile, or neither. */
static void poll_next(struct outbox *o, int64_t now_ms, bool found)
{
    struct outbox_reading *r = &o->reading;

    r->idle = !found && !r->hinted;
    if (found || r->hinted) {
        r->at_ms = r->not_before_ms = now_ms + soon_ms(o);
        r->wait_ms = found ? 2 * soon_ms(o) : o->rules.poll_ms;
    } else {
        poll_later(o, now_ms);
    }
    r->hinted = false;
}

void outbox_looked(struct outbox *o, int64_t now_ms, enum outbox_answer answer)
{
    if (!outbox_take_answer(&o->reading.ask))
        return;
    if (answer == OUTBOX_DONE) {
        poll_next(o, now_ms, false);
        return;
    }
    o->reading.idle = false;
    o->reading.at_ms = now_ms;
    if (answer != OUTBOX_RESTART)
        o->reading.at_ms = o->reading.not_before_ms = now_ms + AGAIN_MS;
}

void outbox_read_ends(struct outbox *o, int64_t now_ms, enum outbox_answer answer)
{
    struct outbox_reading *r = &o->reading;
    size_t n = r->n;

    r->n = 0;
    if (!outbox_take_answer(&r->ask))
        return;
    if (answer == OUTBOX_RESTART) {
        read_again(o, now_ms);
        return;
    }
    if (answer != OUTBOX_DONE) {
        r->at_ms = r->not_before_ms = now_ms + AGAIN_MS;
        return;
    }
    assert(r->batch);
    if (!r->batch->over) { /* the next page */
        r->at_ms = now_ms;
    } else {
        r->after = -1;
        r->took_us += ((now_ms - r->asked_ms) * 1000 - r->took_us) / SMOOTHING;
        poll_next(o, now_ms, n);
    }
    rows_reap(o);
}

void outbox_written(struct outbox *o, int64_t now_ms, enum outbox_answer answer)
{
    if (!outbox_take_answer(&o->writing.ask))
        return;
    if (answer == OUTBOX_LOST)
        lease_leave(o, now_ms, AGAIN_MS, "another sidecar has the lease");
    else if (answer == OUTBOX_RESTART)
        read_again(o, now_ms);
    if (answer != OUTBOX_AGAIN)
        return;
    o->writing.dirty = true;
    o->writing.at_ms = now_ms + AGAIN_MS;
}

void outbox_dead_letters_end(struct outbox *o, int64_t now_ms, enum outbox_answer answer)
{
    if (!outbox_take_answer(&o->letter))
        return;
    if (answer == OUTBOX_LOST) {
        lease_leave(o, now_ms, AGAIN_MS, "another sidecar has the lease");
        return;
    }
    rows_end_dead_lettered(o);
    o->letter_at_ms = o->dead_lettering.len ? now_ms + AGAIN_MS : now_ms;
    rows_dead_letter_again(o);
    rows_reap(o);
}

void outbox_turned(struct outbox *o, int64_t now_ms, enum outbox_answer answer, bool more)
{
    bool idle = o->turning.seen == o->next_number;

    if (!outbox_take_answer(&o->turning.ask))
        return;
    if (answer == OUTBOX_LOST)
        lease_leave(o, now_ms, AGAIN_MS, "another sidecar has the lease");
    o->turning.seen = o->next_number;
    o->turning.at_ms = now_ms + (more ? 0 : idle ? TURN_IDLE_MS : TURN_MS);
}

void outbox_hint(struct outbox *o, int64_t now_ms)
{
    o->reading.hinted = o->reading.ask == OUTBOX_ASKED;
    o->reading.idle = false;
    if (o->reading.at_ms > now_ms)
        o->reading.at_ms = now_ms > o->reading.not_before_ms ? now_ms : o->reading.not_before_ms;
    if (o->reading.wait_ms > o->rules.poll_ms)
        o->reading.wait_ms = o->rules.poll_ms;
}

/* --- facts: the broker --- */

void outbox_linked(struct outbox *o, int64_t now_ms)
{
    o->link.broker = o->link.open = true;
    o->link.not_before_ms = now_ms;
    exchanges_unprove(o);
    o->lease.registered = false; /* the same name may lead to another broker */
    if (o->lease.number)
        o->lease.at_ms = now_ms;
}

void outbox_unlinked(struct outbox *o, int64_t now_ms, int code, const char *why)
{
    o->link.broker = o->link.open = o->link.blocked = false;
    o->error = NULL;
    if (code)
        rows_suspect(o, now_ms, code, why);
    rows_unsent(o);
    rows_reap(o);
}

void outbox_channel_open(struct outbox *o, int64_t now_ms)
{
    (void)now_ms;
    o->link.open = o->link.broker;
}

void outbox_blocked(struct outbox *o, bool blocked)
{
    o->link.blocked = blocked;
}

void outbox_drain(struct outbox *o, int64_t now_ms, bool now)
{
    o->draining = true;
    ask_outdate(&o->reading.ask);
    if (now)
        lease_leave(o, now_ms, 0, "it ends");
}

bool outbox_is_drained(const struct outbox *o)
{
    return o->draining && (!o->link.database || (!o->lease.number && o->lease.ask == OUTBOX_IDLE));
}

/* --- actions --- */

static bool action_ask(enum outbox_ask *what, struct outbox_action *a, enum outbox_action_kind kind)
{
    assert(*what == OUTBOX_IDLE);
    *what = OUTBOX_ASKED;
    a->kind = kind;
    return true;
}

/* Reports one exchange at a time. */
static bool tell_stopped(struct outbox *o, struct outbox_action *a)
{
    list_each(&o->exchanges, k)
    {
        struct outbox_exchange *e = container_of(k, struct outbox_exchange, in_use);

        if (!e->stop.to_tell)
            continue;
        *a = (struct outbox_action){.kind = OUTBOX_TELL, .exchange = e, .text = e->detail};
        a->told = e->stop.ended ? OUTBOX_TOLD_OPEN : OUTBOX_TOLD_STOPPED;
        e->stop.to_tell = e->stop.ended = false;
        return true;
    }
    return o->to_tell[OUTBOX_TOLD_STOPPED] = false;
}

static bool tell_next(struct outbox *o, struct outbox_action *a)
{
    static const enum outbox_told order[] = {OUTBOX_TOLD_LEFT,     OUTBOX_TOLD_REFUSED, OUTBOX_TOLD_HELD,
                                             OUTBOX_TOLD_RESTORED, OUTBOX_TOLD_NACKED,  OUTBOX_TOLD_CLOSED};

    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        if (!o->to_tell[order[i]])
            continue;
        o->to_tell[order[i]] = false;
        *a = (struct outbox_action){.kind = OUTBOX_TELL, .told = order[i]};
        a->text = order[i] == OUTBOX_TOLD_NACKED   ? o->nacked
                  : order[i] == OUTBOX_TOLD_CLOSED ? o->closed
                                                   : o->why;
        return true;
    }
    return o->to_tell[OUTBOX_TOLD_STOPPED] && tell_stopped(o, a);
}

/* The drain is complete: nothing is in flight at the broker or the database. */
static bool is_through(const struct outbox *o)
{
    return !o->sent.len && !o->dead_lettering.len && !o->writing.dirty && o->writing.ask == OUTBOX_IDLE &&
           !o->unparks.len && !o->unparking.len;
}

bool outbox_is_idle(const struct outbox *o)
{
    return is_through(o) && !o->rows.len && !o->parked_rows.len && o->reading.ask == OUTBOX_IDLE &&
           o->parked.read == OUTBOX_IDLE;
}

/* The lease is given up once nothing is in flight. */
static bool is_done(const struct outbox *o)
{
    return (o->draining || o->offering) && is_through(o);
}

/* A parked row may begin to wait when an earlier row of its key has ended, and not when it comes. */
static void watch_silence(struct outbox *o, int64_t now_ms)
{
    if (!o->link.quiet_since_ms && (o->wanted.len || o->sent.len))
        o->link.quiet_since_ms = now_ms ? now_ms : 1;
}

static bool is_silent(const struct outbox *o, int64_t now_ms)
{
    return (o->wanted.len || o->sent.len) && o->link.quiet_since_ms &&
           now_ms - o->link.quiet_since_ms >= OUTBOX_SILENT_MS;
}

static bool lease_next(struct outbox *o, int64_t now_ms, struct outbox_action *a)
{
    struct outbox_lease *l = &o->lease;

    if (l->ask != OUTBOX_IDLE)
        return false;
    if (now_ms >= l->not_before_ms && l->number && (is_done(o) || is_silent(o, now_ms))) {
        if (!o->paused || o->draining || is_silent(o, now_ms))
            snprintf(o->why, sizeof(o->why), "%s",
                     o->draining ? "it drains"
                     : is_silent(o, now_ms)
                         ? "rows wait, and the broker has neither confirmed nor refused any for 15 s"
                         : "a row is for an exchange that is not in outbox.exchanges: another "
                           "sidecar that allows it may take the lease");
        l->at_ms = now_ms + (o->draining || is_silent(o, now_ms) ? OUTBOX_SILENT_MS : OUTBOX_OFFER_MS);
        return action_ask(&l->ask, a, OUTBOX_GIVE_UP);
    }
    if (now_ms < l->at_ms || (!l->number && (!o->link.broker || o->draining)))
        return false;
    if (!l->registered && o->link.broker)
        return l->registering == OUTBOX_IDLE && action_ask(&l->registering, a, OUTBOX_REGISTER);
    l->asked_ms = now_ms;
    return action_ask(&l->ask, a, OUTBOX_LEASE);
}

static bool read_next(struct outbox *o, int64_t now_ms, struct outbox_action *a)
{
    struct outbox_reading *r = &o->reading;
    size_t room = OUTBOX_HELD_MAX - o->rows.len;

    if (o->draining || o->offering || !o->parked.known || r->ask != OUTBOX_IDLE || now_ms < r->at_ms ||
        o->rows.len > OUTBOX_HELD_MAX - READ_ROWS || o->n_bytes >= OUTBOX_HELD_BYTES)
        return false;
    r->asked_ms = now_ms;
    a->batch = r->batch;
    a->seq = r->after;
    a->n = room < READ_ROWS ? (int)room : READ_ROWS;
    return action_ask(&r->ask, a, r->idle ? OUTBOX_LOOK : OUTBOX_READ);
}

static const struct outbox_batch *batch_numbered(struct outbox *o, uint64_t number)
{
    list_each(&o->batches, k)
    {
        const struct outbox_batch *b = container_of(k, struct outbox_batch, in_order);

        if (b->number == number)
            return b;
    }
    return NULL;
}

static bool write_next(struct outbox *o, int64_t now_ms, struct outbox_action *a)
{
    struct outbox_writing *w = &o->writing;

    if (!w->dirty || w->ask != OUTBOX_IDLE || (now_ms < w->at_ms && w->n < WRITE_ROWS && !o->draining))
        return false;
    a->batch = batch_numbered(o, w->batch);
    a->seq = w->seq;
    w->dirty = false;
    w->n = 0;
    w->at_ms = now_ms + WRITE_MS;
    return action_ask(&w->ask, a, OUTBOX_WRITE);
}

static bool send_next(struct outbox *o, int64_t now_ms, struct outbox_action *a)
{
    if (!o->link.open || o->link.blocked || !o->lease.registered || now_ms < o->link.not_before_ms ||
        o->draining || o->offering || !o->parked.known)
        return false;
    a->row = rows_next(o, now_ms);
    a->kind = OUTBOX_SEND;
    return a->row;
}

/* The work of the lease's owner. */
static bool work_next(struct outbox *o, int64_t now_ms, bool can_send, struct outbox_action *a)
{
    if (o->lease.restored)
        return now_ms >= o->reading.at_ms && o->lease.restoring == OUTBOX_IDLE &&
               action_ask(&o->lease.restoring, a, OUTBOX_RESTORE);
    if (can_send && send_next(o, now_ms, a))
        return true;
    if (!o->link.database)
        return false;
    if (parked_next(o, now_ms, a) || read_next(o, now_ms, a) || write_next(o, now_ms, a))
        return true;
    if (o->letter == OUTBOX_IDLE && o->letters.len && now_ms >= o->letter_at_ms) {
        rows_dead_letter(o);
        return action_ask(&o->letter, a, OUTBOX_DEAD_LETTERS);
    }
    return o->turning.ask == OUTBOX_IDLE && now_ms >= o->turning.at_ms && !o->draining &&
           action_ask(&o->turning.ask, a, OUTBOX_TURN);
}

bool outbox_next(struct outbox *o, int64_t now_ms, bool can_send, struct outbox_action *ret)
{
    *ret = (struct outbox_action){.seq = -1};
    watch_silence(o, now_ms);
    if (o->lease.number && !outbox_holds(o, now_ms))
        lease_leave(o, now_ms, 0, "the lease ran out");
    if (tell_next(o, ret))
        return true;
    if (o->link.database && lease_next(o, now_ms, ret))
        return true;
    if (!outbox_holds(o, now_ms))
        return false;
    return work_next(o, now_ms, can_send, ret) || (o->offering && lease_next(o, now_ms, ret));
}

static void earlier(int64_t *due, int64_t at_ms)
{
    if (at_ms < *due)
        *due = at_ms;
}

int64_t outbox_due_ms(const struct outbox *o, int64_t now_ms)
{
    int64_t due = INT64_MAX;

    if (!o->link.database)
        return due;
    if (o->lease.ask == OUTBOX_IDLE && o->lease.registering == OUTBOX_IDLE &&
        (o->lease.number || (o->link.broker && !o->draining)))
        earlier(&due, o->lease.at_ms);
    if (!outbox_holds(o, now_ms))
        return due;
    earlier(&due, o->lease.until_ms);
    if (o->link.quiet_since_ms && (o->wanted.len || o->sent.len) && o->lease.ask == OUTBOX_IDLE) {
        int64_t silent_ms = o->link.quiet_since_ms + OUTBOX_SILENT_MS;

        earlier(&due, silent_ms > o->lease.not_before_ms ? silent_ms : o->lease.not_before_ms);
    }
    if (o->lease.restored) { /* everything else waits for that */
        if (o->lease.restoring == OUTBOX_IDLE)
            earlier(&due, o->reading.at_ms);
        return due;
    }
    earlier(&due, parked_due_ms(o, now_ms));
    if (o->reading.ask == OUTBOX_IDLE && !o->draining && o->parked.known && !o->offering &&
        o->rows.len <= OUTBOX_HELD_MAX - READ_ROWS && o->n_bytes < OUTBOX_HELD_BYTES)
        earlier(&due, o->reading.at_ms);
    if (o->writing.dirty && o->writing.ask == OUTBOX_IDLE)
        earlier(&due, o->writing.at_ms);
    if (o->letters.len && o->letter == OUTBOX_IDLE)
        earlier(&due, o->letter_at_ms);
    if (o->turning.ask == OUTBOX_IDLE && !o->draining)
        earlier(&due, o->turning.at_ms);
    if (o->wanted.len && now_ms < o->link.not_before_ms)
        earlier(&due, o->link.not_before_ms);
    return due;
}
