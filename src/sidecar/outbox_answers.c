/* Passes the database's answers for the outbox's relay to its core. */
#include "sidecar/outbox.h"

#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"
#include "onceward/broker/sender.h"
#include "onceward/config/json.h"
#include "onceward/core/message.h"

#include <string.h>

enum {
    TOLD_AGAIN_MS = 60000,
    BUSY_MS = 3000, /* longer than any transaction of a sidecar locks the lease */
    NAME_BYTES = 255,
};

/* Logs a failed statement now and then. */
static void tell_failed(struct sidecar *s, const struct fault *f)
{
    struct sidecar_outbox *x = s->outbox;
    struct log_line l;

    if (x->told_failed_ms && s->now_ms - x->told_failed_ms < TOLD_AGAIN_MS)
        return;
    x->told_failed_ms = s->now_ms;
    log_begin(&l, EVENT_DATABASE_ERROR, NULL);
    log_text(&l, "sqlstate", f->code);
    log_text(&l, "reason", f->text);
    log_end(&l);
}

/* Handles a failed statement: it is repeated. A statement that a pooler has lost is logged once, elsewhere. */
static enum outbox_answer failed(struct sidecar *s, const struct fault *f)
{
    if (strcmp(f->code, INBOX_CODE_UNPREPARED) != 0) {
        database_refused(&s->database.core, s->now_ms, f->code, f->text, false);
        tell_failed(s, f);
    }
    return OUTBOX_AGAIN;
}

static enum outbox_answer answer_of(enum outbox_word word)
{
    switch (word) {
    case OUTBOX_WORD_LOST:
    case OUTBOX_WORD_OTHER:
    case OUTBOX_WORD_REFUSED:
        return OUTBOX_LOST;
    case OUTBOX_WORD_STALE:
    case OUTBOX_WORD_MORE:
        return OUTBOX_RESTART;
    case OUTBOX_WORD_BUSY:
    case OUTBOX_WORD_NONE:
    case OUTBOX_WORD_LOADING:
    case N_OUTBOX_WORDS:
        return OUTBOX_AGAIN;
    default:
        return OUTBOX_DONE;
    }
}

static void registered(struct sidecar *s)
{
    struct inbox_outbox_owner owner;
    struct fault f = {0};
    int got = inbox_outbox_registered(s->database.inbox, &owner, &f);

    if (!got)
        return;
    enum outbox_answer answer = got < 0 ? failed(s, &f) : answer_of(owner.word);
    if (answer == OUTBOX_LOST)
        fault_set(&f,
                  "the outbox of this database belongs to virtual host %s of the broker %s, and this sidecar "
                  "would send to %s: SELECT onceward.outbox_forget_broker() lets it move",
                  owner.vhost, owner.broker, s->outbox->vhost);
    outbox_registered(&s->outbox->core, s->now_ms, answer, f.text);
}

/* Logs a transaction that has locked the lease for long, such as an operator's: no statement fails then. */
static void watch_busy(struct sidecar *s, bool busy)
{
    struct sidecar_outbox *x = s->outbox;
    struct fault f = {0};

    if (!busy || !x->busy_since_ms)
        x->busy_since_ms = busy ? s->now_ms : 0;
    if (!busy || s->now_ms - x->busy_since_ms < BUSY_MS)
        return;
    fault_set(&f,
              "another transaction has locked the row of onceward.outbox, and no sidecar can relay before "
              "it ends: see pg_locks and pg_stat_activity");
    snprintf(f.code, sizeof(f.code), "55P03"); /* lock_not_available */
    tell_failed(s, &f);
}

static void leased(struct sidecar *s)
{
    struct inbox_outbox_lease lease = {0};
    struct fault f = {0};
    int got = inbox_outbox_leased(s->database.inbox, &lease, &f);

    if (!got)
        return;
    enum outbox_answer answer = got < 0 ? failed(s, &f) : answer_of(lease.word);
    watch_busy(s, got > 0 && lease.word == OUTBOX_WORD_BUSY);
    if (lease.is_paused)
        outbox_pause(&s->outbox->core, lease.paused);
    outbox_leased(&s->outbox->core, s->now_ms, answer, lease.word == OUTBOX_WORD_FREE ? 0 : lease.lease,
                  lease.left_ms, lease.restored);
}

