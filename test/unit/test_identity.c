/* The message id: the syntax of sources, the place of each, and refused ids. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/core/identity.h"

#include <stdio.h>
#include <stdlib.h>

static char long_text[400];

static void test_parse(void **state)
{
    static const struct {
        struct slice text;
        int kind; /* -1: refused */
        const char *name;
    } cases[] = {
        {TEXT("property:message_id"), IDENTITY_PROPERTY, "message_id"},
        {TEXT("property:type"), IDENTITY_PROPERTY, "type"},
        {TEXT("property:content_type"), IDENTITY_PROPERTY, "content_type"}, /* the first property */
        {TEXT("property:cluster_id"), IDENTITY_PROPERTY, "cluster_id"},     /* the last property */
        {TEXT("property:"), -1, NULL},
        {TEXT("property:messageid"), -1, NULL},
        {TEXT("property:Message_Id"), -1, NULL},
        {TEXT("property"), -1, NULL},
        {TEXT("header:x-id"), IDENTITY_HEADER, "x-id"},
        {TEXT("header: "), IDENTITY_HEADER, " "},
        {TEXT("header:a:b"), IDENTITY_HEADER, "a:b"},
        {TEXT("header:"), -1, NULL},
        {TEXT("json:/order/id"), IDENTITY_JSON, "/order/id"},
        {TEXT("json:"), IDENTITY_JSON, ""},
        {TEXT("json:/"), IDENTITY_JSON, "/"},
        {TEXT("json:/a~0b~1c"), IDENTITY_JSON, "/a~0b~1c"},
        {TEXT("json:order"), -1, NULL},
        {TEXT("json:/a~"), -1, NULL},
        {{"json:/a~", 7}, IDENTITY_JSON, "/a"},
        {{"json:/a~1", 8}, -1, NULL},
        {TEXT("json:/a~2"), -1, NULL},
        {TEXT("json:/\xFF"), -1, NULL},
        {TEXT("json:/a\0b"), -1, NULL},
        {TEXT("cloudevents"), IDENTITY_CLOUDEVENTS, ""},
        {TEXT("cloudevents:id"), -1, NULL},
        {TEXT("CloudEvents"), -1, NULL},
        {TEXT("body-sha256"), IDENTITY_BODY_SHA256, ""},
        {TEXT("body-sha512"), -1, NULL},
        {TEXT(""), -1, NULL},
        {TEXT(" property:message_id"), -1, NULL},
        {TEXT("message_id"), -1, NULL},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct identity_source s = {.kind = IDENTITY_JOIN};
        struct fault f = {0};

        if (cases[i].kind < 0) {
            assert_int_equal(identity_parse(cases[i].text, &s, &f), -1);
            assert_true(fault_is_set(&f));
            assert_int_equal(s.kind, IDENTITY_JOIN); /* unchanged */
        } else {
            assert_int_equal(identity_parse(cases[i].text, &s, &f), 0);
            assert_int_equal(s.kind, cases[i].kind);
            assert_true(slice_equal(s.name, slice_of(cases[i].name)));
        }
    }
}

static void test_parse_names_what_was_expected(void **state)
{
    struct identity_source s;
    struct fault f = {0};
    struct slice header = {long_text, 7 + 256};
    (void)state;

    identity_parse(TEXT("property:id"), &s, &f);
    assert_non_null(strstr(f.text, "property:id"));
    assert_non_null(strstr(f.text, "content_type, content_encoding"));
    assert_non_null(strstr(f.text, "message_id"));
    assert_non_null(strstr(f.text, "cluster_id"));
    identity_parse(TEXT("id"), &s, &f);
    assert_non_null(strstr(f.text, "header:<name>"));
    memcpy(long_text, "header:", 7);
    assert_int_equal(identity_parse(header, &s, &f), -1);
    header.len--;
    assert_int_equal(identity_parse(header, &s, &f), 0);
    memset(long_text, 'x', 7);
    assert_int_equal(identity_parse((struct slice){long_text, 400}, &s, &f), -1);
    assert_int_equal(identity_parse((struct slice){0}, &s, &f), -1);
    char expected[200];
    memcpy(long_text, "json:", 5);
    for (int len = 59; len <= 61; len++) { /* the texts are cut after 60 bytes */
        f = (struct fault){0};
        identity_parse((struct slice){long_text, 5 + (size_t)len}, &s, &f);
        snprintf(expected, sizeof(expected), "\"json:%.*s\": expected a JSON pointer, like json:/order/id",
                 len < 60 ? len : 60, long_text + 5);
        assert_string_equal(f.text, expected);
        f = (struct fault){0};
        identity_parse((struct slice){long_text + 5, (size_t)len}, &s, &f);
        snprintf(expected, sizeof(expected), "\"%.*s\" is no source of a message id; expected",
                 len < 60 ? len : 60, long_text + 5);
        assert_memory_equal(f.text, expected, strlen(expected));
    }
    memset(long_text, 'x', 5);
}

