/* The broker's adapter with one queue, against a real RabbitMQ: see broker_bed.h. ONCEWARD_TEST_AMQPS (host
 * name localhost, also reachable as 127.0.0.1), ONCEWARD_TEST_CA and ONCEWARD_TEST_OTHER_CA add TLS.
 * ONCEWARD_TEST_COST=1 only measures the CPU time per message. */

#include "broker_bed.h"

#include "broker/encode.h"
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/job.h"
#include "onceward/broker/publisher.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void many_messages(void **state)
{
    enum { N = 20000 };
    struct broker_tag last = {0};

    (void)state;
    for (int quorum = 0; quorum < 2; quorum++) {
        queue_make("drv.many", quorum ? "quorum" : "classic");
        publish_numbers("drv.many", N);
        struct broker *b = ready("drv.many");
        consume(b, 1, 500);
        for (int i = 0; i < N; i++) {
            struct broker_tag tag = take(b, i);
            bool single = i / 1000 % 2;
            assert_true(tag.generation > 0 &&
                        (i == 0 || (tag.generation == last.generation && tag.number == last.number + 1)));
            last = tag;
            if (single || i % 100 == 99)
                assert_int_equal(broker_ack(b, tag, !single, &f), 0);
        }
        finish(b);
        depth_becomes("drv.many", 0);
    }
    queue_delete("drv.many");
}

/* test_broker.py counts the commands that the queue has logged, and deletes it. */
static void acks_with_gaps(void **state)
{
    enum { N = 60 };

    (void)state;
    queue_make("drv.gaps", "quorum");
    publish_numbers("drv.gaps", N);
    struct broker *b = ready("drv.gaps");
    consume(b, 1, N);
    for (int i = 0; i < N; i++) {
        struct broker_tag tag = take(b, i);
        if (i % 2)
            assert_int_equal(broker_ack(b, tag, false, &f), 0);
    }
    finish(b);
    depth_becomes("drv.gaps", N / 2);
}

static void ack_requeue_reject(void **state)
{
    (void)state;
    queue_make("drv.kinds", "classic");
    publish_numbers("drv.kinds", 4);
    struct broker *b = ready("drv.kinds");
    consume(b, 7, 10);
    struct broker_tag zero = take(b, 0), one = take(b, 1), two = take(b, 2), three = take(b, 3);
    assert_int_equal(broker_ack(b, (struct broker_tag){zero.generation, 0}, true, &f), 1);
    assert_int_equal(broker_ack(b, (struct broker_tag){zero.generation - 1, zero.number}, false, &f), 1);
    assert_int_equal(broker_reject(b, one, &f), 0);
    assert_int_equal(broker_requeue(b, two, &f), 0);
    assert_true(broker_wants_write(b));
    assert_int_equal(broker_flush(b, &f), 0);
    assert_false(broker_wants_write(b));
    struct broker_event ev = next_is(b, BROKER_DELIVERY);
    assert_int_equal(number_of(ev.message), 2);
    assert_true(ev.message->redelivered);
    assert_int_equal(ev.copy.consumer, 7);
    assert_true(slice_equal(ev.message->routing_key, SLICE("drv.kinds")));
    assert_int_equal(ev.message->exchange.len, 0);
    message_free(ev.message);
    assert_int_equal(broker_ack(b, zero, false, &f), 0);
    assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0);
    (void)three; /* stays unacked, so it is redelivered */
    finish(b);
    depth_becomes("drv.kinds", 1);
    queue_delete("drv.kinds");
}

static void queue_deleted_and_made_again(void **state)
{
    (void)state;
    queue_make("drv.gone", "classic");
    publish_numbers("drv.gone", 2);
    struct broker *b = ready("drv.gone");
    consume(b, 1, 10);
    struct broker_tag old = take(b, 0);
    take(b, 1);
    queue_delete("drv.gone");
    assert_int_equal(next_is(b, BROKER_CANCELLED).copy.consumer, 1);
    assert_int_equal(broker_ack(b, old, false, &f), 1);
    assert_int_equal(broker_consume(b, Q, 2, 10, &f), 0); /* too early: no effect */
    struct broker_event ev = next_is(b, BROKER_CHANNEL_LOST);
    assert_non_null(strstr(ev.fault.text, "cancelled"));
    assert_false(broker_channel_is_open(b, Q));
    next_is(b, BROKER_CHANNEL_OPEN);
    assert_true(broker_channel_is_open(b, Q));
    assert_int_equal(broker_ack(b, old, false, &f), 1);
    for (uint32_t i = 3; i < 6; i++) {
        assert_int_equal(broker_consume(b, Q, i, 10, &f), 0);
        ev = next_is(b, BROKER_CHANNEL_LOST);
        assert_int_equal(ev.reason, BROKER_REASON_NO_QUEUE);
        assert_non_null(strstr(ev.fault.text, "drv.gone"));
        next_is(b, BROKER_CHANNEL_OPEN);
    }
    queue_make("drv.gone", "quorum");
    publish_numbers("drv.gone", 1);
    consume(b, 9, 10);
    struct broker_tag fresh = take(b, 0);
    assert_true(fresh.generation > old.generation);
    assert_int_equal(broker_ack(b, fresh, false, &f), 0);
    finish(b);
    depth_becomes("drv.gone", 0);
    queue_delete("drv.gone");
}

static void bad_ack_costs_the_channel(void **state)
{
    (void)state;
    queue_make("drv.bad", "classic");
    publish_numbers("drv.bad", 50);
    struct broker *b = ready("drv.bad");
    consume(b, 1, 20);
    struct broker_tag old = take(b, 0);
    assert_int_equal(broker_ack(b, (struct broker_tag){old.generation, 12345}, false, &f), 0);
    assert_int_equal(broker_flush(b, &f), 0);
    struct broker_event ev;
    while ((ev = next(b, MIB)).kind == BROKER_DELIVERY)
        message_free(ev.message);
    assert_int_equal(ev.kind, BROKER_CHANNEL_LOST);
    assert_int_equal(ev.reason, BROKER_REASON_OTHER);
    assert_string_equal(ev.fault.code, "406");
    assert_int_equal(broker_ack(b, old, true, &f), 1);
    next_is(b, BROKER_CHANNEL_OPEN);
    consume(b, 2, 50);
    struct broker_tag last = {0};
    for (int i = 0; i < 50; i++)
        last = take(b, i);
    assert_int_equal(broker_ack(b, last, true, &f), 0);
    finish(b);
    depth_becomes("drv.bad", 0);
    queue_delete("drv.bad");
}

