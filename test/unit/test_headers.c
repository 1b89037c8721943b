/* The HTTP request fields of a delivery. */

#include "cmocka_all.h"
#include "fields.h"
#include "header_checks.h"
#include "onceward/base/buf.h"
#include "onceward/core/headers.h"

#include <stdio.h>
#include <stdlib.h>

static const struct request_facts usual = {
    .message_id = {"m-1", 3},
    .queue = {"orders", 6},
    .consumer = {"orders", 6},
    .token = {"ow1.YwBp.AAEC", 13},
    .window_ms = 30000,
    .attempt = 1,
};

#define TRACE "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static struct header_block block;

static void write_block(const struct message *m, const struct request_facts *r)
{
    headers_write(&block, m, r);
    const char *fault = header_block_fault(&block);

    if (fault)
        fail_msg("%s", fault);
}

/* Value of a field, or NULL; fails if the field occurs twice. */
static const char *value_of(const char *name)
{
    const char *found = NULL;
    size_t len = strlen(name);

    for (size_t at = 0; at < block.text.len; at += strlen(block.text.data + at) + 1) {
        const char *line = block.text.data + at;

        if (strncasecmp(line, name, len) == 0 && line[len] == ':') {
            assert_null(found);
            found = line + len + 2;
        }
    }
    return found;
}

static void assert_value(const char *name, const char *expected)
{
    const char *value = value_of(name);

    if (!expected) {
        if (value)
            fail_msg("%s is there: %s", name, value);
        return;
    }
    if (!value)
        fail_msg("%s is missing", name);
    assert_string_equal(value, expected);
}

static void assert_block(const char *expected)
{
    struct buf joined = {0};

    for (size_t at = 0; at < block.text.len; at += strlen(block.text.data + at) + 1) {
        buf_add_text(&joined, block.text.data + at);
        buf_add_char(&joined, '\n');
    }
    assert_string_equal(buf_text(&joined), expected);
    buf_deinit(&joined);
}

static void test_smallest(void **state)
{
    struct message m = {0};
    (void)state;

    write_block(&m, &usual);
    assert_block("Idempotency-Key: \"m-1\"\n"
                 "Onceward-Message-Id: m-1\n"
                 "Onceward-Queue: orders\n"
                 "Onceward-Consumer: orders\n"
                 "Onceward-Token: ow1.YwBp.AAEC\n"
                 "Onceward-Token-Window-Ms: 30000\n"
                 "Onceward-Attempt: 1\n"
                 "Onceward-Redelivered: false\n"
                 "Content-Type: application/octet-stream\n");
}

static void test_everything(void **state)
{
    struct field headers[] = {
        F_STRING("x-tenant", "a b"),       F_INT("retries", FIELD_I32, 3),
        F_STRING("cloudEvents:id", "e/1"), F_STRING("cloudEvents:specversion", "1.0"),
        F_STRING("traceparent", TRACE),    F_STRING("tracestate", "vendor=a b,other@x=1"),
    };
    struct message m = {.headers = headers, .n_headers = COUNT(headers)};
    (void)state;

    m.redelivered = true;
    m.exchange = TEXT("shop events");
    m.routing_key = TEXT("order.created");
    m.properties[PROPERTY_CONTENT_TYPE] = TEXT("application/json; charset=utf-8");
    m.properties[PROPERTY_CONTENT_ENCODING] = TEXT("GZip");
    m.properties[PROPERTY_TYPE] = TEXT("OrderCreated");
    m.properties[PROPERTY_APP_ID] = TEXT("shop");
    m.properties[PROPERTY_USER_ID] = TEXT("guest");
    m.properties[PROPERTY_CORRELATION_ID] = TEXT("c/1");
    m.properties[PROPERTY_REPLY_TO] = TEXT("amq.rabbitmq.reply-to");
    m.properties[PROPERTY_EXPIRATION] = TEXT("60000");
    m.has_timestamp = m.has_priority = true;
    m.timestamp = 1700000000;
    m.priority = 0;
    write_block(&m, &usual);
    assert_block(
        "Idempotency-Key: \"m-1\"\n"
        "Onceward-Message-Id: m-1\n"
        "Onceward-Queue: orders\n"
        "Onceward-Consumer: orders\n"
        "Onceward-Token: ow1.YwBp.AAEC\n"
        "Onceward-Token-Window-Ms: 30000\n"
        "Onceward-Attempt: 1\n"
        "Onceward-Redelivered: true\n"
        "Content-Type: application/json; charset=utf-8\n"
        "Content-Encoding: gzip\n"
        "traceparent: " TRACE "\n"
        "tracestate: vendor=a b,other@x=1\n"
        "ce-id: e%2F1\n"
        "ce-specversion: 1.0\n"
        "Amqp-Exchange: shop%20events\n"
        "Amqp-Routing-Key: order.created\n"
        "Amqp-Type: OrderCreated\n"
        "Amqp-App-Id: shop\n"
        "Amqp-User-Id: guest\n"
        "Amqp-Correlation-Id: c%2F1\n"
        "Amqp-Reply-To: amq.rabbitmq.reply-to\n"
        "Amqp-Timestamp: 1700000000\n"
        "Amqp-Priority: 0\n"
        "Amqp-Expiration: 60000\n"
        "Amqp-Header-x-tenant: a%20b\n"
        "Amqp-Header-retries: 3\n"
        /* {"x-tenant":"a b","retries":3,"cloudEvents:id":"e/1","cloudEvents:specversion":"1.0",… */
        "Amqp-Headers: "
        "eyJ4LXRlbmFudCI6ImEgYiIsInJldHJpZXMiOjMsImNsb3VkRXZlbnRzOmlkIjoiZS8xIiwiY2xvdWRFdmVudHM6c3Bl"
        "Y3ZlcnNpb24iOiIxLjAiLCJ0cmFjZXBhcmVudCI6IjAwLTBhZjc2NTE5MTZjZDQzZGQ4NDQ4ZWIyMTFjODAzMTljLWI3YWQ2Yjcx"
        "NjkyMDMzMzEtMDEiLCJ0cmFjZXN0YXRlIjoidmVuZG9yPWEgYixvdGhlckB4PTEifQ\n");
}

