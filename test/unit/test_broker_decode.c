/* The pure parts of the broker adapter: URLs, and the encoding and decoding of properties and headers. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "broker/address.h"
#include "broker/edit.h"
#include "broker/encode.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/broker/decode.h"
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

static struct slice properties_of(const struct buf *payload)
{
    return (struct slice){payload->data + 12, payload->len - 12};
}

/* Encodes the message, and decodes the bytes. */
static struct message *there_and_back(const struct message *m)
{
    struct buf out = {0};
    struct fault f;
    struct message *back = message_new();

    assert_int_equal(message_encode(&out, m, &f), 0);
    assert_int_equal(message_decode(back, properties_of(&out)), 0);
    assert_true(slice_equal(back->content_header, properties_of(&out)));
    memset(out.data, 0xAA, out.len); /* no slice may point into it any more */
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

/* In cut or random bytes everything before the fault is decoded, and no byte outside is read. */
static void what_is_malformed_is_decoded_up_to_there(void **state)
{
    struct field inner = {SLICE("s"), FIELD_STRING, .bytes = {"abc", 3}};
    struct field fields[] = {{SLICE("b"), FIELD_BOOL}, {SLICE("t"), FIELD_TABLE, .children = {&inner, 1}}};
    struct message m = {.headers = fields, .n_headers = 2};
    struct buf out = {0};
    struct fault f;

    (void)state;
    m.properties[PROPERTY_CONTENT_TYPE] = SLICE("a/b");
    m.properties[PROPERTY_TYPE] = SLICE("last");
    assert_int_equal(message_encode(&out, &m, &f), 0);
    struct slice all = properties_of(&out);
    for (size_t len = 0; len <= all.len; len++)
        for (size_t at = 0; at <= len; at++) {
            char *exact = malloc(len ? len : 1);
            struct message *back = message_new();
            struct buf edited = {0};
            memcpy(exact, all.data, len);
            if (at < len)
                exact[at] = (char)0xFF;
            int r = message_decode(back, (struct slice){exact, len});
            assert_true(back->content_header.len == len && !memcmp(back->content_header.data, exact, len));
            assert_true(r == 0 || r == -1);
            assert_true(len < all.len || at < len || r == 0);
            if (len > 6 && at > 6)
                assert_true(slice_equal(back->properties[PROPERTY_CONTENT_TYPE], SLICE("a/b")));
            if (content_header_edit(&edited, (struct slice){exact, len}, 0, SLICE("u"), false, &f))
                assert_int_equal(r, -1);
            buf_deinit(&edited);
            message_free(back);
            free(exact);
        }
    buf_deinit(&out);
}

static void unknown_kinds_end_a_table(void **state)
{
    static const char bytes[] = "\xE0\0\1a\1b\0\0\0\x09\1xt\1\1y?\0\0";
    struct message *m = message_new();

    (void)state;
    assert_int_equal(message_decode(m, (struct slice){bytes, sizeof(bytes) - 1}), -1);
    assert_int_equal(m->n_headers, 1);
    assert_true(slice_equal(m->headers[0].name, SLICE("x")) && m->headers[0].boolean);
    message_free(m);
}

/* Expiration, CC, BCC and another user's name are removed; everything else stays, byte for byte. */
static void what_may_not_be_published_again_is_left_out(void **state)
{
    (void)state;
    struct field copies = {.kind = FIELD_STRING, .bytes = SLICE("q")};
    struct field inner = {SLICE("CC"), FIELD_U64, .u = UINT64_MAX}; /* not at the top level, so it stays */
    struct field headers[] = {
        {SLICE("CC"), FIELD_ARRAY, .children = {&copies, 1}},
        {SLICE("k"), FIELD_U16, .u = 258},
        {SLICE("BCC"), FIELD_VOID},
        {SLICE("Cc"), FIELD_F32, .d = 0.5},
        {SLICE("t"), FIELD_TABLE, .children = {&inner, 1}},
        {SLICE("CC"), FIELD_BOOL},
    };
    for (int own = 0; own < 2; own++) {
        struct message m = {.headers = headers, .n_headers = 6, .has_timestamp = true, .timestamp = 7};
        struct buf out = {0}, edited = {0}, expected = {0};
        struct fault f;
        for (int p = 0; p < N_PROPERTIES; p++)
            m.properties[p] = slice_of(property_name((enum property)p));
        m.body_len = 300;
        m.has_delivery_mode = own;
        m.delivery_mode = 1;
        assert_int_equal(message_encode(&out, &m, &f), 0);
        struct slice user = own ? SLICE("user_id") : SLICE("user_i");
        assert_int_equal(content_header_edit(&edited, properties_of(&out), 300, user, false, &f), 0);
        struct field left[] = {headers[1], headers[3], headers[4]};
        m.headers = left;
        m.n_headers = 3;
        m.has_delivery_mode = true;
        m.delivery_mode = 2;
        m.properties[PROPERTY_EXPIRATION] = (struct slice){0};
        if (!own)
            m.properties[PROPERTY_USER_ID] = (struct slice){0};
        assert_int_equal(message_encode(&expected, &m, &f), 0);
        assert_int_equal(edited.len, expected.len);
        assert_memory_equal(edited.data, expected.data, expected.len);
        buf_deinit(&out);
        buf_deinit(&edited);
        buf_deinit(&expected);
    }
}

static void a_message_without_properties_becomes_persistent(void **state)
{
    struct buf out = {0};
    struct fault f = {0};

    (void)state;
    assert_int_equal(content_header_edit(&out, (struct slice){"\0\0", 2}, 0, SLICE("u"), false, &f), 0);
    assert_int_equal(out.len, 15);
    assert_memory_equal(out.data + 12, "\x10\0\2", 3);
    buf_reset(&out);
    assert_int_equal(content_header_edit(&out, (struct slice){"\0\1\0\0", 4}, 0, SLICE("u"), false, &f), -1);
    assert_int_equal(content_header_edit(&out, (struct slice){"\0\0x", 3}, 0, SLICE("u"), false, &f), -1);
    assert_int_equal(content_header_edit(&out, (struct slice){"\0", 1}, 0, SLICE("u"), false, &f), -1);
    assert_true(fault_is_set(&f));
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
        cmocka_unit_test(what_is_malformed_is_decoded_up_to_there),
        cmocka_unit_test(unknown_kinds_end_a_table),
        cmocka_unit_test(what_may_not_be_published_again_is_left_out),
        cmocka_unit_test(a_message_without_properties_becomes_persistent),
        cmocka_unit_test(what_amqp_cannot_hold_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
