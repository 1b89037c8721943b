#pragma once

#include "broker/connect.h"
#include "onceward/base/clock.h"
#include "onceward/base/mem.h"
#include "onceward/base/random.h"
#include "wire_checks.h"

#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* A connection that is logged in, with the fuzzer as its broker and a simulated clock. */

enum { TEST_FRAME_MAX = 16 * 1024, TEST_CHANNEL_MAX = 6, N_TEST_QUEUES = 3 };

/* --- time, in place of base/clock.c and of the C library's poll --- */

static int64_t now_ms = 1000000;

struct timespec clock_until(int64_t ms);

int64_t clock_ms(void)
{
    return now_ms;
}

int64_t clock_us(void)
{
    return now_ms * 1000;
}

struct timespec clock_until(int64_t ms)
{
    return (struct timespec){(now_ms + ms) / 1000, 0};
}

int64_t clock_wall_ms(void)
{
    return INT64_C(1700000000000) + now_ms;
}

/* --- in place of base/random.c: deterministic, so that two runs can be compared --- */

void random_bytes(void *out, size_t len)
{
    memset(out, 0x5A, len);
}

uint64_t random_below(uint64_t bound)
{
    return bound / 2;
}

static int adapter_end; /* of the latest connection */

/* Available bytes can be read at once; no others will come. */
int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    int unread = 0;

    (void)fds; /* always exactly one descriptor */
    if (n && ioctl(adapter_end, FIONREAD, &unread) == 0 && unread)
        return 1;
    now_ms += timeout_ms;
    return 0;
}

/* The fortified variant that a compiler may call instead. */
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout_ms, size_t size);

int __poll_chk(struct pollfd *fds, nfds_t n, int timeout_ms, size_t size)
{
    MUST(n <= size / sizeof(*fds));
    return poll(fds, n, timeout_ms);
}

/* --- the connection --- */

/* The adapter's end is in the attempt, the broker's end in *ret_peer. The queues have the numbers 9, 5 and 1. */
static inline struct attempt *attempt_make(int *ret_peer)
{
    struct attempt *a = mem_zalloc(1, sizeof(*a));
    amqp_connection_state_t connection = amqp_new_connection();
    amqp_frame_t frame;
    int ends[2];

    /* Behind the protocol header the library expects frames, as after a login. */
    MUST(connection && amqp_handle_input(connection, bytes_of_slice(SLICE("AMQP\0\0\x09\1")), &frame) == 8);
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    MUST(amqp_tune_connection(connection, TEST_CHANNEL_MAX, TEST_FRAME_MAX, 10) == 0);
    wire_init(&a->wire, connection, NULL);
    a->wire.fd = adapter_end = ends[0];
    a->queues = (struct queue_list){mem_zalloc(N_TEST_QUEUES, sizeof(*a->queues.items)), N_TEST_QUEUES};
    for (uint32_t i = 0; i < N_TEST_QUEUES; i++)
        a->queues.items[i] = (struct broker_queue){.name = mem_copy("q", 1), .number = 9 - 4 * i};
    a->version = mem_copy("0", 1);
    a->user = mem_copy("guest", 5);
    *ret_peer = ends[1];
    return a;
}

/* --- the broker's side --- */

static inline void bytes_send(int peer, struct slice s)
{
    while (s.len) {
        ssize_t n = send(peer, s.data, s.len, MSG_NOSIGNAL);

        if (n < 0) {
            MUST(errno == EPIPE || errno == ECONNRESET);
            return;
        }
        s.data += n;
        s.len -= (size_t)n;
    }
}

static inline void frame_add(struct buf *out, uint8_t type, uint16_t channel, struct slice payload)
{
    buf_add_char(out, (char)type);
    buf_add_u16(out, channel);
    buf_add_u32(out, (uint32_t)payload.len);
    buf_add_slice(out, payload);
    buf_add_char(out, (char)AMQP_FRAME_END);
}

static inline void short_add(struct buf *out, struct slice s)
{
    MUST(s.len <= 255);
    buf_add_char(out, (char)s.len);
    buf_add_slice(out, s);
}

/* Reads everything that the adapter has sent so far. */
static inline void sent_read(int peer, struct buf *sent)
{
    ssize_t n;

    while ((n = recv(peer, buf_reserve(sent, 65536), 65536, MSG_DONTWAIT)) > 0)
        sent->len += (size_t)n;
}

struct sent_frame {
    uint8_t type;
    uint16_t channel;
    struct slice payload;
};

static inline uint32_t u32_at(const char *p)
{
    return (uint32_t)(uint8_t)p[0] << 24 | (uint32_t)(uint8_t)p[1] << 16 | (uint32_t)(uint8_t)p[2] << 8 |
           (uint8_t)p[3];
}

/* The next complete frame that was sent. False: an incomplete one, or nothing. */
static inline bool frame_take(struct slice *sent, struct sent_frame *f)
{
    if (sent->len < 8)
        return false;
    size_t len = u32_at(sent->data + 3);
    MUST(len + 8 <= TEST_FRAME_MAX);
    if (sent->len < len + 8)
        return false;
    f->type = (uint8_t)sent->data[0];
    f->channel = (uint16_t)((uint8_t)sent->data[1] << 8 | (uint8_t)sent->data[2]);
    f->payload = (struct slice){sent->data + 7, len};
    MUST((uint8_t)sent->data[7 + len] == AMQP_FRAME_END);
    sent->data += len + 8;
    sent->len -= len + 8;
    return true;
}