static void bodies_of_all_sizes(void **state)
{
    static const size_t sizes[] = {0, 1, 2, 131063, 131064, 131065, 262128, MIB, 3 * MIB + 17, 16 * MIB};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    char *body = pattern(16 * MIB);

    (void)state;
    queue_make("drv.sizes", "classic");
    for (int i = 0; i < N; i++)
        publish("drv.sizes", body, sizes[i], NULL);
    depth_becomes("drv.sizes", N);
    struct broker *b = ready("drv.sizes");
    consume(b, 1, 100);
    for (int i = 0; i < N; i++) {
        struct broker_event ev = next_is(b, BROKER_DELIVERY);
        assert_int_equal(ev.message->body_len, sizes[i]);
        assert_int_equal(ev.copy.body_len, sizes[i]);
        if (sizes[i])
            assert_memory_equal(ev.message->body, body, sizes[i]);
        else
            assert_null(ev.message->body);
        message_free(ev.message);
        assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0);
    }
    finish(b);
    free(body);
    depth_becomes("drv.sizes", 0);
    queue_delete("drv.sizes");
}

/* An array of voids, one byte each on the wire, takes forty times its size in memory. */
static void headers_that_do_not_fit_are_skipped(void **state)
{
    enum { N_VOIDS = 100000 };
    amqp_field_value_t *voids = calloc(N_VOIDS, sizeof(*voids));
    amqp_table_entry_t entry = {amqp_cstring_bytes("voids"), {.kind = AMQP_FIELD_KIND_ARRAY}};
    amqp_basic_properties_t p = {._flags = AMQP_BASIC_HEADERS_FLAG, .headers = {1, &entry}};
    const struct broker_room alone = {MIB, SIZE_MAX, 0, 0}, beside = {MIB, MIB, 0, 0};
    struct broker_event ev;

    (void)state;
    for (int i = 0; i < N_VOIDS; i++)
        voids[i].kind = AMQP_FIELD_KIND_VOID;
    entry.value.value.array = (amqp_array_t){N_VOIDS, voids};
    queue_make("drv.voids", "classic");
    for (size_t len = 0; len < 2; len++) {
        publish("drv.voids", "x", len, &p);
        depth_becomes("drv.voids", 1);
        struct broker *b = ready("drv.voids");
        consume(b, 1, 1);
        ev = next_in(b, beside);
        assert_int_equal(ev.kind, BROKER_SKIPPED);
        assert_int_equal(ev.copy.body_len, len);
        uint64_t n_bytes = ev.copy.n_bytes;
        assert_true(n_bytes > N_VOIDS * sizeof(struct field));
        assert_int_equal(broker_requeue(b, ev.copy.tag, &f), 0);
        ev = next_in(b, alone);
        assert_int_equal(ev.kind, BROKER_DELIVERY);
        assert_int_equal(message_bytes(ev.message), n_bytes);
        assert_int_equal(ev.copy.n_bytes, n_bytes);
        message_free(ev.message);
        assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0);
        finish(b);
    }
    free(voids);
    queue_delete("drv.voids");
}

static void what_does_not_fit_is_skipped(void **state)
{
    enum { N = 40 };
    char *body = pattern(MIB);
    int n_skipped = 0;

    (void)state;
    queue_make("drv.drain", "classic");
    for (int i = 0; i < N; i++)
        publish("drv.drain", body, i % 2 ? MIB : 100, NULL);
    depth_becomes("drv.drain", N);
    struct broker *b = ready("drv.drain");
    consume(b, 1, N);
    for (int i = 0; i < N; i++) {
        struct broker_event ev = next(b, 1000);
        assert_int_equal(ev.kind, i % 2 ? BROKER_SKIPPED : BROKER_DELIVERY);
        assert_int_equal(ev.copy.body_len, i % 2 ? MIB : 100);
        assert_int_equal(ev.copy.consumer, 1);
        n_skipped += ev.kind == BROKER_SKIPPED;
        assert_int_equal(ev.message == NULL, ev.kind == BROKER_SKIPPED);
        message_free(ev.message);
        assert_int_equal(i % 2 ? broker_requeue(b, ev.copy.tag, &f) : broker_ack(b, ev.copy.tag, false, &f),
                         0);
        if (i % 2 == 0)
            assert_int_equal(broker_flush(b, &f), 0);
    }
    /* With enough room they are delivered. */
    for (int i = 0; i < n_skipped; i++) {
        struct broker_event ev = next(b, MIB);
        if (ev.kind == BROKER_SKIPPED)
            fail_msg("skipped again");
        assert_true(ev.message->redelivered);
        assert_memory_equal(ev.message->body, body, MIB);
        message_free(ev.message);
        assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0);
    }
    finish(b);
    free(body);
    depth_becomes("drv.drain", 0);
    queue_delete("drv.drain");
}

/* 200 headers: every kind, nested in both ways. */
static void headers_make(struct field *headers, struct field *inner)
{
    static const struct field kinds[] = {
        {.kind = FIELD_BOOL, .boolean = true},
        {.kind = FIELD_I8, .i = -1},
        {.kind = FIELD_U8, .u = 255},
        {.kind = FIELD_I16, .i = -300},
        {.kind = FIELD_U16, .u = 65535},
        {.kind = FIELD_I32, .i = INT32_MIN},
        {.kind = FIELD_U32, .u = UINT32_MAX},
        {.kind = FIELD_I64, .i = INT64_MIN},
        {.kind = FIELD_F32, .d = 0.25},
        {.kind = FIELD_F64, .d = 1e300},
        {.kind = FIELD_DECIMAL, .decimal = {3, 1234567}},
        {.kind = FIELD_STRING, .bytes = {"text\0\xff", 6}},
        {.kind = FIELD_BYTES, .bytes = {"\0\1\2", 3}},
        {.kind = FIELD_TIMESTAMP, .u = 1700000000},
        {.kind = FIELD_VOID},
    };
    enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };
    static char names[200][16];

    for (int i = 0; i < 200; i++) {
        headers[i] = kinds[i % N_KINDS];
        snprintf(names[i], sizeof(names[i]), "h-%d", i);
        headers[i].name = slice_of(names[i]);
    }
    for (int i = 0; i < N_KINDS; i++) {
        inner[i] = kinds[i];
        inner[i].name = slice_of(names[i]);
        inner[N_KINDS + i] = kinds[i];
        inner[N_KINDS + i].name = (struct slice){0};
    }
    inner[2 * N_KINDS] = (struct field){SLICE("array"), FIELD_ARRAY, .children = {inner + N_KINDS, N_KINDS}};
    inner[2 * N_KINDS + 1] = (struct field){SLICE("table"), FIELD_TABLE, .children = {inner, N_KINDS}};
    headers[198] = (struct field){slice_of(names[198]), FIELD_TABLE, .children = {inner + 2 * N_KINDS, 2}};
    headers[199] = (struct field){slice_of(names[199]), FIELD_ARRAY, .children = {inner + N_KINDS, N_KINDS}};
}

