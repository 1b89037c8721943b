/* Buffers: growing, and the encodings that write into them. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/base/buf.h"

static void assert_buf(const struct buf *b, const char *expected)
{
    assert_int_equal(b->len, strlen(expected));
    if (b->len)
        assert_memory_equal(b->data, expected, b->len);
}

static void test_grows(void **state)
{
    struct buf b = {0};
    (void)state;

    for (size_t i = 0; i < 5000; i++)
        buf_add_char(&b, (char)('a' + i % 26));
    assert_int_equal(b.len, 5000);
    for (size_t i = 0; i < 5000; i++)
        assert_int_equal(b.data[i], 'a' + i % 26);
    buf_reset(&b);
    assert_int_equal(b.len, 0);
    buf_add(&b, NULL, 0);
    buf_add_text(&b, "one ");
    buf_add_slice(&b, TEXT("two"));
    buf_printf(&b, " %d%s", 3, "");
    assert_string_equal(buf_text(&b), "one two 3");
    assert_int_equal(b.len, 9);
    buf_deinit(&b);
    assert_null(b.data);
    assert_string_equal(buf_text(&b), "");
    buf_deinit(&b);
}

static void test_printf_of_any_length(void **state)
{
    struct buf b = {0};
    (void)state;

    for (int width = 0; width < 300; width++) {
        buf_reset(&b);
        buf_printf(&b, "%0*d|", width, 7);
        assert_int_equal(b.len, (width ? width : 1) + 1);
        assert_int_equal(b.data[b.len - 1], '|');
    }
    buf_deinit(&b);
}

static void test_percent(void **state)
{
    static const struct {
        struct slice in;
        const char *out;
    } cases[] = {
        {TEXT(""), ""},
        {TEXT("azAZ09-._~"), "azAZ09-._~"},
        {TEXT("%"), "%25"},
        {TEXT("%41"), "%2541"},
        {TEXT(" \"\\,{}[]:;/?#@!$&'()*+="),
         "%20%22%5C%2C%7B%7D%5B%5D%3A%3B%2F%3F%23%40%21%24%26%27%28%29%2A%2B%3D"},
        {TEXT("\r\n\0"), "%0D%0A%00"},
        {TEXT("\xC3\xA4\xF0\x9F\x90\x87"), "%C3%A4%F0%9F%90%87"},
        {TEXT("\xFF\x80\x7F"), "%FF%80%7F"},
    };
    struct buf b = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        buf_reset(&b);
        buf_add_percent(&b, cases[i].in);
        assert_buf(&b, cases[i].out);
    }
    buf_deinit(&b);
}

static void test_base64url(void **state)
{
    static const struct {
        struct slice in;
        const char *out;
    } cases[] = {
        {TEXT(""), ""},
        {TEXT("f"), "Zg"},
        {TEXT("fo"), "Zm8"},
        {TEXT("foo"), "Zm9v"},
        {TEXT("foob"), "Zm9vYg"},
        {TEXT("fooba"), "Zm9vYmE"},
        {TEXT("foobar"), "Zm9vYmFy"},
        {TEXT("\xFF\xFF\xFF"), "____"},
        {TEXT("\xFB\xEF\xBE"), "----"},
        {TEXT("\0"), "AA"},
        {TEXT("\0\0\0\0"), "AAAAAA"},
    };
    struct buf b = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        buf_reset(&b);
        buf_add_base64url(&b, cases[i].in.data, cases[i].in.len);
        assert_buf(&b, cases[i].out);
    }
    buf_deinit(&b);
}

static void test_json_strings(void **state)
{
    static const struct {
        struct slice in;
        const char *out;
    } cases[] = {
        {TEXT(""), "\"\""},
        {TEXT("a\"b\\c/"), "\"a\\\"b\\\\c/\""},
        {TEXT("\n"), "\"\\u000a\""},
        {TEXT("a\0b"), "\"a\\u0000b\""},
        {TEXT("\x1F\x20"), "\"\\u001f \""},
        {TEXT("\xC3\xA4\xF0\x9F\x90\x87"), "\"\xC3\xA4\xF0\x9F\x90\x87\""},
        /* DEL, a C1 control, a line separator, an override, an isolate, the byte order mark */
        {TEXT("\x7F\xC2\x9B"), "\"\\u007f\\u009b\""},
        {TEXT("\xE2\x80\xA8\xE2\x80\xAE\xE2\x81\xA6\xEF\xBB\xBF"), "\"\\u2028\\u202e\\u2066\\ufeff\""},
        {TEXT("a\xFFz"), "\"a\xEF\xBF\xBDz\""},
        {TEXT("\xED\xA0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},
        {TEXT("cut\xE2\x82"), "\"cut\xEF\xBF\xBD\xEF\xBF\xBD\""},
    };
    struct buf b = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        buf_reset(&b);
        buf_add_json(&b, cases[i].in);
        assert_buf(&b, cases[i].out);
    }
    buf_deinit(&b);
}

static void test_hex_and_integers(void **state)
{
    struct buf b = {0};
    (void)state;

    buf_add_hex(&b, "\x00\x7F\xAB\xFF", 4);
    assert_buf(&b, "007fabff");
    buf_reset(&b);
    buf_add_u16(&b, 0x0102);
    buf_add_u32(&b, 0x03040506);
    buf_add_u64(&b, 0x0708090A0B0C0D0E);
    assert_int_equal(b.len, 14);
    for (int i = 0; i < 14; i++)
        assert_int_equal(b.data[i], i + 1);
    buf_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grows),        cmocka_unit_test(test_printf_of_any_length),
        cmocka_unit_test(test_percent),      cmocka_unit_test(test_base64url),
        cmocka_unit_test(test_json_strings), cmocka_unit_test(test_hex_and_integers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
