/* What the worker sends. Everything is appended to the output buffer in the order of the calls; acks stay
 * there until broker_flush (or 16 KiB of them, or the next time there is nothing to read), the rest goes out
 * at once. Worker's thread. */

#include "broker/internal.h"
#include "onceward/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char tag_prefix[] = "onceward.";

enum { FLAG_MULTIPLE = 1, NACK_REQUEUE = 2, REJECT_REQUEUE = 1, TAG_SIZE = 64 };

uint32_t consumer_of_tag(amqp_bytes_t tag)
{
    size_t prefix = sizeof(tag_prefix) - 1;
    const char *text = tag.bytes;
    uint64_t number = 0;

    if (tag.len <= prefix || memcmp(text, tag_prefix, prefix))
        return 0;
    for (size_t i = prefix; i < tag.len && text[i] != '.'; i++) {
        if (text[i] < '0' || text[i] > '9' || i == prefix + 10)
            return 0;
        number = number * 10 + (uint64_t)(text[i] - '0');
    }
    return number > UINT32_MAX ? 0 : (uint32_t)number;
}

/* In a buffer of the caller's.
 *
 * With a part that no other connection has ever had: a quorum queue knows a consumer by its tag and its
 * channel's process, and after a restart of the node the numbers of processes begin again. A consumer of
 * before with the same two, which the queue has not let go yet, would be taken for this one; then acks settle
 * the messages that the old one held, unseen. */
static amqp_bytes_t tag_of_consumer(const struct broker *b, uint32_t consumer, char text[TAG_SIZE])
{
    int len = snprintf(text, TAG_SIZE, "%s%u.%016" PRIx64, tag_prefix, consumer, b->unique);

    return (amqp_bytes_t){(size_t)len, text};
}

int broker_consume(struct broker *b, uint32_t consumer, int prefetch, struct fault *f)
{
    char text[TAG_SIZE];

    if (!broker_channel_is_open(b))
        return b->wire.is_lost ? wire_flush(&b->wire, f) : 0;
    uint16_t count = prefetch < 1 ? 1 : prefetch > UINT16_MAX ? UINT16_MAX : (uint16_t)prefetch;
    wire_put_method(&b->wire, CHANNEL_CONSUME, AMQP_BASIC_QOS_METHOD,
                    &(amqp_basic_qos_t){.prefetch_count = count});
    wire_put_method(&b->wire, CHANNEL_CONSUME, AMQP_BASIC_CONSUME_METHOD,
                    &(amqp_basic_consume_t){.queue = amqp_cstring_bytes(b->queue),
                                            .consumer_tag = tag_of_consumer(b, consumer, text)});
    return wire_flush(&b->wire, f);
}

int broker_cancel(struct broker *b, uint32_t consumer, struct fault *f)
{
    char text[TAG_SIZE];

    if (!broker_channel_is_open(b))
        return b->wire.is_lost ? wire_flush(&b->wire, f) : 0;
    wire_put_method(&b->wire, CHANNEL_CONSUME, AMQP_BASIC_CANCEL_METHOD,
                    &(amqp_basic_cancel_t){.consumer_tag = tag_of_consumer(b, consumer, text)});
    return wire_flush(&b->wire, f);
}

