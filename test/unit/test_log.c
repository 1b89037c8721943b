/* A line of the log: what stands in it when what it tells of was made to mislead. */
#include "cmocka_all.h"

#include "onceward/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value of "id" as it stands in the line, between its quotes. */
static char *written(struct slice value)
{
    struct log_line l;
    char *text = NULL, *start, *end;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    log_begin(&l, EVENT_DUPLICATE, "q");
    log_slice(&l, "id", value);
    log_bool(&l, "last", true);
    log_print(&l, f);
    fclose(f);
    start = strstr(text, "\"id\":\"");
    end = strstr(text, "\",\"last\":true}\n");
    assert_non_null(start);
    assert_non_null(end);
    start += strlen("\"id\":\"");
    char *copy = strndup(start, (size_t)(end - start));
    free(text);
    return copy;
}

static void assert_written(const char *value, const char *expected)
{
    char *text = written(slice_of(value));

    assert_string_equal(text, expected);
    free(text);
}

static void test_what_acts_on_a_terminal_is_escaped(void **state)
{
    assert_written("\x1b[2J\a\r\n\t\x7f", "\\u001b[2J\\u0007\\u000d\\u000a\\u0009\\u007f");
    assert_written("\xC2\x9B"
                   "31mred\xC2\x85\xC2\x80",
                   "\\u009b31mred\\u0085\\u0080"); /* C1: CSI in one character */
    assert_written("a\xE2\x80\xAE"
                   "b\xE2\x80\xAA\xE2\x80\x8F\xE2\x81\xA6\xE2\x81\xA9",
                   "a\\u202eb\\u202a\\u200f\\u2066\\u2069");
    assert_written("\xE2\x80\xA8\xE2\x80\xA9\xEF\xBB\xBF\xD8\x9C", "\\u2028\\u2029\\ufeff\\u061c");
}

static void test_all_other_text_stays_as_it_is(void **state)
{
    assert_written("order-17 \"\\ \xC3\xBC\xC2\xA0\xD7\x90\xE2\x82\xAC\xF0\x9F\x98\x80",
                   "order-17 \\\"\\\\ \xC3\xBC\xC2\xA0\xD7\x90\xE2\x82\xAC\xF0\x9F\x98\x80");
    assert_written("a\xFF"
                   "b\xC2",
                   "a\xEF\xBF\xBD"
                   "b\xEF\xBF\xBD");
}

/* Each character becomes six: the line keeps its bound, and its end. */
static void test_a_line_of_nothing_else_keeps_its_bound(void **state)
{
    char value[4096];
    struct log_line l;

    for (size_t i = 0; i < sizeof(value); i += 2)
        memcpy(value + i, "\xC2\x9B", 2);
    log_begin(&l, EVENT_DUPLICATE, "q");
    for (int i = 0; i < 20; i++)
        log_slice(&l, "id", (struct slice){value, sizeof(value)});
    assert_true(l.len < LOG_LINE_MAX);
    for (size_t i = 0; i < l.len; i++)
        assert_in_range(l.data[i], 0x20, 0x7E);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_acts_on_a_terminal_is_escaped),
        cmocka_unit_test(test_all_other_text_stays_as_it_is),
        cmocka_unit_test(test_a_line_of_nothing_else_keeps_its_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
