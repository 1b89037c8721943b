#include "broker_bed.h"

#include "onceward/base/clock.h"
#include "onceward/base/job.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

const char *url;
struct address at;
struct fault f;

static amqp_connection_state_t admin;

/* --- the test's own connection --- */

static void admin_check(void)
{
    amqp_rpc_reply_t r = amqp_get_rpc_reply(admin);

    if (r.reply_type != AMQP_RESPONSE_NORMAL)
        fail_msg("admin: %s", amqp_error_string2(r.library_error));
    amqp_maybe_release_buffers(admin);
}

void queue_make(const char *queue, const char *type)
{
    amqp_table_entry_t entry = {amqp_cstring_bytes("x-queue-type"),
                                {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(type)}};
    amqp_table_t arguments = {1, &entry};

    amqp_queue_delete(admin, 1, amqp_cstring_bytes(queue), 0, 0);
    admin_check();
    amqp_queue_declare(admin, 1, amqp_cstring_bytes(queue), 0, 1, 0, 0, arguments);
    admin_check();
}

void queue_delete(const char *queue)
{
    amqp_queue_delete(admin, 1, amqp_cstring_bytes(queue), 0, 0);
    admin_check();
}

int queue_depth(const char *queue)
{
    amqp_queue_declare_ok_t *ok =
        amqp_queue_declare(admin, 1, amqp_cstring_bytes(queue), 1, 1, 0, 0, amqp_empty_table);

    if (!ok)
        admin_check();
    int n = (int)ok->message_count;
    amqp_maybe_release_buffers(admin);
    return n;
}

void depth_becomes(const char *queue, int n)
{
    int64_t deadline = clock_ms() + WAIT_MS;

    while (queue_depth(queue) != n) {
        if (clock_ms() > deadline)
            fail_msg("depth of %s is %d, not %d", queue, queue_depth(queue), n);
        usleep(5000);
    }
}

void exclusive_consume(const char *queue)
{
    amqp_channel_open(admin, 2);
    admin_check();
    amqp_basic_consume(admin, 2, amqp_cstring_bytes(queue), amqp_cstring_bytes("alone"), 0, 0, 1,
                       amqp_empty_table);
    admin_check();
}

void exclusive_cancel(void)
{
    amqp_channel_close(admin, 2, AMQP_REPLY_SUCCESS);
    admin_check();
}

amqp_connection_state_t bed_connection(void)
{
    return admin;
}

void publish(const char *queue, const void *body, size_t len, const amqp_basic_properties_t *p)
{
    assert_int_equal(amqp_basic_publish(admin, 1, amqp_cstring_bytes(""), amqp_cstring_bytes(queue), 0, 0, p,
                                        (amqp_bytes_t){len, (void *)(uintptr_t)body}),
                     0);
}

void publish_numbers_more(const char *queue, int n)
{
    for (int i = 0; i < n; i++)
        publish(queue, &i, sizeof(i), NULL);
}

void publish_numbers(const char *queue, int n)
{
    publish_numbers_more(queue, n);
    depth_becomes(queue, n);
}

/* --- the adapter under test --- */

struct config_broker settings_of(const char *to)
{
    return (struct config_broker){.url.value = (char *)(uintptr_t)to,
                                  .heartbeat_ms = 10000,
                                  .connect_timeout_ms = 5000,
                                  .tls.verify = true};
}

struct broker *dial_many(const struct config_broker *c, const struct broker_queue *queues, size_t n)
{
    struct job *job = broker_connect(c, NULL, queues, n, "driver", &f);
    struct broker *b = NULL;
    void *result;

    assert_non_null(job);
    struct pollfd p = {.fd = job_fd(job), .events = POLLIN};
    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    assert_true(job_take(job, &result));
    if (broker_attempt_take(result, &b, &f))
        return NULL;
    return b;
}

struct broker *dial(const struct config_broker *c, const char *queue)
{
    return dial_many(c, &(struct broker_queue){.name = queue, .number = Q}, 1);
}

struct broker_room same_room(void *context, uint32_t queue, bool redelivered)
{
    (void)queue;
    (void)redelivered;
    return *(struct broker_room *)context;
}

struct broker_room a_mib = {MIB, MIB, 0, 0};

struct broker_event next_in(struct broker *b, struct broker_room room)
{
    struct broker_event ev;
    int64_t deadline = clock_ms() + WAIT_MS;

    for (;;) {
        if (broker_next(b, same_room, &room, &ev, &f))
            fail_msg("lost: %s", f.text);
        if (ev.kind != BROKER_NOTHING)
            return ev;
        if (broker_tick(b, &f))
            fail_msg("lost: %s", f.text);
        if (clock_ms() > deadline)
            fail_msg("nothing came");
        struct pollfd p = {.fd = broker_fd(b),
                           .events = (short)(POLLIN | (broker_wants_write(b) ? POLLOUT : 0))};
        poll(&p, 1, 100);
    }
}

struct broker_event next(struct broker *b, size_t room)
{
    return next_in(b, (struct broker_room){room, room, 0, 0});
}

struct broker_event next_is(struct broker *b, enum broker_event_kind kind)
{
    struct broker_event ev = next(b, 64 * MIB);

    if (ev.kind != kind)
        fail_msg("event %d came instead of %d: %s", ev.kind, kind, ev.fault.text);
    return ev;
}

