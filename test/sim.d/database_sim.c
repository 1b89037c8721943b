/* The simulated database: see database_sim.h. */
#include "database_sim.h"

#include "broker_sim.h"
#include "oracle.h"
#include "random.h"
#include "sidecar_sim.h"

#include "onceward/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { FLUSHED_AFTER_US = 600000, STATEMENT_US = 250, ITEM_US = 6 };

void database_sim_init(struct world *w)
{
    w->database = world_alloc(w, sizeof(*w->database));
    w->database->up = true;
    w->database->next_tx = 1;
}

void database_sim_deinit(struct world *w)
{
    free(w->database->unflushed);
    free(w->database->letters.items);
}

struct base_link *database_connect(struct world *w, struct sidecar *s, uint32_t life)
{
    struct base_link *l;

    if (!w->database->up)
        return NULL;
    l = world_alloc(w, sizeof(*l));
    *l = (struct base_link){.sidecar = s, .life = life, .here = true};
    return l;
}

struct batch *batch_new(struct world *w, enum batch_kind kind)
{
    struct batch *b = w->database->free_batches;

    if (b)
        w->database->free_batches = b->next_free;
    else
        b = world_alloc(w, sizeof(*b));
    b->n = 0;
    b->kind = kind;
    b->n_owners = 1;
    return b;
}

void batch_release(struct world *w, struct batch *b)
{
    if (--b->n_owners)
        return;
    b->next_free = w->database->free_batches;
    w->database->free_batches = b;
}

void database_flush(struct world *w)
{
    struct database_sim *b = w->database;

    for (size_t i = 0; i < b->n_unflushed; i++)
        b->unflushed[i]->row.flushed = true;
    b->n_unflushed = 0;
}

static void remember_unflushed(struct world *w, struct truth *t)
{
    struct database_sim *b = w->database;

    if (b->n_unflushed == 4096)
        database_flush(w);
    if (b->n_unflushed == b->unflushed_cap) {
        b->unflushed_cap = b->unflushed_cap ? b->unflushed_cap * 2 : 64;
        b->unflushed = mem_realloc(b->unflushed, b->unflushed_cap * sizeof(struct truth *));
    }
    b->unflushed[b->n_unflushed++] = t;
}

static int64_t arrival(int64_t *latest_us, int64_t now_us, int64_t takes_us)
{
    int64_t at = now_us + takes_us;

    if (at < *latest_us)
        at = *latest_us;
    return *latest_us = at;
}

/* --- statements --- */

/* Content of a copy as a number. Copies without an id all have the same; of the others, those with the same body do. */
static uint64_t what_it_says(const struct copy *m)
{
    const struct truth *t = m->truth;
    uint64_t who = t->character == CHARACTER_NO_ID ? 0 : (uint64_t)t->number + 1;

    return who << 16 | (uint64_t)t->queue << 8 | m->body;
}

static void bury_rowless(struct world *w, struct batch_item *item)
{
    item->reply = (struct inbox_reply){.answer = ROW_DEAD_LETTERED, .unproven_us = -1};
    inbox_sim_letter(&w->database->letters, &item->ask, what_it_says(item->copy), &item->reply.inserted);
    if (!item->copy->letter_us)
        item->copy->letter_us = w->now_us;
    item->copy->is_rowless = true;
    item->truth->stored = true;
}

static void execute(struct world *w, struct batch *b, struct batch_item *item)
{
    struct inbox_row_sim *r = &item->truth->row, was = *r;
    const struct inbox_asker *who = &b->who[item->queue];
    int64_t now_us = database_now(w);

    if (item->truth->character == CHARACTER_INVALID && item->op == OP_CLAIM) {
        item->reply = (struct inbox_reply){.answer = ROW_INVALID, .unproven_us = -1};
        item->sqlstate = "22021";
        return;
    }
    switch (b->kind) {
    case BATCH_CLAIM:
    case BATCH_CLAIM_ASYNC:
        inbox_sim_claim(r, now_us, who, &item->ask, &item->reply);
        break;
    case BATCH_LOOK:
        inbox_sim_look(r, now_us, who, &item->ask, &item->reply);
        break;
    case BATCH_RENEW:
        inbox_sim_renew(r, now_us, who, &item->ask, &item->reply);
        break;
    case BATCH_SETTLE:
        inbox_sim_settle(r, now_us, &item->ask, &item->reply);
        break;
    case BATCH_FAIL:
        inbox_sim_fail(r, now_us, &item->ask, &item->reply);
        break;
    case BATCH_RELEASE:
        inbox_sim_release(r, now_us, &item->ask, &item->reply);
        break;
    default:
        if (item->rowless)
            bury_rowless(w, item);
        else
            inbox_sim_bury(r, now_us, who, &item->ask, &item->reply);
    }
    oracle_written(w, b, item, &was);
}

static const char *refusal(const struct database_sim *b, enum batch_kind kind)
{
    if (b->retries)
        return "57014";
    return b->full && kind != BATCH_LOOK ? "53100" : NULL;
}

static void rows_arrive(struct world *w, void *object, uint64_t unused, uint64_t unused2)
{
    struct batch *b = object;
    struct base_link *l = b->link;

    (void)unused;
    (void)unused2;
    if (!l->cut && l->here) {
        int64_t until = sidecar_frozen_until(l->sidecar);

        if (l->slow_until_us > until)
            until = l->slow_until_us;
        if (w->now_us < until) {
            world_postpone(w, until);
            return;
        }
        sidecar_rows(w, l->sidecar, b);
    }
    batch_release(w, b);
}

