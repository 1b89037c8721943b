/* The two bounds of what a consumer can do: one that only acks, and one that forwards to the application and
 * acks, without an inbox. One thread; frames with rabbitmq-c, requests with a curl multi handle, acks
 * `multiple` over what is done without a gap. A message that the application refuses ends the program:
 * nothing here is meant for anything but the bench.
 */
#include "../../tools/options.h"

#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct message {
    uint64_t tag;
    char id[64];
    char *body;
    size_t len, capacity, expected;
    bool done;
};

struct slot {
    CURL *easy;
    struct curl_slist *headers;
    struct message *message;
};

static amqp_connection_state_t connection;
static CURLM *multi;
static struct slot *slots;
static struct slot **free_slots;
static long n_slots, n_free;
/* A channel each: what has come of its queue. */
static struct queue {
    struct message
        *ring; /* in the order of the tags; [n_acked, n_started) are out, [n_started, n_whole) wait */
    uint64_t n_acked, n_started, n_whole;
} * queues;
static size_t n_queues;
static uint64_t ring_size;
static const char *url;
static volatile sig_atomic_t stopping;

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

static size_t drop(char *data, size_t size, size_t n, void *user)
{
    (void)data, (void)user;
    return size * n;
}

static void consume(struct queue *q, amqp_channel_t channel, const char *name, long prefetch)
{
    q->ring = calloc(ring_size, sizeof *q->ring);
    amqp_channel_open(connection, channel);
    amqp_basic_qos(connection, channel, 0, (uint16_t)prefetch, 0);
    amqp_basic_consume(connection, channel, amqp_cstring_bytes(name), amqp_empty_bytes, 0, 0, 0,
                       amqp_empty_table);
    if (amqp_get_rpc_reply(connection).reply_type != AMQP_RESPONSE_NORMAL)
        fail("bound: cannot consume");
}

/* names: with commas between them. */
static void open_connection(int port, char *names, long prefetch)
{
    connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    if (amqp_socket_open(socket, "127.0.0.1", port))
        fail("bound: cannot connect");
    if (amqp_login(connection, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest").reply_type !=
        AMQP_RESPONSE_NORMAL)
        fail("bound: cannot log in");
    queues = calloc(strlen(names) + 1, sizeof *queues);
    for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
        n_queues++; /* before: what comes of the others while this one is opened is kept by the library */
        consume(&queues[n_queues - 1], (amqp_channel_t)n_queues, name, prefetch);
    }
}

static void make_slots(const char *unix_socket)
{
    curl_global_init(CURL_GLOBAL_ALL);
    multi = curl_multi_init();
    slots = calloc((size_t)n_slots, sizeof *slots);
    free_slots = calloc((size_t)n_slots, sizeof *free_slots);
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, n_slots);
    for (long i = 0; i < n_slots; i++) {
        struct slot *s = slots + i;

        s->easy = curl_easy_init();
        curl_easy_setopt(s->easy, CURLOPT_URL, url);
        if (unix_socket)
            curl_easy_setopt(s->easy, CURLOPT_UNIX_SOCKET_PATH, unix_socket);
        curl_easy_setopt(s->easy, CURLOPT_PROXY, "");
        curl_easy_setopt(s->easy, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, drop);
        curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
        free_slots[n_free++] = s;
    }
}

static void begin(struct message *m)
{
    struct slot *s = free_slots[--n_free];
    char key[128];

    s->message = m;
    snprintf(key, sizeof key, "Idempotency-Key: \"%s\"", m->id);
    s->headers = curl_slist_append(NULL, "Content-Type: application/json");
    s->headers = curl_slist_append(s->headers, "Expect:");
    s->headers = curl_slist_append(s->headers, key);
    curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, s->headers);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE, (long)m->len);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, m->body);
    curl_multi_add_handle(multi, s->easy);
}

