/* The broker's adapter with many queues on one connection, against a real RabbitMQ: see broker_bed.h. Events
 * of one queue do not affect the others. ONCEWARD_TEST_EVAL is a program that makes the node evaluate its
 * argument (Erlang); without it some tests are skipped. */

#include "broker_bed.h"

#include "onceward/base/clock.h"
#include "onceward/base/failpoint.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 64, PER_QUEUE = 50, NUMBER = 3 /* from one queue's number to the next */ };

static char names[512][24];
static struct broker_queue queues[512];

/* --- many queues --- */

static void queues_make(const char *prefix, size_t n, const char *type)
{
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof(names[i]), "%s.%zu", prefix, i);
        queues[i] = (struct broker_queue){.name = names[i], .number = (uint32_t)i * NUMBER};
        queue_make(names[i], type);
    }
}

static void queues_delete(size_t n)
{
    for (size_t i = 0; i < n; i++)
        queue_delete(names[i]);
}

/* Connects and waits until all channels are open, each reported once. */
static struct broker *ready_many_at(const char *to, size_t n)
{
    struct config_broker c = settings_of(to);
    struct broker *b = dial_many(&c, queues, n);
    bool is_open[512] = {0};

    if (!b)
        fail_msg("%s", f.text);
    for (size_t i = 0; i < n; i++) {
        struct broker_event ev = next_is(b, BROKER_CHANNEL_OPEN);

        assert_true(ev.queue % NUMBER == 0 && ev.queue / NUMBER < n && !is_open[ev.queue / NUMBER]);
        assert_true(ev.copy.tag.generation > 0 && broker_channel_is_open(b, ev.queue));
        is_open[ev.queue / NUMBER] = true;
    }
    return b;
}

static struct broker *ready_many(size_t n)
{
    return ready_many_at(url, n);
}

static void consume_from(struct broker *b, size_t i, uint32_t consumer, int prefetch)
{
    assert_int_equal(broker_consume(b, queues[i].number, consumer, prefetch, &f), 0);
}

/* The deliveries of each queue. */
struct harvest {
    size_t n, n_of[512];
    struct broker_tag last[512];
};

static void harvest_add(struct harvest *h, const struct broker_event *ev)
{
    size_t i = ev->queue / NUMBER;

    assert_true(slice_equal(ev->message->routing_key, slice_of(names[i])));
    assert_int_equal(number_of(ev->message), h->n_of[i]);
    h->last[i] = ev->copy.tag;
    h->n_of[i]++;
    h->n++;
    message_free(ev->message);
}

/* The next event other than a delivery, which is harvested, or the start of a consumer; or the n-th delivery. */
static struct broker_event harvest_until(struct broker *b, struct harvest *h, size_t n)
{
    for (;;) {
        struct broker_event ev = next(b, 64 * MIB);

        if (ev.kind == BROKER_DELIVERY)
            harvest_add(h, &ev);
        else if (ev.kind != BROKER_CONSUMING)
            return ev;
        if (h->n == n)
            return ev;
    }
}

static void ack_all(struct broker *b, const struct harvest *h, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (h->n_of[i])
            assert_int_equal(broker_ack(b, h->last[i], true, &f), 0);
    assert_int_equal(broker_flush(b, &f), 0);
}

/* --- tests --- */

static void every_queue_gets_its_own(void **state)
{
    struct harvest h = {0};

    (void)state;
    queues_make("mny.own", N, "classic");
    for (size_t i = 0; i < N; i++)
        publish_numbers(names[i], PER_QUEUE);
    struct broker *b = ready_many(N);
    for (size_t i = 0; i < N; i++)
        consume_from(b, i, 1, PER_QUEUE);
    harvest_until(b, &h, N * PER_QUEUE);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(h.n_of[i], PER_QUEUE);
    for (size_t i = 1; i < N; i++)
        assert_true(h.last[i].generation != h.last[0].generation);
    assert_true(is_quiet(b));
    ack_all(b, &h, N);
    finish(b);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(queue_depth(names[i]), 0);
    queues_delete(N);
}

