/* The relay of the outbox: its core, its connection to the broker, its questions to the database. outbox_answers.c
 * handles the answers, outbox_figures.c writes the line of figures.
 *
 * The relay publishes on a connection of its own: a broker that is short of memory or disk stops reading from
 * publishing connections, and that must not delay the acks of the queues. Its questions to the database use the
 * common connection. */
#include "sidecar/outbox.h"

#include "onceward/base/failpoint.h"
#include "onceward/base/log.h"
#include "onceward/base/mem.h"
#include "onceward/broker/sender.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    TICK_MS = 1000,
    N_EVENTS_A_TURN = 512,
    N_ACTIONS_A_TURN = 1024,
    READ_BYTES = 1 << 20,
    JOB_EXTRA_MS = 15000, /* for name resolution */
};

/* --- notifications --- */

void outbox_database_is(struct sidecar *s, bool there, const char *why)
{
    if (!s->outbox)
        return;
    s->outbox->figures.asked = s->outbox->figures.known = false;
    s->outbox->busy_since_ms = 0;
    outbox_database(&s->outbox->core, s->now_ms, there, why);
}

void outbox_answered(struct sidecar *s)
{
    outbox_hint(&s->outbox->core, s->now_ms);
}

/* --- the broker --- */

static void socket_ready(void *owner, uint32_t events)
{
    (void)events;
    ((struct sidecar_outbox *)owner)->readable = true;
}

/* f: the failure, or NULL. */
static void disconnect(struct sidecar *s, const struct fault *f)
{
    struct sidecar_outbox *x = s->outbox;

    wait_remove(s->wait, &x->watch);
    sender_free(x->sender);
    x->sender = NULL;
    outbox_unlinked(&x->core, s->now_ms, f ? (int)strtol(f->code, NULL, 10) : 0, f ? f->text : "");
}

static void lost(struct sidecar *s, const struct fault *f)
{
    disconnect(s, f);
    dial_failed(s, &s->outbox->dial, f->text);
}

static void begin(struct sidecar *s)
{
    struct sidecar_outbox *x = s->outbox;
    struct fault f = {0};
    struct job *job = sender_connect(&s->config->broker, SENDER_RELAYS, x->vhost, s->config->instance, &f);

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
        lost(s, &f);
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
    snprintf(s->outbox->blocked, sizeof(s->outbox->blocked), "%.255s", is ? ev->fault.text : "");
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
            lost(s, &f);
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
            lost(s, &f);
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
                                                                .body = row->body,
                                                                .mandatory = row->mandatory}));
}

static void dead_letter_rows(struct sidecar *s)
{
    struct inbox_outbox_letter letters[INBOX_OUTBOX_LETTERS];
    struct outbox *o = &s->outbox->core;
    size_t n = 0, bytes = 0;

    list_each(&o->dead_lettering, k)
    {
        const struct outbox_row *row = container_of(k, struct outbox_row, in_phase);

        bytes += row->body_len;
        letters[n++] = (struct inbox_outbox_letter){
            .seq = row->parked ? -row->seq : row->seq,
            .message_id = row->message_id,
            .reason = row->parking ? "parked" : dead_reasons[row->reason].name,
            .error = row->detail,
        };
    }
    inbox_ask_outbox_dead_letters(s->database.inbox, o->lease.number, s->outbox->vhost, letters, n, bytes);
}

static void unpark(struct sidecar *s)
{
    int64_t numbers[INBOX_OUTBOX_UNPARK_MAX];
    struct outbox *o = &s->outbox->core;
    size_t n = 0;

    list_each(&o->unparking, k)
    {
        numbers[n++] = container_of(k, struct outbox_row, in_phase)->seq;
    }
    inbox_ask_outbox_unpark(s->database.inbox, o->lease.number, numbers, n);
}