void questions_send(struct broker *b)
{
    amqp_bytes_t queue = amqp_cstring_bytes(b->queue);

    if (b->ask.state != CHANNEL_OPEN || b->closing != CLOSE_NO)
        return;
    /* The answer to that closes the channel, with everything asked behind it. */
    if (b->stream == STREAM_UNSURE && b->depth != DEPTH_ASKED) {
        amqp_table_entry_t offset = {amqp_cstring_bytes("x-stream-offset"), {.kind = AMQP_FIELD_KIND_UTF8}};

        offset.value.value.bytes = amqp_cstring_bytes("next");
        wire_put_method(&b->wire, CHANNEL_ASK, AMQP_BASIC_CONSUME_METHOD,
                        &(amqp_basic_consume_t){.queue = queue, .arguments = {1, &offset}});
        b->stream = STREAM_PROBED;
    }
    if (b->stream == STREAM_PROBED)
        return;
    if (b->depth == DEPTH_WANTED) {
        wire_put_method(&b->wire, CHANNEL_ASK, AMQP_QUEUE_DECLARE_METHOD,
                        &(amqp_queue_declare_t){.queue = queue, .passive = 1});
        b->depth = DEPTH_ASKED;
    }
    if (b->stream == STREAM_SUSPECTED) {
        wire_put_method(&b->wire, CHANNEL_ASK, AMQP_BASIC_GET_METHOD, &(amqp_basic_get_t){.queue = queue});
        b->stream = STREAM_ASKED;
    }
}

int broker_ask_depth(struct broker *b, struct fault *f)
{
    if (b->depth == DEPTH_IDLE) {
        b->depth = DEPTH_WANTED;
        questions_send(b);
    }
    return wire_flush(&b->wire, f);
}

static int settle(struct broker *b, struct broker_tag tag, amqp_method_number_t id, uint8_t flags,
                  struct fault *f)
{
    if (b->wire.is_lost)
        return wire_flush(&b->wire, f);
    if (!broker_channel_is_open(b) || tag.generation != b->consume.generation || tag.number == 0)
        return 1;
    wire_put_settle(&b->wire, CHANNEL_CONSUME, id, tag.number, flags);
    return wire_pending(&b->wire) >= FLUSH_AT ? wire_flush(&b->wire, f) : 0;
}

int broker_ack(struct broker *b, struct broker_tag tag, bool multiple, struct fault *f)
{
    return settle(b, tag, AMQP_BASIC_ACK_METHOD, multiple ? FLAG_MULTIPLE : 0, f);
}

int broker_return(struct broker *b, struct broker_tag tag, struct fault *f)
{
    return settle(b, tag, AMQP_BASIC_NACK_METHOD, NACK_REQUEUE, f);
}

int broker_reject(struct broker *b, struct broker_tag tag, struct fault *f)
{
    return settle(b, tag, AMQP_BASIC_REJECT_METHOD, 0, f);
}

int broker_flush(struct broker *b, struct fault *f)
{
    return wire_flush(&b->wire, f);
}

int broker_tick(struct broker *b, struct fault *f)
{
    close_step(b);
    if (wire_tick(&b->wire, f) || channel_tick(b, &b->consume, f))
        return -1;
    return channel_tick(b, &b->ask, f);
}

void connection_close(struct broker *b)
{
    wire_put_method(&b->wire, 0, AMQP_CONNECTION_CLOSE_METHOD,
                    &(amqp_connection_close_t){.reply_code = AMQP_REPLY_SUCCESS,
                                               .reply_text = amqp_cstring_bytes("bye")});
    b->closing = CLOSE_SENT;
}

void close_step(struct broker *b)
{
    if (b->closing != CLOSE_LINGERING || wire_pending(&b->wire) || clock_ms() < b->wire.sent_ms + LINGER_MS)
        return;
    wire_put_method(
        &b->wire, CHANNEL_CONSUME, AMQP_CHANNEL_CLOSE_METHOD,
        &(amqp_channel_close_t){.reply_code = AMQP_REPLY_SUCCESS, .reply_text = amqp_cstring_bytes("bye")});
    b->closing = CLOSE_CHANNEL_SENT;
}

int broker_close(struct broker *b, struct fault *f)
{
    if (b->closing == CLOSE_NO && !b->wire.is_lost) {
        if (b->consume.state == CHANNEL_OPENING)
            connection_close(b);
        else
            b->closing = b->consume.state == CHANNEL_OPEN ? CLOSE_LINGERING : CLOSE_CHANNEL_SENT;
    }
    if (wire_flush(&b->wire, f))
        return -1;
    close_step(b);
    return wire_flush(&b->wire, f);
}