static void test_ids(void **state)
{
    static const struct {
        struct slice id;
        const char *encoded;
    } cases[] = {
        {TEXT("a\"b\\c,d{e}"), "a%22b%5Cc%2Cd%7Be%7D"},
        {TEXT("100%"), "100%25"},
        {TEXT("%41"), "%2541"},
        {TEXT("\r\nX-Evil: 1"), "%0D%0AX-Evil%3A%201"},
        {TEXT("\xC3\xA4\xF0\x9F\x90\x87"), "%C3%A4%F0%9F%90%87"},
        {TEXT(" "), "%20"},
        {TEXT("a\0b"), "a%00b"},
    };
    struct message m = {0};
    struct request_facts r = usual;
    char quoted[200];
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        r.message_id = r.queue = r.consumer = cases[i].id;
        write_block(&m, &r);
        snprintf(quoted, sizeof(quoted), "\"%s\"", cases[i].encoded);
        assert_value("Idempotency-Key", quoted);
        assert_value("Onceward-Message-Id", cases[i].encoded);
        assert_value("Onceward-Queue", cases[i].encoded);
        assert_value("Onceward-Consumer", cases[i].encoded);
    }
    r = usual;
    r.window_ms = INT64_MAX;
    r.attempt = 2147483647;
    write_block(&m, &r);
    assert_value("Onceward-Token-Window-Ms", "9223372036854775807");
    assert_value("Onceward-Attempt", "2147483647");
    r.window_ms = -1;
    write_block(&m, &r);
    assert_value("Onceward-Token-Window-Ms", "0");
}

static void test_content_type(void **state)
{
    static const struct {
        struct slice type;
        const char *sent, *moved;
    } cases[] = {
        {TEXT("text/plain"), "text/plain", NULL},
        {TEXT("text/plain; x=\"a b\""), "text/plain; x=\"a b\"", NULL},
        {TEXT("text/plain;charset=utf-8"), "text/plain;charset=utf-8", NULL},
        {TEXT("text/plain \t; charset = utf-8;"), "text/plain \t; charset = utf-8;", NULL},
        {TEXT("application/vnd.a+json"), "application/vnd.a+json", NULL},
        {TEXT(" text/plain "), "text/plain", NULL},
        {TEXT("json"), "application/octet-stream", "json"},
        {TEXT("a\tb"), "application/octet-stream", "a%09b"},
        {TEXT("text/"), "application/octet-stream", "text%2F"},
        {TEXT("/plain"), "application/octet-stream", "%2Fplain"},
        {TEXT("text/plain x"), "application/octet-stream", "text%2Fplain%20x"},
        {TEXT("text/plain, text/html"), "application/octet-stream", "text%2Fplain%2C%20text%2Fhtml"},
        {TEXT("te xt/plain"), "application/octet-stream", "te%20xt%2Fplain"},
        {TEXT("text/a/b"), "application/octet-stream", "text%2Fa%2Fb"},
        {TEXT(""), "application/octet-stream", NULL},
        {TEXT("  "), "application/octet-stream", "%20%20"},
        {TEXT("text/plain\r\nX-Evil: 1"), "application/octet-stream", "text%2Fplain%0D%0AX-Evil%3A%201"},
        {TEXT("text/plain\n"), "application/octet-stream", "text%2Fplain%0A"},
        {TEXT("\r"), "application/octet-stream", "%0D"},
        {TEXT("a\0b"), "application/octet-stream", "a%00b"},
        {TEXT("a\x7F"), "application/octet-stream", "a%7F"},
        {TEXT("t\xC3\xA4xt"), "application/octet-stream", "t%C3%A4xt"},
        {TEXT("\xFF"), "application/octet-stream", "%FF"},
    };
    struct message m = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        m.properties[PROPERTY_CONTENT_TYPE] = cases[i].type;
        write_block(&m, &usual);
        assert_value("Content-Type", cases[i].sent);
        assert_value("Amqp-Content-Type", cases[i].moved);
    }
}

