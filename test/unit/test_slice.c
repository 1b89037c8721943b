/* Slices: order and UTF-8. */

#include "cmocka_all.h"
#include "fields.h"
#include "onceward/base/slice.h"

static void test_compare_is_byte_order(void **state)
{
    static const struct {
        struct slice a, b;
        int order;
    } cases[] = {
        {TEXT(""), TEXT(""), 0},           {TEXT(""), TEXT("a"), -1},        {TEXT("a"), TEXT("a"), 0},
        {TEXT("a"), TEXT("b"), -1},        {TEXT("a"), TEXT("aa"), -1},      {TEXT("B"), TEXT("a"), -1},
        {TEXT("z"), TEXT("\xC3\xA4"), -1}, {TEXT("a\0b"), TEXT("a\0c"), -1}, {TEXT("a"), TEXT("a\0"), -1},
        {TEXT("\x7F"), TEXT("\x80"), -1},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        int there = slice_compare(cases[i].a, cases[i].b), back = slice_compare(cases[i].b, cases[i].a);

        assert_int_equal((there > 0) - (there < 0), cases[i].order);
        assert_int_equal((back > 0) - (back < 0), -cases[i].order);
        assert_int_equal(slice_equal(cases[i].a, cases[i].b), cases[i].order == 0);
    }
    assert_int_equal(slice_compare((struct slice){0}, (struct slice){0}), 0);
    assert_true(slice_equal((struct slice){0}, TEXT("")));
}

static void test_utf8(void **state)
{
    static const struct {
        struct slice text;
        bool good;
    } cases[] = {
        {TEXT(""), true},
        {TEXT("plain"), true},
        {TEXT("\x7F"), true},
        {TEXT("\xC2\x80"), true},
        {TEXT("\xDF\xBF"), true},
        {TEXT("\xE0\xA0\x80"), true},
        {TEXT("\xED\x9F\xBF"), true},
        {TEXT("\xEE\x80\x80"), true},
        {TEXT("\xEF\xBF\xBF"), true},
        {TEXT("\xF0\x90\x80\x80"), true},
        {TEXT("\xF4\x8F\xBF\xBF"), true},
        {TEXT("\x80"), false},
        {TEXT("\xBF"), false},
        {TEXT("\xC0\x80"), false},     /* overlong NUL */
        {TEXT("\xC1\xBF"), false},     /* overlong */
        {TEXT("\xC2"), false},         /* cut */
        {TEXT("\xC2g"), false},        /* no continuation */
        {TEXT("\xE0\x9F\xBF"), false}, /* overlong */
        {TEXT("\xED\xA0\x80"), false}, /* surrogate */
        {TEXT("\xED\xBF\xBF"), false}, /* surrogate */
        {TEXT("\xE2\x82"), false},     /* cut */
        {TEXT("\xE2\x82\xC2"), false},
        {TEXT("\xF0\x8F\xBF\xBF"), false}, /* overlong */
        {TEXT("\xF4\x90\x80\x80"), false}, /* above U+10FFFF */
        {TEXT("\xF0\x90\x80"), false},     /* cut */
        {TEXT("\xF5\x80\x80\x80"), false},
        {TEXT("\xF8\x88\x80\x80\x80"), false}, /* five bytes */
        {TEXT("\xFE"), false},
        {TEXT("\xFF"), false},
        {TEXT("good\xFF"), false},
    };
    (void)state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(slice_is_utf8(cases[i].text), cases[i].good);
        assert_int_equal(slice_is_text(cases[i].text), cases[i].good);
    }
    assert_true(slice_is_utf8(TEXT("a\0b")));
    assert_false(slice_is_text(TEXT("a\0b")));
    assert_false(slice_is_text(TEXT("\0")));
    assert_true(slice_is_text((struct slice){0}));
}

/* Every two-byte sequence, against the rule written another way. */
static void test_utf8_pairs(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 0x10000; i++) {
        char pair[2] = {(char)(i >> 8), (char)i};
        unsigned first = i >> 8, second = i & 0xFF;
        bool ascii = first < 0x80 && second < 0x80;
        bool two = first >= 0xC2 && first < 0xE0 && second >= 0x80 && second < 0xC0;

        assert_int_equal(slice_is_utf8((struct slice){pair, 2}), ascii || two);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compare_is_byte_order),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_utf8_pairs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
