/* Rows at the broker: sent, confirmed, returned, refused. See outbox.h for the groups. */
#include "core/outbox.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AGAIN_MS = 1000,       /* after a close of the channel */
    NACKED_MS = 20,        /* before a nacked row is sent again; a full queue gets time to empty, and the wait
                              doubles */
    NACKED_MOST_MS = 1000, /* up to this */
    TOLD_AGAIN_MS = 60000, /* between reports of nacks, and of one reason to close the channel */
    SHOWN_MAX = 100,       /* bytes of a name in messages */
    CLOSED_MAX = 3,        /* connections closed over a row, before it is given up */
};

static struct outbox_row *row_of(struct link *k)
{
    return container_of(k, struct outbox_row, in_phase);
}

static struct outbox_row *first_of(struct list *l)
{
    struct link *k = list_first(l);

    return k ? row_of(k) : NULL;
}

/* --- phases --- */

/* Inserts in the order of reading: nearly always at the end or the front. */
static void row_insert(struct list *l, struct outbox_row *row)
{
    struct link *at = l->head.prev, *k = &row->in_phase;

    if (l->len && row_of(l->head.next)->number > row->number)
        at = &l->head;
    while (at != &l->head && row_of(at)->number > row->number)
        at = at->prev;
    k->prev = at;
    k->next = at->next;
    at->next->prev = k;
    at->next = k;
    l->len++;
}

/* The list for a phase; NULL: none. */
static struct list *list_of(struct outbox *o, enum outbox_phase phase)
{
    switch (phase) {
    case OUTBOX_WANTED:
        return &o->wanted;
    case OUTBOX_SENT:
        return &o->sent;
    case OUTBOX_LETTER_WANTED:
        return &o->letters;
    case OUTBOX_LETTER_SENT:
        return &o->dead_lettering;
    case OUTBOX_UNPARK_WANTED:
        return &o->unparks;
    case OUTBOX_UNPARK_SENT:
        return &o->unparking;
    default:
        return NULL;
    }
}

/* Hash of the fields that identify a returned message, which has no tag. */
static uint64_t look_hash(struct slice message_id, uint64_t body_len)
{
    return hash_bytes(message_id.data, message_id.len) ^ hash_number(body_len);
}

/* Finds the row in flight that a return with these fields means, or NULL. */
static struct outbox_row *sent_find(const struct outbox *o, struct slice exchange, struct slice routing_key,
                                    struct slice message_id, uint64_t body_len)
{
    struct hash_link *k = hash_first(&o->sent_by_look, look_hash(message_id, body_len));

    for (; k; k = hash_next(k)) {
        struct outbox_row *row = container_of(k, struct outbox_row, by_look);

        if (!row->returned && row->body.len == body_len && slice_equal(row->message_id, message_id) &&
            slice_equal(row->routing_key, routing_key) && slice_equal(row->exchange, exchange))
            return row;
    }
    return NULL;
}

static void unlink_row(struct outbox *o, struct outbox_row *row)
{
    struct list *l = list_of(o, row->phase);

    if (l)
        list_remove(l, &row->in_phase);
    if (row->phase == OUTBOX_SENT)
        hash_remove(&o->sent_by_look, &row->by_look);
}

static void row_place(struct outbox *o, struct outbox_row *row, enum outbox_phase phase)
{
    struct list *to = list_of(o, phase);

    unlink_row(o, row);
    row->phase = phase;
    if (phase == OUTBOX_SENT) {
        list_push(to, &row->in_phase); /* in the order of tags */
        hash_insert(&o->sent_by_look, &row->by_look, look_hash(row->message_id, row->body.len));
    } else if (to)
        row_insert(to, row);
}

static void row_give_up(struct outbox *o, struct outbox_row *row, enum dead_reason reason, const char *detail)
{
    row->reason = reason;
    snprintf(row->detail, sizeof(row->detail), "%s", detail);
    row_place(o, row, OUTBOX_LETTER_WANTED);
}

