/* Values from a body by JSON pointer, and dead letters back into fields. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/texts.h"
#include "onceward/config/json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* expected NULL: not found. The body is in a block of its exact size, so that a read beyond it is noticed. */
static void assert_found(struct slice body, const char *pointer, const char *expected, size_t expected_len)
{
    char *exact = malloc(body.len ? body.len : 1);
    struct buf out = {0};

    memcpy(exact, body.data, body.len);
    buf_add_text(&out, "kept");
    int result = jsonread_pointer((struct slice){exact, body.len}, slice_of(pointer), &out);
    free(exact);
    if (result != (expected ? 0 : 1))
        fail_msg("%.*s at %s: %d", (int)(body.len < 200 ? body.len : 200), body.data, pointer, result);
    assert_int_equal(out.len, 4 + expected_len);
    assert_memory_equal(buf_text(&out), "kept", 4);
    if (expected_len)
        assert_memory_equal(out.data + 4, expected, expected_len);
    buf_deinit(&out);
}

static void test_pointer(void **state)
{
    static const char rfc[] =
        "{\"foo\": [\"bar\", \"baz\"], \"\": 0, \"a/b\": 1, \"c%d\": 2, \"e^f\": 3, \"g|h\": 4, "
        "\"i\\\\j\": 5, \"k\\\"l\": 6, \" \": 7, \"m~n\": 8, \"~1\": 9}";
    static const struct {
        const char *body, *pointer, *expected;
    } cases[] = {
        /* RFC 6901, section 5 */
        {rfc, "", NULL},
        {rfc, "/foo", NULL},
        {rfc, "/foo/0", "bar"},
        {rfc, "/foo/1", "baz"},
        {rfc, "/", "0"},
        {rfc, "/a~1b", "1"},
        {rfc, "/c%d", "2"},
        {rfc, "/e^f", "3"},
        {rfc, "/g|h", "4"},
        {rfc, "/i\\j", "5"},
        {rfc, "/k\"l", "6"},
        {rfc, "/ ", "7"},
        {rfc, "/m~0n", "8"},
        {rfc, "/~01", "9"},
        {rfc, "/foo/2", NULL},
        {rfc, "/foo/-", NULL},
        {rfc, "/foo/00", NULL},
        {rfc, "/foo/01", NULL},
        {rfc, "/foo/+1", NULL},
        {rfc, "/foo/", NULL},
        {rfc, "/foo/0/x", NULL},
        {rfc, "/foo/18446744073709551616", NULL},
        {rfc, "/m~n", NULL},
        {rfc, "/m~", NULL},
        {rfc, "foo", NULL},
        {rfc, "/none", NULL},
        /* kinds */
        {"\"whole\"", "", "whole"},
        {" 17 ", "", "17"},
        {"true", "", "true"},
        {"false", "", "false"},
        {"null", "", NULL},
        {"{\"id\": null}", "/id", NULL},
        {"{\"id\": {}}", "/id", NULL},
        {"{\"id\": \"\"}", "/id", ""},
        {"{\"id\": -0}", "/id", "0"},
        {"{\"id\": -12}", "/id", "-12"},
        {"{\"id\": 1.5}", "/id", NULL},
        {"{\"id\": 1.0}", "/id", NULL},
        {"{\"id\": 1e3}", "/id", NULL},
        {"{\"id\": 123456789012345678901234567890}", "/id", "123456789012345678901234567890"},
        /* numbers that the JSON library refuses do not hide the id */
        {"{\"big\": 18446744073709551616, \"huge\": 1e400, \"id\": \"x\"}", "/id", "x"},
        /* the last one of a name counts */
        {"{\"id\": \"a\", \"id\": \"b\"}", "/id", "b"},
        {"{\"id\": \"a\", \"id\": null}", "/id", NULL},
        {"{\"o\": {\"id\": \"a\"}, \"o\": {}}", "/o/id", NULL},
        {"{\"\\u0069d\": \"escaped\"}", "/id", "escaped"},
        /* strings */
        {"{\"id\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "/id", "\"\\/\b\f\n\r\t"},
        {"{\"id\": \"\\u00e9\\u20AC\\ud83d\\ude00\"}", "/id", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
        {"{\"id\": \"\\ud83d\"}", "/id", "\xEF\xBF\xBD"},
        {"{\"id\": \"\\ud83d\\u0041\"}", "/id",
         "\xEF\xBF\xBD"
         "A"},
        {"\xEF\xBB\xBF{\"id\": \"marked\"}", "/id", "marked"},
        /* malformed anywhere */
        {"", "", NULL},
        {" ", "", NULL},
        {"{\"id\": 1", "/id", NULL},
        {"{\"id\": 1}}", "/id", NULL},
        {"{\"id\": 1} x", "/id", NULL},
        {"{\"id\": 1, }", "/id", NULL},
        {"{\"id\": 1, \"b\": [1,]}", "/id", NULL},
        {"{\"id\": 1, \"b\": [,1]}", "/id", NULL},
        {"{\"id\": 1 \"b\": 2}", "/id", NULL},
        {"{\"id\" 1}", "/id", NULL},
        {"{id: 1}", "/id", NULL},
        {"{\"id\": 01}", "/id", NULL},
        {"{\"id\": 1.}", "/id", NULL},
        {"{\"id\": +1}", "/id", NULL},
        {"{\"id\": .5}", "/id", NULL},
        {"{\"id\": -}", "/id", NULL},
        {"{\"id\": 1e}", "/id", NULL},
        {"{\"id\": tru}", "/id", NULL},
        {"{\"id\": \"a\nb\"}", "/id", NULL},
        {"{\"id\": \"\\x\"}", "/id", NULL},
        {"{\"id\": \"\\u12g4\"}", "/id", NULL},
        {"{\"id\": \"\\", "/id", NULL},
        {"{\"id\": \"\\u12", "/id", NULL},
        {"{\"id\": \"a\xFF\"}", "/id", NULL},
        {"{\"id\": \"a\", \"x\": \"\xC0\x80\"}", "/id", NULL},
        {"[1}", "/0", NULL},
        {"<xml/>", "", NULL},
    };

    for (size_t i = 0; i < COUNT(cases); i++)
        assert_found(slice_of(cases[i].body), cases[i].pointer, cases[i].expected,
                     cases[i].expected ? strlen(cases[i].expected) : 0);
    assert_found(SLICE("{\"id\": \"a\\u0000b\"}"), "/id", "a\0b", 3);
    assert_found(SLICE("{\"id\": \"a\"}\0"), "/id", NULL, 0);
}

static void test_pointer_bounds(void **state)
{
    struct buf body = {0};

    buf_add_text(&body, "{\"id\": \"x\", \"fill\": \"");
    while (body.len < JSON_BODY_MAX - 2)
        buf_add_char(&body, 'f');
    buf_add_text(&body, "\"}");
    assert_int_equal(body.len, JSON_BODY_MAX);
    assert_found(buf_slice(&body), "/id", "x", 1);
    buf_add_char(&body, ' ');
    assert_found(buf_slice(&body), "/id", NULL, 0);

    for (int depth = 1; depth <= 100000; depth *= 10) {
        buf_reset(&body);
        for (int i = 0; i < depth; i++)
            buf_add_char(&body, '[');
        for (int i = 0; i < depth; i++)
            buf_add_char(&body, ']');
        struct buf whole = {0};
        buf_printf(&whole, "{\"id\": \"x\", \"deep\": %s}", buf_text(&body));
        bool found = depth < 1000;
        assert_found(buf_slice(&whole), "/id", found ? "x" : NULL, found);
        buf_deinit(&whole);
    }
    buf_deinit(&body);
}

/* Both readers agree on whether a cut or changed body is JSON, except for jansson's limits on numbers. */
static void test_agrees_with_jansson(void **state)
{
    static const char seed[] =
        "{\"a\": [1, -2.5e+3, true, false, null, \"x\\u00e9\\n\", {\"b\": {}}, []], \"c\": \"\"}";
    unsigned random = 12345;

    for (int round = 0; round < 20000; round++) {
        char text[sizeof(seed)];
        size_t len = sizeof(seed) - 1;
        struct buf out = {0};

        memcpy(text, seed, sizeof(seed));
        for (int i = 0; i < 1 + round % 3; i++) {
            random = random * 1103515245 + 12345;
            text[random / 65536 % len] = "{}[]\",:0123456789.eE+-truefalsn\\u \x7F\xC3"[random / 8 % 36];
        }
        if (round % 5 == 0)
            len = random / 1024 % sizeof(seed);
        /* A pointer finds scalars only, so the text is put beside one. */
        struct buf whole = {0};
        buf_add_text(&whole, "{\"w\": ");
        buf_add(&whole, text, len);
        buf_add_text(&whole, ", \"id\": \"x\"}");
        json_t *wrapped = json_loadb(whole.data, whole.len, JSON_ALLOW_NUL, NULL);
        bool may_differ = memchr(text, '\\', len) || strpbrk(text, "eE"); /* lone surrogates, 1e999 */
        int result = jsonread_pointer(buf_slice(&whole), SLICE("/id"), &out);
        if (wrapped || !may_differ)
            assert_int_equal(result, wrapped ? 0 : 1);
        json_decref(wrapped);
        buf_deinit(&whole);
        buf_deinit(&out);
    }
}

/* --- fields --- */

static bool same_field(const struct field *a, const struct field *b);

static bool same_fields(const struct field *a, size_t n_a, const struct field *b, size_t n_b)
{
    if (n_a != n_b)
        return false;
    for (size_t i = 0; i < n_a; i++)
        if (!same_field(&a[i], &b[i]))
            return false;
    return true;
}

static bool same_field(const struct field *a, const struct field *b)
{
    if (a->kind != b->kind || !slice_equal(a->name, b->name))
        return false;
    switch (a->kind) {
    case FIELD_BOOL:
        return a->boolean == b->boolean;
    case FIELD_F32:
    case FIELD_F64:
        return isnan(a->d) ? isnan(b->d) : a->d == b->d && signbit(a->d) == signbit(b->d);
    case FIELD_DECIMAL:
        return a->decimal.value == b->decimal.value && a->decimal.decimals == b->decimal.decimals;
    case FIELD_STRING:
    case FIELD_BYTES:
        return slice_equal(a->bytes, b->bytes);
    case FIELD_ARRAY:
    case FIELD_TABLE:
        return same_fields(a->children.items, a->children.n, b->children.items, b->children.n);
    case FIELD_VOID:
        return true;
    default:
        return a->u == b->u;
    }
}

static void test_fields_round_trip(void **state)
{
    struct field one[] = {F_INT("n", FIELD_I64, 5)};
    struct field tagged_alone[] = {F_STRING("!l", "5")}; /* looks like a tag */
    struct field items[] = {F_INT(NULL, FIELD_I32, 1),
                            F_STRING(NULL, "two"),
                            F_CHILDREN(NULL, FIELD_TABLE, one),
                            F_VOID(NULL),
                            {.kind = FIELD_ARRAY}};
    struct field fields[] = {
        F_BOOL("t", true),
        F_BOOL("f", false),
        F_INT("b", FIELD_I8, INT8_MIN),
        F_UINT("B", FIELD_U8, 255),
        F_INT("s", FIELD_I16, INT16_MIN),
        F_UINT("u", FIELD_U16, UINT16_MAX),
        F_INT("I", FIELD_I32, INT32_MIN),
        F_INT("I2", FIELD_I32, INT32_MAX),
        F_UINT("i", FIELD_U32, UINT32_MAX),
        F_INT("l", FIELD_I64, 0),
        F_INT("l2", FIELD_I64, INT64_MIN),
        F_INT("l3", FIELD_I64, INT64_MAX),
        F_INT("l4", FIELD_I64, (int64_t)INT32_MAX + 1),
        F_UINT("L", FIELD_U64, 0),
        F_UINT("L2", FIELD_U64, UINT64_MAX),
        F_FLOAT("f32", FIELD_F32, 1.5),
        F_FLOAT("f32n", FIELD_F32, (double)-INFINITY),
        F_FLOAT("d", FIELD_F64, 0.1),
        F_FLOAT("d0", FIELD_F64, -0.0),
        F_FLOAT("d1", FIELD_F64, 1e300),
        F_FLOAT("d2", FIELD_F64, 5e-324),
        F_FLOAT("dn", FIELD_F64, (double)NAN),
        F_FLOAT("di", FIELD_F64, (double)INFINITY),
        F_DECIMAL("D", 2, 123),
        F_DECIMAL("D0", 0, 7),
        F_DECIMAL("D5", 5, 1),
        F_DECIMAL("Dm", 255, UINT32_MAX),
        F_STRING("S", "text \"quoted\" \xE2\x82\xAC \x01"),
        F_STRING("S0", ""),
        F_STRING("Sbad", "\xFF\0x"),
        F_BYTES("x", "\0\x01\xFE"),
        F_BYTES("x0", ""),
        F_UINT("T", FIELD_TIMESTAMP, 1700000000),
        F_UINT("T2", FIELD_TIMESTAMP, UINT64_MAX),
        F_VOID("V"),
        F_CHILDREN("A", FIELD_ARRAY, items),
        F_CHILDREN("F", FIELD_TABLE, one),
        F_CHILDREN("F2", FIELD_TABLE, tagged_alone),
        {.name = SLICE("A0"), .kind = FIELD_ARRAY},
        {.name = SLICE("F0"), .kind = FIELD_TABLE},
        /* names that need the list of names; they come last, where the reader puts them */
        F_STRING("!names", "x"),
        F_STRING("!l", "y"),
        F_STRING("\xFF", "z"),
    };
    struct message *m = message_new();
    struct buf json = {0};
    struct fault f = {0};

    fields_to_json(&json, fields, COUNT(fields), true);
    if (jsonread_fields(buf_slice(&json), m, &f) < 0)
        fail_msg("%s in %s", f.text, buf_text(&json));
    assert_int_equal(m->n_headers, COUNT(fields));
    for (size_t i = 0; i < COUNT(fields); i++)
        if (!same_field(&fields[i], &m->headers[i]))
            fail_msg("field %zu (%.*s) differs: %s", i, (int)fields[i].name.len, fields[i].name.data,
                     buf_text(&json));
    buf_deinit(&json);
    message_free(m);

    m = message_new();
    assert_int_equal(jsonread_fields(SLICE("{}"), m, &f), 0);
    assert_int_equal(m->n_headers, 0);
    message_free(m);
}

/* A database that normalises JSON reorders members and writes numbers without exponents. */
static void test_fields_normalised(void **state)
{
    struct message *m = message_new();
    struct fault f = {0};
    struct buf json = {0};

    buf_add_text(&json, "{\"b\": [1, 2] , \"!names\": [ [\"IWw=\", 3] ], \"a\": {\"!l\" : 5}, \"d\": 1");
    for (int i = 0; i < 300; i++)
        buf_add_char(&json, '0');
    buf_add_char(&json, '}');
    assert_int_equal(jsonread_fields(buf_slice(&json), m, &f), 0);
    assert_int_equal(m->n_headers, 4);
    assert_int_equal(message_header(m, SLICE("a"))->kind, FIELD_I64);
    assert_int_equal(message_header(m, SLICE("!l"))->i, 3);
    assert_true(message_header(m, SLICE("d"))->d == 1e300);
    buf_deinit(&json);
    message_free(m);
}

static void test_fields_refused(void **state)
{
    static const char *const bad[] = {
        "",
        " ",
        "[]",
        "1",
        "null",
        "{",
        "{}x",
        "{\"a\"}",
        "{\"a\": }",
        "{\"a\": 1,}",
        "{\"a\": {\"!q\": 1}}",
        "{\"a\": {\"!unknown\": 1}}",
        "{\"a\": {\"!l\": 1, \"b\": 2}}",
        "{\"a\": {\"!l\": \"x\"}}",
        "{\"a\": {\"!l\": 1.5}}",
        "{\"a\": {\"!l\": 9223372036854775808}}",
        "{\"a\": {\"!b\": 128}}",
        "{\"a\": {\"!b\": -129}}",
        "{\"a\": {\"!B\": -1}}",
        "{\"a\": {\"!B\": 256}}",
        "{\"a\": {\"!L\": \"18446744073709551616\"}}",
        "{\"a\": {\"!L\": -1}}",
        "{\"a\": {\"!S\": \"x\"}}",
        "{\"a\": {\"!S\": \"ab=c\"}}",
        "{\"a\": {\"!S\": \"====\"}}",
        "{\"a\": {\"!S\": \"a-_b\"}}",
        "{\"a\": {\"!S\": 5}}",
        "{\"a\": {\"!bytes\": null}}",
        "{\"a\": {\"!decimal\": \"-1\"}}",
        "{\"a\": {\"!decimal\": \"\"}}",
        "{\"a\": {\"!decimal\": \"1.2.3\"}}",
        "{\"a\": {\"!decimal\": \"4294967296\"}}",
        "{\"a\": {\"!timestamp\": -5}}",
        "{\"a\": {\"!double\": \"many\"}}",
        "{\"a\": {\"!f\": true}}",
        "{\"!names\": {}}",
        "{\"!names\": [1]}",
        "{\"!names\": [[]]}",
        "{\"!names\": [[\"YQ==\"]]}",
        "{\"!names\": [[\"YQ==\", 1, 2]]}",
        "{\"!names\": [[\"Y\", 1]]}",
        "{\"b\": 1, \"!l\": 2}",
        "{\"!l\": 2}",
        "{\"a\": \"\xFF\"}",
        "{\"a\": [1}",
        "{\"a\": nul}",
    };

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct message *m = message_new();
        struct fault f = {0};
        char *exact = mem_copy(bad[i], strlen(bad[i]));

        if (jsonread_fields((struct slice){exact, strlen(bad[i])}, m, &f) != -1)
            fail_msg("accepted: %s", bad[i]);
        assert_true(fault_is_set(&f));
        assert_int_equal(m->n_headers, 0);
        free(exact);
        message_free(m);
    }
}