/* Reads bodies of the form "<pointer>=<value>". */
static int read_body(struct slice body, struct slice pointer, struct buf *out)
{
    if (body.len <= pointer.len || memcmp(body.data, pointer.data, pointer.len) != 0 ||
        body.data[pointer.len] != '=')
        return 1;
    buf_add(out, body.data + pointer.len + 1, body.len - pointer.len - 1);
    return 0;
}

static struct message message_with(struct field *headers, size_t n)
{
    return (struct message){.headers = headers, .n_headers = n};
}

static void assert_id(const char *const *texts, const struct message *m, enum identity_result result,
                      struct slice id)
{
    struct identity_source sources[8];
    struct fault f = {0};
    struct buf found = {0};
    size_t n = 0;

    for (; texts[n]; n++)
        assert_int_equal(identity_parse(slice_of(texts[n]), &sources[n], &f), 0);
    buf_add_text(&found, "old");
    assert_int_equal(identity_find(sources, n, m, read_body, &found, &f), result);
    assert_int_equal(found.len, id.len);
    if (id.len)
        assert_memory_equal(found.data, id.data, id.len);
    assert_int_equal(fault_is_set(&f), result != IDENTITY_FOUND);
    buf_deinit(&found);
}

#define SOURCES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_property(void **state)
{
    const struct {
        struct slice id;
        enum identity_result result;
    } cases[] = {
        {TEXT("m-1"), IDENTITY_FOUND},           {TEXT(" "), IDENTITY_FOUND},
        {TEXT("\"\\,{}%"), IDENTITY_FOUND},      {TEXT("\xC3\xA4\xF0\x9F\x90\x87"), IDENTITY_FOUND},
        {TEXT("\r\n"), IDENTITY_FOUND},          {TEXT("NULL"), IDENTITY_FOUND},
        {{long_text, 255}, IDENTITY_FOUND},      {{long_text, 256}, IDENTITY_LONG},
        {{long_text, 400}, IDENTITY_LONG},       {TEXT(""), IDENTITY_EMPTY},
        {TEXT("a\0b"), IDENTITY_BINARY},         {TEXT("\0"), IDENTITY_BINARY},
        {TEXT("\xFF"), IDENTITY_BINARY},         {TEXT("cut\xE2\x82"), IDENTITY_BINARY},
        {TEXT("\xED\xA0\x80"), IDENTITY_BINARY},
    };
    struct message m = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        m.properties[PROPERTY_MESSAGE_ID] = cases[i].id;
        assert_id(SOURCES("property:message_id"), &m, cases[i].result, cases[i].id);
    }
    m.properties[PROPERTY_MESSAGE_ID] = (struct slice){0};
    assert_id(SOURCES("property:message_id"), &m, IDENTITY_MISSING, TEXT(""));
}

static void test_header_kinds(void **state)
{
    struct field item = F_INT("", FIELD_I32, 1);
    const struct {
        struct field field;
        enum identity_result result;
        const char *id;
    } cases[] = {
        {F_STRING("x-id", "a b"), IDENTITY_FOUND, "a b"},
        {F_BYTES("x-id", "raw"), IDENTITY_FOUND, "raw"},
        {F_BOOL("x-id", true), IDENTITY_FOUND, "true"},
        {F_BOOL("x-id", false), IDENTITY_FOUND, "false"},
        {F_INT("x-id", FIELD_I8, -128), IDENTITY_FOUND, "-128"},
        {F_INT("x-id", FIELD_I64, INT64_MIN), IDENTITY_FOUND, "-9223372036854775808"},
        {F_INT("x-id", FIELD_I64, INT64_MAX), IDENTITY_FOUND, "9223372036854775807"},
        {F_UINT("x-id", FIELD_U64, UINT64_MAX), IDENTITY_FOUND, "18446744073709551615"},
        {F_UINT("x-id", FIELD_TIMESTAMP, 1700000000), IDENTITY_FOUND, "1700000000"},
        {F_FLOAT("x-id", FIELD_F64, 0.1), IDENTITY_FOUND, "0.1"},
        {F_DECIMAL("x-id", 2, 5), IDENTITY_FOUND, "0.05"},
        {F_STRING("x-id", ""), IDENTITY_EMPTY, ""},
        {F_VOID("x-id"), IDENTITY_MISSING, ""},
        {{.name = TEXT("x-id"), .kind = FIELD_ARRAY, .children = {&item, 1}}, IDENTITY_MISSING, ""},
        {{.name = TEXT("x-id"), .kind = FIELD_TABLE}, IDENTITY_MISSING, ""},
        {F_STRING("X-Id", "other case"), IDENTITY_MISSING, ""},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct field header = cases[i].field;
        struct message m = message_with(&header, 1);

        assert_id(SOURCES("header:x-id"), &m, cases[i].result, slice_of(cases[i].id));
    }
}