/* Channels are opened together, not one by one: over a connection with 50 ms each way, 150 channels take no
 * longer than two round trips. */
static void channels_are_opened_together(void **state)
{
    static struct relay r;
    struct config_broker c;
    enum { MANY = 150 };

    (void)state;
    queues_make("mny.open", MANY, "classic");
    relay_start(&r);
    atomic_store(&r.delay_ms, 50);
    c = settings_of(r.url);
    struct broker *b = dial_many(&c, queues, MANY);
    assert_non_null(b);
    int64_t start = clock_ms();
    for (size_t i = 0; i < MANY; i++)
        next_is(b, BROKER_CHANNEL_OPEN);
    int64_t took = clock_ms() - start;
    if (took < 90 || took > 2000)
        fail_msg("opening took %lld ms", (long long)took);
    broker_free(b);
    relay_stop(&r);
    queues_delete(MANY);
}

static void too_few_channels_are_told(void **state)
{
    struct config_broker c = settings_of(url);
    int max = amqp_get_channel_max(bed_connection());
    size_t n = (size_t)max;
    struct broker_queue *many = calloc(n, sizeof(*many));
    char expected[64];

    (void)state;
    assert_true(max > 0 && max < 65535);
    for (size_t i = 0; i < n; i++)
        many[i] = (struct broker_queue){.name = "mny.none", .number = (uint32_t)i};
    assert_null(dial_many(&c, many, n));
    snprintf(expected, sizeof(expected), "the broker allows %zu channels", n);
    assert_non_null(strstr(f.text, expected));
    struct broker *b = dial_many(&c, many, n - 1);
    assert_non_null(b);
    for (size_t i = 0; i < n - 1; i++)
        next_is(b, BROKER_CHANNEL_OPEN);
    finish(b);
    free(many);
}

/* Three channels are closed, with 404, 403 and 406, while the others deliver. */
static void a_channel_closed_by_the_broker_touches_no_other(void **state)
{
    struct harvest h = {0};
    bool is_lost[3] = {0}, is_open[3] = {0};

    (void)state;
    queues_make("mny.closed", 8, "classic");
    queue_delete(names[0]);
    struct broker *b = ready_many(8);
    consume_from(b, 2, 1, 1);
    next_is(b, BROKER_CONSUMING);
    publish_numbers_more(names[2], 1);
    struct broker_event ev = next_is(b, BROKER_DELIVERY);
    message_free(ev.message);
    ev.copy.tag.number += 1000;
    assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0); /* acks a tag that does not exist: 406 */
    consume_from(b, 0, 1, 10);                                  /* 404 */
    exclusive_consume(names[1]);
    consume_from(b, 1, 1, 10); /* 403 */
    for (size_t i = 3; i < 8; i++)
        consume_from(b, i, 1, 2 * PER_QUEUE);
    for (size_t i = 3; i < 8; i++)
        publish_numbers_more(names[i], PER_QUEUE);
    for (int n = 0; n < 6;) {
        ev = harvest_until(b, &h, SIZE_MAX);
        size_t i = ev.queue / NUMBER;
        assert_true(i < 3);
        if (ev.kind == BROKER_CHANNEL_LOST) {
            assert_int_equal(ev.reason, i == 0   ? BROKER_REASON_NO_QUEUE
                                        : i == 1 ? BROKER_REASON_FORBIDDEN
                                                 : BROKER_REASON_OTHER);
            is_lost[i] = true;
        } else {
            assert_int_equal(ev.kind, BROKER_CHANNEL_OPEN);
            assert_true(is_lost[i] && !is_open[i]);
            is_open[i] = true;
        }
        n++;
    }
    if (h.n < 5 * PER_QUEUE)
        harvest_until(b, &h, 5 * PER_QUEUE);
    ack_all(b, &h, 8);
    finish(b);
    for (size_t i = 3; i < 8; i++)
        depth_becomes(names[i], 0);
    depth_becomes(names[2], 1);
    exclusive_cancel();
    for (size_t i = 1; i < 8; i++)
        queue_delete(names[i]);
}

