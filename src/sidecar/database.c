/* The connection to the database: made, read, lost. Its answers become facts for the queues; its failures
 * decide whether it counts as working. */
#include "sidecar/sidecar.h"

#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    JOB_EXTRA_MS = 15000, /* added to the connect timeout, for name resolution and the first statements */
    N_HOSTS = 4,          /* of database.url: each host may take the whole connect timeout */
    SILENT_MS = 500, /* a connection silent for this long is read, so that an overdue answer is noticed */
};

static void socket_ready(void *owner, uint32_t events)
{
    (void)events;
    ((struct sidecar_database *)owner)->readable = true;
}

static void touch_all(struct sidecar *s)
{
    for (size_t i = 0; i < s->n_queues; i++)
        s->queues[i].touched = true;
}

/* --- answers --- */

void database_answered(struct sidecar *s, const struct inbox_row *r)
{
    struct row row = r->row;
    uint64_t ref;
    struct sidecar_queue *sq = batches_ref_read(s, r->ref, &ref, &row.op);
    int64_t *sent = &s->database.claim_sent_us[sq->config->transaction];

    if (row.op == OP_CLAIM && *sent) {
        queue_claim_took(&sq->core, clock_us() - *sent);
        *sent = 0;
    }
    FAILPOINT_AT(operation_infos[row.op].failpoint + FAILPOINT_STEP_ANSWERED);
    if (r->namesake && !s->presence.told_namesake) {
        s->presence.told_namesake = true;
        report_reason(sq, EVENT_LIMITS,
                      "another sidecar runs under this one's `instance`: give each its own, or none");
    }
    if (row.answer == ROW_HELD && sq->config->transaction)
        replicas_met(s, row.detail);
    queue_row(&sq->core, s->now_ms, ref, &row);
    sq->touched = true;
}

static void lock_holder_answered(struct sidecar *s)
{
    struct inbox_lock_holder h;
    enum operation none;
    uint64_t ref;

    if (!inbox_lock_holder(s->database.inbox, &h))
        return;
    struct sidecar_queue *sq = batches_ref_read(s, s->database.asked_lock, &ref, &none);
    report_lock_holder(sq, ref, &h);
    sq->touched = true;
    s->database.asked_lock = 0;
}

static void try_answered(struct sidecar *s)
{
    struct fault f = {0};
    char text[sizeof(f.text) + sizeof(f.code) + 4];
    int got;

    if (!s->database.asked_try || !(got = inbox_tried(s->database.inbox, &f)))
        return;
    s->database.asked_try = false;
    snprintf(text, sizeof(text), "%s (%s)", f.text, f.code);
    database_tried(&s->database.core, s->now_ms, got > 0, text, random_below(UINT64_MAX));
    touch_all(s);
}

static void figures_answered(struct sidecar *s)
{
    struct inbox_figures figures;

    if (!s->database.asked_figures || !inbox_figures(s->database.inbox, &figures))
        return;
    s->database.asked_figures = false;
    s->database.has_figures = true;
    s->database.figures = figures;
    for (size_t i = 0; i < s->n_queues; i++)
        s->queues[i].n_dead_letters = figures.dead_letters[s->queues[i].config->entry];
    housekeeping_weigh(s);
}

/* --- the connection --- */

static void forget(struct sidecar *s, const char *why)
{
    struct sidecar_database *d = &s->database;

    wait_remove(s->wait, &d->watch);
    inbox_free(d->inbox);
    d->inbox = NULL;
    outbox_database_is(s, false, why);
    d->asked_figures = d->asked_try = d->has_figures = false;
    d->asked_lock = 0;
    d->housekeeps = SIZE_MAX;
    memset(d->claim_sent_us, 0, sizeof(d->claim_sent_us));
    d->stored[0].bytes = d->stored[1].bytes = 0;
    for (int i = 0; i < N_INBOX_OPS; i++)
        d->batches[i].n = 0;
}

static void lost(struct sidecar *s, const char *reason)
{
    forget(s, "the connection to the database was lost");
    database_lost(&s->database.core, s->now_ms, reason);
    for (size_t i = 0; i < s->n_queues; i++)
        queue_database_lost(&s->queues[i].core, s->now_ms);
    touch_all(s);
    dial_failed(s, &s->database.dial, reason);
}