/* Also if the source is CloudEvents' header, which has no other bound. */
static void test_content_type_is_bounded(void **state)
{
    enum { HUGE_LEN = 60002 };
    char *text = malloc(HUGE_LEN);
    struct field header = F_STRING("cloudEvents:datacontenttype", "");
    struct message m = {.headers = &header, .n_headers = 1};
    (void)state;

    memset(text, 'x', HUGE_LEN);
    memcpy(text, "text/", 5);
    for (size_t len = 254; len <= 257; len++) {
        header.bytes = (struct slice){text, len};
        write_block(&m, &usual);
        assert_int_equal(strlen(value_of("Content-Type")), len <= 255 ? len : 24);
        if (len > 255)
            assert_int_equal(strlen(value_of("Amqp-Content-Type")), len + 2);
    }
    header.bytes = (struct slice){text, HUGE_LEN};
    write_block(&m, &usual);
    assert_value("Content-Type", "application/octet-stream");
    assert_value("Amqp-Content-Type", NULL);
    assert_value("Onceward-Headers-Dropped", "2"); /* with Amqp-Headers */
    free(text);
}

static void test_content_type_of_a_message_without_one(void **state)
{
    struct request_facts r = usual;
    struct message m = {0};
    (void)state;

    r.content_type = SLICE("application/json");
    write_block(&m, &r);
    assert_value("Content-Type", "application/json");
    m.properties[PROPERTY_CONTENT_TYPE] = SLICE("text/plain");
    write_block(&m, &r);
    assert_value("Content-Type", "text/plain");
    m.properties[PROPERTY_CONTENT_TYPE] = SLICE("json");
    write_block(&m, &r);
    assert_value("Content-Type", "application/octet-stream");
    assert_value("Amqp-Content-Type", "json");
}

static void test_content_encoding(void **state)
{
    static const struct {
        struct slice coding;
        const char *sent, *moved;
    } cases[] = {
        {TEXT("gzip"), "gzip", NULL},
        {TEXT("deflate"), "deflate", NULL},
        {TEXT("br"), "br", NULL},
        {TEXT("zstd"), "zstd", NULL},
        {TEXT("compress"), "compress", NULL},
        {TEXT("identity"), "identity", NULL},
        {TEXT("BR"), "br", NULL},
        {TEXT("utf-8"), NULL, "utf-8"},
        {TEXT("UTF8"), NULL, "UTF8"},
        {TEXT("gzip, br"), NULL, "gzip%2C%20br"},
        {TEXT("gzip\r\nX: 1"), NULL, "gzip%0D%0AX%3A%201"},
        {TEXT(""), NULL, NULL},
        {TEXT("gzi"), NULL, "gzi"},
        {TEXT("x-gzip"), NULL, "x-gzip"},
        {TEXT("hzip"), NULL, "hzip"},
        {TEXT("gziq"), NULL, "gziq"},
    };
    struct message m = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        m.properties[PROPERTY_CONTENT_ENCODING] = cases[i].coding;
        write_block(&m, &usual);
        assert_value("Content-Encoding", cases[i].sent);
        assert_value("Amqp-Content-Encoding", cases[i].moved);
    }
}