static void take_answers(void)
{
    int running, left;
    CURLMsg *news;

    curl_multi_perform(multi, &running);
    while ((news = curl_multi_info_read(multi, &left))) {
        struct slot *s;
        long status = 0;

        if (news->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(news->easy_handle, CURLINFO_PRIVATE, (char **)&s);
        curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
        if (news->data.result != CURLE_OK || status / 100 != 2)
            fail("bound: status %ld, %s", status, curl_easy_strerror(news->data.result));
        curl_multi_remove_handle(multi, s->easy);
        curl_slist_free_all(s->headers);
        s->message->done = true;
        free_slots[n_free++] = s;
    }
}

static void take_frame(const amqp_frame_t *frame)
{
    struct queue *q = &queues[frame->channel - 1];
    struct message *m = q->ring + q->n_whole % ring_size;

    if (frame->frame_type == AMQP_FRAME_METHOD) {
        if (frame->payload.method.id != AMQP_BASIC_DELIVER_METHOD)
            fail("bound: the broker ended it (%08x)", frame->payload.method.id);
        m->tag = ((amqp_basic_deliver_t *)frame->payload.method.decoded)->delivery_tag;
        m->done = false;
    } else if (frame->frame_type == AMQP_FRAME_HEADER) {
        const amqp_basic_properties_t *p = frame->payload.properties.decoded;
        m->expected = (size_t)frame->payload.properties.body_size;
        m->len = 0;
        snprintf(m->id, sizeof m->id, "%.*s", (int)p->message_id.len, (char *)p->message_id.bytes);
        if (m->expected > m->capacity) {
            m->body = realloc(m->body, m->expected);
            m->capacity = m->expected;
        }
    } else if (frame->frame_type == AMQP_FRAME_BODY) {
        amqp_bytes_t piece = frame->payload.body_fragment;
        memcpy(m->body + m->len, piece.bytes, piece.len);
        m->len += piece.len;
        if (m->len == m->expected) {
            q->n_whole++;
            amqp_maybe_release_buffers_on_channel(connection, frame->channel);
        }
    }
}

static void read_broker(void)
{
    struct timeval now = {0};
    amqp_frame_t frame;

    for (;;) {
        int status = amqp_simple_wait_frame_noblock(connection, &frame, &now);
        if (status == AMQP_STATUS_TIMEOUT)
            return;
        if (status)
            fail("bound: %s", amqp_error_string2(status));
        take_frame(&frame);
    }
}

static void ack(amqp_channel_t channel)
{
    struct queue *q = &queues[channel - 1];
    uint64_t n = q->n_acked;

    while (n < q->n_started && q->ring[n % ring_size].done)
        n++;
    if (n > q->n_acked) {
        amqp_basic_ack(connection, channel, q->ring[(n - 1) % ring_size].tag, 1);
        q->n_acked = n;
    }
}

/* Takes a message of each queue in turn, as long as there are slots. True: some are left. */
static bool begin_all(void)
{
    bool any = true;

    while (any) {
        any = false;
        for (size_t i = 0; i < n_queues; i++) {
            struct queue *q = &queues[i];
            struct message *m = q->ring + q->n_started % ring_size;

            if (q->n_started == q->n_whole)
                continue;
            if (url && !n_free)
                return true;
            q->n_started++;
            any = true;
            if (url)
                begin(m);
            else
                m->done = true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    long prefetch = option_number(argc, argv, "prefetch", 1024);

    url = option(argc, argv, "url", NULL);
    n_slots = option_number(argc, argv, "concurrency", 64);
    ring_size = (uint64_t)prefetch + 1;
    signal(SIGTERM, stop);
    signal(SIGPIPE, SIG_IGN);
    if (url)
        make_slots(option(argc, argv, "unix-socket", NULL));
    open_connection((int)option_number(argc, argv, "port", 5672),
                    strdup(option(argc, argv, "queues", "bench")), prefetch);
    while (!stopping) {
        read_broker();
        bool more = begin_all();
        if (url)
            take_answers();
        for (size_t i = 1; i <= n_queues; i++)
            ack((amqp_channel_t)i);
        if (more && n_free)
            continue;
        if (url) {
            struct curl_waitfd fd = {.fd = amqp_get_sockfd(connection), .events = CURL_WAIT_POLLIN};
            curl_multi_poll(multi, &fd, 1, 1000, NULL);
        } else {
            poll(&(struct pollfd){.fd = amqp_get_sockfd(connection), .events = POLLIN}, 1, 1000);
        }
    }
    for (size_t i = 1; i <= n_queues; i++)
        amqp_channel_close(connection, (amqp_channel_t)i, AMQP_REPLY_SUCCESS);
    amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    return 0;
}