static void a_cancelled_consumer_touches_no_other(void **state)
{
    struct harvest h = {0};

    (void)state;
    queues_make("mny.cancelled", 3, "quorum");
    struct broker *b = ready_many(3);
    for (size_t i = 0; i < 3; i++)
        consume_from(b, i, 5, 10);
    for (int i = 0; i < 3; i++)
        next_is(b, BROKER_CONSUMING);
    queue_delete(names[1]);
    struct broker_event ev = next_is(b, BROKER_CANCELLED);
    assert_true(ev.queue == queues[1].number && ev.copy.consumer == 5);
    ev = next_is(b, BROKER_CHANNEL_LOST);
    assert_true(ev.queue == queues[1].number && ev.reason == BROKER_REASON_CANCELLED);
    assert_true(next_is(b, BROKER_CHANNEL_OPEN).queue == queues[1].number);
    publish_numbers_more(names[0], 10);
    publish_numbers_more(names[2], 10);
    harvest_until(b, &h, 20);
    assert_true(h.n_of[0] == 10 && h.n_of[2] == 10);
    /* Our own cancel of one consumer: its deliveries can still be acked, and the others continue. */
    assert_int_equal(broker_cancel(b, queues[0].number, 5, &f), 0);
    ev = next_is(b, BROKER_STOPPED);
    assert_true(ev.queue == queues[0].number && ev.copy.consumer == 5);
    ack_all(b, &h, 3);
    publish_numbers_more(names[0], 1);
    int eleventh = 10;
    publish(names[2], &eleventh, sizeof(eleventh), NULL);
    harvest_until(b, &h, 21);
    assert_int_equal(h.n_of[2], 11);
    assert_true(is_quiet(b));
    finish(b);
    queue_delete(names[0]);
    queue_delete(names[2]);
}

/* Frames of several channels may be interleaved. */
static void a_large_body_comes_beside_small_ones(void **state)
{
    enum { LARGE = 12 * MIB /* RabbitMQ 4 accepts 16 */, SMALL = 2000 };
    char *body = pattern(LARGE);
    struct harvest h = {0};

    (void)state;
    queues_make("mny.large", 3, "classic");
    publish(names[0], body, LARGE, NULL);
    depth_becomes(names[0], 1);
    publish_numbers(names[1], SMALL);
    publish_numbers(names[2], SMALL);
    struct broker *b = ready_many(3);
    for (size_t i = 0; i < 3; i++)
        consume_from(b, i, 1, 10);
    for (bool has_large = false; !has_large || h.n < 2 * SMALL;) {
        struct broker_event ev = next(b, 64 * MIB);

        if (ev.kind != BROKER_DELIVERY)
            continue;
        if (ev.queue) {
            harvest_add(&h, &ev);
        } else {
            assert_int_equal(ev.message->body_len, LARGE);
            assert_memory_equal(ev.message->body, body, LARGE);
            message_free(ev.message);
            has_large = true;
        }
        assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0);
        assert_int_equal(broker_flush(b, &f), 0);
    }
    finish(b);
    free(body);
    for (size_t i = 0; i < 3; i++)
        depth_becomes(names[i], 0);
    queues_delete(3);
}

/* A queue has no room: only its own deliveries are skipped. */
static struct broker_room room_of_all_but_one(void *context, uint32_t queue, bool redelivered)
{
    (void)redelivered;
    return queue == *(uint32_t *)context ? (struct broker_room){0} : a_mib;
}

