/* The relay of the outbox: its core, its connection to the broker, its questions to the database.
 *
 * It publishes on a connection of its own, since a broker that is short of memory or disk stops reading from
 * those that publish: the acks of the queues must not stand behind that. The database is asked on the
 * connection that all share. */
#include "sidecar/sidecar.h"

#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"
#include "onceward/broker/sender.h"
#include "onceward/config/json.h"
#include "onceward/core/message.h"
#include "onceward/core/outbox.h"
#include "onceward/core/stats.h"
#include "onceward/inbox/outbox.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TICK_MS = 1000,
    N_EVENTS_A_TURN = 512,
    N_ACTIONS_A_TURN = 1024,
    READ_BYTES = 1 << 20,
    JOB_EXTRA_MS = 15000, /* for name resolution */
    TOLD_AGAIN_MS = 60000,
    NAME_BYTES = 255,
};

struct sidecar_outbox {
    struct outbox core;
    char *vhost;
    struct sender *sender; /* NULL: not connected */
    struct dial dial;
    struct watch watch;
    bool readable;
    int64_t tick_ms, told_failed_ms;
    struct buf header;
    struct {
        bool asked, known;
        struct inbox_outbox_gauge latest;
        int64_t stats_at_ms, said_ms;
        uint64_t sum; /* of what the latest line told */
    } figures;
};

/* --- answers of the database --- */

/* A statement failed: told now and then, and asked again. One that a pooler has lost is told once, elsewhere.
 */
static enum outbox_answer failed(struct sidecar *s, const struct fault *f)
{
    struct sidecar_outbox *x = s->outbox;
    struct log_line l;

    if (strcmp(f->code, INBOX_CODE_UNPREPARED) == 0)
        return OUTBOX_AGAIN;
    database_refused(&s->database.core, s->now_ms, f->code, f->text, false);
    if (x->told_failed_ms && s->now_ms - x->told_failed_ms < TOLD_AGAIN_MS)
        return OUTBOX_AGAIN;
    x->told_failed_ms = s->now_ms;
    log_begin(&l, EVENT_DATABASE_ERROR, NULL);
    log_text(&l, "sqlstate", f->code);
    log_text(&l, "reason", f->text);
    log_end(&l);
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
        return OUTBOX_ANEW;
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

static void leased(struct sidecar *s)
{
    struct inbox_outbox_lease lease = {0};
    struct fault f = {0};
    int got = inbox_outbox_leased(s->database.inbox, &lease, &f);

    if (!got)
        return;
    enum outbox_answer answer = got < 0 ? failed(s, &f) : answer_of(lease.word);
    outbox_leased(&s->outbox->core, s->now_ms, answer, lease.word == OUTBOX_WORD_FREE ? 0 : lease.lease,
                  lease.left_ms, lease.restored);
}

/* As AMQP encodes them. -1: f says what does not fit. */
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

static void row_came(struct sidecar *s, const struct inbox_outbox_row *row)
{
    struct sidecar_outbox *x = s->outbox;
    struct fault f = {0};
    int r = header_encode(&x->header, row, &f);

    if (!r && (row->exchange.len > NAME_BYTES || row->routing_key.len > NAME_BYTES))
        r = fault_set(&f, "exchange and routing key have at most 255 bytes");
    outbox_row_came(&x->core, s->now_ms,
                    &(struct outbox_new){
                        .seq = row->seq,
                        .age_ms = row->age_ms,
                        .exchange = row->exchange,
                        .routing_key = row->routing_key,
                        .message_id = row->message_id,
                        .content_header = r ? (struct slice){0} : buf_slice(&x->header),
                        .body = row->body,
                        .body_len = (size_t)row->body_len,
                        .broken = r ? f.text : NULL,
                    });
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
        row_came(s, &row);
    }
    FAILPOINT_IF(has_batch && inbox_outbox_n(rows), RELAY_READ);
    outbox_read_ends(&x->core, s->now_ms, has_batch ? OUTBOX_DONE : OUTBOX_ANEW);
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
                      : ended ? OUTBOX_ANEW
                              : OUTBOX_DONE);
}

