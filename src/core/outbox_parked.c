/* The rows of stopped exchanges, from the table where they are parked to the broker. See outbox.h. */
#include "core/outbox.h"

#include <assert.h>

enum {
    AGAIN_MS = 1000,  /* after a failed statement */
    LOW_ROWS = 128,   /* per exchange, below which the next page is read */
    MOST_ROWS = 1024, /* in memory, of all exchanges */
};

/* --- facts --- */

void outbox_parked_exchange(struct outbox *o, int64_t now_ms, struct slice exchange)
{
    if (o->parked.list == OUTBOX_ASKED)
        exchange_stop(o, now_ms, exchange_of(o, now_ms, exchange));
}

void outbox_parked_listed(struct outbox *o, int64_t now_ms, enum outbox_answer answer)
{
    if (!outbox_take_answer(&o->parked.list))
        return;
    o->parked.known = answer == OUTBOX_DONE;
    o->parked.at_ms = now_ms + (answer == OUTBOX_DONE ? 0 : AGAIN_MS);
    if (answer != OUTBOX_DONE)
        exchanges_unstop(o);
}

void outbox_parked_came(struct outbox *o, int64_t now_ms, const struct outbox_new *row)
{
    struct outbox_exchange *e = o->parked.reading;

    if (o->parked.read != OUTBOX_ASKED)
        return;
    assert(e); /* the exchange whose rows were asked for */
    rows_add(o, now_ms, row);
    e->stop.after = row->seq;
    e->stop.n_parked++;
    o->parked.n++;
}

void outbox_parked_read_ends(struct outbox *o, int64_t now_ms, enum outbox_answer answer, bool over)
{
    struct outbox_exchange *e = o->parked.reading;
    size_t n = o->parked.n;

    o->parked.n = 0;
    o->parked.reading = NULL;
    if (!outbox_take_answer(&o->parked.read))
        return;
    if (answer != OUTBOX_DONE)
        o->parked.at_ms = now_ms + AGAIN_MS;
    assert(e);
    e->stop.empty = answer == OUTBOX_DONE && over && e->stop.last;
    if (!e->stop.empty && e->stop.last) {
        e->stop.last = false;
        rows_park(o, e);
    }
    if (!n && e->stop.retry_ms <= now_ms) /* the rows are still being written to the table */
        e->stop.retry_ms = now_ms + 1;
    exchange_settle(o, e);
}

void outbox_unparked(struct outbox *o, int64_t now_ms, enum outbox_answer answer)
{
    if (!outbox_take_answer(&o->parked.delete))
        return;
    if (answer == OUTBOX_DONE) {
        rows_unparked(o);
        return;
    }
    o->parked.at_ms = now_ms + AGAIN_MS;
    rows_unpark_again(o);
}

/* --- actions --- */

static bool has_room(const struct outbox *o)
{
    return o->parked_rows.len < MOST_ROWS && o->parked.n_bytes < OUTBOX_HELD_BYTES;
}

/* The first row is tried alone, and the others follow in pages after its confirm. One row per exchange may always be
 * in memory, so that no exchange waits for the room of another. */
static bool wants_page(const struct outbox *o, const struct outbox_exchange *e, int64_t now_ms)
{
    const struct outbox_stop *s = &e->stop;

    if (!s->is || s->empty || now_ms < s->retry_ms)
        return false;
    return !s->n_parked || (e->proven && s->n_parked < LOW_ROWS && has_room(o));
}

static bool read_next(struct outbox *o, int64_t now_ms, struct outbox_action *a)
{
    if (!o->parked.n_stopped || o->parked.read != OUTBOX_IDLE || o->draining || !o->link.open)
        return false;
    list_each(&o->exchanges, k)
    {
        struct outbox_exchange *e = container_of(k, struct outbox_exchange, in_use);

        if (!wants_page(o, e, now_ms))
            continue;
        e->stop.last = !e->stop.n_parking;
        o->parked.reading = e;
        o->parked.read = OUTBOX_ASKED;
        a->kind = OUTBOX_PARKED_READ;
        a->exchange = e;
        a->seq = e->stop.after;
        a->n = e->proven && has_room(o) ? OUTBOX_PARKED_ROWS : 1;
        return true;
    }
    return false;
}

bool parked_next(struct outbox *o, int64_t now_ms, struct outbox_action *a)
{
    if (now_ms < o->parked.at_ms)
        return false;
    if (!o->parked.known) {
        a->kind = OUTBOX_PARKED_LIST;
        return o->parked.list == OUTBOX_IDLE && (o->parked.list = OUTBOX_ASKED);
    }
    if (o->parked.delete == OUTBOX_IDLE && o->unparks.len) {
        rows_unpark(o);
        o->parked.delete = OUTBOX_ASKED;
        a->kind = OUTBOX_UNPARK;
        return true;
    }
    return read_next(o, now_ms, a);
}

int64_t parked_due_ms(const struct outbox *o, int64_t now_ms)
{
    int64_t due = INT64_MAX;

    if (!o->parked.known || o->unparks.len)
        return o->parked.list == OUTBOX_IDLE && o->parked.delete == OUTBOX_IDLE ? o->parked.at_ms : due;
    if (!o->parked.n_stopped || o->parked.read != OUTBOX_IDLE)
        return due;
    for (struct link *k = o->exchanges.head.next; k != &o->exchanges.head; k = k->next) {
        const struct outbox_exchange *e = container_of(k, struct outbox_exchange, in_use);
        bool is_due = now_ms < e->stop.retry_ms || wants_page(o, e, now_ms);

        if (e->stop.is && is_due && e->stop.retry_ms < due)
            due = e->stop.retry_ms;
    }
    return due > o->parked.at_ms ? due : o->parked.at_ms;
}