/* Marks a waiting row of a stopped exchange for the table of parked rows, which are written in the order of
 * reading. */
static bool mark_parked(struct outbox *o, struct outbox_row *row)
{
    struct outbox_exchange *e = o->parked.n_stopped ? exchange_find(o, row->exchange) : NULL;

    if (!e || !e->stop.is || e->stop.last || row->parked || row->phase != OUTBOX_WANTED)
        return false;
    row->parking = true;
    e->stop.n_parking++;
    row_give_up(o, row, e->reason, e->detail);
    return true;
}

/* Lets the next row of the same routing key go. If the exchange is stopped, that row is parked, and so are those
 * behind it. */
static void leave_key(struct outbox *o, struct outbox_row *row)
{
    struct outbox_row *next = key_leave(o, row);

    while (next && next->phase == OUTBOX_BEHIND) {
        row_place(o, next, OUTBOX_WANTED);
        next = mark_parked(o, next) ? key_leave(o, next) : NULL;
    }
}

static void row_park(struct outbox *o, struct outbox_row *row)
{
    if (mark_parked(o, row))
        leave_key(o, row);
}

static void row_move(struct outbox *o, struct outbox_row *row, enum outbox_phase phase)
{
    row_place(o, row, phase);
    if (phase == OUTBOX_SETTLED || phase == OUTBOX_UNPARK_WANTED)
        leave_key(o, row);
}

/* The sum in which the row's bytes count: parked rows have room of their own. */
static size_t *bytes_of(struct outbox *o, const struct outbox_row *row)
{
    return row->parked ? &o->parked.n_bytes : &o->n_bytes;
}

static void row_free(struct outbox *o, struct outbox_row *row)
{
    key_leave(o, row);
    unlink_row(o, row);
    list_remove(row->parked ? &o->parked_rows : &o->rows, &row->in_order);
    assert(!row->batch || row->batch->n_rows > 0);
    if (row->batch)
        row->batch->n_rows--;
    assert(*bytes_of(o, row) >= row->n_bytes);
    *bytes_of(o, row) -= row->n_bytes;
    free(row);
}

/* --- exchanges --- */

static bool is_proven(struct outbox *o, const struct outbox_row *row)
{
    const struct outbox_exchange *e = exchange_find(o, row->exchange);

    return e && e->proven;
}

/* --- in and out --- */

static struct slice bytes_keep(char **at, struct slice s)
{
    char *copy = *at;

    if (s.len)
        memcpy(copy, s.data, s.len);
    *at += s.len;
    return (struct slice){copy, s.len};
}

static bool is_mandatory(const struct outbox *o, struct slice exchange)
{
    return !o->rules.n_not_mandatory ||
           !outbox_allows(o->rules.not_mandatory, o->rules.n_not_mandatory, exchange);
}

bool outbox_is_direct_reply(struct slice exchange, struct slice routing_key)
{
    static const struct slice begins = SLICE("amq.rabbitmq.reply-to.");

    return !exchange.len && routing_key.len >= begins.len &&
           memcmp(routing_key.data, begins.data, begins.len) == 0;
}

/* Finds faults that are known without asking the broker. */
static void row_judge(struct outbox *o, struct outbox_row *row, const struct outbox_new *new)
{
    char text[160];

    if (new->body_len > o->rules.max_message_bytes) {
        snprintf(text, sizeof(text), "%zu bytes; outbox.max_message is %zu", new->body_len,
                 o->rules.max_message_bytes);
        row_give_up(o, row, DEAD_TOO_LARGE_TO_SEND, text);
    } else if (new->broken) {
        row_give_up(o, row, DEAD_INVALID_DATA, new->broken);
    } else if (outbox_is_direct_reply(row->exchange, row->routing_key)) {
        row_give_up(o, row, DEAD_UNROUTABLE, OUTBOX_DIRECT_REPLY);
    }
}