void database_dial(struct sidecar *s, struct dial *d)
{
    struct inbox_queue *queues = mem_zalloc(s->n_queues, sizeof(*queues));
    struct inbox_self self = {.instance = s->config->instance,
                              .number = s->file.start > 0 ? s->file.start : 1,
                              .own = s->file.instance_was_there};
    struct fault f = {0};
    struct job *job;

    for (size_t i = 0; i < s->n_queues; i++) {
        const struct config_queue *q = s->queues[i].config;

        free((char *)queues[q->entry].order_key); /* from another partition */
        queues[q->entry] =
            (struct inbox_queue){.consumer = q->consumer,
                                 .broker = s->queues[i].link->cluster,
                                 .vhost = s->queues[i].link->vhost,
                                 .queue = q->pattern ? q->pattern : q->queue,
                                 .takes_over = q->takes_over,
                                 .order_key = identity_sources_text(q->order.key.items, q->order.key.n),
                                 .transaction = q->transaction,
                                 .token_window_ms = q->token_window_ms,
                                 .max_window_ms = q->max_window_ms,
                                 .max_attempts = q->max_attempts,
                                 .revive = q->revive,
                                 .store_ms = q->store_ms,
                                 .compacts = q->compact_ms > 0};
    }
    job = inbox_connect(&s->config->database, queues, s->config->n_entries, &self, &f);
    for (size_t i = 0; i < s->config->n_entries; i++)
        free((char *)queues[i].order_key);
    free(queues);
    if (job)
        dial_began(s, d, job, N_HOSTS * s->config->database.connect_timeout_ms + JOB_EXTRA_MS);
    else
        dial_failed(s, d, f.text);
}

/* Sets the consumer name that the rows have, for tokens, presence and the log. */
static void use_consumer(struct sidecar_queue *sq)
{
    struct config_queue *q = &sq->sidecar->config->queues[sq->index];
    char text[640];

    if (!strcmp(q->consumer, inbox_consumer(sq->sidecar->database.inbox, q->entry)))
        return;
    q->consumer = q->takes_over;
    queue_consumer_is(&sq->core, slice_of(q->consumer));
    sq->sidecar->presence.at_ms = 0; /* registers under it, and reads its commands */
    snprintf(text, sizeof(text),
             "its rows stay under the consumer name \"%s\", which takes_over names, and which the queue uses "
             "from now on",
             q->consumer);
    report_reason(sq, EVENT_LIMITS, text);
}

/* Logs a registration that is not made for long: an open transaction has locked the record. */
static void tell_busy(struct sidecar_queue *sq, const char *reason)
{
    enum { FIRST_MS = 3000, AGAIN_MS = 60000 };
    int64_t now_ms = sq->sidecar->now_ms;
    struct fault f = {0};

    if (!sq->link->cluster || sq->first != sq) /* without a broker: logged as `disconnected` */
        return;
    if (!sq->busy_tell_ms)
        sq->busy_tell_ms = now_ms + FIRST_MS;
    if (now_ms < sq->busy_tell_ms)
        return;
    sq->busy_tell_ms = now_ms + AGAIN_MS;
    fault_set(&f, "the queue does not consume, since its consumer is not registered yet: %s", reason);
    report_reason(sq, EVENT_LIMITS, f.text);
}

/* Pauses queues that are not registered, with the reason. */
static void look_at_registrations(struct sidecar *s)
{
    s->database.registered = true;

    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];
        struct fault f = {0};
        enum inbox_registration r = inbox_registration(s->database.inbox, sq->config->entry, &f);
        bool refused = r == INBOX_REFUSED;

        s->database.registered &= r == INBOX_REGISTERED;
        if (!refused)
            use_consumer(sq);
        if (r == INBOX_BUSY) {
            tell_busy(sq, f.text);
            continue;
        }
        sq->busy_tell_ms = 0;
        if (refused && !sq->refused_told && sq->first == sq)
            report_reason(sq, EVENT_REFUSED, f.text);
        if (refused != sq->refused_told) {
            queue_refused(&sq->core, s->now_ms, PAUSE_REFUSED, refused ? f.text : NULL);
            sq->touched = true;
        }
        sq->refused_told = refused;
    }
    if (s->database.registered)
        touch_all(s); /* deliveries may have arrived before */
}

void database_broker_is(struct sidecar *s, const struct broker_link *k)
{
    if (!s->database.inbox || !k->cluster)
        return;
    for (size_t i = 0; i < s->n_queues; i++)
        if (s->queues[i].link == k)
            inbox_set_broker(s->database.inbox, s->queues[i].config->entry, k->cluster);
    s->database.registered = false;
    s->presence.at_ms = 0; /* the same call registers, and reads the pauses before any work begins */
}