static void test_traceparent(void **state)
{
#define ID   "0af7651916cd43dd8448eb211c80319c"
#define SPAN "b7ad6b7169203331"
    static const struct {
        struct slice value;
        bool valid;
    } cases[] = {
        {TEXT("00-" ID "-" SPAN "-01"), true},
        {TEXT("00-" ID "-" SPAN "-00"), true},
        {TEXT("00-" ID "-" SPAN "-ff"), true},
        {TEXT(" 00-" ID "-" SPAN "-01 "), true}, /* blanks are not part of a value */
        {TEXT("01-" ID "-" SPAN "-01"), true},
        {TEXT("cc-" ID "-" SPAN "-01-what-the-future-brings"), true},
        {TEXT("cc-" ID "-" SPAN "-01."), false},
        {TEXT("cc-" ID "-" SPAN "-01-\r\nX: 1"), false},
        {TEXT("cc-" ID "-" SPAN "-01-\0"), false},
        {TEXT("00-" ID "-" SPAN "-01-more"), false},
        {TEXT("00-" ID "-" SPAN "-01-"), false},
        {TEXT("ff-" ID "-" SPAN "-01"), false},
        {TEXT("0-" ID "-" SPAN "-01"), false},
        {TEXT("00-" ID "-" SPAN "-1"), false},
        {TEXT("00-" ID "-" SPAN), false},
        {TEXT("00-00000000000000000000000000000000-" SPAN "-01"), false},
        {TEXT("00-" ID "-0000000000000000-01"), false},
        {TEXT("00-0AF7651916CD43DD8448EB211C80319C-" SPAN "-01"), false},
        {TEXT("00-" ID "-" SPAN "-0G"), false},
        {TEXT("00_" ID "_" SPAN "_01"), false},
        {TEXT("0x-" ID "-" SPAN "-01"), false},
        {TEXT("00-0af7651916cd43dd8448eb211c80319\n-" SPAN "-01"), false},
        {TEXT(""), false},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct field headers[] = {F_STRING("traceparent", ""), F_STRING("tracestate", "a=1")};
        struct message m = {.headers = headers, .n_headers = 2};

        headers[0].bytes = cases[i].value;
        write_block(&m, &usual);
        assert_int_equal(value_of("traceparent") != NULL, cases[i].valid);
        /* Without its parent the state is an ordinary header. */
        assert_value("tracestate", cases[i].valid ? "a=1" : NULL);
        assert_value("Amqp-Header-tracestate", cases[i].valid ? NULL : "a%3D1");
        assert_int_equal(value_of("Amqp-Header-traceparent") != NULL, !cases[i].valid && cases[i].value.len);
    }
#undef ID
#undef SPAN
}

static void test_tracestate(void **state)
{
    static char long_value[300] = "k=", long_key[257 + 2];
    struct {
        struct slice value;
        bool valid;
    } cases[] = {
        {TEXT("a=1"), true},
        {TEXT("a=1,b=2"), true},
        {TEXT("a=1 , \tb=2"), true},
        {TEXT("a=1,,b=2,"), true},
        {TEXT("0a@b-_*/c=v!#~ x"), true},
        {TEXT("a= x"), true},
        {TEXT("a=1\t,b=2"), true}, /* blanks around a member are not part of it */
        {TEXT("a=1 \t \t,b=2"), true},
        {TEXT("a=1, \t \tb=2"), true},
        {TEXT("a= ,b=2"), false},
        {TEXT("a=1 b"), true},
        {TEXT("a==1"), false},
        {TEXT("a=\x1F"
              "1"),
         false},
        {TEXT("a=~"), true},
        {TEXT("a=\x7F"), false},
        {TEXT("a=1,ab=1,b=1"), true},
        {TEXT("a=1,b=1,a=1"), false},
        {{long_key + 1, 256 + 2}, true},
        {{long_key, 257 + 2}, false},
        {{long_value, 2 + 256}, true},
        {{long_value, 2 + 257}, false},
        {TEXT(""), false},
        {TEXT(" , ,"), false},
        {TEXT("a"), false},
        {TEXT("a="), false},
        {TEXT("=1"), false},
        {TEXT("a =1"), false},
        {TEXT("A=1"), false},
        {TEXT("@a=1"), false},
        {TEXT("-a=1"), false},
        {TEXT("a.b=1"), false},
        {TEXT("a\0=1"), false},
        {TEXT("a=1=2"), false},
        {TEXT("a=1\r\nX: 1"), false},
        {TEXT("a=1\0"), false},
        {TEXT("a=\xC3\xA4"), false},
        {TEXT("a=1\tb"), false},
        {TEXT("a=1,a=2"), false},
        {TEXT("a=1,b"), false},
    };
    struct buf many = {0};
    (void)state;

    memset(long_value + 2, 'v', sizeof(long_value) - 2);
    memset(long_key, 'k', 257);
    memcpy(long_key + 257, "=v", 2);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct field headers[] = {F_STRING("traceparent", TRACE), F_STRING("tracestate", "")};
        struct message m = {.headers = headers, .n_headers = 2};

        headers[1].bytes = cases[i].value;
        write_block(&m, &usual);
        assert_value("traceparent", TRACE);
        assert_int_equal(value_of("tracestate") != NULL, cases[i].valid);
        assert_int_equal(value_of("Amqp-Header-tracestate") != NULL, !cases[i].valid && cases[i].value.len);
    }
    for (int n = 1; n <= 33; n++) {
        struct field headers[] = {F_BYTES("TraceParent", TRACE), F_STRING("TRACESTATE", "")};
        struct message m = {.headers = headers, .n_headers = 2};

        buf_printf(&many, n > 1 ? ",k%d=v" : "k%d=v", n);
        headers[1].bytes = buf_slice(&many);
        write_block(&m, &usual);
        assert_value("traceparent", TRACE);
        assert_int_equal(value_of("tracestate") != NULL, n <= 32);
    }
    buf_deinit(&many);
}

