/* Sends the caller's methods. All are appended to one output buffer in the order of the calls. Acks stay there until
 * broker_flush (or 16 KiB of them, or until there is nothing to read); other methods are sent at once.
 *
 * The channels of queues are transactional, and a tx.commit ends the acks of a flush. The broker passes the acks of one
 * transaction to the queue together, even if unfinished deliveries lie between them, and a quorum queue logs them as
 * one command. Requeues and rejects are committed one by one: a quorum queue may return those of one transaction in
 * another order. The first consumer's methods begin with tx.select. A refusal then delays the next consumer, whereas a
 * channel that is refused when it opens would open again at once.
 *
 * The buffer is fair and bounded: until it is empty again each queue may fill a share of it, so that a queue with many
 * methods does not delay the others while the broker reads slowly. */

#include "broker/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tag_prefix[] = "onceward.";

enum { FLAG_MULTIPLE = 1, NACK_REQUEUE = 2, TAG_SIZE = 64 };

uint32_t consumer_of_tag(amqp_bytes_t tag)
{
    size_t prefix = sizeof(tag_prefix) - 1;
    const char *text = tag.bytes;
    uint64_t number = 0;

    if (tag.len <= prefix || memcmp(text, tag_prefix, prefix) != 0)
        return 0;
    for (size_t i = prefix; i < tag.len && text[i] != '.'; i++) {
        if (text[i] < '0' || text[i] > '9' || i == prefix + 10)
            return 0;
        number = number * 10 + (uint64_t)(text[i] - '0');
    }
    return number > UINT32_MAX ? 0 : (uint32_t)number;
}

/* Writes the tag into a buffer of the caller.
 *
 * The tag has a part that no other connection ever had. A quorum queue identifies a consumer by its tag and its
 * channel's process, and after a restart of the node the numbers of processes start again. The queue would take an
 * earlier consumer with the same two for this one, if it has not removed that yet; then acks would silently apply to
 * the messages of the old one. */
static amqp_bytes_t tag_of_consumer(const struct broker *b, uint32_t consumer, char text[TAG_SIZE])
{
    int len = snprintf(text, TAG_SIZE, "%s%u.%016" PRIx64, tag_prefix, consumer, b->unique);

    return (amqp_bytes_t){(size_t)len, text};
}

/* Counts the bytes for the queue that were appended since the buffer had that length. */
static void written(struct broker *b, struct channel *c, size_t len_before)
{
    if (c->written_in != b->filling)
        c->n_written = 0;
    c->written_in = b->filling;
    c->n_written += b->wire.out.len - len_before;
}

/* Channel of the queue, or NULL while nothing can be sent on it. */
static struct channel *open_channel(const struct broker *b, uint32_t queue)
{
    return broker_channel_is_open(b, queue) ? channel_of_queue(b, queue) : NULL;
}

/* Does the broker accept a timeout per consumer on this queue? Quorum queues do from RabbitMQ 4.3 on. Classic queues
 * refuse the argument from 4.3.2 on. */
static bool takes_timeout(const struct broker *b, const struct channel *c)
{
    char *rest;
    long major = strtol(b->version, &rest, 10), minor = *rest == '.' ? strtol(rest + 1, NULL, 10) : 0;

    return c->timeout_ms && c->kind != BROKER_KIND_CLASSIC && (major > 4 || (major == 4 && minor >= 3));
}

static amqp_table_entry_t integer_argument(const char *name, int64_t value)
{
    return (amqp_table_entry_t){amqp_cstring_bytes(name), {.kind = AMQP_FIELD_KIND_I64, .value.i64 = value}};
}