static void test_properties_round_trip(void **state)
{
    struct message *in = message_new(), *out = message_new();
    struct buf json = {0};
    struct fault f = {0};

    for (int p = 0; p < N_PROPERTIES; p++)
        in->properties[p] = slice_of(property_name((enum property)p));
    in->properties[PROPERTY_MESSAGE_ID] = SLICE("\xFF\0id");
    in->properties[PROPERTY_TYPE] = SLICE("");
    in->properties[PROPERTY_APP_ID] = (struct slice){0};
    in->has_delivery_mode = in->has_priority = in->has_timestamp = true;
    in->delivery_mode = 2;
    in->priority = 255;
    in->timestamp = UINT64_MAX;
    properties_to_json(&json, in);
    if (jsonread_properties(buf_slice(&json), out, &f) < 0)
        fail_msg("%s", f.text);
    for (int p = 0; p < N_PROPERTIES; p++) {
        assert_true(slice_equal(in->properties[p], out->properties[p]));
        assert_int_equal(in->properties[p].data == NULL, out->properties[p].data == NULL);
    }
    assert_true(out->has_delivery_mode && out->has_priority && out->has_timestamp);
    assert_int_equal(out->delivery_mode, 2);
    assert_int_equal(out->priority, 255);
    assert_true(out->timestamp == UINT64_MAX);

    assert_int_equal(jsonread_properties(SLICE("{}"), out, &f), 0);
    assert_false(out->has_priority);
    assert_null(out->properties[PROPERTY_TYPE].data);
    buf_deinit(&json);
    message_free(in);
    message_free(out);
}