static void test_cloudevents(void **state)
{
    struct field headers[] = {
        F_STRING("cloudEvents:id", "A \"1\""),
        F_STRING("cloudEvents_source", "urn:\xC3\xA4"),
        F_STRING("cloudEvents:source", "second of its name"),
        F_UINT("cloudEvents:time", FIELD_TIMESTAMP, 951782400),
        F_BOOL("cloudEvents:flag", true),
        F_INT("cloudEvents:count", FIELD_I32, -7),
        F_BYTES("cloudEvents:raw", "\xFB\xEF\xFF\0"),
        F_STRING("cloudEvents:empty", ""),
        F_VOID("cloudEvents:void"),
        F_STRING("cloudEvents:Upper", "x"),
        F_STRING("cloudEvents:with-dash", "x"),
        F_STRING("cloudEvents:with\r\n", "x"),
        F_STRING("cloudEvents:data", "x"),
        F_STRING("cloudEvents:", "x"),
        F_STRING("cloudEvents", "x"),
        F_STRING("cloudevents:lower", "x"),
        F_STRING("cloudEvents:datacontenttype", "text/xml"),
        F_STRING("id", "a plain header"),
    };
    struct message m = {.headers = headers, .n_headers = COUNT(headers)};
    size_t n_events = 0;
    (void)state;

    write_block(&m, &usual);
    assert_value("ce-id", "A%20%221%22");
    assert_value("Amqp-Header-id", "a%20plain%20header");
    assert_value("ce-source", "urn%3A%C3%A4");
    assert_value("ce-time", "2000-02-29T00%3A00%3A00Z");
    assert_value("ce-flag", "true");
    assert_value("ce-count", "-7");
    assert_value("ce-raw", "%2B%2B%2F%2FAA%3D%3D");
    assert_value("Content-Type", "text/xml");
    assert_value("Onceward-Headers-Dropped", "1"); /* the second source */
    for (size_t at = 0; at < block.text.len; at += strlen(block.text.data + at) + 1)
        n_events += strncmp(block.text.data + at, "ce-", 3) == 0;
    assert_int_equal(n_events, 6);
    m.properties[PROPERTY_CONTENT_TYPE] = TEXT("text/plain");
    write_block(&m, &usual);
    assert_value("Content-Type", "text/plain");
    static const struct {
        uint64_t time;
        const char *text;
    } times[] = {{0, "1970-01-01T00%3A00%3A00Z"},
                 {253402300799, "9999-12-31T23%3A59%3A59Z"},
                 {253402300800, "253402300800"}, /* a timestamp cannot express the year 10000 */
                 {UINT64_MAX, "18446744073709551615"}};
    for (size_t i = 0; i < COUNT(times); i++) {
        headers[3].u = times[i].time;
        write_block(&m, &usual);
        assert_value("ce-time", times[i].text);
    }
}

