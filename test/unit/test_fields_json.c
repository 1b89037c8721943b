/* AMQP header tables and properties as JSON, for people and exact. */

#include "../fuzz/field_compare.h"
#include "../fuzz/field_maker.h"
#include "cmocka_all.h"
#include "fields.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/config/json.h"
#include "onceward/core/message.h"

#include <math.h>
#include <stdio.h>

static void assert_json(const struct field *fields, size_t n, bool exact, const char *expected)
{
    struct buf out = {0};

    buf_add_text(&out, "kept");
    fields_to_json(&out, fields, n, exact);
    assert_memory_equal(out.data, "kept", 4);
    assert_string_equal(buf_text(&out) + 4, expected);
    buf_deinit(&out);
}

static void test_every_kind(void **state)
{
    const struct {
        struct field field;
        const char *natural, *exact;
    } cases[] = {
        {F_BOOL("k", true), "true", "true"},
        {F_BOOL("k", false), "false", "false"},
        {F_INT("k", FIELD_I8, INT8_MIN), "-128", "{\"!b\":-128}"},
        {F_UINT("k", FIELD_U8, UINT8_MAX), "255", "{\"!B\":255}"},
        {F_INT("k", FIELD_I16, INT16_MIN), "-32768", "{\"!s\":-32768}"},
        {F_UINT("k", FIELD_U16, UINT16_MAX), "65535", "{\"!u\":65535}"},
        {F_INT("k", FIELD_I32, INT32_MIN), "-2147483648", "-2147483648"},
        {F_INT("k", FIELD_I32, INT32_MAX), "2147483647", "2147483647"},
        {F_INT("k", FIELD_I32, 0), "0", "0"},
        {F_UINT("k", FIELD_U32, UINT32_MAX), "4294967295", "{\"!i\":4294967295}"},
        {F_INT("k", FIELD_I64, 5), "5", "{\"!l\":5}"},
        {F_INT("k", FIELD_I64, INT32_MAX), "2147483647", "{\"!l\":2147483647}"},
        {F_INT("k", FIELD_I64, (int64_t)INT32_MAX + 1), "2147483648", "2147483648"},
        {F_INT("k", FIELD_I64, INT32_MIN), "-2147483648", "{\"!l\":-2147483648}"},
        {F_INT("k", FIELD_I64, (int64_t)INT32_MIN - 1), "-2147483649", "-2147483649"},
        {F_INT("k", FIELD_I64, INT64_MAX), "9223372036854775807", "9223372036854775807"},
        {F_INT("k", FIELD_I64, INT64_MIN), "-9223372036854775808", "-9223372036854775808"},
        {F_UINT("k", FIELD_U64, 0), "0", "{\"!L\":0}"},
        {F_UINT("k", FIELD_U64, INT64_MAX), "9223372036854775807", "{\"!L\":9223372036854775807}"},
        {F_UINT("k", FIELD_U64, UINT64_MAX), "18446744073709551615", "{\"!L\":\"18446744073709551615\"}"},
        {F_FLOAT("k", FIELD_F64, 0), "0.0", "0.0"},
        {F_FLOAT("k", FIELD_F64, -0.0), "-0.0", "-0.0"},
        {F_FLOAT("k", FIELD_F64, 1), "1.0", "1.0"},
        {F_FLOAT("k", FIELD_F64, 0.1), "0.1", "0.1"},
        {F_FLOAT("k", FIELD_F64, 0.1 + 0.2), "0.30000000000000004", "0.30000000000000004"},
        {F_FLOAT("k", FIELD_F64, 1e300), "1e+300", "1e+300"},
        {F_FLOAT("k", FIELD_F64, 1.7976931348623157e308), "1.7976931348623157e+308",
         "1.7976931348623157e+308"},
        {F_FLOAT("k", FIELD_F64, 5e-324), "4.94065645841247e-324", "4.94065645841247e-324"},
        {F_FLOAT("k", FIELD_F64, 9007199254740993.0), "9007199254740992.0", "9007199254740992.0"},
        {F_FLOAT("k", FIELD_F64, (double)NAN), "{\"!double\":\"NaN\"}", "{\"!double\":\"NaN\"}"},
        {F_FLOAT("k", FIELD_F64, (double)INFINITY), "{\"!double\":\"Infinity\"}",
         "{\"!double\":\"Infinity\"}"},
        {F_FLOAT("k", FIELD_F64, -(double)INFINITY), "{\"!double\":\"-Infinity\"}",
         "{\"!double\":\"-Infinity\"}"},
        {F_FLOAT("k", FIELD_F32, (double)0.1f), "0.1", "{\"!f\":0.1}"},
        {F_FLOAT("k", FIELD_F32, (double)16777216.0f), "16777216.0", "{\"!f\":16777216.0}"},
        {F_FLOAT("k", FIELD_F32, (double)NAN), "{\"!double\":\"NaN\"}", "{\"!f\":\"NaN\"}"},
        {F_FLOAT("k", FIELD_F32, -(double)INFINITY), "{\"!double\":\"-Infinity\"}", "{\"!f\":\"-Infinity\"}"},
        {F_DECIMAL("k", 0, 0), "{\"!decimal\":\"0\"}", "{\"!decimal\":\"0\"}"},
        {F_DECIMAL("k", 0, 123), "{\"!decimal\":\"123\"}", "{\"!decimal\":\"123\"}"},
        {F_DECIMAL("k", 2, 123), "{\"!decimal\":\"1.23\"}", "{\"!decimal\":\"1.23\"}"},
        {F_DECIMAL("k", 2, 3), "{\"!decimal\":\"0.03\"}", "{\"!decimal\":\"0.03\"}"},
        {F_DECIMAL("k", 3, 123), "{\"!decimal\":\"0.123\"}", "{\"!decimal\":\"0.123\"}"},
        {F_DECIMAL("k", 1, UINT32_MAX), "{\"!decimal\":\"429496729.5\"}", "{\"!decimal\":\"429496729.5\"}"},
        {F_DECIMAL("k", 12, UINT32_MAX), "{\"!decimal\":\"0.004294967295\"}",
         "{\"!decimal\":\"0.004294967295\"}"},
        {F_STRING("k", ""), "\"\"", "\"\""},
        {F_STRING("k", "a\"b"), "\"a\\\"b\"", "\"a\\\"b\""},
        {F_STRING("k", "\xC3\xA4"), "\"\xC3\xA4\"", "\"\xC3\xA4\""},
        {F_STRING("k", "a\0b"), "\"a\\u0000b\"", "{\"!S\":\"YQBi\"}"},
        {F_STRING("k", "\xFF"), "\"\xEF\xBF\xBD\"", "{\"!S\":\"/w==\"}"},
        {F_BYTES("k", ""), "{\"!bytes\":\"\"}", "{\"!bytes\":\"\"}"},
        {F_BYTES("k", "f"), "{\"!bytes\":\"Zg==\"}", "{\"!bytes\":\"Zg==\"}"},
        {F_BYTES("k", "fo"), "{\"!bytes\":\"Zm8=\"}", "{\"!bytes\":\"Zm8=\"}"},
        {F_BYTES("k", "foo"), "{\"!bytes\":\"Zm9v\"}", "{\"!bytes\":\"Zm9v\"}"},
        {F_BYTES("k", "\xFB\xEF\xFF\0"), "{\"!bytes\":\"++//AA==\"}", "{\"!bytes\":\"++//AA==\"}"},
        {F_UINT("k", FIELD_TIMESTAMP, 1700000000), "{\"!timestamp\":1700000000}",
         "{\"!timestamp\":1700000000}"},
        {F_UINT("k", FIELD_TIMESTAMP, INT64_MAX), "{\"!timestamp\":9223372036854775807}",
         "{\"!timestamp\":9223372036854775807}"},
        {F_UINT("k", FIELD_TIMESTAMP, (uint64_t)INT64_MAX + 1), "{\"!timestamp\":9223372036854775808}",
         "{\"!timestamp\":\"9223372036854775808\"}"},
        {F_UINT("k", FIELD_TIMESTAMP, UINT64_MAX), "{\"!timestamp\":18446744073709551615}",
         "{\"!timestamp\":\"18446744073709551615\"}"},
        {F_VOID("k"), "null", "null"},
        {{.name = TEXT("k"), .kind = FIELD_ARRAY}, "[]", "[]"},
        {{.name = TEXT("k"), .kind = FIELD_TABLE}, "{}", "{}"},
    };
    char expected[200];
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(expected, sizeof(expected), "{\"k\":%s}", cases[i].natural);
        assert_json(&cases[i].field, 1, false, expected);
        snprintf(expected, sizeof(expected), "{\"k\":%s}", cases[i].exact);
        assert_json(&cases[i].field, 1, true, expected);
    }
}