static int field_order(const void *a, const void *b)
{
    const struct field *one = a, *other = b;
    size_t n = one->name.len < other->name.len ? one->name.len : other->name.len;
    int order = n ? memcmp(one->name.data, other->name.data, n) : 0;

    return order ? order : (one->name.len > other->name.len) - (one->name.len < other->name.len);
}

/* Sorts tables by name, as RabbitMQ does from 4.0 on. */
static void fields_equal(struct field *a, struct field *b, size_t n)
{
    if (n && a[0].name.len) {
        qsort(a, n, sizeof(*a), field_order);
        qsort(b, n, sizeof(*b), field_order);
    }
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(a[i].kind, b[i].kind);
        assert_true(slice_equal(a[i].name, b[i].name));
        if (a[i].kind == FIELD_ARRAY || a[i].kind == FIELD_TABLE) {
            assert_int_equal(a[i].children.n, b[i].children.n);
            fields_equal(a[i].children.items, b[i].children.items, a[i].children.n);
        } else if (a[i].kind == FIELD_STRING || a[i].kind == FIELD_BYTES) {
            assert_true(slice_equal(a[i].bytes, b[i].bytes));
        } else if (a[i].kind == FIELD_DECIMAL) {
            assert_true(a[i].decimal.decimals == b[i].decimal.decimals &&
                        a[i].decimal.value == b[i].decimal.value);
        } else if (a[i].kind == FIELD_F32 || a[i].kind == FIELD_F64) {
            assert_true(a[i].d == b[i].d);
        } else if (a[i].kind == FIELD_BOOL) {
            assert_int_equal(a[i].boolean, b[i].boolean);
        } else if (a[i].kind != FIELD_VOID) {
            assert_true(a[i].i == b[i].i);
        }
    }
}

static void published_messages_come_back_as_they_were(void **state)
{
    struct config_broker c = settings_of(url);
    struct field headers[202], inner[40];
    struct publisher *p;
    char *body = pattern(2 * MIB);

    (void)state;
    queue_make("drv.publish", "quorum");
    queue_make("drv.other", "classic");
    headers_make(headers, inner);
    struct field copy_to = {.kind = FIELD_STRING, .bytes = SLICE("drv.other")};
    headers[200] = (struct field){SLICE("CC"), FIELD_ARRAY, .children = {&copy_to, 1}};
    headers[201] = (struct field){SLICE("BCC"), FIELD_ARRAY, .children = {&copy_to, 1}};
    struct message m = {.headers = headers,
                        .n_headers = 202,
                        .body = body,
                        .body_len = 2 * MIB,
                        .has_priority = true,
                        .priority = 3,
                        .has_timestamp = true,
                        .timestamp = 1234567890123};
    for (int i = 0; i < N_PROPERTIES; i++)
        m.properties[i] = slice_of(property_name((enum property)i));
    m.properties[PROPERTY_EXPIRATION] = SLICE("1");
    if (publisher_open(&c, NULL, "driver", &p, &f))
        fail_msg("%s", f.text);
    assert_int_equal(publisher_send(p, "", "drv.nowhere", &m, &f), 1);
    assert_int_equal(publisher_send(p, "", "drv.publish", &m, &f), 0);
    m.properties[PROPERTY_USER_ID] = SLICE("guest");
    m.body_len = 0;
    assert_int_equal(publisher_send(p, "", "drv.publish", &m, &f), 0);
    m.properties[PROPERTY_TYPE].len = 256;
    assert_int_equal(publisher_send(p, "", "drv.publish", &m, &f), -1);
    m.properties[PROPERTY_TYPE].len = 4;
    assert_int_equal(publisher_send(p, "", "drv.nowhere", &m, &f), 1);
    publisher_close(p);
    assert_int_equal(queue_depth("drv.other"), 0);

    struct broker *b = ready("drv.publish");
    consume(b, 1, 10);
    for (int i = 0; i < 2; i++) {
        struct broker_event ev = next_is(b, BROKER_DELIVERY);
        struct message *got = ev.message;
        assert_int_equal(got->n_headers, 200);
        fields_equal(headers, got->headers, 200);
        assert_true(got->has_delivery_mode && got->delivery_mode == 2 && got->has_priority &&
                    got->priority == 3);
        assert_true(got->timestamp == 1234567890123);
        for (int k = 0; k < N_PROPERTIES; k++) {
            if (k == PROPERTY_EXPIRATION || (k == PROPERTY_USER_ID && i == 0))
                assert_null(got->properties[k].data);
            else
                assert_true(slice_equal(got->properties[k], m.properties[k]));
        }
        assert_int_equal(got->body_len, i ? 0 : 2 * MIB);
        if (i == 0)
            assert_memory_equal(got->body, body, 2 * MIB);
        message_free(got);
        assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0);
    }
    finish(b);
    free(body);
    queue_delete("drv.publish");
    queue_delete("drv.other");
}

