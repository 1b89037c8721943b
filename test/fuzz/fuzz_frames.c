/* What a broker may send, and in which pieces: the adapter's own assembly of frames, driven through a pair of
 * sockets without a login. The input is a script of frames and of the worker's calls. It is played twice,
 * once with every frame in one piece and once in pieces of a few bytes: both must give the same events and
 * the same answers to the broker. What is delivered is what was published, can be forwarded, stored and
 * published again; and the connection ends with a reason or goes on. */

#include "connection.h"

#include "broker/internal.h"
#include "field_maker.h"
#include "onceward/broker/broker.h"

enum { ROOM = 3000, STEPS_MAX = 64 };

struct play {
    struct broker *b;
    int peer;
    bool in_pieces, is_lost;
    size_t n_pieces;
    uint64_t first_generation;
    struct broker_tag last;
    struct buf events, sent;
    /* A well-formed delivery that must come out, as nothing stands in its way. */
    struct message *expected;
    uint64_t expected_tag;
};

/* --- what comes out --- */

static void delivery_must_hold(struct play *p, const struct broker_event *ev)
{
    const struct message *m = ev->message, *expected = p->expected;

    MUST(m && m->body_len == ev->body_len && ev->body_len <= ROOM && !m->body == !m->body_len);
    MUST(ev->tag.generation);
    buf_printf(&p->events, " %zu ", m->body_len);
    buf_add(&p->events, m->body, m->body_len);
    properties_to_json(&p->events, m);
    fields_to_json(&p->events, m->headers, m->n_headers, true);
    if (expected && ev->tag.number == p->expected_tag) {
        MUST(properties_equal(expected, m));
        MUST(tables_equal(expected->headers, expected->n_headers, m->headers, m->n_headers));
        MUST(slice_equal(expected->exchange, m->exchange) &&
             slice_equal(expected->routing_key, m->routing_key));
        MUST(expected->redelivered == m->redelivered && expected->body_len == m->body_len);
        MUST(!m->body_len || !memcmp(expected->body, m->body, m->body_len));
        message_free(p->expected);
        p->expected = NULL;
    }
    message_must_be_forwarded(m);
    struct message *back = message_from_letter(m);
    message_must_be_published(back);
    message_free(back);
}

static void event_must_hold(struct play *p, struct broker_event *ev)
{
    if (ev->kind == BROKER_CHANNEL_OPEN && !p->first_generation)
        p->first_generation = ev->tag.generation;
    if (ev->tag.generation) {
        MUST(ev->tag.generation >= p->first_generation);
        p->last = ev->tag;
    }
    buf_printf(&p->events, "\n%d %llu %llu %u %llu %lld %lld %s", ev->kind,
               (unsigned long long)(ev->tag.generation ? ev->tag.generation - p->first_generation : 0),
               (unsigned long long)ev->tag.number, ev->consumer, (unsigned long long)ev->body_len,
               (long long)ev->delivery_count, (long long)ev->depth, ev->fault.text);
    MUST((ev->kind == BROKER_DELIVERY) == (ev->message != NULL));
    if (ev->kind == BROKER_DELIVERY)
        delivery_must_hold(p, ev);
    if (ev->kind == BROKER_DRAINED)
        MUST(ev->n_bytes && ev->tag.generation);
    if (ev->kind == BROKER_CHANNEL_LOST)
        MUST(fault_is_set(&ev->fault) && !broker_channel_is_open(p->b));
    message_free(ev->message);
}

static void held_must_hold(const struct broker *b)
{
    size_t n_bytes = 0;

    for (const struct queued_event *e = b->held.first; e; e = e->next)
        if (e->event.kind == BROKER_DELIVERY)
            n_bytes += e->event.n_bytes;
    MUST(b->n_held_bytes == n_bytes);
    MUST(!b->held.first || is_holding(b));
    MUST(b->consume.content.state != CONTENT_BODY || b->consume.content.n_left > 0);
}

/* 0, or -1: lost, with a reason. */
static int answer_of(struct play *p, int r, const struct fault *f)
{
    MUST(r < 0 ? p->b->wire.is_lost && fault_is_set(f) : !p->b->wire.is_lost);
    if (r < 0) {
        MUST(broker_fd(p->b) == -1 && !broker_channel_is_open(p->b));
        p->is_lost = true;
    }
    return r;
}

