/* The pure parts of the broker adapter: URLs, and the way of properties and headers to the wire and back. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "broker/address.h"
#include "broker/decode.h"
#include "broker/encode.h"
#include "broker/nesting.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/core/message.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void urls_are_taken_apart(void **state)
{
    static const struct {
        const char *url, *user, *password, *host, *vhost;
        int port;
        bool tls;
    } rows[] = {
        {"amqp://", "guest", "guest", "localhost", "/", 5672, false},
        {"amqp://h", "guest", "guest", "h", "/", 5672, false},
        {"amqp://h/", "guest", "guest", "h", "/", 5672, false},
        {"amqps://h", "guest", "guest", "h", "/", 5671, true},
        {"AMQPS://h:1", "guest", "guest", "h", "/", 1, true},
        {"amqp://u@h:65535/v", "u", "guest", "h", "v", 65535, false},
        {"amqp://u:p%20%C3%A9%40@h/%2F", "u", "p \xC3\xA9@", "h", "/", 5672, false},
        {"amqp://u:p@q@h/%2fx", "u", "p@q", "h", "/x", 5672, false},
        {"amqp://:@h", "", "", "h", "/", 5672, false},
        {"amqp://u:a:b@[::1]:1234/v", "u", "a:b", "::1", "v", 1234, false},
        {"amqp://[fe80::1]", "guest", "guest", "fe80::1", "/", 5672, false},
    };
    struct fault f;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct address a;
        assert_int_equal(address_parse(rows[i].url, &a, &f), 0);
        assert_string_equal(a.user, rows[i].user);
        assert_string_equal(a.password, rows[i].password);
        assert_string_equal(a.host, rows[i].host);
        assert_string_equal(a.vhost, rows[i].vhost);
        assert_int_equal(a.port, rows[i].port);
        assert_int_equal(a.tls, rows[i].tls);
        address_deinit(&a);
    }
}

static void bad_urls_are_refused_without_their_secret(void **state)
{
    static const char *const urls[] = {
        "",
        "http://h",
        "amqp:/h",
        "amqp://u:secret@h:0",
        "amqp://u:secret@h:65536",
        "amqp://u:secret@h:",
        "amqp://h:x",
        "amqp://u:secret%@h",
        "amqp://u:%2@h",
        "amqp://u:secret%00@h",
        "amqp://u:secret@h?a=b",
        "amqp://h/v/w",
        "amqp://[::",
        "amqp://[::1]x",
        "amqp://u:%zz@h",
        "amqp://u:secret@h/v%f?x",
        "amqp://h/v#secret",
        "amqp://h%0",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        struct address a = {.port = 77};
        struct fault f = {0};
        assert_int_equal(address_parse(urls[i], &a, &f), -1);
        assert_int_equal(a.port, 77);
        assert_true(fault_is_set(&f));
        assert_null(strstr(f.text, "secret"));
    }
}

/* Encodes, lets the library decode the bytes as it does for a frame, and copies the result. */
static struct message *there_and_back(const struct message *m)
{
    struct buf out = {0};
    struct fault f;
    amqp_pool_t pool;
    void *decoded = NULL;

    assert_int_equal(message_encode(&out, m, &f), 0);
    nesting_cut(out.data, out.len);
    init_amqp_pool(&pool, 4096);
    assert_int_equal(amqp_decode_properties(AMQP_BASIC_CLASS, &pool,
                                            (amqp_bytes_t){out.len - 12, out.data + 12}, &decoded),
                     0);
    struct message *back = message_new();
    message_decode(back, decoded);
    empty_amqp_pool(&pool);
    memset(out.data, 0xAA, out.len); /* nothing may point into it any more */
    buf_deinit(&out);
    return back;
}

static void fields_equal(const struct field *a, const struct field *b, size_t n);