void rows_add(struct outbox *o, int64_t now_ms, const struct outbox_new *new)
{
    size_t n_bytes = new->exchange.len + new->routing_key.len + new->message_id.len +
                     new->content_header.len + new->body.len;
    struct outbox_row *row = mem_zalloc(1, sizeof(*row) + n_bytes);
    char *at = (char *)(row + 1);

    if (!o->wanted.len && !o->sent.len)
        o->link.quiet_since_ms = now_ms ? now_ms : 1;
    row->phase = OUTBOX_BEHIND;
    row->parked = new->parked;
    row->batch = new->parked ? NULL : o->reading.batch;
    if (row->batch)
        row->batch->n_rows++;
    row->barred = !outbox_allows(o->rules.exchanges, o->rules.n_exchanges, new->exchange);
    row->body_len = new->body_len;
    row->mandatory = is_mandatory(o, new->exchange);
    row->number = ++o->next_number;
    row->seq = new->seq;
    row->came_ms = now_ms;
    row->age_ms = new->age_ms;
    row->reason = DEAD_NONE;
    row->exchange = bytes_keep(&at, new->exchange);
    row->routing_key = bytes_keep(&at, new->routing_key);
    row->message_id = bytes_keep(&at, new->message_id);
    row->content_header = bytes_keep(&at, new->content_header);
    row->body = bytes_keep(&at, new->body);
    row->n_bytes = sizeof(*row) + n_bytes;
    *bytes_of(o, row) += row->n_bytes;
    list_push(row->parked ? &o->parked_rows : &o->rows, &row->in_order);
    if (!is_ordered(o, row->exchange) || key_enter(o, row))
        row_place(o, row, OUTBOX_WANTED);
    row_judge(o, row, new);
    row_park(o, row);
}

void rows_park(struct outbox *o, struct outbox_exchange *e)
{
    list_each(&o->wanted, k)
    {
        if (slice_equal(row_of(k)->exchange, e->name))
            row_park(o, row_of(k));
    }
}

void rows_forget(struct outbox *o)
{
    struct link *k;

    while ((k = list_first(&o->rows)))
        row_free(o, container_of(k, struct outbox_row, in_order));
    while ((k = list_first(&o->parked_rows)))
        row_free(o, container_of(k, struct outbox_row, in_order));
    o->link.alone = false;
    o->link.group = OUTBOX_OUT_MAX;
    o->link.group_until = 0;
    o->link.grows = false;
}

void rows_unsent(struct outbox *o)
{
    /* The latest first, since each goes in front of all waiting rows. */
    while (o->sent.len) {
        struct outbox_row *row = row_of(o->sent.head.prev);

        row->returned = false;
        row_move(o, row, OUTBOX_WANTED);
        if (row->key)
            row_park(o, row);
    }
    o->link.alone = false;
}

static struct outbox_batch *first_batch(struct outbox *o)
{
    struct link *k = list_first(&o->batches);

    return k ? container_of(k, struct outbox_batch, in_order) : NULL;
}

void rows_drop_batch(struct outbox *o)
{
    struct outbox_batch *b = first_batch(o);

    assert(b);
    list_remove(&o->batches, &b->in_order);
    free(b->text);
    free(b);
}

/* A complete batch without rows in memory is done as a whole. */
static void batches_reap(struct outbox *o)
{
    struct outbox_writing *w = &o->writing;
    bool writing = w->dirty || w->ask == OUTBOX_ASKED;
    struct outbox_batch *b;

    list_each(&o->batches, k)
    {
        b = container_of(k, struct outbox_batch, in_order);
        if (b->number != w->batch || !b->over || b->n_rows || w->seq < 0)
            continue;
        w->seq = -1;
        w->dirty = writing = true;
    }
    while ((b = first_batch(o)) && b != o->reading.batch && !b->n_rows && (!writing || b->number < w->batch))
        rows_drop_batch(o);
}