/* A delivery is published again from its bytes: every kind and order is preserved. */
static void bytes_are_published_again(void **state)
{
    struct config_broker c = settings_of(url);
    struct field headers[202], inner[40];
    struct publisher *p;

    (void)state;
    queue_make("drv.bytes", "classic");
    headers_make(headers, inner);
    struct field copy_to = {.kind = FIELD_STRING, .bytes = SLICE("drv.other")};
    headers[200] = (struct field){SLICE("L"), FIELD_U16, .u = 65535};
    headers[201] = (struct field){SLICE("CC"), FIELD_ARRAY, .children = {&copy_to, 1}};
    struct message m = {.headers = headers, .n_headers = 202, .has_priority = true, .priority = 3};
    struct buf first = {0};
    for (int i = 0; i < N_PROPERTIES; i++)
        m.properties[i] = slice_of(property_name((enum property)i));
    assert_int_equal(message_encode(&first, &m, &f), 0);
    struct slice bytes = {first.data + 12, first.len - 12};
    if (publisher_open(&c, NULL, "driver", &p, &f))
        fail_msg("%s", f.text);
    assert_int_equal(publisher_send_raw(p, "", "drv.nowhere", bytes, SLICE("body"), &f), 1);
    struct broker *b = ready("drv.bytes");
    consume(b, 1, 10);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(publisher_send_raw(p, "", "drv.bytes", bytes, SLICE("body"), &f), 0);
        struct broker_event ev = next_is(b, BROKER_DELIVERY);
        struct message *got = ev.message;
        assert_int_equal(got->n_headers, 201);
        fields_equal(headers, got->headers, 201);
        assert_true(got->has_delivery_mode && got->delivery_mode == 2 && got->priority == 3);
        assert_null(got->properties[PROPERTY_EXPIRATION].data);
        assert_null(got->properties[PROPERTY_USER_ID].data);
        assert_true(got->body_len == 4 && !memcmp(got->body, "body", 4));
        if (round && broker_version(b)[0] == '3') /* later ones sort the headers */
            assert_true(slice_equal(got->content_header, bytes));
        buf_reset(&first);
        buf_add_slice(&first, got->content_header);
        bytes = buf_slice(&first);
        message_free(got);
        assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0);
    }
    assert_int_equal(publisher_send_raw(p, "", "drv.bytes", (struct slice){"\x80", 1}, SLICE(""), &f), -1);
    assert_non_null(strstr(f.text, "form"));
    assert_int_equal(publisher_send_raw(p, "", "drv.bytes", (struct slice){"\0\0", 2}, SLICE(""), &f), 0);
    struct broker_event ev = next_is(b, BROKER_DELIVERY);
    assert_true(ev.message->delivery_mode == 2 && !ev.message->body_len);
    message_free(ev.message);
    buf_deinit(&first);
    publisher_close(p);
    finish(b);
    queue_delete("drv.bytes");
}

static void deep_tables_do_no_harm(void **state)
{
    enum { DEPTH = 5000 };
    static amqp_field_value_t nest[DEPTH];
    amqp_table_entry_t entry = {amqp_cstring_bytes("n"), {.kind = AMQP_FIELD_KIND_ARRAY}};

    (void)state;
    /* From 0.14 on the library refuses to send more; test_bodies.py does. */
    int deep = amqp_version_number() < AMQP_VERSION_CODE(0, 14, 0, 0) ? DEPTH : 90;
    for (int i = 0; i < deep; i++) {
        nest[i].kind = AMQP_FIELD_KIND_ARRAY;
        if (i + 1 < deep)
            nest[i].value.array = (amqp_array_t){1, &nest[i + 1]};
    }
    entry.value.value.array = (amqp_array_t){1, nest};
    amqp_basic_properties_t p = {._flags = AMQP_BASIC_HEADERS_FLAG, .headers = {1, &entry}};
    queue_make("drv.deep", "classic");
    publish("drv.deep", "x", 1, &p);
    publish("drv.deep", "y", 1, NULL);
    depth_becomes("drv.deep", 2);
    struct broker *b = ready("drv.deep");
    consume(b, 1, 10);
    struct broker_event ev = next_is(b, BROKER_DELIVERY);
    const struct field *h = &ev.message->headers[0];
    int depth = 0;
    while (h->kind == FIELD_ARRAY) {
        assert_int_equal(h->children.n, 1);
        h = h->children.items;
        depth++;
    }
    assert_int_equal(depth, 64);
    assert_true(slice_equal(h->bytes, SLICE("(nested too deeply)")));
    message_free(ev.message);
    ev = next_is(b, BROKER_DELIVERY);
    message_free(ev.message);
    finish(b);
    queue_delete("drv.deep");
}

static void depth_is_answered(void **state)
{
    (void)state;
    queue_make("drv.depth", "classic");
    publish_numbers("drv.depth", 30);
    struct broker *b = ready("drv.depth");
    assert_int_equal(broker_ask_depth(b, Q, &f), 0);
    assert_int_equal(broker_ask_depth(b, Q, &f), 0); /* ignored */
    assert_int_equal(next_is(b, BROKER_DEPTH).depth, 30);
    assert_true(is_quiet(b));
    consume(b, 1, 1);
    take(b, 0);
    queue_delete("drv.depth");
    next_is(b, BROKER_CANCELLED);
    next_is(b, BROKER_CHANNEL_LOST);
    next_is(b, BROKER_CHANNEL_OPEN);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(broker_ask_depth(b, Q, &f), 0);
        struct broker_event ev = next_is(b, BROKER_DEPTH);
        assert_int_equal(ev.depth, -1);
        assert_int_equal(ev.reason, BROKER_REASON_NO_QUEUE);
    }
    assert_true(broker_channel_is_open(b, Q));
    queue_make("drv.depth", "classic");
    assert_int_equal(broker_ask_depth(b, Q, &f), 0);
    assert_int_equal(next_is(b, BROKER_DEPTH).depth, 0);
    finish(b);
    queue_delete("drv.depth");
}

static void cancelling_gives_fresh_credit(void **state)
{
    struct broker_tag tags[30];

    (void)state;
    for (int quorum = 0; quorum < 2; quorum++) {
        queue_make("drv.credit", quorum ? "quorum" : "classic");
        publish_numbers("drv.credit", 30);
        struct broker *b = ready("drv.credit");
        for (int round = 0; round < 3; round++) {
            consume(b, (uint32_t)round + 1, 10);
            for (int i = 0; i < 10; i++)
                tags[round * 10 + i] = take(b, round * 10 + i);
            assert_true(is_quiet(b));
            assert_int_equal(broker_cancel(b, Q, (uint32_t)round + 1, &f), 0);
            assert_int_equal(next_is(b, BROKER_STOPPED).copy.consumer, round + 1);
        }
        for (int i = 0; i < 30; i++)
            assert_int_equal(broker_ack(b, tags[i], false, &f), 0);
        finish(b);
        depth_becomes("drv.credit", 0);
    }
    queue_delete("drv.credit");
}

