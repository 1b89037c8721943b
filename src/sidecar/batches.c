/* Operations of all queues, as batches. A batch of a kind is sent as soon as the database is free for that kind, with
 * all items collected since. There are no timers: a single message is sent at once, and batches grow under load. */
#include "sidecar/sidecar.h"

#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"
#include "onceward/base/random.h"
#include "onceward/core/identity.h"
#include "onceward/core/message.h"

#include <string.h>

/* Ref of an item at the database: queue, operation, the delivery's ref. The operation shows that a late answer
 * belongs to another one. */
enum { QUEUE_SHIFT = 52, OPERATION_SHIFT = 48 };

static uint64_t ref_of(const struct sidecar_queue *sq, const struct delivery *d)
{
    return (uint64_t)sq->index << QUEUE_SHIFT | (uint64_t)d->op << OPERATION_SHIFT | d->ref;
}

struct sidecar_queue *batches_ref_read(struct sidecar *s, uint64_t item, uint64_t *ret_ref,
                                       enum operation *ret_op)
{
    *ret_ref = item & (((uint64_t)1 << OPERATION_SHIFT) - 1);
    *ret_op = (enum operation)(item >> OPERATION_SHIFT & 0xf);
    return &s->queues[item >> QUEUE_SHIFT];
}

/* Kind of batch for an operation. */
static enum inbox_op kind_of(const struct sidecar_queue *sq, enum operation op)
{
    switch (op) {
    case OP_CLAIM:
        if (sq->config->store_ms)
            return sq->config->transaction ? INBOX_CLAIM_STORE_ASYNC : INBOX_CLAIM_STORE;
        return sq->config->transaction ? INBOX_CLAIM_ASYNC : INBOX_CLAIM;
    case OP_RENEW:
        return INBOX_RENEW;
    case OP_COMPLETE:
        return INBOX_SETTLE;
    case OP_FAIL:
    case OP_REVOKE:
        return INBOX_FAIL;
    case OP_RELEASE:
        return INBOX_RELEASE;
    case OP_DEAD_LETTER:
        return INBOX_DEAD_LETTER;
    default:
        return INBOX_LOOK;
    }
}

static bool stores(enum inbox_op kind)
{
    return kind == INBOX_CLAIM_STORE || kind == INBOX_CLAIM_STORE_ASYNC;
}

bool batches_can(const struct sidecar *s, const struct sidecar_queue *sq, enum operation op)
{
    enum inbox_op kind = kind_of(sq, op);
    const struct batch *b = &s->database.batches[kind];

    if (!s->database.inbox || !inbox_is_free(s->database.inbox, kind) ||
        inbox_registration(s->database.inbox, sq->config->entry, NULL) != INBOX_REGISTERED)
        return false;
    if (kind == INBOX_DEAD_LETTER)
        return b->n < LETTERS_MAX && s->database.letters.bytes <= LETTERS_BYTES;
    if (stores(kind) && s->database.stored[kind == INBOX_CLAIM_STORE_ASYNC].bytes > STORED_BYTES)
        return false;
    return b->n < BATCH_MAX;
}

static void letter_fill(struct letters *all, size_t i, const struct sidecar_queue *sq,
                        const struct delivery *d)
{
    const struct message *m = d->arrival->message;
    const struct outcome_dead_letter *dead = delivery_dead_letter(d);
    struct inbox_letter *letter = &all->items[i];

    if (!i) {
        buf_reset(&all->properties);
        buf_reset(&all->headers);
    }
    all->properties_at[i] = all->properties.len;
    all->headers_at[i] = all->headers.len;
    properties_to_json(&all->properties, m);
    fields_to_json(&all->headers, m->headers, m->n_headers, true);
    *letter = (struct inbox_letter){
        .reason = dead_reasons[dead->reason].name,
        .queue = sq->config->queue,
        .rowless = delivery_is_rowless(d),
        .looked_for = queue_letter_is_looked_for(d),
        .exhausted = dead->row == LETTER_UNCLAIMED,
        .holds = queue_letter_holds(&sq->core, d),
        .attempts = d->claim->attempt + d->claim->takeovers,
        .body = {m->body, m->body_len},
        .content_type = m->properties[PROPERTY_CONTENT_TYPE],
        .properties_json = {NULL, all->properties.len - all->properties_at[i]},
        .headers_json = {NULL, all->headers.len - all->headers_at[i]},
        .content_header = m->content_header,
        .exchange = m->exchange,
        .routing_key = m->routing_key,
        .deaths = message_deaths(m),
    };
    if (!slice_is_text(delivery_slice(d)) || d->arrival->id_len > MESSAGE_ID_MAX)
        letter->raw_id = delivery_slice(d);
    all->bytes += d->arrival->copy.n_bytes;
}

/* Fills in the message of a claim, to be stored if its row is new. NULL if its body was not taken. */
static const struct inbox_message *stored_fill(struct stored *all, size_t i, const struct delivery *d)
{
    const struct message *m = d->arrival->message;

    if (!m)
        return NULL;
    all->items[i] = (struct inbox_message){.body = {m->body, m->body_len},
                                           .content_header = m->content_header,
                                           .exchange = m->exchange,
                                           .routing_key = m->routing_key};
    all->bytes += m->body_len + m->content_header.len;
    return &all->items[i];
}

