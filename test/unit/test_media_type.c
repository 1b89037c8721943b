/* The values of Content-Type: see media_type_is_valid. */
#include "cmocka_all.h"
#include "onceward/core/media_type.h"

#include <stdio.h>
#include <string.h>

static const char marks[] = "!#$%&'*+-.^_`|~";

static void test_a_type_and_a_subtype_are_tokens(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        char type[] = "t?pe/x", subtype[] = "type/?", within[] = "type/s?b";
        bool is_token = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                        (c && strchr(marks, c));

        type[1] = subtype[5] = within[6] = (char)c;
        if (media_type_is_valid((struct slice){type, 6}) != is_token)
            fail_msg("byte %d in a type", c);
        if (media_type_is_valid((struct slice){subtype, 6}) != is_token)
            fail_msg("byte %d as a subtype", c);
        if (media_type_is_valid((struct slice){within, 8}) != is_token && c != ';')
            fail_msg("byte %d in a subtype", c);
    }
}

static void test_parameters_are_visible_characters_and_blanks(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        char text[] = "a/b;x?y";

        text[5] = (char)c;
        if (media_type_is_valid((struct slice){text, 7}) != ((c >= ' ' && c <= '~') || c == '\t'))
            fail_msg("byte %d in a parameter", c);
    }
}

static void test_the_parts_of_a_value(void **state)
{
    static const struct {
        const char *text;
        bool is_valid;
    } cases[] = {
        {"application/json", true},
        {"text/plain; charset=utf-8", true},
        {"text/plain \t;charset=utf-8", true},
        {"text/plain\t; charset=utf-8", true},
        {"a/b;", true},
        {"a/b;;=\"", true},
        {"", false},
        {"a", false},
        {"a/", false},
        {"/b", false},
        {"a/;x", false},
        {"a /b", false},
        {"a/ b", false},
        {" a/b", false},
        {"a/b ", false},
        {"a/b\t", false},
        {"a/b; ", false},
        {"a/b;\t", false},
        {"a/b x", false},
        {"a/b/c", false},
        {"a/b, c/d", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (media_type_is_valid((struct slice){cases[i].text, strlen(cases[i].text)}) != cases[i].is_valid)
            fail_msg("\"%s\"", cases[i].text);
}

static void test_the_length_of_a_value(void **state)
{
    char text[MEDIA_TYPE_MAX + 1];

    (void)state;
    memset(text, 'x', sizeof(text));
    text[1] = '/';
    assert_true(media_type_is_valid((struct slice){text, MEDIA_TYPE_MAX}));
    assert_false(media_type_is_valid((struct slice){text, MEDIA_TYPE_MAX + 1}));
    assert_true(media_type_is_valid((struct slice){text, 3}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_type_and_a_subtype_are_tokens),
        cmocka_unit_test(test_parameters_are_visible_characters_and_blanks),
        cmocka_unit_test(test_the_parts_of_a_value),
        cmocka_unit_test(test_the_length_of_a_value),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