static void test_properties_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{\"type\": 5}",
        "{\"type\": null}",
        "{\"nothing\": \"x\"}",
        "{\"priority\": 256}",
        "{\"priority\": \"x\"}",
        "{\"delivery_mode\": -1}",
        "{\"timestamp\": 1.5}",
        "{\"type\": \"x\"",
        "{\"type\": \"x\"} y",
        "{\"type\": {\"!l\": 5}}",
    };

    for (size_t i = 0; i < COUNT(bad); i++) {
        struct message *m = message_new();
        struct fault f = {0};

        if (jsonread_properties(slice_of(bad[i]), m, &f) != -1)
            fail_msg("accepted: %s", bad[i]);
        assert_true(fault_is_set(&f));
        message_free(m);
    }
}

/* A message id is a string or an integer: the same `true` in each body would make all messages one. */
static void test_what_is_no_message_id(void **state)
{
    static const char *const bodies[] = {"{\"id\": true}", "{\"id\": false}", "{\"id\": null}",
                                         "{\"id\": 42.5}", "{\"id\": 1e2}",   "{\"id\": {}}",
                                         "{\"id\": [1]}"};
    struct buf out = {0};

    for (size_t i = 0; i < COUNT(bodies); i++)
        assert_int_equal(jsonread_id(slice_of(bodies[i]), SLICE("/id"), &out), 1);
    assert_int_equal(out.len, 0);
    assert_int_equal(jsonread_id(SLICE("{\"id\": 42}"), SLICE("/id"), &out), 0);
    assert_int_equal(jsonread_id(SLICE("{\"id\": \"true\"}"), SLICE("/id"), &out), 0);
    assert_string_equal(buf_text(&out), "42true");
    buf_deinit(&out);
}

