/* What goes to the database: a batch of each kind as soon as that kind is free there, with all that has come
 * together since. No timers: one message alone goes at once, and under load batches grow by themselves.
 *
 * Completions go first, claims last: on a new connection what is known to be done is settled before anything
 * new is begun. */
#include "worker.h"

#include "onceward/base/clock.h"
#include "onceward/base/random.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

static void item_fill(struct worker *w, size_t i, const struct delivery *d)
{
    struct inbox_item *item = &w->items[i];

    *item = (struct inbox_item){
        .ref = d->ref,
        .message_id = delivery_id(d),
        .deaths = d->deaths,
        .alone = true, /* a crash of this engine's charges all that it had in work */
        .http_status = d->http_status,
        .result = {d->result, d->result_len},
        .error = slice_of(d->said ? d->said : d->error),
        .delay_ms = d->delay_ms,
        .only_expired = d->only_expired,
        .give_back = d->give_back,
        .crashes = -1,
        .unproven_step = -1,
    };
    if (d->message)
        item->message_type = d->message->properties[PROPERTY_TYPE];
    memcpy(item->token, d->token, sizeof(d->token));
    memcpy(item->fingerprint, d->fingerprint, sizeof(d->fingerprint));
}

/* Sends n filled items, and moves their deliveries on. A lost connection answers them all by rows. */
static void batch_send(struct worker *w, enum inbox_op op, struct delivery **batch, size_t n)
{
    struct fault f = {0};

    if (!n)
        return;
    FAILPOINT_AT(failpoint_of(batch[0]->state, FAILPOINT_STEP_BEFORE));
    inbox_submit(w->inbox, op, w->items, n, &f);
    FAILPOINT_AT(failpoint_of(batch[0]->state, FAILPOINT_STEP_SENT));
    for (size_t i = 0; i < n; i++)
        delivery_event(w, batch[i], DELIVERY_EV_SENT);
}

static bool is_due(const struct worker *w, const struct delivery *d)
{
    return d->not_before_ms <= w->now_ms;
}

/* Adds what is due in a state to the batch. */
static size_t batch_gather(struct worker *w, enum delivery_state state, struct delivery **batch, size_t n,
                           size_t max)
{
    list_each(&w->states[state], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_state);

        if (n == max)
            break;
        if (!is_due(w, d))
            continue;
        item_fill(w, n, d);
        batch[n++] = d;
    }
    return n;
}

static void submit_settles(struct worker *w)
{
    struct delivery *batch[BATCH_MAX];

    batch_send(w, INBOX_SETTLE, batch, batch_gather(w, DELIVERY_TO_SETTLE, batch, 0, BATCH_MAX));
}

/* The database connection broke between the forward and the writing of its failure: what broke it may have
 * aborted the application's transaction, and was only seen there first. */
static void spare_tainted(struct worker *w)
{
    list_each(&w->states[DELIVERY_TO_FAIL], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_state);

        d->give_back |= delivery_is_tainted(w, d);
    }
    for (struct link *k = w->states[DELIVERY_TO_BURY].head.next, *next;
         k != &w->states[DELIVERY_TO_BURY].head; k = next) {
        struct delivery *d = container_of(k, struct delivery, in_state);

        next = k->next;
        if (d->charged && delivery_is_tainted(w, d))
            delivery_spare(w, d);
    }
}

/* Failures, and questions whether a window is really over: the same statement. */
static void submit_fails(struct worker *w)
{
    struct delivery *batch[BATCH_MAX];

    /* A window's end is charged like any other failure, or not. */
    list_each(&w->states[DELIVERY_TO_REVOKE], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_state);

        d->give_back = delivery_is_tainted(w, d) || w->pauses & 1u << PAUSE_EVERYTHING_FAILS;
    }
    size_t n = batch_gather(w, DELIVERY_TO_REVOKE, batch, 0, BATCH_MAX);

    n = batch_gather(w, DELIVERY_TO_FAIL, batch, n, BATCH_MAX);
    batch_send(w, INBOX_FAIL, batch, n);
}

static void submit_releases(struct worker *w)
{
    struct delivery *batch[BATCH_MAX];

    batch_send(w, INBOX_RELEASE, batch, batch_gather(w, DELIVERY_TO_RELEASE, batch, 0, BATCH_MAX));
}

static void letter_fill(const struct worker *w, struct inbox_letter *letter, const struct delivery *d,
                        struct buf *properties, struct buf *headers)
{
    const struct message *m = d->message;
    size_t properties_at = properties->len, headers_at = headers->len;