static void test_order(void **state)
{
    struct field header = F_STRING("x-id", "from header");
    struct message m = message_with(&header, 1);
    static const char sha256_of_nothing[] =
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    (void)state;

    assert_id(SOURCES("property:message_id", "header:x-id"), &m, IDENTITY_FOUND, TEXT("from header"));
    m.properties[PROPERTY_MESSAGE_ID] = TEXT("from property");
    assert_id(SOURCES("property:message_id", "header:x-id"), &m, IDENTITY_FOUND, TEXT("from property"));
    assert_id(SOURCES("header:x-id", "property:message_id"), &m, IDENTITY_FOUND, TEXT("from header"));
    /* An unusable value decides, too. */
    m.properties[PROPERTY_MESSAGE_ID] = TEXT("");
    assert_id(SOURCES("property:message_id", "header:x-id"), &m, IDENTITY_EMPTY, TEXT(""));
    m.properties[PROPERTY_MESSAGE_ID] = TEXT("\xFF");
    assert_id(SOURCES("property:message_id", "header:x-id"), &m, IDENTITY_BINARY, TEXT("\xFF"));
    assert_id(SOURCES("header:none", "body-sha256"), &m, IDENTITY_FOUND, TEXT(sha256_of_nothing));
    assert_id(SOURCES("header:none", "cloudevents", "json:/a", "property:type"), &m, IDENTITY_MISSING,
              TEXT(""));
}

