/* Takes --count messages from a queue as fast as they come, with automatic acks. Their bodies are {"n":
 * NUMBER}. Prints a line of JSON: how many came, how many of these had a number that was not above all
 * before, the first and the last number, and how long it took. Ends with 1 where nothing came for ten
 * seconds. */
#include "options.h"

#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <inttypes.h>
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

static amqp_connection_state_t connection;

static void open_connection(int port, const char *queue)
{
    connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    if (amqp_socket_open(socket, "127.0.0.1", port))
        fail("taker: cannot connect");
    if (amqp_login(connection, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest").reply_type !=
        AMQP_RESPONSE_NORMAL)
        fail("taker: cannot log in");
    amqp_channel_open(connection, 1);
    amqp_basic_consume(connection, 1, amqp_cstring_bytes(queue), amqp_empty_bytes, 0, 1, 0, amqp_empty_table);
    if (amqp_get_rpc_reply(connection).reply_type != AMQP_RESPONSE_NORMAL)
        fail("taker: cannot consume");
}

static uint64_t number_of(amqp_bytes_t body)
{
    char text[64];
    uint64_t n;

    snprintf(text, sizeof text, "%.*s", (int)body.len, (const char *)body.bytes);
    if (sscanf(text, "{\"n\": %" SCNu64, &n) != 1)
        fail("taker: no number in %s", text);
    return n;
}

int main(int argc, char **argv)
{
    uint64_t count = (uint64_t)option_number(argc, argv, "count", 1000);
    uint64_t n = 0, first = 0, last = 0, most = 0, n_back = 0;
    struct timeval patience = {.tv_sec = 10};
    struct timespec start, end;

    open_connection((int)option_number(argc, argv, "port", 5672), option(argc, argv, "queue", "bench"));
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (; n < count; n++) {
        amqp_envelope_t envelope;

        amqp_maybe_release_buffers(connection);
        if (amqp_consume_message(connection, &envelope, &patience, 0).reply_type != AMQP_RESPONSE_NORMAL)
            break;
        last = number_of(envelope.message.body);
        first = n ? first : last;
        n_back += n && last <= most;
        most = last > most ? last : most;
        amqp_destroy_envelope(&envelope);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("{\"taken\": %" PRIu64 ", \"out_of_order\": %" PRIu64 ", \"first\": %" PRIu64
           ", \"last\": %" PRIu64 ", \"seconds\": %.3f}\n",
           n, n_back, first, last,
           (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9);
    return n < count;
}