static void field_equal(const struct field *a, const struct field *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_true(slice_equal(a->name, b->name));
    switch (a->kind) {
    case FIELD_BOOL:
        assert_int_equal(a->boolean, b->boolean);
        break;
    case FIELD_F32:
    case FIELD_F64:
        assert_true(a->d == b->d || (isnan(a->d) && isnan(b->d)));
        break;
    case FIELD_DECIMAL:
        assert_int_equal(a->decimal.decimals, b->decimal.decimals);
        assert_int_equal(a->decimal.value, b->decimal.value);
        break;
    case FIELD_STRING:
    case FIELD_BYTES:
        assert_true(slice_equal(a->bytes, b->bytes));
        break;
    case FIELD_ARRAY:
    case FIELD_TABLE:
        assert_int_equal(a->children.n, b->children.n);
        fields_equal(a->children.items, b->children.items, a->children.n);
        break;
    case FIELD_VOID:
        break;
    default:
        assert_true(a->u == b->u);
    }
}

static void fields_equal(const struct field *a, const struct field *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        field_equal(&a[i], &b[i]);
}

static void every_kind_survives(void **state)
{
    struct field leaf[] = {
        {SLICE("t"), FIELD_BOOL, .boolean = true},
        {SLICE("b"), FIELD_I8, .i = INT8_MIN},
        {SLICE("B"), FIELD_U8, .u = UINT8_MAX},
        {SLICE("s"), FIELD_I16, .i = INT16_MIN},
        {SLICE("u"), FIELD_U16, .u = UINT16_MAX},
        {SLICE("I"), FIELD_I32, .i = INT32_MIN},
        {SLICE("i"), FIELD_U32, .u = UINT32_MAX},
        {SLICE("l"), FIELD_I64, .i = INT64_MIN},
        {SLICE("L"), FIELD_U64, .u = UINT64_MAX},
        {SLICE("f"), FIELD_F32, .d = 1.5},
        {SLICE("d"), FIELD_F64, .d = -0.1},
        {SLICE("nan"), FIELD_F64, .d = NAN},
        {SLICE("D"), FIELD_DECIMAL, .decimal = {2, UINT32_MAX}},
        {SLICE("S"), FIELD_STRING, .bytes = {"a\0b", 3}},
        {SLICE("S0"), FIELD_STRING, .bytes = {"", 0}},
        {SLICE("x"), FIELD_BYTES, .bytes = {"\xff\x00", 2}},
        {SLICE("T"), FIELD_TIMESTAMP, .u = UINT64_MAX},
        {SLICE("V"), FIELD_VOID},
        {SLICE("A0"), FIELD_ARRAY},
        {SLICE("F0"), FIELD_TABLE},
        {{"", 0}, FIELD_BOOL},
    };
    enum { N = sizeof(leaf) / sizeof(leaf[0]) };
    struct field items[N], top[3];
    char long_name[255];

    (void)state;
    for (size_t i = 0; i < N; i++) {
        items[i] = leaf[i];
        items[i].name = (struct slice){0};
    }
    memset(long_name, 'n', sizeof(long_name));
    top[0] = (struct field){{long_name, 255}, FIELD_TABLE, .children = {leaf, N}};
    top[1] = (struct field){SLICE("list"), FIELD_ARRAY, .children = {items, N}};
    top[2] = (struct field){SLICE("both"), FIELD_TABLE, .children = {top, 2}};
    struct message m = {.headers = top,
                        .n_headers = 3,
                        .has_delivery_mode = true,
                        .delivery_mode = 255,
                        .has_priority = true,
                        .has_timestamp = true,
                        .timestamp = UINT64_MAX};
    for (int p = 0; p < N_PROPERTIES; p++)
        m.properties[p] =
            p == PROPERTY_TYPE ? (struct slice){long_name, 255} : slice_of(property_name((enum property)p));
    struct message *back = there_and_back(&m);
    assert_int_equal(back->n_headers, 3);
    fields_equal(top, back->headers, 3);
    for (int p = 0; p < N_PROPERTIES; p++)
        assert_true(back->properties[p].data && slice_equal(back->properties[p], m.properties[p]));
    assert_true(back->has_delivery_mode && back->delivery_mode == 255);
    assert_true(back->has_priority && back->priority == 0);
    assert_true(back->has_timestamp && back->timestamp == UINT64_MAX);
    message_free(back);
}

