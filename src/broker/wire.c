/* Frames in and out of one connection. wire.h has the reason why they bypass rabbitmq-c. One thread at a time. */

#include "broker/wire.h"

#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    METHOD_MAX = 2048,    /* our largest method: three short strings and an empty table */
    RECORD_MAX = 16384,   /* a TLS record */
    KEEP_MAX = 64 * 1024, /* memory kept for an empty buffer */
    FRAME_HEAD = 7,       /* type, channel, length */
    FRAME_AROUND = FRAME_HEAD + 1,
    RECEIVE_MIN = 16 * 1024, /* least room for one call */
    PAYLOAD_OF_METHOD = 4,   /* least size: the method's number */
    PAYLOAD_OF_HEADER = 14,  /* class, weight, body size, flags */
    PROPERTIES_AT = 12,      /* offset in the payload */
    POOL_PAGE = 4096,
    POOL_PAGES_MAX = 4, /* pages kept */
};

void wire_init(struct wire *w, amqp_connection_state_t connection, struct ssl_st *ssl)
{
    int heartbeat_s = amqp_get_heartbeat(connection);

    *w = (struct wire){.connection = connection, .ssl = ssl, .library_channel = -1};
    init_amqp_pool(&w->pool, POOL_PAGE);
    w->fd = amqp_get_sockfd(connection);
    w->frame_max = (size_t)amqp_get_frame_max(connection);
    w->heartbeat_ms = heartbeat_s * INT64_C(1000);
    w->sent_ms = w->received_ms = clock_ms();
    /* From here on the library sends no heartbeats, and closes nothing when heartbeats are missing. */
    amqp_tune_connection(connection, amqp_get_channel_max(connection), (int)w->frame_max, 0);
}

void wire_deinit(struct wire *w)
{
    if (w->connection) {
        amqp_destroy_connection(w->connection);
        empty_amqp_pool(&w->pool);
    }
    buf_deinit(&w->out);
    buf_deinit(&w->in);
    *w = (struct wire){.fd = -1, .is_lost = true};
}

size_t wire_pending(const struct wire *w)
{
    return w->out.len - w->n_sent;
}

void wire_put_method(struct wire *w, uint16_t channel, amqp_method_number_t id, void *decoded)
{
    char *frame = buf_reserve(&w->out, METHOD_MAX);
    int len = amqp_encode_method(id, decoded, (amqp_bytes_t){METHOD_MAX - 12, frame + 11});

    assert(len >= 0); /* the callers check the lengths */
    buf_add_char(&w->out, AMQP_FRAME_METHOD);
    buf_add_u16(&w->out, channel);
    buf_add_u32(&w->out, (uint32_t)len + 4);
    buf_add_u32(&w->out, id);
    w->out.len += (size_t)len;
    buf_add_char(&w->out, (char)AMQP_FRAME_END);
}

void wire_put_settle(struct wire *w, uint16_t channel, amqp_method_number_t id, uint64_t tag, uint8_t flags)
{
    buf_reserve(&w->out, 21);
    buf_add_char(&w->out, AMQP_FRAME_METHOD);
    buf_add_u16(&w->out, channel);
    buf_add_u32(&w->out, 13);
    buf_add_u32(&w->out, id);
    buf_add_u64(&w->out, tag);
    buf_add_char(&w->out, (char)flags);
    buf_add_char(&w->out, (char)AMQP_FRAME_END);
}

void wire_put_frame(struct wire *w, uint8_t type, uint16_t channel, struct slice payload)
{
    buf_add_char(&w->out, (char)type);
    buf_add_u16(&w->out, channel);
    buf_add_u32(&w->out, (uint32_t)payload.len);
    buf_add_slice(&w->out, payload);
    buf_add_char(&w->out, (char)AMQP_FRAME_END);
}