static void batch_arrives(struct world *w, void *object, uint64_t unused, uint64_t unused2)
{
    struct batch *b = object;
    struct base_link *l = b->link;
    int64_t takes_us = STATEMENT_US + ITEM_US * (int64_t)b->n + w->plan->commit_us;
    const char *refused = refusal(w->database, b->kind);
    bool only_inserts = true;

    (void)unused;
    (void)unused2;
    if (l->cut || !w->database->up) {
        batch_release(w, b);
        return;
    }
    if (w->now_us < l->slow_until_us) {
        world_postpone(w, l->slow_until_us);
        return;
    }
    w->counts.n_batches++;
    w->counts.n_items += b->n;
    for (size_t i = 0; i < b->n; i++) {
        struct batch_item *item = &b->items[i];

        item->sqlstate = NULL;
        if (refused) {
            item->reply = (struct inbox_reply){.answer = ROW_RETRY, .unproven_us = -1};
            item->sqlstate = refused;
            continue;
        }
        execute(w, b, item);
        if (item->reply.inserted && b->kind == BATCH_CLAIM_ASYNC)
            remember_unflushed(w, item->truth);
        only_inserts &= item->reply.inserted || (item->reply.answer != ROW_CLAIMED);
    }
    if (!refused && b->kind != BATCH_LOOK && !(b->kind == BATCH_CLAIM_ASYNC && only_inserts))
        database_flush(w);
    if (w->plan->jitter)
        takes_us += random_chance(&w->random, 50) ? random_between(&w->random, 5000, 60000)
                                                  : random_between(&w->random, 0, 300);
    world_at(w, arrival(&l->to_sidecar_us, w->now_us, takes_us), rows_arrive, b, 0, 0);
}

void database_send(struct world *w, struct base_link *l, struct batch *b)
{
    b->n_owners++;
    b->link = l;
    b->sent_us = w->now_us;
    world_at(w, arrival(&l->to_base_us, w->now_us, wire_us(w) / 2), batch_arrives, b, 0, 0);
}

/* --- questions --- */

static void record_stop(struct world *w, struct stop_sim *stop, int64_t count, int64_t outdated)
{
    if (outdated && stop->n_continued == outdated)
        stop->accepted = 0;
    if (count > stop->accepted && !stop->count)
        *stop = (struct stop_sim){.count = count, .at_us = w->now_us, .n_continued = stop->n_continued};
}

static void presence_arrives(struct world *w, void *object, uint64_t a, uint64_t queues)
{
    struct base_link *l = object;
    struct presence_row *mine = &w->database->presence[a];

    if (l->cut || !w->database->up || !l->here)
        return;
    mine->exists = true;
    mine->counter++;
    mine->seen_us = w->now_us;
    memcpy(mine->queues, (const void *)(uintptr_t)queues, sizeof(mine->queues));
    for (int i = 0; i < QUEUES_MAX; i++)
        record_stop(w, &w->database->stops[i], l->sidecar->asked_stops[i], l->sidecar->asked_outdated[i]);
    if (w->now_us >= l->slow_until_us && w->now_us >= sidecar_frozen_until(l->sidecar))
        sidecar_presence(w, l->sidecar, w->database->presence);
}

void database_ask_presence(struct world *w, struct base_link *l, int sidecar,
                           const struct presence_queue queues[QUEUES_MAX])
{
    struct presence_queue *said = world_alloc(w, QUEUES_MAX * sizeof(*said));

    memcpy(said, queues, QUEUES_MAX * sizeof(*said));
    world_at(w, arrival(&l->to_base_us, w->now_us, wire_us(w)), presence_arrives, l, (uint64_t)sidecar,
             (uint64_t)(uintptr_t)said);
}

static void try_arrives(struct world *w, void *object, uint64_t a, uint64_t b)
{
    struct base_link *l = object;

    (void)a;
    (void)b;
    if (l->cut || !w->database->up || !l->here)
        return;
    int64_t until = sidecar_frozen_until(l->sidecar);

    if (l->slow_until_us > until)
        until = l->slow_until_us;
    if (w->now_us < until)
        world_postpone(w, until);
    else
        sidecar_tried(w, l->sidecar, !w->database->full && !w->database->retries);
}

void database_ask_try(struct world *w, struct base_link *l)
{
    world_at(w, arrival(&l->to_base_us, w->now_us, wire_us(w)), try_arrives, l, 0, 0);
}

/* --- faults --- */

static void database_returns(struct world *w, void *object, uint64_t a, uint64_t b)
{
    (void)object;
    (void)a;
    (void)b;
    w->database->up = true;
    TRACE(w, "the database is back");
}

void database_crashes(struct world *w, int64_t for_us)
{
    struct database_sim *b = w->database;

    b->up = false;
    for (size_t i = 0; i < b->n_unflushed; i++) {
        struct inbox_row_sim *r = &b->unflushed[i]->row;

        if (r->flushed || database_now(w) - r->received_us > FLUSHED_AFTER_US)
            continue;
        TRACE(w, "the crash takes the claim of %s away", b->unflushed[i]->id);
        *r = (struct inbox_row_sim){.n_letters = r->n_letters, .letter_deaths = r->letter_deaths};
        b->unflushed[i]->row_lost = true;
    }
    b->n_unflushed = 0;
    for (size_t i = 0; i < w->n_truths; i++)
        w->truths[i].row.locked_by = 0;
    world_at(w, w->now_us + for_us, database_returns, NULL, 0, 0);
}