static void settled_pop(struct outbox *o)
{
    struct link *k;

    while ((k = list_first(&o->rows))) {
        struct outbox_row *row = container_of(k, struct outbox_row, in_order);

        if (row->phase != OUTBOX_SETTLED)
            return;
        assert(row->batch);
        o->writing.batch = row->batch->number;
        o->writing.seq = row->seq;
        o->writing.dirty = true;
        o->writing.n++;
        row_free(o, row);
    }
    if (!o->wanted.len && !o->sent.len)
        o->link.quiet_since_ms = 0;
}

void rows_reap(struct outbox *o)
{
    settled_pop(o);
    batches_reap(o);
}

/* --- the next row to send --- */

/* Rows of a stopped exchange wait for its parked rows, and those for the exchange's next try. */
static bool is_held_back(struct outbox *o, int64_t now_ms, const struct outbox_row *row)
{
    const struct outbox_exchange *e = o->parked.n_stopped ? exchange_find(o, row->exchange) : NULL;

    return e && e->stop.is && (!row->parked || now_ms < e->stop.retry_ms);
}

static struct outbox_row *first_wanted(struct outbox *o, int64_t now_ms)
{
    list_each(&o->wanted, k)
    {
        if (!is_held_back(o, now_ms, row_of(k)))
            return row_of(k);
    }
    return NULL;
}

static void parked_free(struct outbox *o, struct outbox_row *row)
{
    struct outbox_exchange *e = exchange_find(o, row->exchange);

    leave_key(o, row);
    row_free(o, row);
    if (!e || !e->stop.n_parked)
        return;
    e->stop.n_parked--;
    exchange_settle(o, e);
}

static bool is_at_rest(const struct outbox_row *row)
{
    return row->phase == OUTBOX_WANTED || row->phase == OUTBOX_BEHIND;
}

/* Forgets the parked rows of an exchange, which are read again for its next try: an operator may have given one up
 * meanwhile. Rows in flight stay, with the others beside them. */
static void parked_forget(struct outbox *o, struct outbox_exchange *e)
{
    size_t n = 0;

    list_each(&o->parked_rows, k)
    {
        const struct outbox_row *row = container_of(k, struct outbox_row, in_order);

        n += is_at_rest(row) && slice_equal(row->exchange, e->name);
    }
    if (n < e->stop.n_parked || o->parked.reading == e)
        return;
    e->stop.after = 0;
    list_each(&o->parked_rows, k)
    {
        struct outbox_row *row = container_of(k, struct outbox_row, in_order);

        if (slice_equal(row->exchange, e->name))
            parked_free(o, row);
    }
}

/* The exchange refuses this row, and would refuse any other. */
static void refuse(struct outbox *o, int64_t now_ms, struct outbox_row *row, enum dead_reason reason,
                   const char *why)
{
    struct outbox_exchange *e = exchange_of(o, now_ms, row->exchange);
    enum exchange_verdict verdict = exchange_refuses(o, now_ms, e, reason, why);

    o->link.quiet_since_ms = now_ms; /* another sidecar would get the same refusal */
    if (row->phase == OUTBOX_SENT)
        row_move(o, row, OUTBOX_WANTED);
    if (verdict == EXCHANGE_LETTER)
        row_give_up(o, row, reason, why);
    if (verdict == EXCHANGE_STAYS)
        e->stop.last = e->stop.empty = false; /* rows waiting in memory would take the room of others */
    if (verdict == EXCHANGE_LETTER || verdict == EXCHANGE_OFFERS)
        return;
    rows_park(o, e);
    if (row->parked)
        parked_forget(o, e);
}

/* Ends a group: the next one may start, or the ordinary mode returns. */
static void group_next(struct outbox *o, const struct outbox_row *row)
{
    struct outbox_link *l = &o->link;

    l->alone = false;
    if (l->group_until && l->grows && row && row->number > l->group_until) {
        l->group++;
        l->group_until = row->number + l->group - 1;
    }
    if (l->group >= OUTBOX_OUT_MAX || (!l->grows && (!row || row->number > l->group_until))) {
        l->group = OUTBOX_OUT_MAX;
        l->group_until = 0;
        l->grows = false;
    }
    l->group_left = l->group;
}

