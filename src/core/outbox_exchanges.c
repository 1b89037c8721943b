/* The exchanges that rows go to, and the decision to stop one. See outbox.h. */
#include "core/outbox.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RETRY_MS = 1000,       /* between tries of a stopped exchange, and while too many are stopped */
    TOLD_AGAIN_MS = 60000, /* between reports of an exchange that stays stopped */
    SHOWN_MAX = 100,       /* bytes of a name in messages */
};

struct outbox_exchange *exchange_find(struct outbox *o, struct slice name)
{
    struct hash_link *k = hash_first(&o->exchanges_by_name, hash_bytes(name.data, name.len));

    for (; k; k = hash_next(k)) {
        struct outbox_exchange *e = container_of(k, struct outbox_exchange, by_name);

        if (slice_equal(e->name, name))
            return e;
    }
    return NULL;
}

static void exchange_free(struct outbox *o, struct outbox_exchange *e)
{
    list_remove(&o->exchanges, &e->in_use);
    hash_remove(&o->exchanges_by_name, &e->by_name);
    free(e);
}

/* Makes room for one exchange. A refused exchange stays until it may be tried again, since each row to it would close
 * the channel. */
static void exchanges_evict(struct outbox *o, int64_t now_ms)
{
    list_each(&o->exchanges, k)
    {
        struct outbox_exchange *e = container_of(k, struct outbox_exchange, in_use);

        if (o->exchanges.len < OUTBOX_EXCHANGES)
            return;
        if (now_ms >= e->refused_until_ms && !e->stop.is && !e->stop.to_tell)
            exchange_free(o, e);
    }
}

struct outbox_exchange *exchange_of(struct outbox *o, int64_t now_ms, struct slice name)
{
    struct outbox_exchange *e = exchange_find(o, name);

    if (e) {
        list_remove(&o->exchanges, &e->in_use);
    } else {
        exchanges_evict(o, now_ms);
        e = mem_zalloc(1, sizeof(*e) + name.len);
        e->name = (struct slice){(char *)(e + 1), name.len};
        if (name.len)
            memcpy(e + 1, name.data, name.len);
        e->ordered = is_ordered(o, name);
        hash_insert(&o->exchanges_by_name, &e->by_name, hash_bytes(name.data, name.len));
    }
    list_push(&o->exchanges, &e->in_use);
    assert(slice_equal(e->name, name));
    return e;
}

void exchanges_unprove(struct outbox *o)
{
    list_each(&o->exchanges, k)
    {
        container_of(k, struct outbox_exchange, in_use)->proven = false;
    }
}

void exchanges_free(struct outbox *o)
{
    struct link *k;

    while ((k = list_first(&o->exchanges)))
        exchange_free(o, container_of(k, struct outbox_exchange, in_use));
    hash_deinit(&o->exchanges_by_name);
}

/* --- stopped --- */

void exchange_stop(struct outbox *o, int64_t now_ms, struct outbox_exchange *e)
{
    if (e->stop.is)
        return;
    e->stop = (struct outbox_stop){.is = true, .retry_ms = now_ms, .told_ms = e->stop.told_ms};
    e->proven = false;
    o->parked.n_stopped++;
}

static void stop_end(struct outbox *o, struct outbox_exchange *e)
{
    assert(!e->stop.is || o->parked.n_stopped > 0);
    o->parked.n_stopped -= e->stop.is;
    e->stop = (struct outbox_stop){.told_ms = e->stop.told_ms};
}

void exchanges_unstop(struct outbox *o)
{
    list_each(&o->exchanges, k)
    {
        stop_end(o, container_of(k, struct outbox_exchange, in_use));
    }
}

void exchange_settle(struct outbox *o, struct outbox_exchange *e)
{
    if (!e->stop.is || !e->stop.empty || e->stop.n_parked)
        return;
    stop_end(o, e);
    e->n_refused = e->n_topics = 0;
    e->stop = (struct outbox_stop){.to_tell = true, .ended = true};
    o->to_tell[OUTBOX_TOLD_STOPPED] = true;
}

static void tell_stop(struct outbox *o, int64_t now_ms, struct outbox_exchange *e)
{
    int n = (int)(e->name.len < SHOWN_MAX ? e->name.len : SHOWN_MAX);

    if (e->stop.told_ms && now_ms - e->stop.told_ms < TOLD_AGAIN_MS)
        return;
    e->stop.told_ms = now_ms ? now_ms : 1;
    e->stop.to_tell = o->to_tell[OUTBOX_TOLD_STOPPED] = true;
    snprintf(o->parked.text, sizeof(o->parked.text), "exchange '%.*s' is stopped: %s", n, e->name.data,
             e->detail);
}

static bool may_offer(const struct outbox *o, int64_t now_ms)
{
    return !o->offered_ms || now_ms - o->offered_ms >= OUTBOX_OFFERS_MS;
}

/* Offers the lease, since another replica may permit the exchange: once per exchange, and once for all that need an
 * offer at the same time. */
static enum exchange_verdict offer_lease(struct outbox *o, int64_t now_ms, struct outbox_exchange *e)
{
    e->n_refused = 0;
    if (!e->stop.is && o->parked.n_stopped >= OUTBOX_STOPPED_MAX && !e->ordered)
        return EXCHANGE_LETTER;
    if (!may_offer(o, now_ms)) {
        exchange_stop(o, now_ms, e);
        e->stop.retry_ms = o->offered_ms + OUTBOX_OFFERS_MS;
        tell_stop(o, now_ms, e);
        return EXCHANGE_STOPS;
    }
    list_each(&o->exchanges, k)
    {
        struct outbox_exchange *other = container_of(k, struct outbox_exchange, in_use);

        other->offered |= other->stop.is && other->reason == DEAD_NOT_ALLOWED;
    }
    e->offered = o->offering = true;
    o->offered_ms = now_ms ? now_ms : 1;
    return EXCHANGE_OFFERS;
}

/* A dead letter would be a gap in the order, so an ordered exchange stops at once. So does one that the user may not
 * write to, or that has worked: no message is at fault. */
static bool may_stop(const struct outbox *o, const struct outbox_exchange *e)
{
    bool forbids = e->forbids && e->reason == DEAD_REFUSED_BY_BROKER;

    if (e->ordered)
        return true;
    return o->parked.n_stopped < OUTBOX_STOPPED_MAX &&
           (e->worked || forbids || e->n_topics >= OUTBOX_TOPIC_REFUSALS || e->n_refused >= OUTBOX_REFUSALS);
}

enum exchange_verdict exchange_refuses(struct outbox *o, int64_t now_ms, struct outbox_exchange *e,
                                       enum dead_reason reason, const char *why)
{
    bool was_stopped = e->stop.is;

    e->n_refused = e->n_refused && e->reason == reason ? e->n_refused + 1 : 1;
    e->reason = reason;
    e->proven = false;
    snprintf(e->detail, sizeof(e->detail), "%s", why);
    if (reason == DEAD_NOT_ALLOWED && !e->offered)
        return offer_lease(o, now_ms, e);
    if (!was_stopped && may_stop(o, e))
        exchange_stop(o, now_ms, e);
    if (!e->stop.is) {
        if (e->n_refused >= OUTBOX_REFUSALS)
            e->refused_until_ms = now_ms + RETRY_MS;
        return EXCHANGE_LETTER;
    }
    e->stop.retry_ms = reason == DEAD_NOT_ALLOWED ? INT64_MAX : now_ms + RETRY_MS;
    tell_stop(o, now_ms, e);
    return was_stopped ? EXCHANGE_STAYS : EXCHANGE_STOPS;
}