/* Sets the letters' slices, now that the buffers no longer move. */
static void letters_finish(struct letters *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        all->items[i].properties_json.data = all->properties.data + all->properties_at[i];
        all->items[i].headers_json.data = all->headers.data + all->headers_at[i];
    }
    all->bytes = 0;
}

static void outcome_fill(struct inbox_item *item, const struct delivery *d)
{
    enum outcome_kind kind = outcome_kind_of(d->op);

    if (kind == OUTCOME_COMPLETE)
        item->result = (struct slice){d->outcome.complete.result, d->outcome.complete.result_len};
    if (kind == OUTCOME_FAIL) {
        item->only_expired = delivery_failure(d)->only_expired;
        item->give_back = !delivery_failure(d)->charged;
    }
    if (kind == OUTCOME_FAIL || kind == OUTCOME_RELEASE) {
        const struct row_changes *changes = delivery_changes(d);

        item->delay_ms = delivery_delay_ms(d);
        item->crashes = changes->crashes;
        item->unproven_step = changes->unproven_step;
        item->batch_cap = d->claim->next_cap;
    }
}

void batches_add(struct sidecar *s, struct sidecar_queue *sq, struct delivery *d, bool new_token)
{
    enum inbox_op kind = kind_of(sq, d->op);
    bool large = kind == INBOX_DEAD_LETTER && queue_letter_is_large(d);
    struct batch *b = large ? &s->letters.batch : &s->database.batches[kind];
    struct letters *letters = large ? &s->letters.large : &s->database.letters;
    struct inbox_item *item = &b->items[b->n];

    if (new_token)
        random_bytes(d->claim->token, sizeof(d->claim->token));
    *item = (struct inbox_item){
        .ref = ref_of(sq, d),
        .queue = sq->config->entry,
        .message_id = delivery_slice(d),
        .alone = d->claim->alone,
        .http_status = d->outcome.http_status,
        .error = slice_of(d->outcome.said ? d->outcome.said : d->outcome.error),
    };
    outcome_fill(item, d);
    if (d->arrival->message)
        item->message_type = d->arrival->message->properties[PROPERTY_TYPE];
    if (d->op == OP_CLAIM && d->arrival->message->n_headers)
        item->deaths = message_deaths(d->arrival->message);
    memcpy(item->token, d->claim->token, sizeof(item->token));
    memcpy(item->fingerprint, d->arrival->fingerprint, sizeof(item->fingerprint));
    if (stores(kind))
        item->stored = stored_fill(&s->database.stored[kind == INBOX_CLAIM_STORE_ASYNC], b->n, d);
    if (kind == INBOX_DEAD_LETTER) {
        letter_fill(letters, b->n, sq, d);
        if (letters->items[b->n].raw_id.data)
            item->message_id = (struct slice){0};
        item->letter = &letters->items[b->n];
    }
    if (!b->n)
        b->failpoint = operation_infos[d->op].failpoint;
    b->n++;
}

/* Sends completions first and claims last: on a new connection, known results are completed before new work begins. */
void batches_send(struct sidecar *s)
{
    static const enum inbox_op order[N_INBOX_OPS] = {
        INBOX_SETTLE, INBOX_FAIL,        INBOX_RELEASE, INBOX_DEAD_LETTER,       INBOX_LOOK,
        INBOX_RENEW,  INBOX_CLAIM_ASYNC, INBOX_CLAIM,   INBOX_CLAIM_STORE_ASYNC, INBOX_CLAIM_STORE};
    struct fault f = {0};

    for (size_t i = 0; i < N_INBOX_OPS && s->database.inbox; i++) {
        struct batch *b = &s->database.batches[order[i]];

        if (!b->n)
            continue;
        if (order[i] == INBOX_DEAD_LETTER)
            letters_finish(&s->database.letters, b->n);
        if (order[i] == INBOX_CLAIM || order[i] == INBOX_CLAIM_ASYNC || stores(order[i])) {
            const struct sidecar_queue *first = s->queues[b->items[0].ref >> QUEUE_SHIFT].first;

            s->database.claim_sent_us[first->config->transaction] = clock_us();
            histogram_add(&s->queues[first->index].claim_batch, (int64_t)b->n);
        }
        FAILPOINT_AT(b->failpoint + FAILPOINT_STEP_BEFORE);
        inbox_submit(s->database.inbox, order[i], b->items, b->n, &f); /* on a loss, rows answer all items */
        FAILPOINT_AT(b->failpoint + FAILPOINT_STEP_SENT);
        if (stores(order[i]))
            s->database.stored[order[i] == INBOX_CLAIM_STORE_ASYNC].bytes = 0;
        b->n = 0;
    }
    letters_finish(&s->letters.large, s->letters.batch.n); /* letters.c sends it */
}
