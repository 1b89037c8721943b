/* Publishes messages to a queue, persistent and confirmed: a backlog as fast as the broker takes it, or at a
 * steady rate (open loop: the times of publishing do not depend on anybody). Every body starts with
 * {"t":"<monotonic ns>","mid":"<message id>": for rates the time of the publish (not with --stamps 0), else
 * zeros, so that a copy has the same body. --duplicates: that many of a hundred are copies of an earlier one.
 * --twice-every N: each Nth is published twice, the second time at once and 2,000 messages later by turns.
 * --window N: so many may be unconfirmed. --exchange E, --keys N: goes there, with N routing keys in turn.
 * Prints the number of different ids.
 */
#include "options.h"

#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { WINDOW = 4000, LOOK_EVERY = 100, LATER = 2000, SMALLEST = 96, FILLING_BYTES = 1 << 18 };

static amqp_connection_state_t connection;
static uint64_t n_published, n_confirmed;
static const char *exchange; /* "": the default exchange, with the queue as routing key */
static uint64_t n_keys;

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void open_connection(int port)
{
    connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    if (amqp_socket_open(socket, "127.0.0.1", port))
        fail("loader: cannot connect");
    if (amqp_login(connection, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest").reply_type !=
        AMQP_RESPONSE_NORMAL)
        fail("loader: cannot log in");
    amqp_channel_open(connection, 1);
    amqp_confirm_select(connection, 1);
    if (amqp_get_rpc_reply(connection).reply_type != AMQP_RESPONSE_NORMAL)
        fail("loader: no channel");
}

/* Reads what is there; waits for the first frame when asked to. */
static void take_confirms(bool wait)
{
    struct timeval now = {0}, patience = {.tv_sec = 30};
    amqp_frame_t frame;

    for (;;) {
        int status = amqp_simple_wait_frame_noblock(connection, &frame, wait ? &patience : &now);
        if (status == AMQP_STATUS_TIMEOUT && !wait)
            return;
        if (status != AMQP_STATUS_OK)
            fail("loader: %s", amqp_error_string2(status));
        if (frame.frame_type != AMQP_FRAME_METHOD || frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
            fail("loader: the broker did not confirm");
        const amqp_basic_ack_t *ack = frame.payload.method.decoded;
        n_confirmed = ack->multiple ? ack->delivery_tag : n_confirmed + 1;
        amqp_maybe_release_buffers_on_channel(connection, 1);
        wait = false;
    }
}

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void id_make(char *id, size_t size, long prefix, uint64_t index)
{
    uint64_t seed = ((uint64_t)prefix << 40) + index;
    uint64_t a = random_next(&seed), b = random_next(&seed);

    snprintf(id, size, "%08x-%04x-%04x-%04x-%012" PRIx64, (unsigned)(a >> 32), (unsigned)(a >> 16) & 0xffff,
             (unsigned)a & 0xffff, (unsigned)(b >> 48), b & 0xffffffffffffu);
}

static void sleep_until(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {
    }
}

/* Makes the text that bodies are cut out of, of that size and a body more. "orders" are lines of JSON, each with its
 * own values, which compress to about a half; "bytes" are random. */
static char *filling_make(const char *fill, size_t size)
{
    char *filling = malloc(size + 128);
    uint64_t state = 7;
    size_t at = 0;

    if (!filling)
        fail("loader: no memory");
    while (at < size && !strcmp(fill, "bytes")) {
        uint64_t random = random_next(&state);

        memcpy(filling + at, &random, sizeof random);
        at += sizeof random;
    }
    while (at < size) {
        unsigned long long a = random_next(&state), b = random_next(&state);

        at += (size_t)snprintf(filling + at, 128,
                               "{\"sku\":\"A-%06llu\",\"name\":\"%012llx\",\"cents\":%llu,\"quantity\":%llu,"
                               "\"currency\":\"EUR\"},",
                               a % 1000000, b >> 16, a >> 48, b % 10);
    }
    return filling;
}

static void publish(const char *queue, long prefix, uint64_t index, uint64_t sent_ns, size_t size,
                    const char *fill)
{
    static char *body, *filling;
    char id[64], start[96];
    amqp_basic_properties_t properties = {
        ._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG,
        .content_type = amqp_cstring_bytes("application/json"),
        .delivery_mode = AMQP_DELIVERY_PERSISTENT,
    };

    if (!body) {
        body = malloc(size);
        if (!body)
            fail("loader: no memory");
        memset(body, 'x', size);
        filling = strcmp(fill, "x") ? filling_make(fill, FILLING_BYTES + size) : NULL;
    }
    if (filling)
        memcpy(body, filling + index * 7919 % FILLING_BYTES, size);
    memcpy(body + size - 2, "\"}", 2);
    id_make(id, sizeof id, prefix, index);
    int len = snprintf(start, sizeof start, "{\"t\":\"%020" PRIu64 "\",\"mid\":\"%s\",\"x\":\"", sent_ns, id);
    memcpy(body, start, (size_t)len);
    properties.message_id = amqp_cstring_bytes(id);
    char key[32];
    snprintf(key, sizeof key, "key%" PRIu64, n_keys ? index % n_keys : 0);
    int status = amqp_basic_publish(connection, 1, amqp_cstring_bytes(exchange),
                                    amqp_cstring_bytes(*exchange ? key : queue), 0, 0, &properties,
                                    (amqp_bytes_t){size, body});
    if (status)
        fail("loader: %s", amqp_error_string2(status));
    n_published++;
}

static void confirms_wait(uint64_t most)
{
    while (n_published - n_confirmed > most)
        take_confirms(true);
}

int main(int argc, char **argv)
{
    const char *queue = option(argc, argv, "queue", "bench");
    uint64_t n = (uint64_t)option_number(argc, argv, "count", 1000);
    size_t size = (size_t)option_number(argc, argv, "size", 256);
    const char *fill = option(argc, argv, "fill", "x");
    exchange = option(argc, argv, "exchange", "");
    n_keys = (uint64_t)option_number(argc, argv, "keys", 0);
    long rate = option_number(argc, argv, "rate", 0);
    bool stamps = rate && option_number(argc, argv, "stamps", 1);
    long prefix = option_number(argc, argv, "prefix", 0);
    uint64_t duplicates = (uint64_t)option_number(argc, argv, "duplicates", 0);
    uint64_t twice_every = (uint64_t)option_number(argc, argv, "twice-every", 0);
    uint64_t window = (uint64_t)option_number(argc, argv, "window", WINDOW);
    uint64_t n_ids = 0, dice = 42;

    if (size < SMALLEST)
        fail("loader: a message has at least %d bytes", SMALLEST);
    open_connection((int)option_number(argc, argv, "port", 5672));
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < n; i++) {
        bool copy = n_ids && random_next(&dice) % 100 < duplicates;
        uint64_t index = copy ? random_next(&dice) % n_ids : n_ids++;

        if (rate)
            sleep_until(start + i * 1000000000u / (uint64_t)rate);
        publish(queue, prefix, index, stamps ? now_ns() : 0, size, fill);
        if (twice_every && i % (2 * twice_every) == 0)
            publish(queue, prefix, i, 0, size, fill);
        if (twice_every && i >= LATER && (i - LATER) % (2 * twice_every) == twice_every)
            publish(queue, prefix, i - LATER, 0, size, fill);
        if (rate || i % LOOK_EVERY == 0)
            take_confirms(false);
        if (!rate)
            confirms_wait(window - 1);
    }
    confirms_wait(0);
    printf("%" PRIu64 "\n", n_ids);
    amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(connection);
    return 0;
}