static void room_is_each_queues_own(void **state)
{
    uint32_t full = NUMBER;
    size_t n[3] = {0};
    struct broker_event ev;

    (void)state;
    queues_make("mny.room", 3, "classic");
    for (size_t i = 0; i < 3; i++)
        publish_numbers(names[i], 20);
    struct broker *b = ready_many(3);
    for (size_t i = 0; i < 3; i++)
        consume_from(b, i, 1, 20);
    for (int64_t deadline = clock_ms() + WAIT_MS; n[0] + n[1] + n[2] < 60;) {
        assert_true(clock_ms() < deadline);
        assert_int_equal(broker_next(b, room_of_all_but_one, &full, &ev, &f), 0);
        if (ev.kind == BROKER_NOTHING) {
            struct pollfd p = {.fd = broker_fd(b), .events = POLLIN};
            poll(&p, 1, 100);
        } else if (ev.kind != BROKER_CONSUMING) {
            assert_int_equal(ev.kind, ev.queue == full ? BROKER_SKIPPED : BROKER_DELIVERY);
            n[ev.queue / NUMBER]++;
            message_free(ev.message);
        }
    }
    assert_true(n[0] == 20 && n[1] == 20);
    finish(b);
    queues_delete(3);
}

static void depths_of_all_come_together(void **state)
{
    int64_t depths[N];

    (void)state;
    queues_make("mny.depth", N, "classic");
    for (size_t i = 0; i < N; i += 7)
        publish_numbers(names[i], (int)i + 1);
    struct broker *b = ready_many(N);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < N; i++)
            assert_int_equal(broker_ask_depth(b, queues[i].number, &f), 0);
        for (size_t i = 0; i < N; i++) {
            struct broker_event ev = next_is(b, BROKER_DEPTH);
            assert_true((ev.depth < 0) == (ev.reason == BROKER_REASON_NO_QUEUE));
            depths[ev.queue / NUMBER] = ev.depth;
        }
        assert_true(is_quiet(b)); /* each only once */
        for (size_t i = 0; i < N; i++)
            assert_int_equal(depths[i], round && i % 3 == 0 ? -1 : i % 7 ? 0 : (int64_t)i + 1);
        for (size_t i = 0; round == 0 && i < N; i += 3) /* now some are missing */
            queue_delete(names[i]);
    }
    finish(b);
    for (size_t i = 0; i < N; i++)
        if (i % 3)
            queue_delete(names[i]);
}

static void kinds_of_all_are_learnt(void **state)
{
    static const char *const types[] = {"classic", "quorum", "stream"};
    enum broker_kind kinds[] = {BROKER_KIND_CLASSIC, BROKER_KIND_QUORUM, BROKER_KIND_STREAM};
    enum { MANY = 12 };
    size_t n_kinds = 0, n_lost = 0;

    (void)state;
    queues_make("mny.kind", MANY, "classic");
    for (size_t i = 0; i < MANY; i++)
        queue_make(names[i], types[i % 3]);
    struct broker *b = ready_many(MANY);
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(broker_ask_kind(b, queues[i].number, &f), 0);
        assert_int_equal(broker_ask_depth(b, queues[i].number, &f), 0);
    }
    for (size_t n = 0; n < 2 * MANY + MANY / 3; n++) {
        struct broker_event ev = next(b, MIB);
        assert_true(ev.kind == BROKER_KIND || ev.kind == BROKER_DEPTH || ev.kind == BROKER_CHANNEL_LOST);
        if (ev.kind == BROKER_KIND)
            assert_int_equal(ev.queue_kind, kinds[ev.queue / NUMBER % 3]);
        n_kinds += ev.kind == BROKER_KIND;
        n_lost += ev.kind == BROKER_CHANNEL_LOST && ev.reason == BROKER_REASON_STREAM;
    }
    assert_true(n_kinds == MANY && n_lost == MANY / 3);
    for (size_t i = 0; i < MANY; i++)
        assert_int_equal(broker_channel_is_open(b, queues[i].number), i % 3 != 2);
    finish(b);
    /* Known kinds are not asked for again. */
    for (size_t i = 0; i < MANY; i++)
        queues[i].kind = kinds[i % 3];
    b = ready_many(MANY);
    for (size_t i = 0; i < MANY; i++)
        assert_int_equal(broker_ask_kind(b, queues[i].number, &f), 0);
    for (size_t i = 0; i < MANY / 3; i++) { /* except for streams, which may have been replaced */
        assert_int_equal(next_is(b, BROKER_KIND).queue_kind, BROKER_KIND_STREAM);
        next_is(b, BROKER_CHANNEL_LOST);
    }
    assert_true(is_quiet(b));
    finish(b);
    queues_delete(MANY);
}