static void test_json_and_digest(void **state)
{
    static char pair[] = "/a/b=17", abc[] = "abc";
    struct message m = {0};
    (void)state;

    m.body = pair;
    m.body_len = 7;
    assert_id(SOURCES("json:/a/b"), &m, IDENTITY_FOUND, TEXT("17"));
    assert_id(SOURCES("json:/a/c"), &m, IDENTITY_MISSING, TEXT(""));
    m.body_len = 5;
    assert_id(SOURCES("json:/a/b"), &m, IDENTITY_EMPTY, TEXT(""));
    m.body = NULL;
    m.body_len = 0;
    assert_id(SOURCES("json:/a/b"), &m, IDENTITY_MISSING, TEXT(""));

    /* A body above the limit is not read. */
    m.body_len = 256 * 1024 + 1;
    m.body = malloc(m.body_len);
    assert_non_null(m.body);
    memset(m.body, 'x', m.body_len);
    memcpy(m.body, "/a/b=", 5);
    assert_id(SOURCES("json:/a/b"), &m, IDENTITY_MISSING, TEXT(""));
    free(m.body);

    m.body = abc;
    m.body_len = 3;
    assert_id(SOURCES("body-sha256"), &m, IDENTITY_FOUND,
              TEXT("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
}

static void test_cloudevents(void **state)
{
    struct field fields[] = {F_STRING("cloudEvents:id", "A/1"), F_STRING("cloudEvents:source", "urn:x y")};
    struct field underscores[] = {F_STRING("cloudEvents_source", "urn:s"),
                                  F_INT("cloudEvents_id", FIELD_I32, 7)};
    struct message m = message_with(fields, 2);
    (void)state;

    assert_id(SOURCES("cloudevents"), &m, IDENTITY_FOUND, TEXT("urn%3Ax%20y/A%2F1"));
    m.n_headers = 1; /* without a source it is not a CloudEvent */
    assert_id(SOURCES("cloudevents"), &m, IDENTITY_MISSING, TEXT(""));
    fields[0] = F_STRING("cloudEvents:id", "");
    m.n_headers = 2;
    assert_id(SOURCES("cloudevents"), &m, IDENTITY_EMPTY, TEXT(""));
    m = message_with(underscores, 2);
    assert_id(SOURCES("cloudevents"), &m, IDENTITY_FOUND, TEXT("urn%3As/7"));
    m.n_headers = 1;
    assert_id(SOURCES("cloudevents"), &m, IDENTITY_MISSING, TEXT(""));
}

static void test_join(void **state)
{
    struct field headers[] = {F_STRING("a", "x/y"), F_STRING("b", "\0\xFF"), F_STRING("empty", "")};
    struct message m = message_with(headers, COUNT(headers));
    struct identity_source a = {IDENTITY_HEADER, TEXT("a"), NULL, 0},
                           b = {IDENTITY_HEADER, TEXT("b"), NULL, 0};
    struct identity_source none = {IDENTITY_HEADER, TEXT("none"), NULL, 0},
                           empty = {IDENTITY_HEADER, TEXT("empty"), NULL, 0};
    struct identity_source digest = {.kind = IDENTITY_BODY_SHA256};
    struct identity_source parts[4], join = {.kind = IDENTITY_JOIN, .parts = parts, .n_parts = 2};
    struct identity_source both[2] = {join, digest};
    struct fault f = {0};
    struct buf id = {0};
    (void)state;

    parts[0] = a, parts[1] = b;
    assert_int_equal(identity_find(&join, 1, &m, NULL, &id, &f), IDENTITY_FOUND);
    assert_string_equal(buf_text(&id), "x%2Fy/%00%FF");
    parts[1] = none;
    assert_int_equal(identity_find(&join, 1, &m, NULL, &id, &f), IDENTITY_MISSING);
    assert_int_equal(id.len, 0);
    assert_non_null(strstr(f.text, "header:a + header:none"));
    assert_int_equal(identity_find(both, 2, &m, NULL, &id, &f), IDENTITY_FOUND); /* continues with the next */
    assert_int_equal(id.len, 64);
    parts[1] = empty;
    assert_int_equal(identity_find(both, 2, &m, NULL, &id, &f), IDENTITY_EMPTY);
    parts[0] = empty, parts[1] = none;
    assert_int_equal(identity_find(&join, 1, &m, NULL, &id, &f), IDENTITY_MISSING);
    /* The encoding makes it longer than its parts. */
    headers[1] = (struct field){.name = TEXT("b"), .kind = FIELD_STRING, .bytes = {long_text, 250}};
    parts[0] = a, parts[1] = b;
    assert_int_equal(identity_find(&join, 1, &m, NULL, &id, &f), IDENTITY_LONG);
    assert_int_equal(id.len, 256);
    assert_non_null(strstr(f.text, "256 bytes"));
    headers[1].bytes.len = 249;
    assert_int_equal(identity_find(&join, 1, &m, NULL, &id, &f), IDENTITY_FOUND);
    join.n_parts = 1;
    assert_int_equal(identity_find(&join, 1, &m, NULL, &id, &f), IDENTITY_FOUND);
    assert_string_equal(buf_text(&id), "x%2Fy");
    join.n_parts = 0;
    assert_int_equal(identity_find(&join, 1, &m, NULL, &id, &f), IDENTITY_MISSING);
    buf_deinit(&id);
}

static const struct identity_source key_header = {IDENTITY_HEADER, TEXT("key"), NULL, 0};
static const struct identity_source key_none = {IDENTITY_HEADER, TEXT("none"), NULL, 0};
static const struct identity_source key_empty = {IDENTITY_HEADER, TEXT("empty"), NULL, 0};
static const struct identity_source key_route = {IDENTITY_ROUTING_KEY, TEXT(""), NULL, 0};

/* The first source with a value gives the key. A key, unlike a message id, may have any length and any bytes. */
static void test_order_keys(void **state)
{
    struct field headers[] = {F_STRING("key", "k\0"), F_STRING("empty", "")};
    struct message m = message_with(headers, COUNT(headers));
    struct identity_source parts[] = {key_header, key_none};
    struct identity_source half = {.kind = IDENTITY_JOIN, .parts = parts, .n_parts = 2};
    const struct {
        struct identity_source sources[3];
        size_t n;
        struct slice key; /* empty: none */
    } cases[] = {
        {{key_header, key_route}, 2, TEXT("k\0")},
        {{key_route, key_header}, 2, TEXT("route")},
        {{key_none, key_header}, 2, TEXT("k\0")},
        {{key_empty, key_none, key_route}, 3, TEXT("route")},
        {{half, key_route}, 2, TEXT("route")},
        {{key_none, key_empty}, 2, TEXT("")},
        {{key_none}, 1, TEXT("")},
        {{key_header}, 0, TEXT("")},
    };
    struct buf room = {0};
    (void)state;

    m.routing_key = TEXT("route");
    buf_add_text(&room, "old");
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint8_t expected[16] = {0}, got[16] = {0};

        if (cases[i].key.len)
            fingerprint_make(cases[i].key.data, cases[i].key.len, expected);
        assert_int_equal(key_make(cases[i].sources, cases[i].n, &m, NULL, &room, got), cases[i].key.len > 0);
        assert_memory_equal(got, expected, sizeof(got));
    }
    headers[0].bytes = (struct slice){long_text, 400};
    uint8_t expected[16], got[16];
    fingerprint_make(long_text, 400, expected);
    assert_true(key_make(&key_header, 1, &m, NULL, &room, got));
    assert_memory_equal(got, expected, sizeof(got));
    buf_deinit(&room);
}

static void test_a_missing_key_names_its_sources(void **state)
{
    const struct identity_source sources[] = {key_header, key_route};
    struct fault f = {0};
    (void)state;

    key_missing(sources, 1, &f);
    assert_string_equal(f.text, "the message has no key: looked for header:key");
    f = (struct fault){0};
    key_missing(sources, 2, &f);
    assert_string_equal(f.text, "the message has no key: looked for header:key, routing_key");
}

static void test_an_unusable_id_names_its_source_and_its_fault(void **state)
{
    const struct {
        struct slice id;
        const char *fault;
    } cases[] = {
        {TEXT(""), "the message id in header:x-id is empty"},
        {{long_text, 256}, "the message id in header:x-id has 256 bytes, at most 255 are allowed"},
        {TEXT("a\0b"), "the message id in header:x-id holds a NUL byte"},
        {TEXT("\xFF"), "the message id in header:x-id is not UTF-8"},
    };
    struct identity_source source = {IDENTITY_HEADER, TEXT("x-id"), NULL, 0};
    struct buf id = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        struct field header = {.name = TEXT("x-id"), .kind = FIELD_STRING, .bytes = cases[i].id};
        struct message m = message_with(&header, 1);
        struct fault f = {0};

        identity_find(&source, 1, &m, NULL, &id, &f);
        assert_string_equal(f.text, cases[i].fault);
    }
    buf_deinit(&id);
}