/* Number of bytes written; 0: the socket is full; -1: lost. */
static ssize_t write_some(struct wire *w, const char *data, size_t len, struct fault *f)
{
    if (!w->ssl) {
        ssize_t n = send(w->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
            return n < 0 ? 0 : n;
        return fault_set(f, "sending to the broker: %s", strerror(errno));
    }
    /* After WANT_WRITE, OpenSSL requires at least the same bytes again. The pending bytes only grow, so that holds. */
    ERR_clear_error();
    int n = SSL_write(w->ssl, data, (int)(len < RECORD_MAX ? len : RECORD_MAX));
    if (n > 0)
        return n;
    int error = SSL_get_error(w->ssl, n);
    if (error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ)
        return 0;
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return fault_set(f, "sending to the broker: %s",
                     reason  ? reason
                     : errno ? strerror(errno)
                             : "TLS failed");
}

int wire_flush(struct wire *w, struct fault *f)
{
    if (w->is_lost)
        return fault_set(f, "the connection to the broker is lost");
    bool sent = false;
    while (wire_pending(w)) {
        ssize_t n = write_some(w, w->out.data + w->n_sent, wire_pending(w), f);
        if (n < 0) {
            w->is_lost = true;
            return -1;
        }
        if (n == 0)
            break;
        w->n_sent += (size_t)n;
        sent = true;
    }
    if (sent)
        w->sent_ms = clock_ms();
    if (!wire_pending(w)) {
        if (w->out.cap > KEEP_MAX)
            buf_deinit(&w->out);
        buf_reset(&w->out);
        w->n_sent = 0;
    } else if (w->n_sent > w->out.len / 2) {
        memmove(w->out.data, w->out.data + w->n_sent, wire_pending(w));
        w->out.len -= w->n_sent;
        w->n_sent = 0;
    }
    return 0;
}

/* Length that the first frame announces; 0: not received yet. */
static size_t frame_announced(const struct wire *w)
{
    uint32_t len;

    if (w->in.len - w->n_read < FRAME_HEAD)
        return 0;
    memcpy(&len, w->in.data + w->n_read + 3, sizeof(len));
    return FRAME_AROUND + (size_t)be32toh(len);
}

/* Length of the first frame; 0: incomplete. */
static size_t frame_len(const struct wire *w)
{
    size_t len = frame_announced(w);

    return len <= w->in.len - w->n_read ? len : 0;
}

/* Has the library input in its buffer, which arrived with the login's answers? */
static bool library_has_input(const struct wire *w)
{
    return amqp_frames_enqueued(w->connection) || amqp_data_in_buffer(w->connection);
}

bool wire_has_input(const struct wire *w)
{
    return library_has_input(w) || frame_len(w);
}

/* Is there input? It also proves that the other side is alive. 1, 0, -1: lost. */
static int socket_has_input(struct wire *w, struct fault *f)
{
    char byte;

    if (w->ssl && SSL_has_pending(w->ssl))
        return 1;
    ssize_t n = recv(w->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) {
        w->received_ms = clock_ms();
        return 1;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    w->is_lost = true;
    return fault_set(f, "the connection to the broker was lost: %s",
                     n == 0 ? "the broker closed it" : strerror(errno));
}

/* Number of bytes received; 0: none now; -1: lost. */
static ssize_t read_some(struct wire *w, char *to, size_t room, struct fault *f)
{
    ssize_t n;

    if (!w->ssl) {
        n = recv(w->fd, to, room, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return 0;
        if (n > 0)
            return n;
        return fault_set(f, "the connection to the broker was lost: %s",
                         n == 0 ? "the broker closed it" : strerror(errno));
    }
    ERR_clear_error();
    n = SSL_read(w->ssl, to, (int)room);
    if (n > 0)
        return n;
    int error = SSL_get_error(w->ssl, (int)n), system = errno;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return 0;
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return fault_set(f, "the connection to the broker was lost: %s",
                     error == SSL_ERROR_ZERO_RETURN         ? "the broker closed it"
                     : reason                               ? reason
                     : error == SSL_ERROR_SYSCALL && system ? strerror(system)
                                                            : "the broker closed it");
}

/* 1: bytes received; 0: none now; -1: lost. */
static int receive(struct wire *w, struct fault *f)
{
    size_t rest = w->in.len - w->n_read;

    if (w->n_read) {
        memmove(w->in.data, w->in.data + w->n_read, rest);
        w->in.len = rest;
        w->n_read = 0;
    }
    size_t room = rest < w->frame_max ? w->frame_max - rest : 0;
    if (room < RECEIVE_MIN)
        room = RECEIVE_MIN;
    ssize_t n = read_some(w, buf_reserve(&w->in, room), room, f);
    if (n > 0) {
        w->in.len += (size_t)n;
        w->received_ms = clock_ms();
    }
    return n > 0 ? 1 : (int)n;
}

static int method_decode(struct wire *w, struct slice payload, amqp_frame_t *frame, struct fault *f)
{
    uint32_t id;

    if (payload.len < PAYLOAD_OF_METHOD)
        return fault_set(f, "the broker broke the protocol: a frame too short for its kind");
    memcpy(&id, payload.data, sizeof(id));
    frame->payload.method.id = be32toh(id);
    struct slice fields = {payload.data + sizeof(id), payload.len - sizeof(id)};
    int r = amqp_decode_method(frame->payload.method.id, &w->pool, bytes_of_slice(fields),
                               &frame->payload.method.decoded);
    return r < 0 ? fault_set(f, "receiving from the broker: %s", amqp_error_string2(r)) : 0;
}

static int header_decode(struct slice payload, amqp_frame_t *frame, struct fault *f)
{
    uint16_t class_id;
    uint64_t len;

    if (payload.len < PAYLOAD_OF_HEADER)
        return fault_set(f, "the broker broke the protocol: a frame too short for its kind");
    memcpy(&class_id, payload.data, sizeof(class_id));
    memcpy(&len, payload.data + 4, sizeof(len));
    frame->payload.properties.class_id = be16toh(class_id);
    frame->payload.properties.body_size = be64toh(len);
    frame->payload.properties.decoded = NULL;
    frame->payload.properties.raw =
        bytes_of_slice((struct slice){payload.data + PROPERTIES_AT, payload.len - PROPERTIES_AT});
    return 0;
}

/* Takes a complete frame from the front. 1: *frame is set; 0: an irrelevant frame; -1: not AMQP. */
static int frame_decode(struct wire *w, size_t len, amqp_frame_t *frame, struct fault *f)
{
    const char *data = w->in.data + w->n_read;
    struct slice payload = {data + FRAME_HEAD, len - FRAME_AROUND};
    uint16_t channel;

    w->n_read += len;
    if ((unsigned char)data[len - 1] != AMQP_FRAME_END)
        return fault_set(f, "the broker broke the protocol: a frame without its end");
    memcpy(&channel, data + 1, sizeof(channel));
    frame->frame_type = (uint8_t)*data;
    frame->channel = be16toh(channel);
    switch (frame->frame_type) {
    case AMQP_FRAME_METHOD:
        return method_decode(w, payload, frame, f) ? -1 : 1;
    case AMQP_FRAME_HEADER:
        return header_decode(payload, frame, f) ? -1 : 1;
    case AMQP_FRAME_BODY:
        frame->payload.body_fragment = bytes_of_slice(payload);
        return 1;
    case AMQP_FRAME_HEARTBEAT:
        return 0;
    default:
        return fault_set(f, "the broker broke the protocol: a frame of type %u", frame->frame_type);
    }
}

/* Like wire_read, from our own buffer and the socket. */
static int frame_read(struct wire *w, amqp_frame_t *frame, struct fault *f)
{
    for (;;) {
        size_t len = frame_len(w);
        int r;

        if (len) {
            r = frame_decode(w, len, frame, f);
            if (r)
                return r;
        } else {
            if (frame_announced(w) > w->frame_max)
                return fault_set(f, "the broker broke the protocol: a frame longer than agreed");
            r = receive(w, f);
            if (r <= 0)
                return r;
        }
    }
}

/* Reads frames that arrived with the login's answers. 1: a frame; 0: none now; -1: lost. */
static int library_read(struct wire *w, amqp_frame_t *frame, struct fault *f)
{
    int r = amqp_simple_wait_frame_noblock(w->connection, frame, &(struct timeval){0, 0});

    w->is_in_library = r == AMQP_STATUS_TIMEOUT;
    if (r == AMQP_STATUS_TIMEOUT)
        return 0;
    if (r != AMQP_STATUS_OK)
        return fault_set(f, "receiving from the broker: %s", amqp_error_string2(r));
    w->library_channel = frame->channel;
    return 1;
}

/* Releases the previous frame. */
static void frame_release(struct wire *w)
{
    if (w->library_channel >= 0)
        amqp_maybe_release_buffers_on_channel(w->connection, (amqp_channel_t)w->library_channel);
    w->library_channel = -1;
    if (w->pool.pages.num_blocks > POOL_PAGES_MAX)
        empty_amqp_pool(&w->pool);
    else
        recycle_amqp_pool(&w->pool);
}

int wire_read(struct wire *w, amqp_frame_t *frame, struct fault *f)
{
    int r;

    if (w->is_lost)
        return fault_set(f, "the connection to the broker is lost");
    frame_release(w);
    if (w->is_in_library || library_has_input(w))
        r = library_read(w, frame, f);
    else
        r = frame_read(w, frame, f);
    w->is_lost = r < 0;
    return r;
}

int wire_tick(struct wire *w, struct fault *f)
{
    int64_t now = clock_ms();

    if (w->heartbeat_ms && !wire_pending(w) && now - w->sent_ms >= w->heartbeat_ms / 2)
        wire_put_frame(w, AMQP_FRAME_HEARTBEAT, 0, (struct slice){0});
    if (wire_flush(w, f))
        return -1;
    if (w->heartbeat_ms && now - w->received_ms > 2 * w->heartbeat_ms) {
        /* This process may have been suspended, so bytes in the socket count as a sign of life. */
        int r = socket_has_input(w, f);
        if (r < 0)
            return -1;
        if (r == 0) {
            w->is_lost = true;
            return fault_set(f, "the broker was silent for %lld ms (heartbeat %lld ms)",
                             (long long)(now - w->received_ms), (long long)w->heartbeat_ms);
        }
    }
    return 0;
}

void wire_wait(struct wire *w, int64_t deadline_ms)
{
    struct pollfd p = {.fd = w->fd, .events = (short)(POLLIN | (wire_pending(w) ? POLLOUT : 0))};
    int64_t left = deadline_ms - clock_ms();

    if (left > 0 && !wire_has_input(w))
        poll(&p, 1, left > 1000 ? 1000 : (int)left);
}

int fault_set_close(struct fault *f, const char *what, uint16_t code, amqp_bytes_t text)
{
    fault_set(f, "%s: %u %.*s", what, code, (int)text.len, text.len ? (const char *)text.bytes : "");
    snprintf(f->code, sizeof(f->code), "%u", code);
    return -1;
}

int fault_set_reply(struct fault *f, const char *what, amqp_rpc_reply_t reply)
{
    switch (reply.reply_type) {
    case AMQP_RESPONSE_NORMAL:
        return 0;
    case AMQP_RESPONSE_SERVER_EXCEPTION:
        if (reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD) {
            const amqp_connection_close_t *m = reply.reply.decoded;
            return fault_set_close(f, what, m->reply_code, m->reply_text);
        }
        if (reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
            const amqp_channel_close_t *m = reply.reply.decoded;
            return fault_set_close(f, what, m->reply_code, m->reply_text);
        }
        return fault_set(f, "%s: the broker answered with method 0x%08X", what, (unsigned)reply.reply.id);
    case AMQP_RESPONSE_LIBRARY_EXCEPTION:
        return fault_set(f, "%s: %s", what, amqp_error_string2(reply.library_error));
    default:
        return fault_set(f, "%s: no answer", what);
    }
}