    properties_to_json(properties, m);
    fields_to_json(headers, m->headers, m->n_headers, true);
    *letter = (struct inbox_letter){
        .reason = dead_reasons[d->dead_reason].name,
        .rowless = d->rowless,
        /* Of a channel that is gone: the redelivered copy may be quicker, and must then be found. */
        .redelivered = m->redelivered || d->tag.generation != w->generation,
        .exhausted = d->exhausted,
        .attempts = d->attempt,
        .body = {m->body, m->body_len},
        .content_type = m->properties[PROPERTY_CONTENT_TYPE],
        /* The buffers may still move: lengths now, places when all are written. */
        .properties_json = {NULL, properties->len - properties_at},
        .headers_json = {NULL, headers->len - headers_at},
        .exchange = m->exchange,
        .routing_key = m->routing_key,
        .deaths = d->deaths,
    };
    if (!slice_is_text(delivery_id(d)) || d->id_len > MESSAGE_ID_MAX)
        letter->raw_id = delivery_id(d);
}

/* Letters carry bodies: a batch ends with the first that makes it large. Rows without a usable id go without
 * one. */
static void submit_letters(struct worker *w)
{
    struct delivery *batch[BATCH_MAX];
    struct buf *properties = &w->json[0], *headers = &w->json[1];
    size_t n = 0, bytes = 0, properties_at = 0, headers_at = 0;

    buf_reset(properties);
    buf_reset(headers);
    list_each(&w->states[DELIVERY_TO_BURY], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_state);

        if (n == 64 || bytes > (4 << 20))
            break;
        if (!is_due(w, d) || (d->charged && worker_brake_holds(w, d)))
            continue;
        item_fill(w, n, d);
        letter_fill(w, &w->letters[n], d, properties, headers);
        if (w->letters[n].raw_id.data)
            w->items[n].message_id = (struct slice){0};
        w->items[n].letter = &w->letters[n];
        bytes += d->n_bytes;
        batch[n++] = d;
    }
    for (size_t i = 0; i < n; i++) {
        struct inbox_letter *letter = &w->letters[i];

        letter->properties_json.data = properties->data + properties_at;
        properties_at += letter->properties_json.len;
        letter->headers_json.data = headers->data + headers_at;
        headers_at += letter->headers_json.len;
    }
    batch_send(w, INBOX_BURY, batch, n);
}

/* Most are copies of what was completed: then a look, which costs a fraction of a claim, comes first. */
static bool most_are_copies(const struct worker *w)
{
    return w->copies_ema > 0.6;
}

static bool may_be_looked_at(const struct delivery *d)
{
    return !d->looked && !d->has_token && !d->suspect;
}

/* Rows to be read: of answers in transaction completion (they have a token), of copies held elsewhere, and of
 * what waits so long for a slot that it is worth knowing whether it was completed before. */
static void submit_looks(struct worker *w)
{
    struct delivery *batch[BATCH_MAX];
    size_t n = batch_gather(w, DELIVERY_TO_CHECK, batch, 0, BATCH_MAX);

    n = batch_gather(w, DELIVERY_TO_LOOK, batch, n, BATCH_MAX);
    if (n < BATCH_MAX) {
        list_each(&w->states[DELIVERY_TO_CLAIM], k)
        {
            struct delivery *d = container_of(k, struct delivery, in_state);

            if (n == BATCH_MAX || (d->ready_ms + BACKLOG_LOOK_MS > w->now_ms && !most_are_copies(w)))
                break; /* the list is in the order of arrival */
            if (!may_be_looked_at(d))
                continue;
            d->looked = true;
            delivery_event(w, d, DELIVERY_EV_LOOK);
            if (d->state != DELIVERY_TO_LOOK)
                continue;
            item_fill(w, n, d);
            batch[n++] = d;
        }
    }
    batch_send(w, INBOX_LOOK, batch, n);
}

/* How many claims beyond the free slots will find a slot by the time their answer is here: what is served
 * during one round trip of a claim. Twice that, since the next claims leave only when these have come, and
 * some take longer than the mean: a slot that has to wait is lost. */
static size_t look_ahead(const struct worker *w)
{
    double n = w->service_ema_us > 0 ? 2 * w->allowed * w->claim_ema_us / w->service_ema_us : 0;
    size_t most = worker_is_trying(w) ? 0 : (size_t)w->allowed * 4;

    if (most > (size_t)w->q->prefetch / 2)
        most = (size_t)w->q->prefetch / 2;
    return n < (double)most ? (size_t)n : most;
}

static void claim_prepare(struct worker *w, struct delivery *d)
{
    if (!d->has_token) {
        random_bytes(d->token, sizeof(d->token));
        d->row_is_ours = false;
    }
    d->has_token = true;
    d->window_ends_ms = w->now_ms + w->q->token_window_ms;
    d->exhausted = d->rowless = d->only_expired = d->give_back = d->charged = d->alone = d->used_up = false;
    d->verdict = -1;
    d->http_status = 0;
    d->release_to = RELEASE_PARK;
}

/* The first that may go. Those that stand back let everybody else pass. */
static struct delivery *first_suspect(struct worker *w)
{
    list_each(&w->states[DELIVERY_SUSPECT], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_state);

        if (is_due(w, d) && !suspect_stands_back(w, d) && !delivery_stands_aside(w, d))
            return d;
    }
    return NULL;
}

