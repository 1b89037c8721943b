/* A relay before the broker that takes the time from the publish to the ack. It reads the frames that go by:
 * basic.deliver and the start of the body (the publisher's monotonic nanoseconds) one way, basic.ack the
 * other. One consumer connection with one channel that matters; AMQP 0-9-1 without TLS. At SIGTERM it writes
 * a uint32 of microseconds for each ack to --stamps-file.
 */
#include "options.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 65536, HEAD = 7, KEPT = 64, RING = 1 << 17 };
enum { FRAME_METHOD = 1, FRAME_BODY = 3, BASIC_DELIVER = 0x003c003c, BASIC_ACK = 0x003c0050 };

/* Follows the frames of one direction: the head, the first bytes of the payload, the rest skipped. */
struct follower {
    unsigned char kept[HEAD + KEPT];
    size_t at;   /* bytes of this frame seen */
    size_t size; /* of this frame with its end, once its head was seen */
    size_t skip; /* the protocol header */
};

static uint64_t sent_ns[RING]; /* by tag; 0: acked, or never seen */
static uint64_t tag_now, tag_acked;
static bool awaits_body;
static uint32_t *stamps;
static size_t n_stamps, stamps_capacity;
static volatile sig_atomic_t stopping;

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t read64(const unsigned char *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return be64toh(v);
}

static uint32_t read32(const unsigned char *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return be32toh(v);
}

static void acked(uint64_t tag, uint64_t now)
{
    uint64_t sent = sent_ns[tag % RING];

    sent_ns[tag % RING] = 0;
    if (!sent)
        return;
    if (n_stamps == stamps_capacity) {
        stamps_capacity = stamps_capacity ? 2 * stamps_capacity : 65536;
        stamps = realloc(stamps, stamps_capacity * sizeof *stamps);
        if (!stamps)
            fail("tap: no memory");
    }
    stamps[n_stamps++] = (uint32_t)((now - sent) / 1000);
}

static void frame_seen(const unsigned char *frame, size_t size)
{
    const unsigned char *payload = frame + HEAD;
    size_t len = size - HEAD - 1;

    if (frame[0] == FRAME_METHOD && len >= 4 && read32(payload) == BASIC_DELIVER) {
        size_t tag_at = 4 + 1 + (size_t)payload[4];
        tag_now = tag_at + 8 <= KEPT ? read64(payload + tag_at) : 0;
        awaits_body = tag_now;
    } else if (frame[0] == FRAME_BODY && awaits_body) {
        awaits_body = false;
        if (len >= 30 && !memcmp(payload, "{\"t\":\"", 6)) {
            char digits[21] = {0};
            memcpy(digits, payload + 6, 20);
            sent_ns[tag_now % RING] = strtoull(digits, NULL, 10);
        }
    } else if (frame[0] == FRAME_METHOD && len >= 13 && read32(payload) == BASIC_ACK) {
        uint64_t tag = read64(payload + 4), now = now_ns();
        bool multiple = payload[12] & 1;

        for (uint64_t t = multiple ? tag_acked + 1 : tag; t <= tag; t++)
            acked(t, now);
        if (multiple)
            tag_acked = tag;
    }
}

static void follow(struct follower *f, const unsigned char *p, size_t n)
{
    while (n) {
        if (f->skip) {
            size_t k = n < f->skip ? n : f->skip;
            f->skip -= k, p += k, n -= k;
            continue;
        }
        size_t end = f->at < HEAD ? HEAD : f->size;
        size_t k = n < end - f->at ? n : end - f->at;
        if (f->at < sizeof f->kept)
            memcpy(f->kept + f->at, p, k < sizeof f->kept - f->at ? k : sizeof f->kept - f->at);
        f->at += k, p += k, n -= k;
        if (f->at == HEAD)
            f->size = HEAD + (size_t)read32(f->kept + 3) + 1;
        if (f->at > HEAD && f->at == f->size) {
            frame_seen(f->kept, f->size);
            f->at = 0;
        }
    }
}

static int connect_to(int port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (connect(fd, (struct sockaddr *)&a, sizeof a))
        fail("tap: %s", strerror(errno));
    return fd;
}

static bool pass(int from, int to, struct follower *f)
{
    static unsigned char piece[PIECE];
    ssize_t n = recv(from, piece, sizeof piece, 0);

    if (n <= 0)
        return n < 0 && errno == EINTR;
    follow(f, piece, (size_t)n);
    for (ssize_t done = 0; done < n;) {
        ssize_t k = send(to, piece + done, (size_t)(n - done), MSG_NOSIGNAL);
        if (k < 0)
            return false;
        done += k;
    }
    return true;
}

static void relay(int client, int broker)
{
    static struct follower up, down;
    int on = 1;

    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(broker, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    up = (struct follower){.skip = 8};
    down = (struct follower){0};
    tag_acked = 0;
    while (!stopping) {
        struct pollfd fds[] = {{.fd = client, .events = POLLIN}, {.fd = broker, .events = POLLIN}};
        if (poll(fds, 2, 1000) < 0 && errno != EINTR)
            break;
        if (fds[0].revents && !pass(client, broker, &up))
            break;
        if (fds[1].revents && !pass(broker, client, &down))
            break;
    }
    close(client);
    close(broker);
}

int main(int argc, char **argv)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const char *path = option(argc, argv, "stamps-file", "stamps");
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
    a.sin_port = htons((uint16_t)option_number(argc, argv, "port", 0));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 16))
        fail("tap: %s", strerror(errno));
    while (!stopping) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0)
            relay(client, connect_to((int)option_number(argc, argv, "broker", 5672)));
    }
    FILE *f = fopen(path, "wb");
    if (f) {
        fwrite(stamps, sizeof *stamps, n_stamps, f);
        fclose(f);
    }
    return 0;
}