/* When a consumer gets nothing although there are messages, the kind is asked for automatically. */
static void a_silent_stream_is_found(void **state)
{
    (void)state;
    queues_make("mny.silent", 2, "classic");
    queue_make(names[1], "stream");
    publish_numbers(names[1], 3);
    struct broker *b = ready_many(2);
    for (size_t i = 0; i < 2; i++) {
        consume_from(b, i, 1, 10);
        next_is(b, BROKER_CONSUMING);
    }
    bool is_found = false;
    for (int64_t deadline = clock_ms() + WAIT_MS; !is_found;) {
        assert_true(clock_ms() < deadline);
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(broker_ask_depth(b, queues[i].number, &f), 0);
        for (int n_answers = 0; n_answers < 2;) {
            struct broker_event ev = next(b, MIB);
            if (ev.kind == BROKER_KIND)
                assert_true(ev.queue == queues[1].number && ev.queue_kind == BROKER_KIND_STREAM);
            is_found |= ev.kind == BROKER_KIND;
            n_answers += ev.kind == BROKER_DEPTH;
        }
        usleep(20000);
    }
    broker_free(b);
    queues_delete(2);
}

/* A queue that replaces a stream is detected without a call. */
static void a_stream_is_looked_at_again(void **state)
{
    size_t n_streams = 0;
    struct broker_event ev;

    (void)state;
    queues_make("mny.again", 2, "classic");
    queue_make(names[1], "stream");
    struct broker *b = ready_many(2);
    assert_int_equal(broker_ask_kind(b, queues[1].number, &f), 0);
    next_is(b, BROKER_KIND);
    next_is(b, BROKER_CHANNEL_LOST);
    for (; n_streams < 2; n_streams++)
        assert_int_equal(next_is(b, BROKER_KIND).queue_kind, BROKER_KIND_STREAM);
    queue_make(names[1], "quorum");
    while ((ev = next_is(b, BROKER_KIND)).queue_kind == BROKER_KIND_STREAM ||
           ev.queue_kind == BROKER_KIND_OTHER)
        ;
    assert_true(ev.queue == queues[1].number && ev.queue_kind == BROKER_KIND_QUORUM);
    assert_int_equal(next_is(b, BROKER_CHANNEL_OPEN).queue, queues[1].number);
    finish(b);
    queues_delete(2);
}

static void a_lost_connection_gives_all_back(void **state)
{
    static struct relay r;
    struct harvest h = {0};

    (void)state;
    queues_make("mny.lost", 16, "quorum");
    for (size_t i = 0; i < 16; i++)
        publish_numbers(names[i], 10);
    relay_start(&r);
    struct broker *b = ready_many_at(r.url, 16);
    for (size_t i = 0; i < 16; i++)
        consume_from(b, i, 1, 20);
    harvest_until(b, &h, 160);
    atomic_store(&r.mode, 1);
    assert_true(lost_after(b) < 2000);
    for (size_t i = 0; i < 16; i++) {
        assert_int_equal(broker_ack(b, h.last[i], true, &f), -1);
        assert_false(broker_channel_is_open(b, queues[i].number));
    }
    broker_free(b);
    relay_stop(&r);
    for (size_t i = 0; i < 16; i++)
        depth_becomes(names[i], 10);
    queues_delete(16);
}