static void a_cut_connection_is_noticed(void **state)
{
    static struct relay r;

    (void)state;
    queue_make("drv.cut", "classic");
    publish_numbers("drv.cut", 3);
    relay_start(&r);
    struct broker *b = ready_at(r.url, "drv.cut");
    consume(b, 1, 10);
    struct broker_tag tag = take(b, 0);
    atomic_store(&r.mode, 1);
    assert_true(lost_after(b) < 2000);
    assert_int_equal(broker_ack(b, tag, false, &f), -1);
    assert_false(broker_can_write(b, Q, 1));
    broker_free(b);
    relay_stop(&r);
    depth_becomes("drv.cut", 3);
    queue_delete("drv.cut");
}

static void a_connection_closed_by_the_broker_is_told(void **state)
{
    (void)state;
    queue_make("drv.closed", "classic");
    struct broker *b = ready("drv.closed");
    consume(b, 1, 10);
    assert_int_equal(broker_consume(b, Q, 1, 10, &f),
                     0); /* a tag used twice is an error of the whole connection */
    assert_true(lost_after(b) < 5000);
    assert_string_equal(f.code, "530");
    assert_non_null(strstr(f.text, "NOT_ALLOWED"));
    broker_free(b);
    queue_delete("drv.closed");
}

static void a_silent_broker_is_noticed(void **state)
{
    static struct relay r;

    (void)state;
    queue_make("drv.silent", "classic");
    relay_start(&r);
    struct config_broker c = settings_of(r.url);
    c.heartbeat_ms = 1000;
    struct broker *b = dial(&c, "drv.silent");
    assert_non_null(b);
    next_is(b, BROKER_CHANNEL_OPEN);
    atomic_store(&r.mode, 2);
    int64_t ms = lost_after(b);
    assert_true(ms >= 1000 && ms < 5000);
    assert_non_null(strstr(f.text, "was silent"));
    broker_free(b);
    relay_stop(&r);
    queue_delete("drv.silent");
}

static void heartbeats_keep_an_idle_connection(void **state)
{
    (void)state;
    queue_make("drv.idle", "classic");
    struct config_broker c = settings_of(url);
    c.heartbeat_ms = 1000;
    struct broker *b = dial(&c, "drv.idle");
    assert_non_null(b);
    next_is(b, BROKER_CHANNEL_OPEN);
    consume(b, 1, 10);
    struct broker_event ev;
    for (int64_t end = clock_ms() + 5000; clock_ms() < end;) {
        assert_int_equal(broker_tick(b, &f), 0);
        assert_int_equal(broker_next(b, same_room, &a_mib, &ev, &f), 0);
        assert_int_equal(ev.kind, BROKER_NOTHING);
        struct pollfd p = {.fd = broker_fd(b), .events = POLLIN};
        poll(&p, 1, 200);
    }
    publish("drv.idle", "x", 1, NULL);
    ev = next_is(b, BROKER_DELIVERY);
    message_free(ev.message);
    finish(b);
    queue_delete("drv.idle");
}