static void tell_exchange(const struct sidecar *s, const struct outbox_action *a)
{
    const struct outbox_exchange *e = a->exchange;
    bool is_open = a->told == OUTBOX_TOLD_OPEN;
    struct log_line l;

    log_begin(&l, is_open ? EVENT_OUTBOX_OPEN : EVENT_OUTBOX_STOPPED, NULL);
    log_text(&l, "vhost", s->outbox->vhost);
    log_slice(&l, "exchange", e->name);
    if (!is_open) {
        log_text(&l, "reason", dead_reasons[e->reason].name);
        log_text(&l, "error", a->text);
    }
    log_end(&l);
}

static void tell(struct sidecar *s, const struct outbox_action *a)
{
    static const enum event events[N_OUTBOX_TOLD] = {
        [OUTBOX_TOLD_HELD] = EVENT_OUTBOX_HELD,       [OUTBOX_TOLD_LEFT] = EVENT_OUTBOX_LEFT,
        [OUTBOX_TOLD_REFUSED] = EVENT_OUTBOX_REFUSED, [OUTBOX_TOLD_RESTORED] = EVENT_OUTBOX_RESTORED,
        [OUTBOX_TOLD_NACKED] = EVENT_LIMITS,          [OUTBOX_TOLD_CLOSED] = EVENT_DISCONNECTED,
        [OUTBOX_TOLD_STOPPED] = EVENT_OUTBOX_STOPPED, [OUTBOX_TOLD_OPEN] = EVENT_OUTBOX_OPEN,
    };
    const struct sidecar_outbox *x = s->outbox;
    struct log_line l;

    if (a->exchange) {
        tell_exchange(s, a);
        return;
    }
    log_begin(&l, events[a->told], NULL);
    if (a->told == OUTBOX_TOLD_CLOSED)
        log_text(&l, "peer", x->dial.peer);
    log_text(&l, "vhost", x->vhost);
    if (a->told != OUTBOX_TOLD_HELD && a->told != OUTBOX_TOLD_RESTORED)
        log_text(&l, "reason", a->text);
    if (a->told == OUTBOX_TOLD_CLOSED)
        log_int(&l, "next_try_ms", x->core.link.not_before_ms - s->now_ms);
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
    case OUTBOX_DEAD_LETTERS:
        dead_letter_rows(s);
        break;
    case OUTBOX_WRITE:
        inbox_ask_outbox_write(i, lease, a->batch->text, a->seq);
        break;
    case OUTBOX_PARKED_LIST:
        inbox_ask_outbox_parked(i);
        break;
    case OUTBOX_PARKED_READ:
        inbox_ask_outbox_parked_read(i, a->exchange->name, a->seq, a->n, READ_BYTES,
                                     s->config->outbox.max_message_bytes);
        break;
    case OUTBOX_UNPARK:
        unpark(s);
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
        lost(s, &f);
        return;
    }
    FAILPOINT_IF(sent, RELAY_SENT);
    wait_change(s->wait, &x->watch, EPOLLIN | (sender_wants_write(x->sender) ? EPOLLOUT : 0));
}

/* --- start and end --- */

int outbox_begin(struct sidecar *s, struct fault *f)
{
    const struct config_outbox *c = &s->config->outbox;
    struct outbox_rules rules = {.poll_ms = c->poll_ms,
                                 .max_message_bytes = c->max_message_bytes,
                                 .exchanges = c->exchanges.items,
                                 .n_exchanges = c->exchanges.n,
                                 .not_mandatory = c->not_mandatory.items,
                                 .n_not_mandatory = c->not_mandatory.n,
                                 .ordered = c->ordered.items,
                                 .n_ordered = c->ordered.n};

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
        outbox_answers_take(s);
    act(s);
    outbox_figures_step(s);
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
    return !s->outbox || outbox_is_idle(&s->outbox->core);
}

void outbox_close(struct sidecar *s)
{
    if (!s->outbox)
        return;
    dial_deinit(s, &s->outbox->dial);
    if (s->outbox->sender)
        disconnect(s, NULL);
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