static void test_plain_headers(void **state)
{
    struct field item = F_INT("", FIELD_I32, 1);
    struct field headers[] = {
        F_STRING("X-a-1", "\r\nEvil: 1"),
        F_STRING("x-A-1", "the same name for HTTP"),
        F_STRING("with_underscore", "x"),
        F_STRING("with.dot", "x"),
        F_STRING("with:colon", "x"),
        F_STRING("with space", "x"),
        F_STRING("with\r\nEvil", "x"),
        F_STRING("with\0nul", "x"),
        F_STRING("\xC3\xA4", "x"),
        F_STRING("", "x"),
        F_STRING("empty", ""),
        F_VOID("void"),
        {.name = TEXT("array"), .kind = FIELD_ARRAY, .children = {&item, 1}},
        {.name = TEXT("table"), .kind = FIELD_TABLE},
        F_BYTES("raw", "\0\xFF"),
        F_FLOAT("float", FIELD_F64, 1.5),
        F_DECIMAL("decimal", 2, 150),
        F_UINT("time", FIELD_TIMESTAMP, 1700000000),
        F_BOOL("bool", false),
        F_INT("small", FIELD_I64, INT64_MIN),
        F_UINT("large", FIELD_U64, UINT64_MAX),
    };
    struct message m = {.headers = headers, .n_headers = COUNT(headers)};
    size_t n = 0;
    (void)state;

    headers[7].name = TEXT("with\0nul");
    write_block(&m, &usual);
    assert_value("Amqp-Header-X-a-1", "%0D%0AEvil%3A%201");
    assert_value("Amqp-Header-raw", "%00%FF");
    assert_value("Amqp-Header-float", "1.5");
    assert_value("Amqp-Header-decimal", "1.50");
    assert_value("Amqp-Header-time", "1700000000");
    assert_value("Amqp-Header-bool", "false");
    assert_value("Amqp-Header-small", "-9223372036854775808");
    assert_value("Amqp-Header-large", "18446744073709551615");
    assert_value("Onceward-Headers-Dropped", "1");
    for (size_t at = 0; at < block.text.len; at += strlen(block.text.data + at) + 1)
        n += strncmp(block.text.data + at, "Amqp-Header-", 12) == 0;
    assert_int_equal(n, 8);
}

static void test_many_headers(void **state)
{
    static struct field headers[200];
    static char names[200][16];
    struct message m = {.headers = headers, .n_headers = COUNT(headers), .routing_key = TEXT("rk")};
    (void)state;

    for (size_t i = 0; i < COUNT(headers); i++) {
        snprintf(names[i], sizeof(names[i]), "h-%zu", i);
        headers[i] = F_STRING(names[i], "v");
    }
    write_block(&m, &usual);
    assert_value("Amqp-Routing-Key", "rk");
    assert_value("Amqp-Header-h-0", "v");
    assert_value("Amqp-Header-h-30", "v");
    assert_value("Amqp-Header-h-31", NULL);
    /* 1 + 31 fields fit; 169 headers and the whole table do not. */
    assert_value("Onceward-Headers-Dropped", "170");
    assert_value("Amqp-Headers", NULL);
    assert_int_equal(block.n, 9 + 32 + 1);
    m.n_headers = 30;
    write_block(&m, &usual);
    assert_value("Onceward-Headers-Dropped", NULL);
    assert_non_null(value_of("Amqp-Headers"));
    assert_int_equal(block.n, 9 + 32);
    m.n_headers = 31;
    write_block(&m, &usual);
    assert_value("Onceward-Headers-Dropped", "1");
    assert_value("Amqp-Headers", NULL);
}

static void test_bytes_are_bounded(void **state)
{
    static char large[OPTIONAL_BYTES_MAX + 1];
    struct field headers[] = {F_STRING("big", ""), F_STRING("small", "s")};
    struct message m = {.headers = headers, .n_headers = 2};
    const size_t overhead = sizeof("Amqp-Header-big: \r\n") - 1;
    (void)state;

    memset(large, 'x', sizeof(large));
    headers[0].bytes = (struct slice){large, sizeof(large)};
    write_block(&m, &usual);
    assert_value("Amqp-Header-big", NULL);
    assert_value("Amqp-Header-small", "s"); /* smaller later ones may still fit */
    assert_value("Onceward-Headers-Dropped", "2");
    /* Exactly full. */
    m.n_headers = 1;
    headers[0].bytes.len = OPTIONAL_BYTES_MAX - overhead;
    write_block(&m, &usual);
    assert_int_equal(strlen(value_of("Amqp-Header-big")), OPTIONAL_BYTES_MAX - overhead);
    assert_value("Onceward-Headers-Dropped", "1"); /* the table */
    headers[0].bytes.len++;
    write_block(&m, &usual);
    assert_value("Amqp-Header-big", NULL);
    assert_value("Onceward-Headers-Dropped", "2");
    /* A byte too many, which only the encoding shows. */
    large[0] = '%';
    headers[0].bytes.len = OPTIONAL_BYTES_MAX - overhead - 2;
    write_block(&m, &usual);
    assert_int_equal(strlen(value_of("Amqp-Header-big")), OPTIONAL_BYTES_MAX - overhead);
    headers[0].bytes.len++;
    write_block(&m, &usual);
    assert_value("Amqp-Header-big", NULL);
    /* Fits as it is, but not percent-encoded. */
    memset(large, '%', sizeof(large));
    headers[0].bytes.len = OPTIONAL_BYTES_MAX / 3 + 1;
    write_block(&m, &usual);
    assert_value("Amqp-Header-big", NULL);
    assert_non_null(value_of("Amqp-Headers"));
    assert_value("Onceward-Headers-Dropped", "1");
}