bool is_quiet(struct broker *b)
{
    struct broker_event ev;
    int64_t deadline = clock_ms() + 300;

    while (clock_ms() < deadline) {
        assert_int_equal(broker_next(b, same_room, &a_mib, &ev, &f), 0);
        if (ev.kind != BROKER_NOTHING)
            return false;
        struct pollfd p = {.fd = broker_fd(b), .events = POLLIN};
        poll(&p, 1, 50);
    }
    return true;
}

struct broker *ready_at(const char *to, const char *queue)
{
    struct config_broker c = settings_of(to);
    struct broker *b = dial(&c, queue);

    if (!b)
        fail_msg("%s", f.text);
    next_is(b, BROKER_CHANNEL_OPEN);
    return b;
}

struct broker *ready(const char *queue)
{
    return ready_at(url, queue);
}

void consume(struct broker *b, uint32_t consumer, int prefetch)
{
    assert_int_equal(broker_consume(b, Q, consumer, prefetch, &f), 0);
    assert_int_equal(next_is(b, BROKER_CONSUMING).copy.consumer, consumer);
}

void finish(struct broker *b)
{
    assert_int_equal(broker_close(b, &f), 0);
    next_is(b, BROKER_CLOSED);
    broker_free(b);
}

int number_of(const struct message *m)
{
    int i;

    assert_int_equal(m->body_len, sizeof(i));
    memcpy(&i, m->body, sizeof(i));
    return i;
}

struct broker_tag take(struct broker *b, int number)
{
    struct broker_event ev = next_is(b, BROKER_DELIVERY);

    assert_int_equal(number_of(ev.message), number);
    message_free(ev.message);
    return ev.copy.tag;
}

/* --- a relay between adapter and broker --- */

static void *relay_main(void *arg)
{
    struct relay *r = arg;
    int client = accept(r->listener, NULL, NULL), server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)at.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char data[65536];

    if (client < 0 || connect(server, (struct sockaddr *)&to, sizeof(to)))
        abort();
    while (atomic_load(&r->mode) != 4 && atomic_load(&r->mode) != 1) {
        int mode = atomic_load(&r->mode);
        struct pollfd p[2] = {{.fd = mode == 3 ? -1 : client, .events = POLLIN},
                              {.fd = server, .events = POLLIN}};
        if (poll(p, 2, 20) <= 0)
            continue;
        for (int i = 0; i < 2; i++) {
            ssize_t n = p[i].revents ? recv(p[i].fd, data, sizeof(data), 0) : 0;
            if (p[i].revents && n <= 0)
                goto ended;
            if (n > 0 && atomic_load(&r->delay_ms))
                usleep((useconds_t)atomic_load(&r->delay_ms) * 1000);
            if (n > 0 && mode != 2 && send(i ? client : server, data, (size_t)n, MSG_NOSIGNAL) != n)
                goto ended;
        }
    }
ended:
    close(client);
    close(server);
    return NULL;
}

void relay_start(struct relay *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int small = 4096;

    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(r->listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    assert_int_equal(bind(r->listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(r->listener, 1), 0);
    getsockname(r->listener, (struct sockaddr *)&a, &len);
    snprintf(r->url, sizeof(r->url), "amqp://guest:guest@127.0.0.1:%d", ntohs(a.sin_port));
    atomic_init(&r->mode, 0);
    atomic_init(&r->delay_ms, 0);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_main, r), 0);
}

void relay_stop(struct relay *r)
{
    atomic_store(&r->mode, 4);
    pthread_join(r->thread, NULL);
    close(r->listener);
}

int64_t lost_after(struct broker *b)
{
    struct broker_event ev;
    int64_t start = clock_ms();

    while (clock_ms() < start + WAIT_MS) {
        if (broker_next(b, same_room, &a_mib, &ev, &f) || broker_tick(b, &f)) {
            struct fault again;
            assert_int_equal(broker_fd(b), -1);
            assert_int_equal(broker_next(b, same_room, &a_mib, &ev, &again), -1);
            return clock_ms() - start;
        }
        if (ev.kind == BROKER_DELIVERY)
            message_free(ev.message);
        if (ev.kind == BROKER_NOTHING) {
            struct pollfd p = {.fd = broker_fd(b), .events = POLLIN};
            poll(&p, 1, 50);
        }
    }
    fail_msg("not lost");
    return 0;
}

char *pattern(size_t len)
{
    char *body = malloc(len + 1);

    for (size_t i = 0; i < len; i++)
        body[i] = (char)(i * 31 ^ i >> 11);
    return body;
}

double cpu_us(void)
{
    struct rusage u;

    getrusage(RUSAGE_THREAD, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int admin_open(void)
{
    if (address_parse(url, &at, &f))
        return -1;
    admin = amqp_new_connection();
    if (amqp_socket_open(amqp_tcp_socket_new(admin), at.host, at.port))
        return -1;
    if (amqp_login(admin, at.vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, at.user, at.password).reply_type !=
        AMQP_RESPONSE_NORMAL)
        return -1;
    return amqp_channel_open(admin, 1) ? 0 : -1;
}

int bed_open(void)
{
    url = getenv("ONCEWARD_TEST_AMQP");
    if (!url) {
        fprintf(stderr, "skipped: ONCEWARD_TEST_AMQP is not set\n");
        return 77;
    }
    if (admin_open()) {
        fprintf(stderr, "the broker of ONCEWARD_TEST_AMQP does not answer\n");
        return 1;
    }
    if (getenv("ONCEWARD_TEST_FILTER"))
        cmocka_set_test_filter(getenv("ONCEWARD_TEST_FILTER"));
    return 0;
}

int bed_close(int r)
{
    amqp_destroy_connection(admin);
    address_deinit(&at);
    return job_wait_all(20000) ? r : 1;
}