struct outbox_row *rows_next(struct outbox *o, int64_t now_ms)
{
    struct outbox_row *row;

    while ((row = first_wanted(o, now_ms))) {
        const struct outbox_exchange *e = exchange_find(o, row->exchange);

        if (row->barred)
            refuse(o, now_ms, row, DEAD_NOT_ALLOWED, "the exchange is not in outbox.exchanges");
        else if (e && now_ms < e->refused_until_ms)
            row_give_up(o, row, e->reason, e->detail);
        else
            break;
        if (o->offering)
            return NULL;
    }
    if (!o->sent.len)
        group_next(o, row);
    if (!row || o->link.alone || o->sent.len >= OUTBOX_OUT_MAX ||
        (o->link.group_until && !o->link.group_left) || (row->alone && o->sent.len))
        return NULL;
    if (sent_find(o, row->exchange, row->routing_key, row->message_id, row->body.len))
        return NULL;
    return is_proven(o, row) || !o->sent.len ? row : NULL;
}

void rows_dead_letter(struct outbox *o)
{
    size_t bytes = 0;

    while (o->letters.len && o->dead_lettering.len < OUTBOX_LETTERS_MAX) {
        struct outbox_row *row = first_of(&o->letters);

        bytes += row->body_len;
        if (o->dead_lettering.len && bytes > OUTBOX_LETTERS_BYTES)
            return;
        row_move(o, row, OUTBOX_LETTER_SENT);
    }
}

void rows_dead_letter_again(struct outbox *o)
{
    while (o->dead_lettering.len)
        row_move(o, first_of(&o->dead_lettering), OUTBOX_LETTER_WANTED);
}

/* --- facts --- */

void outbox_sent(struct outbox *o, int64_t now_ms, struct outbox_row *row, uint64_t tag)
{
    if (row->was_sent)
        o->counts.resent.total++;
    row->was_sent = true;
    row->returned = false;
    row->tag = tag;
    o->link.alone = !is_proven(o, row) || row->alone;
    if (o->link.group_left)
        o->link.group_left--;
    exchange_of(o, now_ms, row->exchange);
    row_move(o, row, OUTBOX_SENT);
}

/* A return means at most one row: see rows_next. */
void outbox_returned(struct outbox *o, struct slice exchange, struct slice routing_key,
                     struct slice message_id, uint64_t body_len)
{
    struct outbox_row *row = sent_find(o, exchange, routing_key, message_id, body_len);

    if (row)
        row->returned = true;
}

static void confirmed(struct outbox *o, int64_t now_ms, struct outbox_row *row)
{
    static const char no_queue[] = "the exchange has no queue for that routing key";
    struct outbox_exchange *e = exchange_of(o, now_ms, row->exchange);

    o->link.nack_wait_ms = 0;
    o->error = NULL;
    if (row->returned && e->ordered) {
        row->returned = false;
        refuse(o, now_ms, row, DEAD_UNROUTABLE, no_queue);
        return;
    }
    e->proven = e->worked = true;
    e->n_refused = e->n_topics = 0;
    if (row->returned) {
        row_give_up(o, row, DEAD_UNROUTABLE, no_queue);
        return;
    }
    o->counts.published.total++;
    histogram_add(&o->lag_us, (row->age_ms + now_ms - row->came_ms) * 1000);
    o->lag_ms = row->age_ms + now_ms - row->came_ms;
    row_move(o, row, row->parked ? OUTBOX_UNPARK_WANTED : OUTBOX_SETTLED);
}

/* Rows that were in flight beside a nacked one are sent one by one. A stopped exchange may hold one of them back
 * until the groups have passed its number. */
static void send_alone(struct outbox *o)
{
    list_each(&o->sent, k)
    {
        row_of(k)->alone = true;
    }
}