static void events_take(struct play *p)
{
    struct broker_event ev;
    struct fault f = {0};
    int unread = 0;

    while (!p->is_lost) {
        if (answer_of(p, broker_next(p->b, (struct broker_room){ROOM, SIZE_MAX}, &ev, &f), &f) < 0)
            return;
        held_must_hold(p->b);
        if (ev.kind != BROKER_NOTHING)
            event_must_hold(p, &ev);
        else if (p->in_pieces || (ioctl(p->b->wire.fd, FIONREAD, &unread) == 0 && !unread))
            break; /* many frames are not read in one go */
    }
}

/* --- what the broker sends --- */

static void feed(struct play *p, struct slice s)
{
    for (size_t i = 0, len; i < s.len && !p->is_lost; i += len) {
        len = p->in_pieces ? 1 + p->n_pieces++ * 5 % 11 : s.len;
        if (len > s.len - i)
            len = s.len - i;
        bytes_send(p->peer, (struct slice){s.data + i, len});
        events_take(p);
    }
    sent_read(p->peer, &p->sent);
}

static void method_add(struct buf *out, uint16_t channel, uint32_t id, struct slice arguments)
{
    struct buf payload = {0};

    buf_add_u32(&payload, id);
    buf_add_slice(&payload, arguments);
    frame_add(out, AMQP_FRAME_METHOD, channel, buf_slice(&payload));
    buf_deinit(&payload);
}

static uint32_t method_id(uint8_t at)
{
    static const uint32_t ids[] = {
        AMQP_BASIC_DELIVER_METHOD,
        AMQP_BASIC_CONSUME_OK_METHOD,
        AMQP_BASIC_CANCEL_OK_METHOD,
        AMQP_BASIC_CANCEL_METHOD,
        AMQP_BASIC_QOS_OK_METHOD,
        AMQP_QUEUE_DECLARE_OK_METHOD,
        AMQP_BASIC_GET_OK_METHOD,
        AMQP_BASIC_GET_EMPTY_METHOD,
        AMQP_CHANNEL_CLOSE_METHOD,
        AMQP_CHANNEL_CLOSE_OK_METHOD,
        AMQP_CHANNEL_OPEN_OK_METHOD,
        AMQP_CHANNEL_FLOW_METHOD,
        AMQP_CONNECTION_CLOSE_METHOD,
        AMQP_CONNECTION_CLOSE_OK_METHOD,
        AMQP_CONNECTION_BLOCKED_METHOD,
        AMQP_CONNECTION_UNBLOCKED_METHOD,
        AMQP_CONNECTION_START_METHOD,
        AMQP_BASIC_RETURN_METHOD,
        AMQP_BASIC_ACK_METHOD,
        AMQP_CONNECTION_TUNE_METHOD,
        0x00FF00FF,
    };

    return ids[at % (sizeof(ids) / sizeof(ids[0]))];
}

/* A method whose fields have the right form. */
static void formed_method_add(struct buf *out, struct byte_source *s)
{
    struct buf a = {0};
    uint32_t id = method_id(take_byte(s));
    uint8_t value = take_byte(s);
    uint16_t channel = 1;
    char tag[16];

    snprintf(tag, sizeof(tag), value & 0x80 ? "other.%u" : "onceward.%u", value & 7);
    switch (id) {
    case AMQP_BASIC_CONSUME_OK_METHOD:
    case AMQP_BASIC_CANCEL_OK_METHOD:
        short_add(&a, slice_of(tag));
        break;
    case AMQP_BASIC_CANCEL_METHOD:
        short_add(&a, slice_of(tag));
        buf_add_char(&a, 1);
        break;
    case AMQP_QUEUE_DECLARE_OK_METHOD:
        channel = 2;
        short_add(&a, SLICE("q"));
        buf_add_u32(&a, value);
        buf_add_u32(&a, 0);
        break;
    case AMQP_BASIC_GET_OK_METHOD:
        channel = 2;
        buf_add_u64(&a, value);
        buf_add_char(&a, 0);
        short_add(&a, SLICE(""));
        short_add(&a, SLICE("q"));
        buf_add_u32(&a, 0);
        break;
    case AMQP_BASIC_GET_EMPTY_METHOD:
        channel = 2;
        short_add(&a, SLICE(""));
        break;
    case AMQP_CONNECTION_CLOSE_METHOD:
        channel = 0; /* fall through */
    case AMQP_CHANNEL_CLOSE_METHOD:
        buf_add_u16(&a, value & 1 ? 540 : 404);
        short_add(&a, take_slice(s));
        buf_add_u32(&a, 0);
        channel += channel && (value & 2);
        break;
    case AMQP_CHANNEL_OPEN_OK_METHOD:
        buf_add_u32(&a, 0); /* fall through */
    case AMQP_CHANNEL_CLOSE_OK_METHOD:
        channel = value & 1 ? 2 : 1;
        break;
    case AMQP_CHANNEL_FLOW_METHOD:
        buf_add_char(&a, value & 1);
        break;
    case AMQP_CONNECTION_BLOCKED_METHOD:
        short_add(&a, take_slice(s)); /* fall through */
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
    case AMQP_CONNECTION_CLOSE_OK_METHOD:
        channel = 0;
        break;
    default:
        buf_add_slice(&a, take_slice(s));
    }
    method_add(out, channel, id, buf_slice(&a));
    buf_deinit(&a);
}