static void assert_reached(const char *body, const char *pointer, const char *reached, const char *members)
{
    struct texts names = {0};
    struct buf joined = {0};
    size_t len = 0;

    assert_int_equal(jsonread_reached(slice_of(body), slice_of(pointer), &len, &names), 0);
    for (size_t i = 0; i < names.n; i++)
        buf_printf(&joined, "%s%s", i ? "," : "", names.items[i]);
    assert_int_equal(len, strlen(reached));
    assert_memory_equal(pointer, reached, len);
    assert_string_equal(buf_text(&joined), members);
    texts_deinit(&names);
    buf_deinit(&joined);
}

static void test_how_far_a_wrong_pointer_leads(void **state)
{
    static const char body[] =
        "{\"order\": {\"number\": 7, \"lines\": [{\"sku\": 1}], \"a/b\": {\"c\": 1}}, \"at\": true}";
    struct texts names = {0};
    size_t len = 0;

    assert_reached(body, "/id", "", "order,at");
    assert_reached(body, "/order/id", "/order", "number,lines,a/b");
    assert_reached(body, "/order/id/x", "/order", "number,lines,a/b");
    assert_reached(body, "/order", "/order", "number,lines,a/b");
    assert_reached(body, "/order/lines/0/id", "/order/lines/0", "sku");
    assert_reached(body, "/order/lines/1/id", "/order/lines", "");
    assert_reached(body, "/order/a~1b/d", "/order/a~1b", "c");
    assert_reached(body, "/at", "/at", "");
    assert_reached(body, "/at/id", "/at", "");
    assert_reached("{}", "/id", "", "");
    assert_int_equal(jsonread_reached(SLICE("text"), SLICE("/id"), &len, &names), 1);
    assert_int_equal(jsonread_reached(SLICE("{\"a\": 1"), SLICE("/id"), &len, &names), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pointer),
        cmocka_unit_test(test_what_is_no_message_id),
        cmocka_unit_test(test_how_far_a_wrong_pointer_leads),
        cmocka_unit_test(test_pointer_bounds),
        cmocka_unit_test(test_agrees_with_jansson),
        cmocka_unit_test(test_fields_round_trip),
        cmocka_unit_test(test_fields_normalised),
        cmocka_unit_test(test_fields_refused),
        cmocka_unit_test(test_properties_round_trip),
        cmocka_unit_test(test_properties_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