/* Encodes the properties and headers for AMQP. -1: f says why not. */
static int header_encode(struct buf *out, const struct inbox_outbox_row *row, struct fault *f)
{
    struct message *m = message_new();
    int r = 0;

    if (row->properties.data)
        r = jsonread_properties(row->properties, m, f);
    else
        m->properties[PROPERTY_CONTENT_TYPE] = SLICE("application/json");
    if (!r && row->headers.data)
        r = jsonread_fields(row->headers, m, f);
    m->properties[PROPERTY_MESSAGE_ID] = row->message_id;
    if (row->type.data)
        m->properties[PROPERTY_TYPE] = row->type;
    if (!m->has_delivery_mode) {
        m->has_delivery_mode = true;
        m->delivery_mode = 2; /* persistent */
    }
    buf_reset(out);
    if (!r)
        r = sender_encode(out, m, f);
    message_free(m);
    return r;
}

static void row_came(struct sidecar *s, const struct inbox_outbox_row *row, bool parked)
{
    struct sidecar_outbox *x = s->outbox;
    struct fault f = {0};
    int r = header_encode(&x->header, row, &f);

    if (!r && (row->exchange.len > NAME_BYTES || row->routing_key.len > NAME_BYTES))
        r = fault_set(&f, "exchange and routing key have at most 255 bytes");
    struct outbox_new new = {
        .seq = row->seq,
        .age_ms = row->age_ms,
        .exchange = row->exchange,
        .routing_key = row->routing_key,
        .message_id = row->message_id,
        .content_header = r ? (struct slice){0} : buf_slice(&x->header),
        .body = row->body,
        .body_len = (size_t)row->body_len,
        .broken = r ? f.text : NULL,
        .parked = parked,
    };
    if (parked)
        outbox_parked_came(&x->core, s->now_ms, &new);
    else
        outbox_row_came(&x->core, s->now_ms, &new);
}

static void rows_came(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct inbox_outbox_rows *rows;
    struct inbox_outbox_row row;
    struct fault f = {0};
    struct slice batch;
    bool over;
    int got = inbox_outbox_read(s->database.inbox, &rows, &f);

    if (!got)
        return;
    if (got < 0) {
        outbox_read_ends(&x->core, s->now_ms, failed(s, &f));
        return;
    }
    bool has_batch = inbox_outbox_batch(rows, &batch, &over);
    if (has_batch)
        outbox_batch_came(&x->core, s->now_ms, batch, over);
    for (size_t i = 0; has_batch && i < inbox_outbox_n(rows); i++) {
        inbox_outbox_row(rows, i, &row);
        row_came(s, &row, false);
    }
    FAILPOINT_IF(has_batch && inbox_outbox_n(rows), RELAY_READ);
    outbox_read_ends(&x->core, s->now_ms, has_batch ? OUTBOX_DONE : OUTBOX_RESTART);
    inbox_outbox_close(rows);
}

static void parked_listed(struct sidecar *s)
{
    struct outbox *o = &s->outbox->core;
    struct inbox_outbox_rows *rows;
    struct fault f = {0};
    size_t n = 0;
    int got = inbox_outbox_parked(s->database.inbox, &rows, &n, &f);

    if (!got)
        return;
    for (size_t i = 0; got > 0 && i < n; i++)
        outbox_parked_exchange(o, s->now_ms, inbox_outbox_parked_exchange(rows, i));
    outbox_parked_listed(o, s->now_ms, got < 0 ? failed(s, &f) : OUTBOX_DONE);
    if (got > 0)
        inbox_outbox_close(rows);
}

static void parked_came(struct sidecar *s)
{
    struct outbox *o = &s->outbox->core;
    struct inbox_outbox_rows *rows;
    struct inbox_outbox_row row;
    struct fault f = {0};
    struct slice batch;
    bool over = false;
    int got = inbox_outbox_parked_read(s->database.inbox, &rows, &f);

    if (!got)
        return;
    if (got < 0) {
        outbox_parked_read_ends(o, s->now_ms, failed(s, &f), false);
        return;
    }
    inbox_outbox_batch(rows, &batch, &over);
    for (size_t i = 0; i < inbox_outbox_n(rows); i++) {
        inbox_outbox_row(rows, i, &row);
        row_came(s, &row, true);
    }
    outbox_parked_read_ends(o, s->now_ms, OUTBOX_DONE, over);
    inbox_outbox_close(rows);
}

