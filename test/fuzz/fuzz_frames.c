/* Any frames from a broker, in any pieces: the adapter assembles frames for three queues, through a socket
 * pair without a login. The input is a script of frames and of the caller's calls. It runs twice, once with
 * each frame in one piece and once in pieces of a few bytes: both runs must have the same events and the same
 * answers to the broker. A delivery equals the published message, and can be forwarded, stored and published
 * again. The connection ends with a reason, or continues. */

#include "connection.h"

#include "broker/internal.h"
#include "field_maker.h"
#include "onceward/broker/broker.h"

enum { ROOM = 3000, URGENT_ROOM = 6000, STEPS_MAX = 64 };

struct play {
    struct broker *b;
    int peer;
    bool in_pieces, is_lost;
    size_t n_pieces;
    uint64_t first_generation;
    struct broker_tag last;
    struct buf events, sent;
    /* A well-formed delivery that must be returned, since nothing prevents it. */
    struct message *expected;
    uint64_t expected_tag;
};

/* --- output --- */

static void delivery_must_hold(struct play *p, const struct broker_event *ev)
{
    const struct message *m = ev->message, *expected = p->expected;

    MUST(m && m->body_len == ev->copy.body_len && ev->copy.body_len <= URGENT_ROOM &&
         !m->body == !m->body_len);
    MUST(ev->copy.tag.generation);
    buf_printf(&p->events, " %zu ", m->body_len);
    buf_add(&p->events, m->body, m->body_len);
    properties_to_json(&p->events, m);
    fields_to_json(&p->events, m->headers, m->n_headers, true);
    if (expected && ev->copy.tag.number == p->expected_tag) {
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

/* The number of openings since the first one of the run, and the channel's number. */
static unsigned long long generation_number(const struct play *p, uint64_t generation)
{
    return generation ? (((generation >> 16) - (p->first_generation >> 16)) << 16) + (generation & 0xFFFF)
                      : 0;
}

static void event_must_hold(struct play *p, struct broker_event *ev)
{
    if (ev->kind == BROKER_CHANNEL_OPEN && !p->first_generation)
        p->first_generation = ev->copy.tag.generation;
    if (ev->copy.tag.generation) {
        MUST(ev->copy.tag.generation >= p->first_generation);
        p->last = ev->copy.tag;
    }
    buf_printf(&p->events, "\n%d %u %llu %llu %u %llu %lld %lld %d %d %s", ev->kind, ev->queue,
               generation_number(p, ev->copy.tag.generation), (unsigned long long)ev->copy.tag.number,
               ev->copy.consumer, (unsigned long long)ev->copy.body_len, (long long)ev->copy.delivery_count,
               (long long)ev->depth, ev->queue_kind, ev->reason, ev->fault.text);
    MUST((ev->kind == BROKER_DELIVERY) == (ev->message != NULL));
    if (ev->kind == BROKER_DELIVERY)
        delivery_must_hold(p, ev);
    if (ev->kind == BROKER_SKIPPED)
        MUST(ev->copy.n_bytes && ev->copy.tag.generation);
    if (ev->kind == BROKER_DELIVERY || ev->kind == BROKER_SKIPPED) /* an event with a count has the queue's
                                                                      kind */
        MUST(!ev->copy.delivery_count || ev->queue_kind != BROKER_KIND_UNKNOWN);
    if (ev->kind == BROKER_CHANNEL_LOST)
        MUST(fault_is_set(&ev->fault) && ev->reason != BROKER_REASON_NONE);
    if (ev->kind == BROKER_DEPTH && ev->depth < 0)
        MUST(fault_is_set(&ev->fault) && ev->reason != BROKER_REASON_NONE);
    if (ev->kind == BROKER_KIND)
        MUST(ev->queue_kind != BROKER_KIND_UNKNOWN);
    message_free(ev->message);
}

static void channel_must_hold(const struct broker *b, const struct channel *c)
{
    size_t n_bytes = 0;

    for (const struct queued_event *e = c->held.first; e; e = e->next)
        if (e->event.kind == BROKER_DELIVERY)
            n_bytes += e->event.copy.n_bytes;
    MUST(c->n_held_bytes == n_bytes);
    MUST(!c->held.first || c->kind_asked != QUESTION_NONE);
    MUST(c->content.state != CONTENT_BODY || c->content.n_left > 0);
    MUST(b->numbers[c->number].user == c && !b->numbers[c->number].given_up_for);
    MUST(c != &b->ask || (c->content.state == CONTENT_NONE && !c->held.first));
}

static void all_must_hold(const struct broker *b)
{
    size_t n_wanted = 0, n_users = 0, n_unanswered = 0;

    for (size_t i = 0; i < b->n_queues; i++) {
        const struct channel *c = &b->queues[i];

        channel_must_hold(b, c);
        n_wanted += (c->depth == QUESTION_WANTED) + (c->kind_asked == QUESTION_WANTED);
        n_unanswered += c->n_unanswered;
    }
    channel_must_hold(b, &b->ask);
    MUST(b->n_wanted == n_wanted && b->n_asked <= b->n_queues + 1);
    for (size_t i = 0; i + 1 < b->n_asked; i++)
        MUST(!b->asked[i].is_kind);
    for (size_t i = 0; i < b->n_numbers; i++) {
        n_users += b->numbers[i].user != NULL;
        n_unanswered -= b->numbers[i].given_up_for && b->numbers[i].over_question;
    }
    MUST(n_users == b->n_queues + 1 && n_unanswered == 0);
}

/* 0, or -1: lost, with a reason. */
static int answer_of(struct play *p, int r, const struct fault *f)
{
    MUST(r < 0 ? p->b->wire.is_lost && fault_is_set(f) : !p->b->wire.is_lost);
    if (r < 0) {
        MUST(broker_fd(p->b) == -1 && !broker_channel_is_open(p->b, 5));
        p->is_lost = true;
    }
    return r;
}

static struct broker_room room_of(void *play, uint32_t queue, bool redelivered)
{
    (void)play;
    (void)redelivered;
    MUST(queue == 1 || queue == 5 || queue == 9);
    return (struct broker_room){ROOM, SIZE_MAX, 3, URGENT_ROOM};
}

static void events_take(struct play *p)
{
    struct broker_event ev;
    struct fault f = {0};
    int unread = 0;

    while (!p->is_lost) {
        if (answer_of(p, broker_next(p->b, room_of, p, &ev, &f), &f) < 0)
            return;
        all_must_hold(p->b);
        if (ev.kind != BROKER_NOTHING)
            event_must_hold(p, &ev);
        else if (p->in_pieces || (ioctl(p->b->wire.fd, FIONREAD, &unread) == 0 && !unread))
            break; /* many frames take several passes */
    }
}

/* --- input from the broker --- */

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
        AMQP_TX_SELECT_OK_METHOD,
        AMQP_TX_COMMIT_OK_METHOD,
        AMQP_CONNECTION_TUNE_METHOD,
        0x00FF00FF,
    };

    return ids[at % (sizeof(ids) / sizeof(ids[0]))];
}

