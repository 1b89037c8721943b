/* Binary array parameters, and valid text for PostgreSQL. */

#include "cmocka_all.h"
#include "fields.h"
#include "inbox/array.h"
#include "inbox/text.h"

#include <string.h>

static void slice_is(struct slice s, const char *expected, size_t len)
{
    assert_int_equal(s.len, len);
    assert_memory_equal(s.data, expected, len);
}

#define HEADER(nulls, type, n) "\0\0\0\1\0\0\0" nulls "\0\0" type "\0\0\0" n "\0\0\0\1"
#define SLICE_IS(s, literal)   slice_is((s), (literal), sizeof(literal) - 1)

static void test_elements(void **state)
{
    struct array a = {0};
    (void)state;

    array_start(&a, ARRAY_TEXT, 3, 0);
    array_add_slice(&a, TEXT("ab"));
    array_add_slice(&a, (struct slice){0});
    array_add_slice(&a, TEXT(""));
    SLICE_IS(array_slice(&a, 3), HEADER("\1", "\0\31", "\3") "\0\0\0\2ab\xFF\xFF\xFF\xFF\0\0\0\0");

    array_start(&a, ARRAY_INT4, 2, 8);
    array_add_int4(&a, -2);
    array_add_int4(&a, 200);
    SLICE_IS(array_slice(&a, 2), HEADER("\0", "\0\27", "\2") "\0\0\0\4\xFF\xFF\xFF\xFE\0\0\0\4\0\0\0\310");

    array_start(&a, ARRAY_INT8, 1, 8);
    array_add_int8(&a, 1LL << 40);
    SLICE_IS(array_slice(&a, 1), HEADER("\0", "\0\24", "\1") "\0\0\0\10\0\0\1\0\0\0\0\0");

    array_start(&a, ARRAY_BOOL, 2, 2);
    array_add_bool(&a, true);
    array_add_bool(&a, false);
    SLICE_IS(array_slice(&a, 2), HEADER("\0", "\0\20", "\2") "\0\0\0\1\1\0\0\0\1\0");

    array_start(&a, ARRAY_UUID, 1, 16);
    array_add(&a, "0123456789abcdef", 16);
    SLICE_IS(array_slice(&a, 1), HEADER("\0", "\13\206", "\1") "\0\0\0\20"
                                                               "0123456789abcdef");
    array_deinit(&a);
}

/* A piece equals an array of only these elements, however often it is requested. */
static void test_pieces(void **state)
{
    struct array whole = {0}, alone = {0};
    (void)state;

    for (size_t first = 0; first < 7; first++) {
        for (size_t n = 1; first + n <= 7; n++) {
            static const char *const elements[7] = {"", "x", NULL, "some more", "", "\1", "the end"};

            array_start(&whole, ARRAY_BYTEA, 7, 0);
            for (size_t i = 0; i < 7; i++)
                array_add_slice(&whole, slice_of(elements[i]));
            whole.has_null = false; /* describes the whole, not the piece */
            array_start(&alone, ARRAY_BYTEA, n, 0);
            for (size_t i = first; i < first + n; i++)
                array_add_slice(&alone, slice_of(elements[i]));
            alone.has_null = false;
            for (size_t i = 0; i < first; i++) {
                array_slice(&whole, 7 - i);
                array_slice(&whole, 1);
                array_skip(&whole, 1);
            }
            array_slice(&whole, 7 - first);
            struct slice expected = array_slice(&alone, n);
            slice_is(array_slice(&whole, n), expected.data, expected.len);
        }
    }
    array_deinit(&whole);
    array_deinit(&alone);
}

static void test_memory_is_kept(void **state)
{
    struct array a = {0};
    (void)state;

    array_start(&a, ARRAY_INT8, 256, 256 * 8);
    const char *data = a.buf.data;
    for (int round = 0; round < 3; round++) {
        array_start(&a, ARRAY_INT8, 256, 256 * 8);
        for (int i = 0; i < 256; i++)
            array_add_int8(&a, i);
        assert_ptr_equal(a.buf.data, data);
    }
    array_deinit(&a);
}

static void test_text(void **state)
{
    static const struct {
        struct slice in;
        size_t max;
        struct slice out;
    } cases[] = {
        {TEXT(""), 10, TEXT("")},
        {TEXT("good"), 10, TEXT("good")},
        {TEXT("good"), 4, TEXT("good")},
        {TEXT("good"), 3, TEXT("goo")},
        {TEXT("a\0b"), 10, TEXT("ab")},
        {TEXT("\0\0"), 10, TEXT("")},
        {TEXT("a\xFF"
              "b"),
         10,
         TEXT("a\xEF\xBF\xBD"
              "b")},
        {TEXT("a\xFF"
              "b"),
         4, TEXT("a\xEF\xBF\xBD")},
        {TEXT("a\xFF"
              "b"),
         3, TEXT("a")},
        {TEXT("\xC3\xA4\xC3\xA4"), 3, TEXT("\xC3\xA4")},
        {TEXT("\xC3\xA4\xC3\xA4"), 1, TEXT("")},
        {TEXT("x\xF0\x9F\x98\x80"), 4, TEXT("x")},
        {TEXT("\xED\xA0\x80"), 99, TEXT("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD")},
        {TEXT("\xF0\x9F\x98"), 99, TEXT("\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD")},
    };
    struct buf b = {0};
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        buf_reset(&b);
        buf_add_text(&b, "before");
        text_add(&b, cases[i].in, cases[i].max);
        struct slice out = {b.data + 6, b.len - 6};
        slice_is(out, cases[i].out.data, cases[i].out.len);
        assert_true(slice_is_text(out));
    }
    buf_deinit(&b);
}

static void test_text_elements(void **state)
{
    struct array a = {0};
    (void)state;

    array_start(&a, ARRAY_TEXT, 3, 0);
    array_add_text(&a, TEXT("a\0\xFF"), 100);
    array_add_text(&a, (struct slice){0}, 100);
    array_add_text(&a, TEXT("12345"), 2);
    SLICE_IS(array_slice(&a, 3), HEADER("\1", "\0\31", "\3") "\0\0\0\4a\xEF\xBF\xBD\xFF\xFF\xFF\xFF\0\0\0\2"
                                                             "12");
    array_deinit(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements),       cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_memory_is_kept), cmocka_unit_test(test_text),
        cmocka_unit_test(test_text_elements),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