static void refused_whole(struct sidecar *s, const char *reason)
{
    for (size_t i = 0; i < s->n_queues; i++) {
        struct sidecar_queue *sq = &s->queues[i];

        if (!sq->refused_told && sq->first == sq)
            report_reason(sq, EVENT_REFUSED, reason);
        sq->refused_told = true;
        queue_refused(&sq->core, s->now_ms, PAUSE_REFUSED, reason);
        sq->touched = true;
    }
    if (!s->n_queues)
        dial_failed(s, &s->database.dial, reason); /* no queue reports the failure */
    dial_later(s, &s->database.dial, FAILPOINT_MS(REFUSED));
}

static void arrive(struct sidecar *s, void *result)
{
    struct sidecar_database *d = &s->database;
    struct fault f = {0};

    switch (inbox_attempt_take(result, &d->inbox, &f)) {
    case INBOX_CONNECTED:
        break;
    case INBOX_SCHEMA:
        refused_whole(s, f.text);
        return;
    default:
        database_lost(&d->core, s->now_ms, f.text);
        dial_fault(s, &d->dial, &f);
        return;
    }
    FAILPOINT(INBOX_CONNECTED);
    if (wait_add(s->wait, &d->watch, inbox_fd(d->inbox), EPOLLIN, socket_ready, d, &f)) {
        lost(s, f.text);
        return;
    }
    database_linked(&d->core);
    for (size_t i = 0; i < s->n_queues; i++)
        queue_database_linked(&s->queues[i].core, s->now_ms);
    outbox_database_is(s, true, NULL);
    s->presence.at_ms = 0;
    store_linked(s);
    for (size_t i = 0; i < s->n_links; i++)
        database_broker_is(s, &s->links[i]);
    look_at_registrations(s);
    touch_all(s);
    dial_succeeded(s, &d->dial, NULL);
}

static void tell_unprepared(struct sidecar *s)
{
    struct log_line l;

    if (s->database.said_unprepared || !inbox_gave_up_prepared(s->database.inbox))
        return;
    s->database.said_unprepared = true;
    log_begin(&l, EVENT_LIMITS, NULL);
    log_text(&l, "reason",
             "a pooler loses prepared statements: unnamed ones are used (database.prepared: off does so from "
             "the start)");
    log_end(&l);
}

void database_step(struct sidecar *s)
{
    struct sidecar_database *d = &s->database;
    struct inbox_row row;
    struct fault f = {0};
    void *result;
    int got;

    if (!d->inbox && !d->closed && dial_is_due(s, &d->dial))
        database_dial(s, &d->dial);
    if (dial_result(s, &d->dial, &result))
        arrive(s, result);
    if (!d->inbox || (!d->readable && !inbox_is_lost(d->inbox) && inbox_waiting_ms(d->inbox) < SILENT_MS))
        return;
    d->readable = false;
    while ((got = inbox_next(d->inbox, &row, &f)) > 0)
        database_answered(s, &row);
    if (got < 0) {
        lost(s, f.text);
        return;
    }
    if (!d->registered)
        look_at_registrations(s);
    lock_holder_answered(s);
    try_answered(s);
    figures_answered(s);
    tell_unprepared(s);
}

/* Reconnects when nothing is in flight, after a large dead letter or a large page of the outbox: libpq's buffers
 * never shrink. */
static void slim(struct sidecar *s)
{
    if (!inbox_is_swollen(s->database.inbox) || !outbox_is_quiet(s))
        return;
    for (size_t i = 0; i < s->n_queues; i++)
        if (queue_n_held(&s->queues[i].core))
            return;
    forget(s, "reconnecting to the database to free memory");
    database_unlinked(&s->database.core, "reconnecting to free memory");
    s->database.dial.at_ms = s->now_ms;
}

void database_ask(struct sidecar *s)
{
    struct sidecar_database *d = &s->database;

    if (!d->inbox)
        return;
    wait_change(s->wait, &d->watch, EPOLLIN | (inbox_wants_write(d->inbox) ? EPOLLOUT : 0));
    if (database_wants_try(&d->core, s->now_ms)) {
        inbox_ask_try(d->inbox);
        database_try_sent(&d->core);
        d->asked_try = true;
    }
    dial_time(s, &d->dial);
    slim(s);
}

void database_close(struct sidecar *s)
{
    s->database.closed = true;
    dial_deinit(s, &s->database.dial);
    if (s->database.inbox)
        forget(s, "the connection to the database was closed");
}

void database_deinit(struct sidecar *s)
{
    dial_deinit(s, &s->database.dial);
    if (s->database.inbox)
        forget(s, "the connection to the database was closed");
    buf_deinit(&s->database.letters.properties);
    buf_deinit(&s->database.letters.headers);
}