static void looked(struct sidecar *s)
{
    struct fault f = {0};
    bool ended;
    int got = inbox_outbox_looked(s->database.inbox, &ended, &f);

    if (got)
        outbox_looked(&s->outbox->core, s->now_ms,
                      got < 0 ? failed(s, &f)
                      : ended ? OUTBOX_RESTART
                              : OUTBOX_DONE);
}

static struct outbox_row *row_at(struct outbox *o, size_t at)
{
    list_each(&o->dead_lettering, k)
    {
        if (!at--)
            return container_of(k, struct outbox_row, in_phase);
    }
    return NULL;
}

static void log_letter(const struct outbox_row *row, int64_t letter)
{
    struct log_line l;

    log_begin(&l, EVENT_OUTBOX_LETTER, NULL);
    log_slice(&l, "message_id", row->message_id);
    log_slice(&l, "exchange", row->exchange);
    log_slice(&l, "routing_key", row->routing_key);
    log_text(&l, "reason", dead_reasons[row->reason].name);
    log_text(&l, "error", row->detail);
    log_int(&l, "letter", letter);
    log_end(&l);
}

static void dead_lettered(struct sidecar *s)
{
    struct inbox_outbox_dead_letter answers[INBOX_OUTBOX_LETTERS] = {0};
    struct outbox *o = &s->outbox->core;
    enum outbox_answer all = OUTBOX_DONE;
    struct fault f = {0};
    size_t n = 0;
    int got = inbox_outbox_dead_lettered(s->database.inbox, answers, &n, &f);

    if (!got)
        return;
    if (got < 0)
        all = failed(s, &f);
    for (size_t i = 0; i < n; i++) {
        const struct outbox_row *row = row_at(o, i);

        if (answer_of(answers[i].word) == OUTBOX_LOST)
            all = OUTBOX_LOST;
        if (row && !row->parking && o->letter == OUTBOX_ASKED && answers[i].word == OUTBOX_WORD_DEAD_LETTERED)
            log_letter(row, answers[i].letter);
        outbox_dead_lettered(o, s->now_ms, i, answer_of(answers[i].word));
    }
    outbox_dead_letters_end(o, s->now_ms, all);
    FAILPOINT_IF(all == OUTBOX_DONE, RELAY_BURIED);
}

static void words_came(struct sidecar *s)
{
    struct outbox *o = &s->outbox->core;
    struct inbox *i = s->database.inbox;
    enum outbox_word word;
    struct fault f = {0};
    int got;

    if ((got = inbox_outbox_written(i, &word, &f))) {
        FAILPOINT_IF(got > 0 && answer_of(word) == OUTBOX_DONE, RELAY_WRITTEN);
        outbox_written(o, s->now_ms, got < 0 ? failed(s, &f) : answer_of(word));
    }
    if ((got = inbox_outbox_unparked(i, &word, &f)))
        outbox_unparked(o, s->now_ms, got < 0 ? failed(s, &f) : answer_of(word));
    if ((got = inbox_outbox_restored(i, &word, &f)))
        outbox_restored(o, s->now_ms, got < 0 ? failed(s, &f) : answer_of(word));
    if ((got = inbox_outbox_turned(i, &word, &f))) {
        FAILPOINT_IF(got > 0 && word == OUTBOX_WORD_TURNED, RELAY_TURNED);
        outbox_turned(o, s->now_ms, got < 0 ? failed(s, &f) : answer_of(word),
                      got > 0 && word == OUTBOX_WORD_TURNED);
    }
}

static void gauge_came(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct fault f = {0};
    int got = inbox_outbox_gauge(s->database.inbox, &x->figures.latest, &f);

    if (!got)
        return;
    x->figures.asked = false;
    x->figures.known = got > 0;
    if (got < 0 && strcmp(f.code, INBOX_CODE_UNPREPARED) != 0)
        tell_failed(s,
                    &f); /* no reason to doubt the database: an operator may have locked the dead letters */
}

void outbox_answers_take(struct sidecar *s)
{
    registered(s);
    leased(s);
    looked(s);
    parked_listed(s);
    parked_came(s);
    rows_came(s);
    words_came(s);
    dead_lettered(s);
    gauge_came(s);
}