/* Between two flushes each queue has a share of the buffer, whose size is bounded. */
static void a_queue_fills_its_share_of_the_buffer(void **state)
{
    enum { SHARE = 64 * 1024 / 8, REQUEUE = 21 + 12 /* with its tx.commit */ };
    struct harvest h = {0};

    (void)state;
    queues_make("mny.share", 8, "classic");
    publish_numbers(names[0], 1);
    struct broker *b = ready_many(8);
    consume_from(b, 0, 1, 1);
    harvest_until(b, &h, 1);
    int n = 0;
    assert_true(broker_can_write(b, queues[0].number, 100000)); /* the buffer is empty */
    while (broker_can_write(b, queues[0].number, 1)) {
        assert_int_equal(broker_requeue(b, (struct broker_tag){h.last[0].generation, 1000000}, &f), 0);
        assert_true(++n <= SHARE);
    }
    assert_int_equal(n, SHARE / REQUEUE);
    assert_true(broker_can_write(b, queues[1].number, 100)); /* the others have their own shares */
    broker_free(b);
    queues_delete(8);
}

/* --- with the node's cooperation --- */

static void eval(const char *text)
{
    const char *program = getenv("ONCEWARD_TEST_EVAL");
    int status = -1;

    pid_t child = fork();
    if (child == 0) {
        execl(program, program, text, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_int_equal(status, 0);
}

/* Suspends or resumes the process of a queue. what: suspend, resume. */
static void process_do(const char *what, const char *queue)
{
    char text[512];

    snprintf(text, sizeof(text),
             "{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"%s\">>)), "
             "sys:%s(amqqueue:get_pid(Q))",
             queue, what);
    eval(text);
}

static void an_alarm_stops_nothing(void **state)
{
    struct harvest h = {0};
    struct broker_event ev;

    (void)state;
    if (!getenv("ONCEWARD_TEST_EVAL"))
        skip();
    queues_make("mny.alarm", 4, "classic");
    for (size_t i = 0; i < 4; i++)
        publish_numbers(names[i], 10);
    struct broker *b = ready_many(4);
    eval("vm_memory_monitor:set_vm_memory_high_watermark(0.000001)");
    for (size_t i = 0; i < 4; i++)
        consume_from(b, i, 1, 20);
    while (h.n < 40) {
        ev = next(b, MIB);
        if (ev.kind == BROKER_DELIVERY)
            harvest_add(&h, &ev);
        else /* also to a connection made meanwhile */
            assert_true(ev.kind == BROKER_CONSUMING || ev.kind == BROKER_BLOCKED);
    }
    ack_all(b, &h, 4);
    finish(b);
    eval("vm_memory_monitor:set_vm_memory_high_watermark(0.4)");
    for (size_t i = 0; i < 4; i++)
        depth_becomes(names[i], 0);
    queues_delete(4);
}

/* The process of a queue hangs: questions about it get no answer, nor does its channel; all other queues
 * continue. */
static void a_queue_that_hangs_touches_no_other(void **state)
{
    struct harvest h = {0};
    struct broker_event ev;

    (void)state;
    if (!getenv("ONCEWARD_TEST_EVAL"))
        skip();
    queues_make("mny.hangs", 3, "classic");
    struct broker *b = ready_many(3);
    assert_int_equal(broker_ask_depth(b, queues[0].number, &f), 0);
    next_is(b, BROKER_DEPTH); /* questions can be asked */
    process_do("suspend", names[1]);
    assert_int_equal(broker_ask_depth(b, queues[1].number, &f), 0);
    assert_int_equal(broker_ask_depth(b, queues[0].number, &f), 0);
    consume_from(b, 1, 1, 10);
    consume_from(b, 2, 1, 10);
    assert_int_equal(next_is(b, BROKER_CONSUMING).queue, queues[2].number);
    publish_numbers_more(names[2], 10);
    harvest_until(b, &h, 10);
    ev = next_is(b, BROKER_DEPTH); /* late, but answered */
    assert_true(ev.queue == queues[1].number && ev.depth == -1 && ev.reason == BROKER_REASON_SILENT);
    ev = next_is(b, BROKER_DEPTH);
    assert_true(ev.queue == queues[0].number && ev.depth == 0);
    for (int i = 0; i < 50; i++) { /* at once, and without losing a channel */
        assert_int_equal(broker_ask_depth(b, queues[1].number, &f), 0);
        ev = next_is(b, BROKER_DEPTH);
        assert_true(ev.queue == queues[1].number && ev.reason == BROKER_REASON_SILENT);
    }
    assert_int_equal(broker_ask_kind(b, queues[1].number, &f), 0);
    ev = next_is(b, BROKER_KIND);
    assert_true(ev.queue_kind == BROKER_KIND_OTHER && ev.reason == BROKER_REASON_SILENT);
    process_do("resume", names[1]);
    assert_int_equal(next_is(b, BROKER_CONSUMING).queue, queues[1].number);
    for (int64_t deadline = clock_ms() + WAIT_MS;;) { /* possible again after the end of its old channel */
        assert_int_equal(broker_ask_depth(b, queues[1].number, &f), 0);
        if (next_is(b, BROKER_DEPTH).depth == 0)
            break;
        assert_true(clock_ms() < deadline && is_quiet(b));
    }
    ack_all(b, &h, 3);
    finish(b);
    queues_delete(3);
}

/* --- memory --- */

static size_t anonymous_kib(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    size_t kib = 0;

    assert_non_null(status);
    while (fgets(line, sizeof(line), status))
        if (sscanf(line, "RssAnon: %zu", &kib) == 1)
            break;
    fclose(status);
    return kib;
}

/* Prints the memory of an idle queue, and of one whose messages have come and gone. */
static void memory(void)
{
    enum { MANY = 150 };
    struct harvest h = {0};

    queues_make("mny.memory", MANY, "classic");
    size_t before = anonymous_kib();
    struct broker *b = ready_many(MANY);
    for (size_t i = 0; i < MANY; i++)
        consume_from(b, i, 1, 128);
    for (size_t i = 0; i < MANY; i++)
        next_is(b, BROKER_CONSUMING);
    size_t idle = anonymous_kib();
    for (size_t i = 0; i < MANY; i++)
        publish_numbers_more(names[i], 20);
    harvest_until(b, &h, MANY * 20);
    size_t used = anonymous_kib();
    printf("%d queues: %zu KiB before, %zu KiB idle, %zu KiB after 20 messages each\n", MANY, before, idle,
           used);
    ack_all(b, &h, MANY);
    finish(b);
    queues_delete(MANY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_queue_gets_its_own),
        cmocka_unit_test(channels_are_opened_together),
        cmocka_unit_test(too_few_channels_are_told),
        cmocka_unit_test(a_channel_closed_by_the_broker_touches_no_other),
        cmocka_unit_test(a_cancelled_consumer_touches_no_other),
        cmocka_unit_test(a_large_body_comes_beside_small_ones),
        cmocka_unit_test(room_is_each_queues_own),
        cmocka_unit_test(depths_of_all_come_together),
        cmocka_unit_test(kinds_of_all_are_learnt),
        cmocka_unit_test(a_silent_stream_is_found),
        cmocka_unit_test(a_stream_is_looked_at_again),
        cmocka_unit_test(a_lost_connection_gives_all_back),
        cmocka_unit_test(a_queue_fills_its_share_of_the_buffer),
        cmocka_unit_test(an_alarm_stops_nothing),
        cmocka_unit_test(a_queue_that_hangs_touches_no_other),
    };

    setenv("ONCEWARD_FAILPOINT", "redial_last_ms=400", 1); /* so that a stream is soon checked again */
    FAILPOINT_INIT();
    int r = bed_open();
    if (r)
        return r;
    if (getenv("ONCEWARD_TEST_COST"))
        memory();
    else
        r = cmocka_run_group_tests(tests, NULL, NULL);
    return bed_close(r);
}