int broker_consume(struct broker *b, uint32_t queue, uint32_t consumer, int prefetch, struct fault *f)
{
    struct channel *c = open_channel(b, queue);
    size_t len = b->wire.out.len;
    char text[TAG_SIZE];
    amqp_table_entry_t argument;
    int n = 0;

    if (!c)
        return b->wire.is_lost ? wire_flush(&b->wire, f) : 0;
    if (takes_timeout(b, c))
        argument = integer_argument(TIMEOUT_ARGUMENT, c->timeout_ms), n = 1;
    channel_commit(b, c);
    if (!c->is_transactional)
        wire_put_method(&b->wire, c->number, AMQP_TX_SELECT_METHOD, &(amqp_tx_select_t){0});
    c->is_transactional = true;
    uint16_t count = prefetch < 1 ? 1 : prefetch > UINT16_MAX ? UINT16_MAX : (uint16_t)prefetch;
    wire_put_method(&b->wire, c->number, AMQP_BASIC_QOS_METHOD, &(amqp_basic_qos_t){.prefetch_count = count});
    wire_put_method(&b->wire, c->number, AMQP_BASIC_CONSUME_METHOD,
                    &(amqp_basic_consume_t){.queue = amqp_cstring_bytes(c->queue),
                                            .consumer_tag = tag_of_consumer(b, consumer, text),
                                            .arguments = {n, &argument}});
    written(b, c, len);
    return out_flush(b, f);
}

int broker_cancel(struct broker *b, uint32_t queue, uint32_t consumer, struct fault *f)
{
    struct channel *c = open_channel(b, queue);
    size_t len = b->wire.out.len;
    char text[TAG_SIZE];

    if (!c)
        return b->wire.is_lost ? wire_flush(&b->wire, f) : 0;
    channel_commit(b, c);
    wire_put_method(&b->wire, c->number, AMQP_BASIC_CANCEL_METHOD,
                    &(amqp_basic_cancel_t){.consumer_tag = tag_of_consumer(b, consumer, text)});
    written(b, c, len);
    return out_flush(b, f);
}

static int settle(struct broker *b, struct broker_tag tag, amqp_method_number_t id, uint8_t flags,
                  struct fault *f)
{
    struct channel *c = channel_of_generation(b, tag.generation);
    size_t len = b->wire.out.len;

    if (b->wire.is_lost)
        return wire_flush(&b->wire, f);
    if (b->closing != CLOSE_NO || !c || c == &b->ask || c->state != CHANNEL_OPEN ||
        tag.generation != c->generation || tag.number == 0)
        return 1;
    wire_put_settle(&b->wire, c->number, id, tag.number, flags);
    c->is_uncommitted = b->is_uncommitted = true;
    if (id != AMQP_BASIC_ACK_METHOD)
        channel_commit(b, c);
    written(b, c, len);
    return wire_pending(&b->wire) >= FLUSH_AT ? out_flush(b, f) : 0;
}

int broker_ack(struct broker *b, struct broker_tag tag, bool multiple, struct fault *f)
{
    return settle(b, tag, AMQP_BASIC_ACK_METHOD, multiple ? FLAG_MULTIPLE : 0, f);
}

int broker_requeue(struct broker *b, struct broker_tag tag, struct fault *f)
{
    return settle(b, tag, AMQP_BASIC_NACK_METHOD, NACK_REQUEUE, f);
}

int broker_reject(struct broker *b, struct broker_tag tag, struct fault *f)
{
    return settle(b, tag, AMQP_BASIC_REJECT_METHOD, 0, f);
}

int broker_flush(struct broker *b, struct fault *f)
{
    return out_flush(b, f);
}

int broker_tick(struct broker *b, struct fault *f)
{
    if (b->closing == CLOSE_DONE)
        return 0;
    close_step(b);
    if (wire_tick(&b->wire, f))
        return -1;
    if (b->closing != CLOSE_NO)
        return out_flush(b, f);
    for (size_t i = 0; i < b->n_queues; i++)
        if (channel_tick(b, &b->queues[i], f))
            return -1;
    if (channel_tick(b, &b->ask, f) || questions_tick(b, f))
        return -1;
    return out_flush(b, f);
}