static void test_sources_are_written_as_they_are_configured(void **state)
{
    struct identity_source parts[] = {key_header, {.kind = IDENTITY_BODY_SHA256}};
    struct identity_source sources[] = {{IDENTITY_PROPERTY, TEXT("message_id"), NULL, 0},
                                        {IDENTITY_JSON, TEXT("/a"), NULL, 0},
                                        {.kind = IDENTITY_CLOUDEVENTS},
                                        {.kind = IDENTITY_JOIN, .parts = parts, .n_parts = 2},
                                        key_route};
    char *text = identity_sources_text(sources, COUNT(sources));
    (void)state;

    assert_string_equal(text,
                        "property:message_id, json:/a, cloudevents, header:key + body-sha256, routing_key");
    free(text);
    text = identity_sources_text(sources, 0);
    assert_string_equal(text, "");
    free(text);
}

static void test_no_sources(void **state)
{
    struct message m = {0};
    struct fault f = {0};
    struct buf id = {0};
    (void)state;

    assert_int_equal(identity_find(NULL, 0, &m, NULL, &id, &f), IDENTITY_MISSING);
    assert_true(fault_is_set(&f));
    buf_deinit(&id);
}

static void test_fingerprint(void **state)
{
    static const uint8_t abc[16] = {0xBA, 0x78, 0x16, 0xBF, 0x8F, 0x01, 0xCF, 0xEA,
                                    0x41, 0x41, 0x40, 0xDE, 0x5D, 0xAE, 0x22, 0x23};
    static const uint8_t nothing[16] = {0xE3, 0xB0, 0xC4, 0x42, 0x98, 0xFC, 0x1C, 0x14,
                                        0x9A, 0xFB, 0xF4, 0xC8, 0x99, 0x6F, 0xB9, 0x24};
    uint8_t out[16];
    (void)state;

    fingerprint_make("abc", 3, out);
    assert_memory_equal(out, abc, 16);
    fingerprint_make(NULL, 0, out);
    assert_memory_equal(out, nothing, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_names_what_was_expected),
        cmocka_unit_test(test_property),
        cmocka_unit_test(test_header_kinds),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_json_and_digest),
        cmocka_unit_test(test_cloudevents),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_an_unusable_id_names_its_source_and_its_fault),
        cmocka_unit_test(test_sources_are_written_as_they_are_configured),
        cmocka_unit_test(test_order_keys),
        cmocka_unit_test(test_a_missing_key_names_its_sources),
        cmocka_unit_test(test_no_sources),
        cmocka_unit_test(test_fingerprint),
    };

    memset(long_text, 'x', sizeof(long_text));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