/* The highest number in flight. */
static uint64_t last_out(struct outbox *o)
{
    uint64_t last = 0;

    list_each(&o->sent, k)
    {
        if (row_of(k)->number > last)
            last = row_of(k)->number;
    }
    return last;
}

static int shown(struct slice name)
{
    return (int)(name.len < SHOWN_MAX ? name.len : SHOWN_MAX);
}

/* Lengthens the wait once for rows that were in flight together. */
static void wait_longer(struct outbox_link *l, int64_t now_ms)
{
    int64_t ms = l->nack_wait_ms ? l->nack_wait_ms * 2 : NACKED_MS;

    if (now_ms < l->not_before_ms)
        return;
    l->nack_wait_ms = ms < NACKED_MOST_MS ? ms : NACKED_MOST_MS;
    l->not_before_ms = now_ms + l->nack_wait_ms;
}

/* The broker nacked the row without a reason: it is sent again after a wait. */
static void refused(struct outbox *o, int64_t now_ms, struct outbox_row *row)
{
    struct outbox_link *l = &o->link;
    uint64_t last = last_out(o);

    o->counts.nacked.total++;
    row->returned = false;
    row->n_closed = 0;
    send_alone(o);
    row_move(o, row, OUTBOX_WANTED);
    if (row->key)
        row_park(o, row);
    wait_longer(l, now_ms);
    l->group_until = last > l->group_until ? last : l->group_until;
    l->group = 1;
    l->group_left = 0;
    l->grows = true;
    o->error = o->nacked;
    snprintf(
        o->nacked, sizeof(o->nacked),
        "the broker refuses (nack) messages to exchange '%.*s' with routing key '%.*s': a queue is full "
        "and rejects, or has no leader; they are sent again until it accepts them, and later messages wait",
        shown(row->exchange), row->exchange.data, shown(row->routing_key), row->routing_key.data);
    if (l->told_nack_ms && now_ms - l->told_nack_ms < TOLD_AGAIN_MS)
        return;
    l->told_nack_ms = now_ms;
    o->to_tell[OUTBOX_TOLD_NACKED] = true;
}

void outbox_confirmed(struct outbox *o, int64_t now_ms, uint64_t tag, bool multiple, bool no)
{
    o->link.quiet_since_ms = now_ms; /* a nack counts as an answer too: another sidecar would get the same */
    list_each(&o->sent, k)
    {
        struct outbox_row *row = row_of(k);

        if (row->tag > tag)
            break;
        if (row->tag < tag && !multiple)
            continue;
        if (no)
            refused(o, now_ms, row);
        else
            confirmed(o, now_ms, row);
    }
    rows_reap(o);
}

/* Is the AMQP code about a message? Other failures are temporary. */
static bool is_of_message(int code)
{
    enum { CONTENT_TOO_LARGE = 311, FORBIDDEN = 403, NO_EXCHANGE = 404, PRECONDITION = 406 };

    return code == CONTENT_TOO_LARGE || code == FORBIDDEN || code == NO_EXCHANGE || code == PRECONDITION;
}

/* A topic may be forbidden while others of its exchange are allowed, until several are refused in a row. An ordered
 * exchange waits for each topic. */
static bool is_allowed_otherwise(struct outbox_exchange *e)
{
    return !e->ordered && !e->stop.is && ++e->n_topics < OUTBOX_TOPIC_REFUSALS;
}

/* The broker closed the channel over this row, which was alone in flight. */
static void condemn(struct outbox *o, int64_t now_ms, struct outbox_row *row, int code, const char *why)
{
    enum dead_reason reason = code == 404   ? DEAD_NO_EXCHANGE
                              : code == 311 ? DEAD_TOO_LARGE_TO_SEND
                                            : DEAD_REFUSED_BY_BROKER;

    struct outbox_exchange *e = exchange_of(o, now_ms, row->exchange);

    e->forbids = code == 403 && !strstr(why, " topic '");
    if (code == 404 || e->forbids || (code == 403 && !is_allowed_otherwise(e))) {
        refuse(o, now_ms, row, reason, why);
        return;
    }
    e->proven = false;
    row_give_up(o, row, reason, why);
}