static void test_decimals_of_any_length(void **state)
{
    struct field f = F_DECIMAL("k", 255, 7);
    struct buf out = {0};
    (void)state;

    fields_to_json(&out, &f, 1, true);
    assert_int_equal(out.len, strlen("{\"k\":{\"!decimal\":\"0.\"}}") + 255);
    assert_memory_equal(out.data + out.len - 5, "07\"}}", 5);
    buf_deinit(&out);
}

static void test_nested(void **state)
{
    struct field inner[] = {F_INT("", FIELD_I64, 1), F_STRING("", "x"), F_VOID("")};
    struct field table[] = {F_CHILDREN("a", FIELD_ARRAY, inner), F_BOOL("b", true)};
    struct field fields[] = {F_CHILDREN("t", FIELD_TABLE, table), F_INT("n", FIELD_I32, 2)};
    (void)state;

    assert_json(NULL, 0, false, "{}");
    assert_json(NULL, 0, true, "{}");
    assert_json(fields, 2, false, "{\"t\":{\"a\":[1,\"x\",null],\"b\":true},\"n\":2}");
    assert_json(fields, 2, true, "{\"t\":{\"a\":[{\"!l\":1},\"x\",null],\"b\":true},\"n\":2}");
}

static void test_odd_names(void **state)
{
    struct field fields[] = {
        F_INT("a", FIELD_I32, 1),    F_INT("!l", FIELD_I32, 2),  F_INT("a", FIELD_I64, 3),
        F_INT("", FIELD_I32, 4),     F_INT("b\"", FIELD_I32, 5), F_INT("a", FIELD_I32, 6),
        F_INT("\xFF", FIELD_I32, 7),
    };
    struct field with_nul = F_INT("", FIELD_I32, 1);
    struct field tag = F_INT("!names", FIELD_I32, 1);
    struct field table = {.name = TEXT("t"), .kind = FIELD_TABLE, .children = {&tag, 1}};
    (void)state;

    with_nul.name = TEXT("n\0");
    assert_json(fields, COUNT(fields), false,
                "{\"a\":1,\"!l\":2,\"a\":3,\"\":4,\"b\\\"\":5,\"a\":6,\"\xEF\xBF\xBD\":7}");
    assert_json(fields, COUNT(fields), true,
                "{\"a\":1,\"\":4,\"b\\\"\":5,\"!names\":[[\"IWw=\",2],[\"YQ==\",{\"!l\":3}],[\"YQ==\",6],[\"/"
                "w==\",7]]}");
    assert_json(&with_nul, 1, true, "{\"!names\":[[\"bgA=\",1]]}");
    assert_json(&with_nul, 1, false, "{\"n\\u0000\":1}");
    assert_json(&table, 1, true, "{\"t\":{\"!names\":[[\"IW5hbWVz\",1]]}}");
}