/* The table's JSON is exactly as long as the bound that is checked before it is written. */
static void test_a_table_that_fits_is_sent(void **state)
{
    static char text[OPTIONAL_BYTES_MAX];
    struct field header = F_INT("", FIELD_I8, 7);
    struct message m = {.headers = &header, .n_headers = 1};
    (void)state;

    memset(text, '_', sizeof(text)); /* a header with this name has no field of its own */
    for (size_t key = 1; key <= 4; key++) {
        m.routing_key = (struct slice){text, key};
        for (size_t len = 3000; len < 3100; len++) {
            size_t json = sizeof("{\"\":7}") - 1 + len, base64 = (json * 4 + 2) / 3;
            bool fits =
                sizeof("Amqp-Routing-Key: \r\n") - 1 + key + sizeof("Amqp-Headers: \r\n") - 1 + base64 <=
                OPTIONAL_BYTES_MAX;

            header.name = (struct slice){text, len};
            write_block(&m, &usual);
            assert_int_equal(value_of("Amqp-Headers") ? strlen(value_of("Amqp-Headers")) : 0,
                             fits ? base64 : 0);
            assert_value("Onceward-Headers-Dropped", fits ? NULL : "1");
        }
    }
}

/* HTTP ignores the case of names: of two equal ones, the first is sent. */
static void test_each_name_is_sent_once(void **state)
{
    static char large[OPTIONAL_BYTES_MAX / 2];
    struct field headers[] = {F_STRING("cloudEvents:foo", "event"), F_STRING("foo", "plain"),
                              F_STRING("FOO", "second"), F_STRING("Zraceparent", TRACE)};
    struct message m = {.headers = headers, .n_headers = COUNT(headers)};
    (void)state;

    write_block(&m, &usual);
    assert_value("ce-foo", "event");
    assert_value("Amqp-Header-foo", "plain");
    assert_value("Amqp-Header-Zraceparent", TRACE);
    assert_value("traceparent", NULL);
    assert_value("Onceward-Headers-Dropped", "1");
    /* A value that does not fit leaves the name to the next header. */
    memset(large, '%', sizeof(large));
    headers[1].bytes = (struct slice){large, sizeof(large)};
    write_block(&m, &usual);
    assert_value("Amqp-Header-FOO", "second");
}

/* The buffer grows at another place for each length, but never while the JSON in it is encoded. */
static void test_every_length_of_the_table(void **state)
{
    static char text[2000];
    struct field header = F_VOID("");
    struct message m = {.headers = &header, .n_headers = 1};
    struct buf json = {0}, expected = {0};
    (void)state;

    memset(text, '_', sizeof(text));
    for (size_t len = 0; len < sizeof(text); len++) {
        header.name = (struct slice){text, len};
        buf_reset(&json);
        buf_reset(&expected);
        fields_to_json(&json, &header, 1, false);
        buf_add_base64url(&expected, json.data, json.len);
        header_block_deinit(&block);
        write_block(&m, &usual);
        assert_value("Amqp-Headers", buf_text(&expected));
    }
    buf_deinit(&json);
    buf_deinit(&expected);
}

/* Names may be shorter than the quotes and colons around them. */
static void test_a_table_with_short_names_is_sent(void **state)
{
    static const char name[] = "_____";
    struct field header = F_BOOL("", true);
    struct message m = {.headers = &header, .n_headers = 1};
    (void)state;

    for (size_t len = 0; len < sizeof(name); len++) {
        header.name = (struct slice){name, len};
        write_block(&m, &usual);
        assert_non_null(value_of("Amqp-Headers"));
        assert_value("Onceward-Headers-Dropped", NULL);
    }
}