/* Halves the group until the refused row is alone. */
static void halve(struct outbox *o)
{
    struct outbox_link *l = &o->link;
    size_t half = (o->sent.len + 1) / 2;
    uint64_t last = last_out(o);

    l->group = half < l->group ? half : l->group;
    l->group_until = last > l->group_until ? last : l->group_until;
}

void rows_suspect(struct outbox *o, int64_t now_ms, int code, const char *why)
{
    enum { CONNECTION_FORCED = 320 }; /* an operator closed the connection */
    struct outbox_row *first = first_of(&o->sent);

    if (!first || code == CONNECTION_FORCED)
        return;
    o->link.quiet_since_ms = now_ms; /* another sidecar would get the same answer, and count from the start */
    if (o->sent.len > 1)
        halve(o);
    else if (++first->n_closed == CLOSED_MAX)
        condemn(o, now_ms, first, code, why);
}

/* The broker closed the channel with a reason that is not about a message. */
static void closed(struct outbox *o, int64_t now_ms, const char *why)
{
    struct outbox_link *l = &o->link;
    bool is_told = strncmp(o->closed, why, sizeof(o->closed) - 1) == 0 && l->told_close_ms &&
                   now_ms - l->told_close_ms < TOLD_AGAIN_MS;

    l->not_before_ms = now_ms + AGAIN_MS;
    snprintf(o->closed, sizeof(o->closed), "%s", why);
    o->error = o->closed;
    if (is_told)
        return;
    l->told_close_ms = now_ms;
    o->to_tell[OUTBOX_TOLD_CLOSED] = true;
}

void outbox_channel_lost(struct outbox *o, int64_t now_ms, int code, const char *why)
{
    size_t n = o->sent.len;
    struct outbox_row *first = first_of(&o->sent);

    o->link.open = false;
    if (!is_of_message(code) || !n) {
        closed(o, now_ms, why);
    } else if (n == 1) {
        condemn(o, now_ms, first, code, why);
    } else {
        halve(o);
    }
    rows_unsent(o);
    rows_reap(o);
}

/* Committed rows stay in the list until the end, so that indexes stay the same. */
void outbox_dead_lettered(struct outbox *o, int64_t now_ms, size_t at, enum outbox_answer answer)
{
    (void)now_ms;
    if (o->letter != OUTBOX_ASKED || answer != OUTBOX_DONE)
        return;
    list_each(&o->dead_lettering, k)
    {
        if (at--)
            continue;
        row_of(k)->dead_lettered = true;
        return;
    }
}

void outbox_unfit(struct outbox *o, struct outbox_row *row, enum dead_reason reason, const char *why)
{
    row_give_up(o, row, reason, why);
}

void rows_end_dead_lettered(struct outbox *o)
{
    list_each(&o->dead_lettering, k)
    {
        struct outbox_row *row = row_of(k);
        struct outbox_exchange *e = row->parking ? exchange_find(o, row->exchange) : NULL;

        if (!row->dead_lettered)
            continue;
        (row->parking ? &o->counts.parked : &o->counts.letters)->total++;
        if (e)
            e->stop.n_parking--;
        if (row->parked)
            parked_free(o, row);
        else
            row_move(o, row, OUTBOX_SETTLED);
    }
}

void rows_unpark(struct outbox *o)
{
    while (o->unparks.len && o->unparking.len < OUTBOX_PARKED_ROWS)
        row_move(o, first_of(&o->unparks), OUTBOX_UNPARK_SENT);
}

void rows_unpark_again(struct outbox *o)
{
    while (o->unparking.len)
        row_move(o, first_of(&o->unparking), OUTBOX_UNPARK_WANTED);
}

void rows_unparked(struct outbox *o)
{
    while (o->unparking.len)
        parked_free(o, first_of(&o->unparking));
}