/* Publishers choose the depth of nesting; it must affect neither the stack nor the form. */
static void test_too_deep(void **state)
{
    enum { LEVELS = 20000 };
    static struct field chain[LEVELS];
    struct buf out = {0};
    size_t depth = 0, deepest = 0;
    (void)state;

    for (size_t i = 0; i < LEVELS; i++)
        chain[i] = (struct field){.kind = i % 2 ? FIELD_ARRAY : FIELD_TABLE,
                                  .children = {&chain[i + 1], i + 1 < LEVELS}};
    for (int exact = 0; exact < 2; exact++) {
        buf_reset(&out);
        fields_to_json(&out, chain, 1, exact);
        for (size_t i = 0; i < out.len; i++) {
            depth += out.data[i] == '{' || out.data[i] == '[';
            depth -= out.data[i] == '}' || out.data[i] == ']';
            deepest = depth > deepest ? depth : deepest;
        }
        assert_int_equal(depth, 0);
        assert_int_equal(deepest, FIELD_DEPTH_MAX + 1);
        assert_non_null(strstr(buf_text(&out), "{\"!deep\":null}"));
    }
    /* Siblings do not count as depth. */
    struct field table = {.kind = FIELD_TABLE, .children = {chain, FIELD_DEPTH_MAX + 1}};
    for (size_t i = 0; i < FIELD_DEPTH_MAX + 1; i++)
        chain[i] = (struct field){.kind = FIELD_ARRAY};
    buf_reset(&out);
    fields_to_json(&out, chain, FIELD_DEPTH_MAX + 1, false);
    fields_to_json(&out, &table, 1, false);
    assert_null(strstr(buf_text(&out), "!deep"));
    buf_deinit(&out);
}

