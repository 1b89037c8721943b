/* Publishing a message again, decoded or from its bytes, to a broker with arbitrary answers: the published
 * bytes are the message, without the fields that must not be published again, and it counts as published only
 * after the broker's confirm. The answers are available beforehand. Waiting takes no real time. */

#include "connection.h"
#include "field_maker.h"

#include "../../src/broker/publisher.c"

enum { CHANNEL = 1 };

/* The meaning of the broker's answers for the first message of a connection. */
struct answers {
    struct buf out;
    bool is_confirmed, is_returned;
    bool is_odd; /* another frame came: it must not be taken for a confirm */
};

static void settle_add(struct answers *a, struct byte_source *s, bool ack)
{
    struct buf payload = {0};
    uint8_t tag = take_byte(s) & 3;
    bool multiple = take_byte(s) & 1;

    buf_add_u32(&payload, ack ? AMQP_BASIC_ACK_METHOD : AMQP_BASIC_NACK_METHOD);
    buf_add_u64(&payload, tag);
    buf_add_char(&payload, multiple);
    frame_add(&a->out, AMQP_FRAME_METHOD, CHANNEL, buf_slice(&payload));
    buf_deinit(&payload);
    if (tag == 1 || multiple) /* the broker's last answer counts */
        a->is_confirmed = ack;
}

static void return_add(struct answers *a, struct byte_source *s)
{
    struct buf payload = {0};

    buf_add_u32(&payload, AMQP_BASIC_RETURN_METHOD);
    buf_add_u16(&payload, 312);
    short_add(&payload, SLICE("NO_ROUTE"));
    short_add(&payload, SLICE(""));
    short_add(&payload, take_slice(s));
    frame_add(&a->out, AMQP_FRAME_METHOD, CHANNEL, buf_slice(&payload));
    /* The message follows: no properties, no body. */
    frame_add(&a->out, AMQP_FRAME_HEADER, CHANNEL, SLICE("\0\x3C\0\0\0\0\0\0\0\0\0\0\0\0"));
    buf_deinit(&payload);
    a->is_returned = true;
}

static void answer_add(struct answers *a, struct byte_source *s)
{
    struct buf payload = {0};

    switch (take_byte(s) % 6) {
    case 0:
        settle_add(a, s, true);
        break;
    case 1:
        settle_add(a, s, false);
        break;
    case 2:
        return_add(a, s);
        break;
    case 3:
        frame_add(&a->out, AMQP_FRAME_HEARTBEAT, 0, (struct slice){0});
        break;
    case 4:
        buf_add_u32(&payload, AMQP_CONNECTION_BLOCKED_METHOD);
        short_add(&payload, take_slice(s));
        frame_add(&a->out, AMQP_FRAME_METHOD, 0, buf_slice(&payload));
        break;
    case 5:
        buf_add_slice(&a->out, take_slice(s));
        a->is_odd = true;
        break;
    }
    buf_deinit(&payload);
}

/* The message that was sent; NULL: it was incomplete. */
static struct message *published_read(struct slice sent)
{
    struct sent_frame frame;
    struct buf header = {0}, body = {0};

    if (!frame_take(&sent, &frame))
        return NULL;
    MUST(frame.type == AMQP_FRAME_METHOD && frame.channel == CHANNEL);
    MUST(slice_equal(frame.payload,
                     SLICE("\0\x3C\0\x28\0\0\0\1q\1"))); /* basic.publish to queue q, mandatory */
    if (!frame_take(&sent, &frame))
        return NULL;
    MUST(frame.type == AMQP_FRAME_HEADER && frame.channel == CHANNEL);
    buf_add_slice(&header, frame.payload);
    size_t len = (size_t)u32_at(header.data + 4) << 32 | u32_at(header.data + 8);
    while (body.len < len && frame_take(&sent, &frame)) {
        MUST(frame.type == AMQP_FRAME_BODY && frame.channel == CHANNEL && frame.payload.len);
        buf_add_slice(&body, frame.payload);
    }
    MUST(body.len <= len);
    struct message *m = NULL;
    if (body.len == len) {
        MUST(properties_decode(properties_of_payload(&header), &m) == 0);
        m->body = body.data;
        m->body_len = body.len;
    } else {
        buf_deinit(&body);
    }
    buf_deinit(&header);
    return m;
}

static void result_must_hold(int r, const struct fault *f, const struct answers *a)
{
    MUST(r < 0 ? fault_is_set(f) : !fault_is_set(f));
    if (a->is_odd)
        return;
    MUST(r == (!a->is_confirmed ? -1 : a->is_returned));
}

/* The same from the bytes of its content header. */
static int bytes_publish(struct publisher *p, const struct message *m, struct fault *f)
{
    struct buf header = {0};

    MUST(message_encode(&header, m, f) == 0);
    int r = publisher_send_raw(p, "", "q", properties_of_payload(&header),
                               (struct slice){m->body, m->body_len}, f);
    buf_deinit(&header);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct byte_source s = {data, data + size};
    struct answers a = {0};
    struct buf sent = {0};
    struct fault f = {0};
    int peer;
    bool from_bytes = take_byte(&s) & 1;

    now_ms = 1000000;
    for (int n = take_byte(&s) & 7; n; n--)
        answer_add(&a, &s);
    struct message *m = take_message(&s);
    m->body_len = take_number(&s, 2);
    m->body = m->body_len ? mem_zalloc(1, m->body_len) : NULL;
    for (size_t i = 0; i < m->body_len; i++)
        m->body[i] = (char)(i * 7);

    struct attempt *attempt = attempt_make(&peer);
    struct publisher *p = mem_zalloc(1, sizeof(*p));
    int fd = attempt->wire.fd;
    p->timeout_ms = 50;
    MUST(sender_attempt_take(attempt, &p->sender, &f) == 0);
    bytes_send(peer, buf_slice(&a.out));

    int r = from_bytes ? bytes_publish(p, m, &f) : publisher_send(p, "", "q", m, &f);
    result_must_hold(r, &f, &a);
    sent_read(peer, &sent);
    struct message *got = published_read(buf_slice(&sent));
    MUST(got || r < 0);
    if (got) {
        publishable_make(m, SLICE("guest"));
        MUST(properties_equal(m, got) &&
             tables_equal(m->headers, m->n_headers, got->headers, got->n_headers));
        MUST(m->body_len == got->body_len && (!m->body_len || !memcmp(m->body, got->body, m->body_len)));
    }
    publisher_close(p);
    close(fd);
    close(peer);
    message_free(m);
    message_free(got);
    buf_deinit(&a.out);
    buf_deinit(&sent);
    return 0;
}