static void each_property_stands_alone(void **state)
{
    (void)state;
    for (int p = 0; p < N_PROPERTIES; p++) {
        struct message m = {0};
        m.properties[p] = SLICE("");
        struct message *back = there_and_back(&m);
        for (int q = 0; q < N_PROPERTIES; q++)
            assert_int_equal(back->properties[q].data != NULL, p == q);
        assert_false(back->has_delivery_mode || back->has_priority || back->has_timestamp || back->n_headers);
        message_free(back);
    }
}

static size_t depth_of(const struct field *f)
{
    size_t depth = 0;

    while ((f->kind == FIELD_TABLE || f->kind == FIELD_ARRAY) && f->children.n) {
        f = f->children.items;
        depth++;
    }
    if (f->kind == FIELD_STRING)
        assert_true(slice_equal(f->bytes, SLICE("(nested too deeply)")));
    return f->kind == FIELD_STRING ? depth : 0;
}

static void deep_nesting_is_cut(void **state)
{
    enum { DEPTH = 20000 };
    struct field *nest = calloc(DEPTH, sizeof(*nest));
    struct message m = {.headers = nest, .n_headers = 1};

    (void)state;
    for (int arrays = 0; arrays < 2; arrays++) {
        int n = arrays ? DEPTH : 64;
        for (int i = 0; i < n; i++) {
            nest[i] = (struct field){.name = i ? (struct slice){0} : SLICE("n"), .kind = FIELD_ARRAY};
            if (i + 1 < n)
                nest[i].children.items = &nest[i + 1], nest[i].children.n = 1;
        }
        struct message *back = there_and_back(&m);
        assert_int_equal(depth_of(back->headers), arrays ? 64 : 0);
        message_free(back);
    }
    free(nest);
}

/* What is cut off or full of nonsense is not followed, and nothing is read or written beside it. */
static void nesting_is_sought_in_anything(void **state)
{
    struct field inner = {SLICE("s"), FIELD_STRING, .bytes = {"abc", 3}};
    struct field table = {SLICE("t"), FIELD_TABLE, .children = {&inner, 1}};
    struct message m = {.headers = &table, .n_headers = 1};
    struct buf out = {0};
    struct fault f;

    (void)state;
    m.properties[PROPERTY_CONTENT_TYPE] = SLICE("a/b");
    assert_int_equal(message_encode(&out, &m, &f), 0);
    for (size_t len = 0; len <= out.len; len++)
        for (size_t at = 0; at <= len; at++) {
            char *copy = malloc(len + 1), *exact = malloc(len ? len : 1);
            memcpy(copy, out.data, len);
            if (at < len)
                copy[at] = (char)0xFF;
            memcpy(exact, copy, len);
            nesting_cut(exact, len);
            assert_memory_equal(exact, copy, len);
            free(exact);
            free(copy);
        }
    buf_deinit(&out);
}

static void what_amqp_cannot_hold_is_refused(void **state)
{
    char text[256];
    struct field header = {{text, 256}, FIELD_VOID};
    struct message names = {.headers = &header, .n_headers = 1}, property = {0};
    struct buf out = {0};
    struct fault f = {0};

    (void)state;
    memset(text, 'x', sizeof(text));
    property.properties[PROPERTY_MESSAGE_ID] = (struct slice){text, 256};
    assert_int_equal(message_encode(&out, &names, &f), -1);
    assert_int_equal(message_encode(&out, &property, &f), -1);
    assert_non_null(strstr(f.text, "message_id has 256 bytes"));
    header.name = SLICE("n");
    header.kind = (enum field_kind)'?';
    assert_int_equal(message_encode(&out, &names, &f), -1);
    buf_deinit(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls_are_taken_apart),
        cmocka_unit_test(bad_urls_are_refused_without_their_secret),
        cmocka_unit_test(every_kind_survives),
        cmocka_unit_test(each_property_stands_alone),
        cmocka_unit_test(deep_nesting_is_cut),
        cmocka_unit_test(nesting_is_sought_in_anything),
        cmocka_unit_test(what_amqp_cannot_hold_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