static void a_broker_that_does_not_read_blocks_nothing(void **state)
{
    enum { N = 20000 };
    static struct broker_tag tags[N];
    static struct relay r;
    int small = 4096, n_acked = 0;
    bool was_full = false;
    int64_t slowest = 0;

    (void)state;
    queue_make("drv.full", "classic");
    publish_numbers("drv.full", N);
    relay_start(&r);
    struct broker *b = ready_at(r.url, "drv.full");
    setsockopt(broker_fd(b), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    consume(b, 1, N);
    for (int i = 0; i < N; i++)
        tags[i] = take(b, i);
    atomic_store(&r.mode, 3);
    usleep(50000);
    for (int64_t deadline = clock_ms() + WAIT_MS; n_acked < N;) {
        int64_t start = clock_us();
        if (broker_can_write(b, Q, 1))
            assert_int_equal(broker_ack(b, tags[n_acked++], false, &f), 0);
        assert_int_equal(broker_flush(b, &f), 0);
        assert_int_equal(broker_tick(b, &f), 0);
        int64_t us = clock_us() - start;
        slowest = us > slowest ? us : slowest;
        if (!was_full && !broker_can_write(b, Q, 1)) {
            was_full = true;
            assert_true(broker_wants_write(b));
            assert_int_equal(broker_ask_depth(b, Q, &f), 0); /* is put behind the buffered methods */
            atomic_store(&r.mode, 0);
        }
        if (!broker_can_write(b, Q, 1)) {
            struct pollfd p = {.fd = broker_fd(b), .events = POLLOUT};
            poll(&p, 1, 100);
        }
        assert_true(clock_ms() < deadline);
    }
    assert_true(was_full);
    assert_true(slowest < 500000);
    next_is(b, BROKER_DEPTH);
    finish(b);
    relay_stop(&r);
    depth_becomes("drv.full", 0);
    queue_delete("drv.full");
}

static void failures_to_connect_are_told(void **state)
{
    char text[256] = "";
    static struct relay silent;
    struct config_broker c = settings_of(text);
    struct config_text secret = {.value = (char *)(uintptr_t) "wrong"};

    (void)state;
    snprintf(text, sizeof(text), "%s", url);
    c.password = secret;
    assert_null(dial(&c, "q"));
    assert_non_null(strstr(f.text, "ACCESS_REFUSED"));
    assert_string_equal(f.code, "403");
    c.password.value = NULL;
    snprintf(text, sizeof(text), "amqp://%s:%s@%s:%d/nowhere", at.user, at.password, at.host, at.port);
    assert_null(dial(&c, "q"));
    assert_non_null(strstr(f.text, "nowhere"));
    snprintf(text, sizeof(text), "amqp://127.0.0.1:1");
    assert_null(dial(&c, "q"));
    assert_non_null(strstr(f.text, "refused"));
    snprintf(text, sizeof(text), "amqp://no-such-host.invalid");
    assert_null(dial(&c, "q"));
    assert_non_null(strstr(f.text, "no-such-host.invalid"));
    snprintf(text, sizeof(text), "amqps://%s:%d", at.host, at.port); /* TLS to a plain port */
    c.connect_timeout_ms = 2000;
    assert_null(dial(&c, "q"));
    /* A server that accepts and stays silent. */
    relay_start(&silent);
    atomic_store(&silent.mode, 2);
    snprintf(text, sizeof(text), "%s", silent.url);
    c.connect_timeout_ms = 500;
    int64_t start = clock_ms();
    assert_null(dial(&c, "q"));
    assert_true(clock_ms() - start < 3000);
    relay_stop(&silent);
    struct publisher *p;
    snprintf(text, sizeof(text), "amqp://127.0.0.1:1");
    assert_int_equal(publisher_open(&c, NULL, "driver", &p, &f), -1);
}

static void check_looks_at_the_queue(void **state)
{
    struct config_broker c = settings_of(url);
    struct config_queue q = {.queue = (char *)(uintptr_t) "drv.check"};

    (void)state;
    queue_make("drv.check", "classic");
    if (broker_check(&c, &q, &f))
        fail_msg("%s", f.text);
    publish_numbers("drv.check", 5);
    assert_int_equal(broker_check(&c, &q, &f), 0);
    assert_int_equal(queue_depth("drv.check"), 5);
    queue_make("drv.check", "quorum");
    assert_int_equal(broker_check(&c, &q, &f), 0);
    publish_numbers("drv.check", 5);
    assert_int_equal(broker_check(&c, &q, &f), 0);
    struct broker *b = ready("drv.check"); /* the check has touched no message */
    consume(b, 1, 10);
    for (int i = 0; i < 5; i++) {
        struct broker_event ev = next_is(b, BROKER_DELIVERY);
        assert_false(ev.message->redelivered);
        assert_int_equal(message_delivery_count(ev.message), 0);
        message_free(ev.message);
    }
    finish(b);
    queue_delete("drv.check");
    assert_int_equal(broker_check(&c, &q, &f), -1);
    assert_non_null(strstr(f.text, "no queue"));
    queue_make("drv.check", "stream");
    assert_int_equal(broker_check(&c, &q, &f), -1);
    assert_non_null(strstr(f.text, "streams are not supported"));
    publish_numbers("drv.check", 5);
    f = (struct fault){0};
    assert_int_equal(broker_check(&c, &q, &f), -1);
    assert_non_null(strstr(f.text, "streams are not supported"));
    queue_delete("drv.check");
}

/* The queue is reported to be a stream, and its channel stays closed. */
static void stream_is_told(struct broker *b)
{
    struct broker_event ev = next_is(b, BROKER_KIND);

    assert_int_equal(ev.queue, Q);
    assert_int_equal(ev.queue_kind, BROKER_KIND_STREAM);
    assert_non_null(strstr(ev.fault.text, "streams are not supported"));
    while ((ev = next(b, MIB)).kind == BROKER_CONSUMING)
        ;
    assert_int_equal(ev.kind, BROKER_CHANNEL_LOST);
    assert_int_equal(ev.reason, BROKER_REASON_STREAM);
    assert_false(broker_channel_is_open(b, Q));
    assert_int_equal(broker_consume(b, Q, 9, 10, &f), 0); /* no effect */
    assert_true(is_quiet(b));
}

static void streams_are_refused(void **state)
{
    struct broker_event ev;

    (void)state;
    queue_make("drv.stream", "stream");
    struct broker *b = ready("drv.stream");
    consume(b, 1, 10);
    for (int i = 0; i < 20; i++)
        publish("drv.stream", &i, sizeof(i), NULL);
    stream_is_told(b); /* no delivery is returned */
    /* Another queue that replaces it is consumed. */
    queue_make("drv.stream", "quorum");
    broker_reopen(b, Q, "once more");
    next_is(b, BROKER_CHANNEL_OPEN);
    assert_int_equal(broker_kind_of(b, Q), BROKER_KIND_UNKNOWN);
    consume(b, 2, 10);
    publish("drv.stream", "x", 1, NULL);
    ev = next_is(b, BROKER_DELIVERY);
    message_free(ev.message);
    finish(b);
    /* A stream is detected without a delivery, before or after a consumer is requested. */
    for (int first = 0; first < 2; first++) {
        queue_make("drv.stream", "stream");
        b = ready("drv.stream");
        if (first)
            assert_int_equal(broker_consume(b, Q, 1, 10, &f), 0);
        assert_int_equal(broker_ask_kind(b, Q, &f), 0);
        if (!first)
            assert_int_equal(broker_consume(b, Q, 1, 10, &f), 0);
        stream_is_told(b);
        finish(b);
    }
    queue_delete("drv.stream");
}

/* Questions do not disturb each other in any order, and deliveries meanwhile are returned. */
static void a_kind_is_learnt(void **state)
{
    static const char *const types[] = {"classic", "quorum"};

    (void)state;
    for (int i = 0; i < 8; i++) {
        bool is_empty = i & 1, depth_first = i & 2;
        enum broker_kind kind = i / 4 ? BROKER_KIND_QUORUM : BROKER_KIND_CLASSIC;
        bool is_told = false;

        queue_make("drv.ordinary", types[i / 4]);
        if (!is_empty)
            publish_numbers("drv.ordinary", 3);
        struct broker *b = ready("drv.ordinary");
        assert_int_equal(broker_kind_of(b, Q), BROKER_KIND_UNKNOWN);
        if (depth_first)
            assert_int_equal(broker_ask_depth(b, Q, &f), 0);
        assert_int_equal(broker_ask_kind(b, Q, &f), 0);
        if (!depth_first)
            assert_int_equal(broker_ask_depth(b, Q, &f), 0);
        assert_int_equal(broker_consume(b, Q, 1, 10, &f), 0);
        for (int n = is_empty ? 3 : 6; n; n--) {
            struct broker_event ev = next(b, 64 * MIB);
            assert_int_equal(ev.queue, Q);
            is_told |= ev.kind == BROKER_KIND;
            if (ev.kind != BROKER_DEPTH)
                assert_true(is_told && ev.queue_kind == kind); /* everything else waits for it */
            else
                assert_true(ev.depth >= 0 && ev.n_consumers <= 1);
            if (ev.kind == BROKER_DELIVERY) {
                assert_false(ev.message->redelivered);
                assert_int_equal(ev.copy.delivery_count, 0);
                message_free(ev.message);
            }
        }
        assert_int_equal(broker_kind_of(b, Q), kind);
        assert_int_equal(broker_ask_kind(b, Q, &f), 0); /* no effect */
        assert_int_equal(broker_ask_depth(b, Q, &f), 0);
        struct broker_event ev = next_is(b, BROKER_DEPTH);
        assert_true(ev.depth == 0 && ev.n_consumers == 1);
        broker_reopen(b, Q, "another queue may have its name"); /* then the question may be asked again */
        ev = next(b, MIB);
        assert_true(ev.kind == BROKER_CHANNEL_LOST && ev.reason == BROKER_REASON_REOPENED);
        assert_int_equal(broker_kind_of(b, Q), BROKER_KIND_UNKNOWN);
        assert_int_equal(next(b, MIB).kind, BROKER_CHANNEL_OPEN);
        finish(b);
    }
    queue_delete("drv.ordinary");
}

static void a_kind_that_is_not_to_be_had_is_told(void **state)
{
    (void)state;
    queue_make("drv.nobody", "classic");
    queue_delete("drv.nobody");
    struct broker *b = ready("drv.nobody");
    assert_int_equal(broker_ask_kind(b, Q, &f), 0);
    struct broker_event ev = next_is(b, BROKER_KIND);
    assert_int_equal(ev.queue_kind, BROKER_KIND_OTHER);
    assert_int_equal(ev.reason, BROKER_REASON_NO_QUEUE);
    assert_non_null(strstr(ev.fault.text, "drv.nobody"));
    finish(b);
    /* A name so long that the broker's sentence has no room for the kind, and one that looks like the end of
     * that sentence. */
    char name[200] = "of queue type rabbit_quorum_queue";
    for (int i = 0; i < 2; i++) {
        queue_make(name, "classic");
        b = ready(name);
        assert_int_equal(broker_ask_kind(b, Q, &f), 0);
        ev = next_is(b, BROKER_KIND);
        assert_int_equal(ev.queue_kind, i ? BROKER_KIND_OTHER : BROKER_KIND_CLASSIC);
        finish(b);
        queue_delete(name);
        memset(name, 'x', sizeof(name) - 1);
    }
}

/* The count in a redelivered message is the broker's own only on a quorum queue: the kind must be known when
 * the message is returned. */
static void what_carries_a_count_comes_with_the_kind(void **state)
{
    amqp_table_entry_t entry = {amqp_cstring_bytes("x-delivery-count"), {.kind = AMQP_FIELD_KIND_I64}};
    amqp_basic_properties_t p = {._flags = AMQP_BASIC_HEADERS_FLAG, .headers = {1, &entry}};

    (void)state;
    entry.value.value.i64 = 1000;
    for (int quorum = 0; quorum < 2; quorum++) {
        queue_make("drv.count", quorum ? "quorum" : "classic");
        publish("drv.count", "x", 1, quorum ? NULL : &p);
        depth_becomes("drv.count", 1);
        struct broker *b = ready("drv.count");
        consume(b, 1, 10);
        struct broker_event ev = next_is(b, BROKER_DELIVERY);
        assert_int_equal(ev.queue_kind, BROKER_KIND_UNKNOWN);
        assert_false(ev.message->redelivered);
        assert_int_equal(ev.copy.delivery_count, 0); /* a publisher set it */
        message_free(ev.message);
        assert_int_equal(broker_reject(b, (struct broker_tag){ev.copy.tag.generation, 0}, &f), 1);
        /* Every RabbitMQ counts a delivery that ends with its connection; from 4.3 on a nack does not count. */
        finish(b);
        b = ready("drv.count");
        consume(b, 1, 10);
        ev = next_is(b, BROKER_KIND);
        assert_int_equal(ev.queue_kind, quorum ? BROKER_KIND_QUORUM : BROKER_KIND_CLASSIC);
        ev = next_is(b, BROKER_DELIVERY);
        assert_true(ev.message->redelivered);
        assert_int_equal(ev.queue_kind, quorum ? BROKER_KIND_QUORUM : BROKER_KIND_CLASSIC);
        assert_int_equal(ev.copy.delivery_count, quorum ? 1 : 1000);
        message_free(ev.message);
        /* A delivery is urgent by the broker's count; it is taken although there is no room. */
        const struct broker_room urgent = {.urgent_count = 1, .urgent_body = 1};
        assert_int_equal(broker_requeue(b, ev.copy.tag, &f), 0);
        assert_int_equal(broker_flush(b, &f), 0);
        ev = next_in(b, urgent);
        assert_int_equal(ev.kind, quorum ? BROKER_DELIVERY : BROKER_SKIPPED);
        if (quorum)
            assert_true(ev.copy.delivery_count == 1 || ev.copy.delivery_count == 2);
        else
            assert_int_equal(ev.copy.delivery_count, 1000);
        message_free(ev.message);
        assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0);
        finish(b);
    }
    queue_delete("drv.count");
}