/* Not merely the first of a list: there may be a long job before it. When it is one itself, whose window was
 * extended, it is not waited for any longer; but where it died then, with others that had joined it, the next
 * time it stays alone for as long as it takes. */
bool worker_suspect_is_on_its_way(struct worker *w)
{
    const struct delivery *d = w->suspect_ref ? worker_find(w, w->suspect_ref) : NULL;

    if (!d)
        return false;
    if (delivery_is_out(d->state))
        return d->was_in_vain || w->now_ms - d->sent_ms < w->q->token_window_ms + TAKEOVER_GRACE_MS;
    return d->state == DELIVERY_CLAIMING || d->state == DELIVERY_CLAIMED;
}

/* What died with the application goes before everything else, alone. NULL: none could be sent now even if the
 * application were quiet, so the place is not for us. */
static struct delivery *suspect_that_could_go(struct worker *w)
{
    if (worker_suspect_is_on_its_way(w) || !worker_may_forward(w) || worker_n(w, DELIVERY_CLAIMED) ||
        worker_n(w, DELIVERY_CLAIMING) || worker_n_busy(w) >= (size_t)w->allowed)
        return NULL;
    return first_suspect(w);
}

/* What survived the death is waited for, and nothing new begins anywhere meanwhile; but for hardly longer
 * than a window, when all is over that was not extended: a long job must not stop the queues. While messages
 * only try how it is, nobody need be alone, since nobody is charged. */
static size_t gather_suspect(struct worker *w, struct delivery **batch)
{
    struct delivery *d = suspect_that_could_go(w);

    if (!d || !target_take_place(w))
        return 0;
    if (!target_is_quiet(w) && !worker_is_braked(w) &&
        w->now_ms - w->place_since_ms < w->q->token_window_ms + TAKEOVER_GRACE_MS)
        return 0;
    w->suspect_ref = d->ref;
    claim_prepare(w, d);
    item_fill(w, 0, d);
    batch[0] = d;
    return 1;
}

/* What the broker is about to drop is not forwarded any more, but buried: whatever becomes of the
 * application, since a broken connection more may be the last. */
static size_t gather_last_chances(struct worker *w, struct delivery **batch)
{
    size_t n = 0;

    if (w->pauses & 1u << PAUSE_DATABASE)
        return 0;
    list_each(&w->states[DELIVERY_TO_CLAIM], k)
    {
        struct delivery *d = container_of(k, struct delivery, in_state);

        if (n == BATCH_MAX)
            break;
        if (!d->last_chance || !is_due(w, d))
            continue;
        claim_prepare(w, d);
        item_fill(w, n, d);
        batch[n++] = d;
    }
    return n;
}

static enum inbox_op worker_claim_op(const struct worker *w)
{
    return w->q->transaction ? INBOX_CLAIM_ASYNC : INBOX_CLAIM;
}

static void submit_claims(struct worker *w)
{
    struct delivery *batch[BATCH_MAX];
    size_t n = w->delivery_limit ? gather_last_chances(w, batch) : 0;

    if (n) {
        batch_send(w, worker_claim_op(w), batch, n);
        return;
    }
    if (!worker_may_forward(w) || !target_is_free(w))
        return;
    if (first_suspect(w)) {
        n = gather_suspect(w, batch);
    } else if (!worker_suspect_is_on_its_way(w)) {
        size_t busy = worker_n_busy(w) + worker_n(w, DELIVERY_CLAIMED);
        size_t most = (size_t)w->allowed + look_ahead(w);

        most = most > busy ? most - busy : 0;
        if (most > BATCH_MAX)
            most = BATCH_MAX;
        list_each(&w->states[DELIVERY_TO_CLAIM], k)
        {
            struct delivery *d = container_of(k, struct delivery, in_state);

            if (n == most)
                break;
            if (!is_due(w, d) || delivery_stands_aside(w, d) || (most_are_copies(w) && may_be_looked_at(d)))
                continue;
            claim_prepare(w, d);
            item_fill(w, n, d);
            batch[n++] = d;
        }
    }
    if (!n)
        return;
    histogram_add(&w->claim_batch, (int64_t)n);
    w->claim_sent_us = clock_us();
    batch_send(w, worker_claim_op(w), batch, n);
}

void worker_submit_batches(struct worker *w)
{
    const struct {
        enum inbox_op op;
        void (*submit)(struct worker *);
    } order[] = {{INBOX_SETTLE, submit_settles},   {INBOX_FAIL, submit_fails}, {INBOX_RELEASE, submit_releases},
                 {INBOX_BURY, submit_letters},     {INBOX_LOOK, submit_looks}, {worker_claim_op(w), submit_claims}};

    if (!worker_suspect_is_on_its_way(w) && !suspect_that_could_go(w))
        target_give_place(w);
    if (w->inbox)
        spare_tainted(w);
    for (size_t i = 0; i < sizeof order / sizeof *order && w->inbox; i++)
        if (inbox_is_free(w->inbox, order[i].op))
            order[i].submit(w);
    if (w->inbox)
        inbox_flush(w->inbox);
}