static void deliver_add(struct buf *out, const struct message *m, uint64_t tag)
{
    struct buf a = {0};

    short_add(&a, SLICE("onceward.1"));
    buf_add_u64(&a, tag);
    buf_add_char(&a, m->redelivered);
    short_add(&a, m->exchange);
    short_add(&a, m->routing_key);
    method_add(out, CHANNEL_CONSUME, AMQP_BASIC_DELIVER_METHOD, buf_slice(&a));
    buf_deinit(&a);
}

static void content_add(struct buf *out, const struct message *m, size_t part)
{
    struct buf header = {0};
    struct fault f = {0};

    MUST(message_encode(&header, m, &f) == 0);
    frame_add(out, AMQP_FRAME_HEADER, CHANNEL_CONSUME, buf_slice(&header));
    for (size_t at = 0; at < m->body_len; at += part)
        frame_add(out, AMQP_FRAME_BODY, CHANNEL_CONSUME,
                  (struct slice){m->body + at, m->body_len - at < part ? m->body_len - at : part});
    buf_deinit(&header);
}

/* A whole delivery. It must come out when the channel waits for one. */
static void delivery_feed(struct play *p, struct byte_source *s)
{
    struct message *m = take_message(s);
    struct broker *b = p->b;
    struct buf out = {0};
    uint64_t tag = 1 + take_number(s, 2);
    size_t part = 1 + take_byte(s) * 16u;

    m->body_len = take_number(s, 2) % (ROOM + 1);
    m->body = m->body_len ? mem_zalloc(1, m->body_len) : NULL;
    for (size_t i = 0; i < m->body_len; i++)
        m->body[i] = (char)(i * 7 + tag);
    deliver_add(&out, m, tag);
    content_add(&out, m, part);
    bool must_come = b->consume.state == CHANNEL_OPEN && b->consume.content.state == CONTENT_NONE &&
                     b->closing == CLOSE_NO && !is_holding(b) && !p->is_lost &&
                     b->wire.in.len == b->wire.n_read &&
                     !(b->stream == STREAM_UNSUSPECTED && message_header(m, SLICE("x-stream-offset")));
    if (must_come) {
        message_free(p->expected);
        p->expected = m;
        p->expected_tag = tag;
    }
    feed(p, buf_slice(&out));
    MUST(!must_come || !p->expected); /* it came */
    if (!must_come)
        message_free(m);
    buf_deinit(&out);
}

static void raw_header_add(struct buf *out, struct byte_source *s)
{
    struct buf payload = {0};
    uint8_t how = take_byte(s);

    buf_add_u16(&payload, how & 0x80 ? 10 : 60);
    buf_add_u16(&payload, 0);
    buf_add_u64(&payload, take_number(s, how & 0x40 ? 8 : 1));
    buf_add_slice(&payload, take_slice(s));
    buf_add_slice(&payload, take_slice(s));
    frame_add(out, AMQP_FRAME_HEADER, 1 + (how & 1), buf_slice(&payload));
    buf_deinit(&payload);
}

/* Of any type. One that is too short for its kind must not reach the library. */
static void raw_frame_feed(struct play *p, struct byte_source *s)
{
    struct buf out = {0};
    uint8_t how = take_byte(s), type = how >> 2;
    struct slice payload = take_slice(s);
    bool is_short =
        (type == AMQP_FRAME_METHOD && payload.len < 4) || (type == AMQP_FRAME_HEADER && payload.len < 14);
    bool is_next = p->b->wire.in.len == p->b->wire.n_read;

    frame_add(&out, type, how & 3, payload);
    feed(p, buf_slice(&out));
    MUST(p->is_lost || !is_short || !is_next);
    buf_deinit(&out);
}

/* --- what the worker does --- */