static struct outbox_row *burying(struct outbox *o, size_t at)
{
    list_each(&o->burying, k)
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

static void buried(struct sidecar *s)
{
    struct inbox_outbox_buried answers[INBOX_OUTBOX_LETTERS] = {0};
    struct outbox *o = &s->outbox->core;
    enum outbox_answer all = OUTBOX_DONE;
    struct fault f = {0};
    size_t n = 0;
    int got = inbox_outbox_buried(s->database.inbox, answers, &n, &f);

    if (!got)
        return;
    if (got < 0)
        all = failed(s, &f);
    for (size_t i = 0; i < n; i++) {
        const struct outbox_row *row = burying(o, i);

        if (answer_of(answers[i].word) == OUTBOX_LOST)
            all = OUTBOX_LOST;
        if (row && o->letter == OUTBOX_ASKED && answers[i].word == OUTBOX_WORD_BURIED)
            log_letter(row, answers[i].letter);
        outbox_buried(o, s->now_ms, i, answer_of(answers[i].word));
    }
    outbox_bury_ends(o, s->now_ms, all);
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
    if (got < 0)
        failed(s, &f);
}

static void answers_take(struct sidecar *s)
{
    registered(s);
    leased(s);
    looked(s);
    rows_came(s);
    words_came(s);
    buried(s);
    gauge_came(s);
}

void outbox_database_is(struct sidecar *s, bool there)
{
    if (!s->outbox)
        return;
    s->outbox->figures.asked = s->outbox->figures.known = false;
    outbox_database(&s->outbox->core, s->now_ms, there);
}

void outbox_answered(struct sidecar *s)
{
    if (s->outbox)
        outbox_hint(&s->outbox->core, s->now_ms);
}

/* --- the broker --- */

static void socket_ready(void *owner, uint32_t events)
{
    (void)events;
    ((struct sidecar_outbox *)owner)->readable = true;
}

static void disconnect(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;

    wait_remove(s->wait, &x->watch);
    sender_free(x->sender);
    x->sender = NULL;
    outbox_unlinked(&x->core, s->now_ms);
}

static void lost(struct sidecar *s, const char *reason)
{
    disconnect(s);
    dial_failed(s, &s->outbox->dial, reason);
}

static void begin(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct fault f = {0};
    struct job *job = sender_connect(&s->config->broker, x->vhost, s->config->instance, &f);

    if (job)
        dial_began(s, &x->dial, job, s->config->broker.connect_timeout_ms + JOB_EXTRA_MS);
    else
        dial_failed(s, &x->dial, f.text);
}

static void arrive(struct sidecar *s, void *result)
{
    struct sidecar_outbox *x = s->outbox;
    struct fault f = {0};

    if (sender_attempt_take(result, &x->sender, &f)) {
        dial_failed(s, &x->dial, f.text);
        return;
    }
    if (wait_add(s->wait, &x->watch, sender_fd(x->sender), EPOLLIN, socket_ready, x, &f)) {
        lost(s, f.text);
        return;
    }
    x->readable = true;
    outbox_linked(&x->core, s->now_ms);
    dial_succeeded(s, &x->dial, sender_version(x->sender));
}

static void blocked(struct sidecar *s, const struct sender_event *ev)
{
    bool is = ev->kind == SENDER_BLOCKED;
    struct log_line line;

    outbox_blocked(&s->outbox->core, is);
    log_begin(&line, EVENT_LIMITS, NULL);
    log_text(&line, "vhost", s->outbox->vhost);
    log_text(&line, "reason", is ? ev->fault.text : "the broker takes the outbox's messages again");
    log_end(&line);
}

static void event_came(struct sidecar *s, const struct sender_event *ev)
{
    struct outbox *o = &s->outbox->core;

    switch (ev->kind) {
    case SENDER_CONFIRMED:
        outbox_confirmed(o, s->now_ms, ev->tag, ev->multiple, ev->refused);
        FAILPOINT(RELAY_CONFIRMED);
        break;
    case SENDER_RETURNED:
        outbox_returned(o, ev->exchange, ev->routing_key, ev->message_id, ev->body_len);
        break;
    case SENDER_CHANNEL_LOST:
        outbox_channel_lost(o, s->now_ms, (int)strtol(ev->fault.code, NULL, 10), ev->fault.text);
        break;
    case SENDER_CHANNEL_OPEN:
        outbox_channel_open(o, s->now_ms);
        break;
    case SENDER_BLOCKED:
    case SENDER_UNBLOCKED:
        blocked(s, ev);
        break;
    case SENDER_NOTHING:
        break;
    }
}

static void events_read(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct sender_event ev;
    struct fault f = {0};

    for (int n = 0; n < N_EVENTS_A_TURN; n++) {
        if (sender_next(x->sender, &ev, &f)) {
            lost(s, f.text);
            return;
        }
        if (ev.kind == SENDER_NOTHING) {
            x->readable = false;
            return;
        }
        event_came(s, &ev);
    }
}

static void broker_step(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct fault f = {0};
    void *result;

    if (!x->sender && !s->is_idle && s->ending == ENDING_NO && dial_is_due(s, &x->dial))
        begin(s);
    if (dial_result(s, &x->dial, &result))
        arrive(s, result);
    if (x->sender && x->readable)
        events_read(s);
    if (x->sender && s->now_ms >= x->tick_ms) {
        x->tick_ms = s->now_ms + TICK_MS;
        x->readable = true;
        dial_time(s, &x->dial);
        if (sender_tick(x->sender, &f))
            lost(s, f.text);
    }
}

/* --- actions --- */

static void row_send(struct sidecar *s, struct outbox_row *row)
{
    struct sidecar_outbox *x = s->outbox;

    if (row->content_header.len > sender_header_max(x->sender)) {
        outbox_unfit(&x->core, row, DEAD_REFUSED_BY_BROKER,
                     "its properties and headers are longer than a frame that the broker takes");
        return;
    }
    outbox_sent(&x->core, s->now_ms, row,
                sender_send(x->sender, &(struct sender_message){.exchange = row->exchange,
                                                                .routing_key = row->routing_key,
                                                                .content_header = row->content_header,
                                                                .body = row->body}));
}

static void bury(struct sidecar *s)
{
    struct inbox_outbox_letter letters[INBOX_OUTBOX_LETTERS];
    struct outbox *o = &s->outbox->core;
    size_t n = 0, bytes = 0;

    list_each(&o->burying, k)
    {
        const struct outbox_row *row = container_of(k, struct outbox_row, in_phase);

        bytes += row->body_len;
        letters[n++] = (struct inbox_outbox_letter){.seq = row->seq,
                                                    .message_id = row->message_id,
                                                    .reason = dead_reasons[row->reason].name,
                                                    .error = row->detail};
    }
    inbox_ask_outbox_bury(s->database.inbox, o->lease.number, s->outbox->vhost, letters, n, bytes);
}

static void tell(struct sidecar *s, const struct outbox_action *a)
{
    static const enum event events[N_OUTBOX_TOLD] = {
        [OUTBOX_TOLD_HELD] = EVENT_OUTBOX_HELD,       [OUTBOX_TOLD_LEFT] = EVENT_OUTBOX_LEFT,
        [OUTBOX_TOLD_REFUSED] = EVENT_OUTBOX_REFUSED, [OUTBOX_TOLD_RESTORED] = EVENT_OUTBOX_RESTORED,
        [OUTBOX_TOLD_NACKED] = EVENT_LIMITS,
    };
    struct log_line l;

    log_begin(&l, events[a->told], NULL);
    log_text(&l, "vhost", s->outbox->vhost);
    if (a->told == OUTBOX_TOLD_LEFT || a->told == OUTBOX_TOLD_REFUSED || a->told == OUTBOX_TOLD_NACKED)
        log_text(&l, "reason", a->text);
    log_end(&l);
}

static void carry_out(struct sidecar *s, const struct outbox_action *a)
{
    struct sidecar_outbox *x = s->outbox;
    struct inbox *i = s->database.inbox;
    int64_t lease = x->core.lease.number;

    switch (a->kind) {
    case OUTBOX_REGISTER:
        inbox_ask_outbox_register(i, sender_cluster(x->sender), x->vhost);
        break;
    case OUTBOX_LEASE:
        inbox_ask_outbox_lease(i, lease, OUTBOX_LEASE_MS, true);
        break;
    case OUTBOX_GIVE_UP:
        inbox_ask_outbox_lease(i, lease, OUTBOX_LEASE_MS, false);
        break;
    case OUTBOX_RESTORE:
        inbox_ask_outbox_restore(i, lease);
        break;
    case OUTBOX_LOOK:
        inbox_ask_outbox_look(i, a->batch->text);
        break;
    case OUTBOX_READ:
        inbox_ask_outbox_read(i, a->batch ? a->batch->text : NULL, a->seq, a->n, READ_BYTES,
                              s->config->outbox.max_message_bytes);
        break;
    case OUTBOX_SEND:
        row_send(s, a->row);
        break;
    case OUTBOX_BURY:
        bury(s);
        break;
    case OUTBOX_WRITE:
        inbox_ask_outbox_write(i, lease, a->batch->text, a->seq);
        break;
    case OUTBOX_TURN:
        inbox_ask_outbox_turn(i, lease);
        break;
    case OUTBOX_TELL:
        tell(s, a);
        break;
    }
}

static void act(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct outbox_action a;
    struct fault f = {0};
    bool sent = false;

    for (int n = 0; n < N_ACTIONS_A_TURN; n++) {
        if (!outbox_next(&x->core, s->now_ms, x->sender && sender_can_send(x->sender), &a))
            break;
        carry_out(s, &a);
        sent |= a.kind == OUTBOX_SEND;
    }
    if (!x->sender)
        return;
    if (sender_flush(x->sender, &f)) {
        lost(s, f.text);
        return;
    }
    FAILPOINT_IF(sent, RELAY_SENT);
    wait_change(s->wait, &x->watch, EPOLLIN | (sender_wants_write(x->sender) ? EPOLLOUT : 0));
}

/* --- figures --- */

/* What it does, in a word. */
static const char *state_of(const struct sidecar *s)
{
    const struct sidecar_outbox *x = s->outbox;

    if (x->core.draining)
        return outbox_is_drained(&x->core) ? "drained" : "draining";
    if (!x->sender || !s->database.inbox)
        return "disconnected";
    return outbox_holds(&x->core, s->now_ms) ? "relaying" : "standby";
}

/* Keys are those of stats.def. */
static const char *key_of(char *room, enum stats_field f, size_t i)
{
    bool has = stats_key(f, i, room);

    assert(has);
    return room;
}

static void say_text(struct log_line *l, enum stats_field f, const char *value) /* NULL: null */
{
    char key[STATS_KEY_MAX];

    log_text(l, key_of(key, f, 0), value);
}

static void say_count(struct log_line *l, enum stats_field f, struct counter *c)
{
    char key[STATS_KEY_MAX];

    log_int(l, key_of(key, f, 0), (int64_t)counter_take(c));
    log_int(l, key_of(key, f, 1), (int64_t)c->total);
}

static void say_figure(struct log_line *l, enum stats_field f, bool known, int64_t value)
{
    char key[STATS_KEY_MAX];

    if (known)
        log_int(l, key_of(key, f, 0), value);
    else
        log_null(l, key_of(key, f, 0));
}

static void say_relay(struct log_line *l, struct histogram *h)
{
    char key[STATS_KEY_MAX];

    if (h->n) {
        log_double(l, key_of(key, OUTBOX_FIELD_RELAY_MS, 0), (double)histogram_quantile(h, 500) / 1000);
        log_double(l, key_of(key, OUTBOX_FIELD_RELAY_MS, 1), (double)histogram_quantile(h, 990) / 1000);
    }
    histogram_reset(h);
}

static void say(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct outbox_counts *c = &x->core.counts;
    const struct inbox_outbox_gauge *g = &x->figures.latest;
    bool known = x->figures.known;
    struct log_line l;

    log_begin(&l, EVENT_OUTBOX, NULL);
    say_text(&l, OUTBOX_FIELD_STATE, state_of(s));
    say_text(&l, OUTBOX_FIELD_HOLDER, known && *g->holder ? g->holder : NULL);
    say_count(&l, OUTBOX_FIELD_PUBLISHED, &c->published);
    say_count(&l, OUTBOX_FIELD_RESENT, &c->resent);
    say_count(&l, OUTBOX_FIELD_NACKED, &c->nacked);
    say_count(&l, OUTBOX_FIELD_LETTERS, &c->letters);
    say_figure(&l, OUTBOX_FIELD_WAITING, known, g->waiting);
    say_figure(&l, OUTBOX_FIELD_LAG_MS, known, g->lag_ms);
    say_figure(&l, OUTBOX_FIELD_DEAD_LETTERS, known, g->letters);
    say_figure(&l, OUTBOX_FIELD_BYTES, known, g->bytes);
    say_relay(&l, &x->core.lag_us);
    log_end(&l);
    x->figures.said_ms = s->now_ms;
}

/* An idle one says so once a minute. */
static void figures(struct sidecar *s)
{
    enum { IDLE_MS = 60000 };
    struct sidecar_outbox *x = s->outbox;
    const struct outbox_counts *c = &x->core.counts;
    uint64_t sum = c->published.total + c->resent.total + c->nacked.total + c->letters.total;

    if (s->now_ms < x->figures.stats_at_ms)
        return;
    if (x->figures.stats_at_ms && (sum != x->figures.sum || x->core.rows.len || x->figures.latest.waiting ||
                                   s->now_ms - x->figures.said_ms >= IDLE_MS))
        say(s);
    x->figures.sum = sum;
    x->figures.stats_at_ms = s->now_ms + s->config->log.stats_interval_ms;
    if (s->database.inbox && !x->figures.asked) {
        x->figures.asked = true;
        inbox_ask_outbox_gauge(s->database.inbox);
    }
}

/* --- beginning and end --- */

int outbox_begin(struct sidecar *s, struct fault *f)
{
    const struct config_outbox *c = &s->config->outbox;
    struct outbox_rules rules = {.poll_ms = c->poll_ms,
                                 .max_message_bytes = c->max_message_bytes,
                                 .exchanges = c->exchanges.items,
                                 .n_exchanges = c->exchanges.n};

    if (!c->is_there)
        return 0;
    s->outbox = mem_zalloc(1, sizeof(*s->outbox));
    outbox_init(&s->outbox->core, &rules, s->now_ms);
    if (broker_vhost(&s->config->broker, &(struct config_queue){.vhost = c->vhost}, &s->outbox->vhost, f))
        return -1;
    s->outbox->dial = (struct dial){.peer = "outbox", .vhost = s->outbox->vhost};
    return 0;
}

void outbox_step(struct sidecar *s)
{
    if (!s->outbox)
        return;
    broker_step(s);
    if (s->database.inbox)
        answers_take(s);
    act(s);
    figures(s);
}

int64_t outbox_next_ms(const struct sidecar *s)
{
    const struct sidecar_outbox *x = s->outbox;

    if (!x)
        return INT64_MAX;
    int64_t due = outbox_due_ms(&x->core, s->now_ms);
    if (x->sender && x->readable)
        return s->now_ms;
    if (!x->sender && !x->dial.job && s->ending == ENDING_NO && x->dial.at_ms < due)
        due = x->dial.at_ms;
    return due;
}

void outbox_ends(struct sidecar *s, bool now)
{
    if (s->outbox)
        outbox_drain(&s->outbox->core, s->now_ms, now);
}

bool outbox_has_ended(const struct sidecar *s)
{
    return !s->outbox || outbox_is_drained(&s->outbox->core);
}

bool outbox_is_ready(const struct sidecar *s)
{
    return s->outbox && s->outbox->dial.was_up && s->database.dial.was_up;
}

bool outbox_is_quiet(const struct sidecar *s)
{
    return !s->outbox || !outbox_n_waiting(&s->outbox->core);
}

void outbox_close(struct sidecar *s)
{
    if (!s->outbox)
        return;
    dial_deinit(s, &s->outbox->dial);
    if (s->outbox->sender)
        disconnect(s);
}

void outbox_free(struct sidecar *s)
{
    if (!s->outbox)
        return;
    outbox_close(s);
    outbox_deinit(&s->outbox->core);
    buf_deinit(&s->outbox->header);
    free(s->outbox->vhost);
    free(s->outbox);
    s->outbox = NULL;
}