static void test_properties(void **state)
{
    struct message m = {0};
    struct buf out = {0};
    (void)state;

    properties_to_json(&out, &m);
    assert_string_equal(buf_text(&out), "{}");
    buf_reset(&out);
    m.properties[PROPERTY_CONTENT_TYPE] = TEXT("text/plain; charset=\"utf-8\"");
    m.properties[PROPERTY_MESSAGE_ID] = TEXT("a\0b");
    m.properties[PROPERTY_CLUSTER_ID] = TEXT("");
    m.has_delivery_mode = m.has_priority = m.has_timestamp = true;
    m.delivery_mode = 2;
    m.priority = 255;
    m.timestamp = 1700000000;
    properties_to_json(&out, &m);
    assert_string_equal(
        buf_text(&out),
        "{\"content_type\":\"text/plain; charset=\\\"utf-8\\\"\",\"message_id\":{\"!S\":\"YQBi\"},"
        "\"cluster_id\":\"\",\"delivery_mode\":2,\"priority\":255,\"timestamp\":1700000000}");
    buf_reset(&out);
    m = (struct message){.has_timestamp = true, .timestamp = UINT64_MAX};
    properties_to_json(&out, &m);
    assert_string_equal(buf_text(&out), "{\"timestamp\":\"18446744073709551615\"}");
    m.timestamp = INT64_MAX;
    buf_reset(&out);
    properties_to_json(&out, &m);
    assert_string_equal(buf_text(&out), "{\"timestamp\":9223372036854775807}");
    buf_deinit(&out);
}

/* Random tables in the exact form are read back unchanged. */
static void test_read_back(void **state)
{
    static uint8_t bytes[1024];
    uint64_t seed = 0x9E3779B97F4A7C15u;
    struct buf out = {0};
    size_t most = 0;
    (void)state;

    for (int round = 0; round < 3000; round++) {
        struct fault f = {0};

        for (size_t i = 0; i < sizeof(bytes); i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (uint8_t)(seed >> 56);
        }
        if (round % 2) /* short names and values, with many duplicates */
            for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] &= 0x23;
        struct byte_source s = {bytes, bytes + sizeof(bytes)};
        struct message *m = take_message(&s), *back = message_new();

        buf_reset(&out);
        fields_to_json(&out, m->headers, m->n_headers, true);
        if (jsonread_fields(buf_slice(&out), back, &f) < 0)
            fail_msg("%s in %s", f.text, buf_text(&out));
        if (!tables_equal(m->headers, m->n_headers, back->headers, back->n_headers))
            fail_msg("read back as another: %s", buf_text(&out));
        buf_reset(&out);
        properties_to_json(&out, m);
        assert_int_equal(jsonread_properties(buf_slice(&out), back, &f), 0);
        assert_true(properties_equal(m, back));
        most = m->n_headers > most ? m->n_headers : most;
        message_free(m);
        message_free(back);
    }
    assert_int_equal(most, 15);
    buf_deinit(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind), cmocka_unit_test(test_decimals_of_any_length),
        cmocka_unit_test(test_nested),     cmocka_unit_test(test_odd_names),
        cmocka_unit_test(test_too_deep),   cmocka_unit_test(test_read_back),
        cmocka_unit_test(test_properties),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