static void messages_that_were_in_a_stream_are_taken(void **state)
{
    amqp_table_entry_t entry = {amqp_cstring_bytes("x-stream-offset"), {.kind = AMQP_FIELD_KIND_I64}};
    amqp_basic_properties_t p = {._flags = AMQP_BASIC_HEADERS_FLAG, .headers = {1, &entry}};

    (void)state;
    for (int more = 0; more < 2; more++) {
        int n = 20;
        queue_make("drv.moved", "classic");
        for (int i = 0; i < n; i++) {
            entry.value.value.i64 = i;
            publish("drv.moved", &i, sizeof(i), &p);
        }
        depth_becomes("drv.moved", n);
        struct broker *b = ready("drv.moved");
        consume(b, 1, more ? 5 : 100);
        int sum = 0;
        for (int i = 0; i < n; i++) {
            struct broker_event ev = next(b, 64 * MIB);
            if (i == 0 && ev.kind == BROKER_KIND)
                ev = next_is(b, BROKER_DELIVERY);
            assert_int_equal(ev.kind, BROKER_DELIVERY);
            assert_int_equal(ev.queue_kind, BROKER_KIND_CLASSIC);
            sum += number_of(ev.message);
            message_free(ev.message);
            assert_int_equal(broker_ack(b, ev.copy.tag, false, &f), 0);
        }
        assert_int_equal(sum, n * (n - 1) / 2);
        finish(b);
        depth_becomes("drv.moved", 0);
    }
    queue_delete("drv.moved");
}