static void test_a_batch(void **state)
{
    struct batch_facts facts = {.n = 12, .consumer = TEXT("or/ders"), .window_ms = 30000};
    (void)state;

    headers_write_batch(&block, &facts);
    assert_null(header_block_fault(&block));
    assert_block("Content-Type: application/json\n"
                 "Accept-Encoding: identity\n"
                 "Onceward-Batch: 12\n"
                 "Onceward-Consumer: or%2Fders\n"
                 "Onceward-Token-Window-Ms: 30000\n");
    assert_int_equal(block.n, 5);
    facts.window_ms = -1; /* the window is over */
    headers_write_batch(&block, &facts);
    assert_value("Onceward-Token-Window-Ms", "0");
}

/* The buffer grows at another place for each length. */
static void test_every_length_of_id(void **state)
{
    static char id[255];
    struct message m = {0};
    struct request_facts r = usual;
    (void)state;

    memset(id, '/', sizeof(id));
    for (size_t len = 1; len <= sizeof(id); len++) {
        r.message_id = (struct slice){id, len};
        header_block_deinit(&block);
        write_block(&m, &r);
        assert_int_equal(strlen(value_of("Onceward-Message-Id")), 3 * len);
        assert_memory_equal(value_of("Onceward-Message-Id"), value_of("Idempotency-Key") + 1, 3 * len);
    }
}

static void test_block_is_used_again(void **state)
{
    struct field header = F_STRING("h", "v");
    struct message with = {.headers = &header, .n_headers = 1}, without = {0};
    struct header_block fresh = {0};
    (void)state;

    write_block(&with, &usual);
    assert_non_null(value_of("Amqp-Headers"));
    write_block(&without, &usual);
    headers_write(&fresh, &without, &usual);
    assert_int_equal(block.n, fresh.n);
    assert_int_equal(block.text.len, fresh.text.len);
    assert_memory_equal(block.text.data, fresh.text.data, fresh.text.len);
    header_block_deinit(&fresh);
    header_block_deinit(&block);
    assert_int_equal(block.n, 0);
}

/* The log names the trace that the request carries: the first header with a value decides for both. */
static void test_the_trace_id_of_the_log_is_the_one_that_is_sent(void **state)
{
    const struct {
        struct field first, second;
        const char *expected;
    } cases[] = {
        {F_STRING("traceparent", TRACE), F_STRING("x", "y"), "0af7651916cd43dd8448eb211c80319c"},
        {F_STRING("x", "y"), F_BYTES("TraceParent", " " TRACE " "), "0af7651916cd43dd8448eb211c80319c"},
        {F_STRING("traceparent", ""), F_STRING("traceparent", TRACE), "0af7651916cd43dd8448eb211c80319c"},
        {F_STRING("traceparent", "00-xyz"), F_STRING("traceparent", TRACE), ""},
        {F_STRING("tracestate", TRACE), F_STRING("x", TRACE), ""},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct field headers[] = {cases[i].first, cases[i].second};
        struct message m = {.headers = headers, .n_headers = 2};
        struct slice id = trace_id(&m);

        assert_int_equal(id.len, strlen(cases[i].expected));
        assert_memory_equal(id.len ? id.data : "", cases[i].expected, id.len);
        write_block(&m, &usual);
        const char *sent = value_of("traceparent");

        assert_int_equal(sent != NULL, id.len > 0);
        if (sent)
            assert_memory_equal(sent + 3, id.data, id.len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_trace_id_of_the_log_is_the_one_that_is_sent),
        cmocka_unit_test(test_smallest),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_content_type),
        cmocka_unit_test(test_content_type_is_bounded),
        cmocka_unit_test(test_content_type_of_a_message_without_one),
        cmocka_unit_test(test_content_encoding),
        cmocka_unit_test(test_traceparent),
        cmocka_unit_test(test_tracestate),
        cmocka_unit_test(test_a_table_that_fits_is_sent),
        cmocka_unit_test(test_a_table_with_short_names_is_sent),
        cmocka_unit_test(test_each_name_is_sent_once),
        cmocka_unit_test(test_every_length_of_the_table),
        cmocka_unit_test(test_a_batch),
        cmocka_unit_test(test_cloudevents),
        cmocka_unit_test(test_plain_headers),
        cmocka_unit_test(test_many_headers),
        cmocka_unit_test(test_bytes_are_bounded),
        cmocka_unit_test(test_every_length_of_id),
        cmocka_unit_test(test_block_is_used_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