static void call(struct play *p, struct byte_source *s)
{
    struct broker *b = p->b;
    struct fault f = {0};
    uint8_t what = take_byte(s), value = take_byte(s);
    struct broker_tag tag = p->last;
    int r = 0;

    if (value & 0x80)
        tag.generation--;
    bool is_old = tag.generation != b->consume.generation || !tag.number || !broker_channel_is_open(b);
    switch (what % 10) {
    case 0:
        r = broker_ack(b, tag, value & 1, &f);
        break;
    case 1:
        r = broker_return(b, tag, &f);
        break;
    case 2:
        r = broker_reject(b, tag, &f);
        break;
    case 3:
        r = broker_consume(b, value, value, &f);
        break;
    case 4:
        r = broker_cancel(b, value, &f);
        break;
    case 5:
        r = broker_ask_depth(b, &f);
        break;
    case 6:
        broker_reopen(b, "for a reason");
        break;
    case 7:
        r = broker_close(b, &f);
        break;
    case 8:
        now_ms += value * 10;
        r = broker_tick(b, &f);
        break;
    case 9:
        if (value & 0x40)
            broker_ask_stream(b, value & 1);
        r = broker_flush(b, &f);
        break;
    }
    MUST(what % 10 > 2 || r < 0 || (r == 1) == is_old);
    answer_of(p, r, &f);
    events_take(p);
}

static void step(struct play *p, struct byte_source *s)
{
    struct buf out = {0};
    uint8_t type;

    switch (take_byte(s) % 8) {
    case 0:
        type = take_byte(s);
        method_add(&out, type & 3, method_id(type >> 2), take_slice(s));
        break;
    case 1:
        formed_method_add(&out, s);
        break;
    case 2:
        raw_header_add(&out, s);
        break;
    case 3:
        type = take_byte(s);
        frame_add(&out, AMQP_FRAME_BODY, 1 + (type & 1), take_slice(s));
        break;
    case 4:
        delivery_feed(p, s);
        break;
    case 5:
        raw_frame_feed(p, s);
        break;
    case 6:
        call(p, s);
        break;
    case 7:
        buf_add_slice(&out, take_slice(s));
        break;
    }
    feed(p, buf_slice(&out));
    buf_deinit(&out);
}

/* --- the play --- */

/* Everything sent is whole frames on our three channels, nothing behind connection.close-ok. */
static void sent_must_hold(const struct play *p, bool ended)
{
    struct slice rest = buf_slice(&p->sent);
    struct sent_frame frame;
    bool is_over = false;

    while (frame_take(&rest, &frame)) {
        MUST(!is_over && frame.channel <= 2);
        MUST(frame.type == AMQP_FRAME_METHOD || frame.type == AMQP_FRAME_HEARTBEAT);
        if (frame.type == AMQP_FRAME_METHOD) {
            MUST(frame.payload.len >= 4);
            is_over = u32_at(frame.payload.data) == AMQP_CONNECTION_CLOSE_OK_METHOD && p->is_lost;
        } else {
            MUST(frame.payload.len == 0 && frame.channel == 0);
        }
    }
    MUST(!ended || rest.len == 0);
}

static void play(struct play *p, const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct fault f = {0};

    now_ms = 1000000;
    MUST(broker_attempt_take(attempt_make(&p->peer), &p->b, &f) == 0);
    events_take(p);
    for (int n = 0; s.at < s.end && n < STEPS_MAX && !p->is_lost; n++)
        step(p, &s);
    bool lost = p->is_lost;
    int fd = p->b->wire.fd;
    broker_free(p->b);
    sent_read(p->peer, &p->sent);
    sent_must_hold(p, !lost);
    close(fd);
    close(p->peer);
    message_free(p->expected);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct play whole = {0}, pieces = {.in_pieces = true};

    play(&whole, data, size);
    play(&pieces, data, size);
    MUST(slice_equal(buf_slice(&whole.events), buf_slice(&pieces.events)));
    MUST(whole.is_lost == pieces.is_lost);
    /* What was answered to a frame before the one that broke the connection may have gone out already. */
    MUST(whole.is_lost ? whole.sent.len <= pieces.sent.len : whole.sent.len == pieces.sent.len);
    MUST(!whole.sent.len || !memcmp(whole.sent.data, pieces.sent.data, whole.sent.len));
    buf_deinit(&whole.events);
    buf_deinit(&whole.sent);
    buf_deinit(&pieces.events);
    buf_deinit(&pieces.sent);
    return 0;
}