static void tls_is_verified(void **state)
{
    char *tls_url = getenv("ONCEWARD_TEST_AMQPS"), by_address[256];
    struct config_broker c = settings_of(tls_url);
    struct publisher *p;

    (void)state;
    if (!tls_url)
        skip();
    struct address to;
    assert_int_equal(address_parse(tls_url, &to, &f), 0);
    queue_make("drv.tls", "classic");
    assert_null(dial(&c, "drv.tls")); /* not in the system's store */
    assert_non_null(strstr(f.text, "certificate"));
    c.tls.ca_file = getenv("ONCEWARD_TEST_OTHER_CA");
    assert_null(dial(&c, "drv.tls"));
    assert_non_null(strstr(f.text, "certificate"));
    c.tls.verify = false;
    struct broker *b = dial(&c, "drv.tls");
    assert_non_null(b);
    broker_free(b);
    c.tls.verify = true;
    c.tls.ca_file = getenv("ONCEWARD_TEST_CA");
    b = dial(&c, "drv.tls");
    if (!b)
        fail_msg("%s", f.text);
    next_is(b, BROKER_CHANNEL_OPEN);
    publish_numbers("drv.tls", 5000);
    consume(b, 1, 1000);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(broker_ack(b, take(b, i), i % 3 == 0, &f), 0);
    finish(b);
    depth_becomes("drv.tls", 0);
    assert_int_equal(publisher_open(&c, NULL, "driver", &p, &f), 0);
    char *body = pattern(5 * MIB);
    struct message m = {.body = body, .body_len = 5 * MIB};
    assert_int_equal(publisher_send(p, "", "drv.tls", &m, &f), 0);
    publisher_close(p);
    b = dial(&c, "drv.tls");
    next_is(b, BROKER_CHANNEL_OPEN);
    consume(b, 1, 1000);
    struct broker_event ev = next_is(b, BROKER_DELIVERY);
    assert_memory_equal(ev.message->body, body, 5 * MIB);
    message_free(ev.message);
    free(body);
    broker_free(b);
    /* The certificate covers the name and the address 127.0.0.1, but no other name or address of the same
     * host. */
    static const char *const hosts[] = {"127.0.0.1", "0.0.0.0", "127.1"};
    for (int i = 0; i < 3; i++) {
        snprintf(by_address, sizeof(by_address), "amqps://guest:guest@%s:%d", hosts[i], to.port);
        c.url.value = by_address;
        b = dial(&c, "drv.tls");
        if (i == 0 && !b)
            fail_msg("%s", f.text);
        if (i > 0 && (b || !strstr(f.text, "mismatch")))
            fail_msg("%s: %s", hosts[i], b ? "accepted" : f.text);
        broker_free(b);
    }
    c.tls.key_file = c.tls.cert_file = (char *)(uintptr_t) "/nonexistent";
    assert_null(dial(&c, "drv.tls"));
    assert_non_null(strstr(f.text, "/nonexistent"));
    address_deinit(&to);
    queue_delete("drv.tls");
}

static void an_abandoned_attempt_cleans_up(void **state)
{
    struct config_broker c = settings_of(url);
    const struct broker_queue q = {.name = "drv.none"};

    (void)state;
    for (int i = 0; i < 5; i++) {
        struct job *job = broker_connect(&c, NULL, &q, 1, "driver", &f);
        assert_non_null(job);
        usleep((useconds_t)i * 3000);
        job_abandon(job);
    }
    usleep(300000);
}

/* --- cost --- */

static void cost(const char *to, const char *ca, const char *what, int every)
{
    enum { N = 100000 };
    char body[512] = {0};
    struct config_broker c = settings_of(to);

    c.tls.ca_file = (char *)(uintptr_t)ca;
    queue_make("drv.cost", "classic");
    for (int i = 0; i < N; i++)
        publish("drv.cost", body, sizeof(body), NULL);
    depth_becomes("drv.cost", N);
    struct broker *b = dial(&c, "drv.cost");
    if (!b)
        fail_msg("%s", f.text);
    next_is(b, BROKER_CHANNEL_OPEN);
    double cpu = cpu_us();
    int64_t start = clock_us();
    broker_consume(b, Q, 1, 500, &f);
    struct broker_event ev;
    struct broker_tag tag = {0};
    for (int n = 0; n < N;) {
        assert_int_equal(broker_next(b, same_room, &a_mib, &ev, &f), 0);
        if (ev.kind == BROKER_DELIVERY) {
            message_free(ev.message);
            tag = ev.copy.tag;
            if (++n % every == 0)
                broker_ack(b, tag, every > 1, &f);
        } else if (ev.kind == BROKER_NOTHING) {
            struct pollfd p = {.fd = broker_fd(b), .events = POLLIN};
            poll(&p, 1, 100);
        }
    }
    broker_flush(b, &f);
    cpu = cpu_us() - cpu;
    printf("%s, ack every %d: %.2f us CPU a message, %.0f messages/s\n", what, every, cpu / N,
           N * 1e6 / (double)(clock_us() - start));
    finish(b);
    queue_delete("drv.cost");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_to_connect_are_told),
        cmocka_unit_test(an_abandoned_attempt_cleans_up),
        cmocka_unit_test(many_messages),
        cmocka_unit_test(acks_with_gaps),
        cmocka_unit_test(ack_requeue_reject),
        cmocka_unit_test(queue_deleted_and_made_again),
        cmocka_unit_test(bad_ack_costs_the_channel),
        cmocka_unit_test(bodies_of_all_sizes),
        cmocka_unit_test(what_does_not_fit_is_skipped),
        cmocka_unit_test(headers_that_do_not_fit_are_skipped),
        cmocka_unit_test(published_messages_come_back_as_they_were),
        cmocka_unit_test(bytes_are_published_again),
        cmocka_unit_test(deep_tables_do_no_harm),
        cmocka_unit_test(depth_is_answered),
        cmocka_unit_test(cancelling_gives_fresh_credit),
        cmocka_unit_test(a_cut_connection_is_noticed),
        cmocka_unit_test(a_connection_closed_by_the_broker_is_told),
        cmocka_unit_test(a_silent_broker_is_noticed),
        cmocka_unit_test(heartbeats_keep_an_idle_connection),
        cmocka_unit_test(a_broker_that_does_not_read_blocks_nothing),
        cmocka_unit_test(check_looks_at_the_queue),
        cmocka_unit_test(streams_are_refused),
        cmocka_unit_test(a_kind_is_learnt),
        cmocka_unit_test(a_kind_that_is_not_to_be_had_is_told),
        cmocka_unit_test(what_carries_a_count_comes_with_the_kind),
        cmocka_unit_test(messages_that_were_in_a_stream_are_taken),
        cmocka_unit_test(tls_is_verified),
    };

    int r = bed_open();
    if (r)
        return r;
    if (getenv("ONCEWARD_TEST_COST")) {
        cost(url, NULL, "plain", 50);
        cost(url, NULL, "plain", 1);
        if (getenv("ONCEWARD_TEST_AMQPS"))
            cost(getenv("ONCEWARD_TEST_AMQPS"), getenv("ONCEWARD_TEST_CA"), "TLS", 1);
    } else {
        r = cmocka_run_group_tests(tests, NULL, NULL);
    }
    return bed_close(r);
}