/* The text of the broker's channel.close. */
static void close_text_add(struct buf *out, uint8_t value, struct byte_source *s)
{
    static const char *const said[] = {
        "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type "
        "rabbit_classic_queue",
        "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type "
        "rabbit_quorum_queue",
        "PRECONDITION_FAILED - consumer prefetch count is not set for 'queue 'q' in vhost '/''",
    };

    if ((value >> 4 & 3) < 3 && value & 1)
        short_add(out, slice_of(said[value >> 4 & 3]));
    else
        short_add(out, take_slice(s));
}

/* A method with well-formed fields. */
static void formed_method_add(const struct play *p, struct buf *out, struct byte_source *s)
{
    struct buf a = {0};
    uint32_t id = method_id(take_byte(s));
    uint8_t value = take_byte(s);
    uint16_t queue_channel = 1 + (value >> 4 & 7) % TEST_CHANNEL_MAX, ask = p->b->ask.number;
    uint16_t channel = queue_channel;
    char tag[16];

    snprintf(tag, sizeof(tag), value & 0x80 ? "other.%u" : "onceward.%u", value & 7);
    switch (id) {
    case AMQP_BASIC_CONSUME_OK_METHOD:
    case AMQP_BASIC_CANCEL_OK_METHOD:
        short_add(&a, slice_of(tag));
        channel = value & 8 ? ask : queue_channel;
        break;
    case AMQP_BASIC_CANCEL_METHOD:
        short_add(&a, slice_of(tag));
        buf_add_char(&a, 1);
        break;
    case AMQP_QUEUE_DECLARE_OK_METHOD:
        channel = ask;
        short_add(&a, SLICE("q"));
        buf_add_u32(&a, value);
        buf_add_u32(&a, 0);
        break;
    case AMQP_BASIC_GET_OK_METHOD:
        channel = ask;
        buf_add_u64(&a, value);
        buf_add_char(&a, 0);
        short_add(&a, SLICE(""));
        short_add(&a, SLICE("q"));
        buf_add_u32(&a, 0);
        break;
    case AMQP_BASIC_GET_EMPTY_METHOD:
        channel = ask;
        short_add(&a, SLICE(""));
        break;
    case AMQP_CONNECTION_CLOSE_METHOD:
    case AMQP_CHANNEL_CLOSE_METHOD:
        channel = id == AMQP_CONNECTION_CLOSE_METHOD ? 0 : value & 8 ? ask : queue_channel;
        buf_add_u16(&a, value & 1 ? 406 : value & 2 ? 403 : 404);
        close_text_add(&a, value, s);
        buf_add_u32(&a, 0);
        break;
    case AMQP_CHANNEL_OPEN_OK_METHOD:
        buf_add_u32(&a, 0); /* fall through */
    case AMQP_CHANNEL_CLOSE_OK_METHOD:
        channel = value & 8 ? ask : queue_channel;
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

static void deliver_add(struct buf *out, uint16_t channel, const struct message *m, uint64_t tag)
{
    struct buf a = {0};

    short_add(&a, SLICE("onceward.1"));
    buf_add_u64(&a, tag);
    buf_add_char(&a, m->redelivered);
    short_add(&a, m->exchange);
    short_add(&a, m->routing_key);
    method_add(out, channel, AMQP_BASIC_DELIVER_METHOD, buf_slice(&a));
    buf_deinit(&a);
}

static void content_add(struct buf *out, uint16_t channel, const struct message *m, size_t part)
{
    struct buf header = {0};
    struct fault f = {0};

    MUST(message_encode(&header, m, &f) == 0);
    frame_add(out, AMQP_FRAME_HEADER, channel, buf_slice(&header));
    for (size_t at = 0; at < m->body_len; at += part)
        frame_add(out, AMQP_FRAME_BODY, channel,
                  (struct slice){m->body + at, m->body_len - at < part ? m->body_len - at : part});
    buf_deinit(&header);
}

/* Does only the queue's kind explain the message? */
static bool is_doubtful(const struct message *m)
{
    return message_header(m, SLICE("x-stream-offset")) ||
           (m->redelivered && message_header(m, SLICE("x-delivery-count")));
}

/* Replaces a field's name by one with a meaning. */
static void header_rename(struct message *m, uint8_t how)
{
    if (m->n_headers && how & 0x10)
        m->headers[0].name = how & 0x20 ? SLICE("x-stream-offset") : SLICE("x-delivery-count");
}

/* A complete delivery. It must be returned if the channel expects one. */
static void delivery_feed(struct play *p, struct byte_source *s)
{
    struct message *m = take_message(s);
    struct broker *b = p->b;
    struct buf out = {0};
    uint64_t tag = 1 + take_number(s, 2);
    uint8_t how = take_byte(s);
    const struct channel *c = &b->queues[(how & 3) % N_TEST_QUEUES];
    size_t part = 1 + (how >> 2) * 64u;

    header_rename(m, how);
    m->body_len = take_number(s, 2) % (ROOM + 1);
    m->body = m->body_len ? mem_zalloc(1, m->body_len) : NULL;
    for (size_t i = 0; i < m->body_len; i++)
        m->body[i] = (char)(i * 7 + tag);
    deliver_add(&out, c->number, m, tag);
    content_add(&out, c->number, m, part);
    bool must_come = c->state == CHANNEL_OPEN && c->content.state == CONTENT_NONE && b->closing == CLOSE_NO &&
                     c->kind_asked == QUESTION_NONE && !p->is_lost && b->wire.in.len == b->wire.n_read &&
                     !is_doubtful(m);
    if (must_come) {
        message_free(p->expected);
        p->expected = m;
        p->expected_tag = tag;
    }
    feed(p, buf_slice(&out));
    MUST(!must_come || !p->expected); /* returned before */
    if (!must_come)
        message_free(m);
    buf_deinit(&out);
}

/* Two deliveries with alternating frames, as from two channels. */
static void mixed_feed(struct play *p, struct byte_source *s)
{
    struct message *m = take_message(s);
    struct buf out = {0}, whole[2] = {{0}, {0}};
    uint8_t how = take_byte(s);
    const uint16_t channels[2] = {p->b->queues[how & 1].number, p->b->queues[2].number};

    m->body_len = take_byte(s);
    m->body = m->body_len ? mem_zalloc(1, m->body_len) : NULL;
    for (int i = 0; i < 2; i++) {
        deliver_add(&whole[i], channels[i], m, 1 + (how >> 4));
        content_add(&whole[i], channels[i], m, 100);
    }
    struct slice rest[2] = {buf_slice(&whole[0]), buf_slice(&whole[1])};
    struct sent_frame frame;
    for (int i = 0; rest[0].len || rest[1].len; i = !i)
        if (frame_take(&rest[i], &frame))
            frame_add(&out, frame.type, frame.channel, frame.payload);
    feed(p, buf_slice(&out));
    message_free(m);
    buf_deinit(&whole[0]);
    buf_deinit(&whole[1]);
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
    frame_add(out, AMQP_FRAME_HEADER, 1 + (how & 3), buf_slice(&payload));
    buf_deinit(&payload);
}

/* A frame of any type. One that is too short for its type must not reach the library. */
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

/* --- calls --- */

static void call(struct play *p, struct byte_source *s)
{
    struct broker *b = p->b;
    struct fault f = {0};
    uint8_t what = take_byte(s), value = take_byte(s);
    struct broker_tag tag = p->last;
    int r = 0;

    uint32_t queue = 1 + 4 * ((what >> 4) % N_TEST_QUEUES);
    if (value & 0x80)
        tag.generation -= 1 << 16;
    const struct channel *c = channel_of_generation(b, tag.generation);
    bool is_old = !c || tag.generation != c->generation || !tag.number || c->state != CHANNEL_OPEN ||
                  b->closing != CLOSE_NO;
    switch (what % 10) {
    case 0:
        r = broker_ack(b, tag, value & 1, &f);
        break;
    case 1:
        r = broker_requeue(b, tag, &f);
        break;
    case 2:
        r = broker_reject(b, tag, &f);
        break;
    case 3:
        r = broker_consume(b, queue, value, value, &f);
        break;
    case 4:
        r = broker_cancel(b, queue, value, &f);
        break;
    case 5:
        r = value & 1 ? broker_ask_depth(b, queue, &f) : broker_ask_kind(b, queue, &f);
        break;
    case 6:
        broker_reopen(b, queue, "for a reason");
        break;
    case 7:
        r = broker_close(b, &f);
        break;
    case 8:
        now_ms += value * 30;
        r = broker_tick(b, &f);
        break;
    case 9:
        MUST(broker_can_write(b, queue, value) || value > 100 || broker_wants_write(b));
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

    switch (take_byte(s) % 9) {
    case 0:
        type = take_byte(s);
        method_add(&out, type & 7, method_id(type >> 3), take_slice(s));
        break;
    case 1:
        formed_method_add(p, &out, s);
        break;
    case 2:
        raw_header_add(&out, s);
        break;
    case 3:
        type = take_byte(s);
        frame_add(&out, AMQP_FRAME_BODY, 1 + (type & 3), take_slice(s));
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
    case 8:
        mixed_feed(p, s);
        break;
    }
    feed(p, buf_slice(&out));
    buf_deinit(&out);
}

/* --- the run --- */

/* Everything sent is complete frames on existing channels, and nothing follows connection.close-ok. */
static void sent_must_hold(const struct play *p, bool ended)
{
    struct slice rest = buf_slice(&p->sent);
    struct sent_frame frame;
    bool is_over = false;

    while (frame_take(&rest, &frame)) {
        MUST(!is_over && frame.channel <= TEST_CHANNEL_MAX);
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

/* Waits until all channels are open. */
static void channels_open(struct play *p)
{
    struct buf out = {0};

    for (uint16_t n = 1; n <= N_TEST_QUEUES + 1; n++)
        method_add(&out, n, AMQP_CHANNEL_OPEN_OK_METHOD, (struct slice){"\0\0\0\0", 4});
    feed(p, buf_slice(&out));
    MUST(p->b->ask.state == CHANNEL_OPEN && broker_channel_is_open(p->b, 9) && p->first_generation);
    buf_deinit(&out);
}

static void play(struct play *p, const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct fault f = {0};

    now_ms = 1000000;
    MUST(broker_attempt_take(attempt_make(&p->peer), &p->b, &f) == 0);
    events_take(p);
    channels_open(p);
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
    /* The answer to an earlier frame than the one that broke the connection may have been sent already. */
    MUST(whole.is_lost ? whole.sent.len <= pieces.sent.len : whole.sent.len == pieces.sent.len);
    MUST(!whole.sent.len || !memcmp(whole.sent.data, pieces.sent.data, whole.sent.len));
    buf_deinit(&whole.events);
    buf_deinit(&whole.sent);
    buf_deinit(&pieces.events);
    buf_deinit(&pieces.sent);
    return 0;
}
