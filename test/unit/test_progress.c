/* What a progress bar shows, and where an export goes on. */
#include "cmocka_all.h"
#include "command/export_place.h"
#include "command/progress.h"
#include "onceward/base/fault.h"

#include <stdio.h>
#include <string.h>

static void shows(int64_t n, int64_t total, int64_t took_ms, int width, const char *expected)
{
    struct buf out = {0};

    progress_write(&out, n, total, took_ms, width);
    assert_string_equal(buf_text(&out), expected);
    buf_deinit(&out);
}

static void a_bar_says_how_far_and_how_fast(void **state)
{
    (void)state;
    shows(0, 100, 0, 70, "[----------] 0 of 100, 0/s");
    shows(50, 100, 1000, 70, "[#####-----] 50 of 100, 50/s, 1 s left");
    shows(100, 100, 2000, 70, "[##########] 100 of 100, 50/s");
    shows(120, 100, 2000, 70, "[##########] 120 of 120, 60/s"); /* more came than were counted */
    shows(5, 10, 1000, 60, "5 of 10, 5/s, 1 s left");           /* no room */
    shows(0, 0, 0, 200, "0 of 0, 0/s");
}

static void place_goes_both_ways(enum export_kind kind, const char *first, const char *second,
                                 const char *third, const char *text)
{
    struct export_place p = {0};
    struct buf out = {0};
    struct fault f = {0};

    export_place_write(&out, kind, slice_of(first), slice_of(second), slice_of(third));
    assert_string_equal(buf_text(&out), text);
    assert_int_equal(export_place_read(&p, buf_slice(&out), &f), 0);
    assert_true(p.is_set && p.kind == kind);
    assert_string_equal(buf_text(&p.first), first);
    assert_string_equal(buf_text(&p.second), second);
    assert_string_equal(buf_text(&p.third), third);
    export_place_deinit(&p);
    buf_deinit(&out);
}

static void a_position_is_read_as_it_was_written(void **state)
{
    (void)state;
    place_goes_both_ways(EXPORT_ROW, "orders", "a.b\"\n", "", "row.6f7264657273.612e62220a");
    place_goes_both_ways(EXPORT_LETTER, "12", "", "", "letter.12");
    place_goes_both_ways(EXPORT_MESSAGE, "c", "-infinity", "7", "message.63.2d696e66696e697479.37");
}

static void what_is_no_position_is_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "row",
                                      "row.",
                                      "row.61",
                                      "row.61.",
                                      "row.6.61",
                                      "row.61.6g",
                                      "row.00.61",
                                      "letter.",
                                      "letter.1a",
                                      "letter.-1",
                                      "message.61",
                                      "rows.61.61",
                                      "row.61.61.61",
                                      "letter.9999999999999999999",
                                      "message.61.61.6"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct export_place p = {0};
        struct fault f = {0};

        if (export_place_read(&p, slice_of(bad[i]), &f) == 0)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_non_null(strstr(f.text, "expected what a line"));
        export_place_deinit(&p);
    }
}

static void file_with(const char *text, size_t len, int expected, const char *place, off_t left)
{
    struct export_place p = {0};
    struct fault f = {0};
    struct buf out = {0};
    FILE *file = tmpfile();

    assert_int_equal(fwrite(text, 1, len, file), len);
    assert_int_equal(export_place_of_file(&p, file, "f", &f), expected);
    assert_int_equal(p.is_set, place != NULL);
    if (place) {
        export_place_write(&out, p.kind, buf_slice(&p.first), buf_slice(&p.second), buf_slice(&p.third));
        assert_string_equal(buf_text(&out), place);
    }
    fseeko(file, 0, SEEK_END);
    assert_int_equal(ftello(file), left);
    fclose(file);
    export_place_deinit(&p);
    buf_deinit(&out);
}

static void a_file_goes_on_behind_its_last_whole_line(void **state)
{
    static const char one[] = "{\"kind\":\"letter\",\"position\":\"letter.1\"}\n",
                      two[] = "{\"kind\":\"letter\",\"position\":\"letter.2\"}\n";
    size_t len = sizeof one - 1;
    static char large[300000];
    char both[200];

    (void)state;
    file_with("", 0, 0, NULL, 0);
    file_with(one, len, 0, "letter.1", (off_t)len);
    file_with(one, len - 1, 0, NULL, 0); /* not one whole line */
    snprintf(both, sizeof both, "%s%s", one, two);
    file_with(both, 2 * len, 0, "letter.2", (off_t)(2 * len));
    for (size_t cut = 1; cut < len; cut++)
        file_with(both, 2 * len - cut, 0, "letter.1", (off_t)len);
    file_with("hello\n", 6, -1, NULL, 6);
    /* Lines that are longer than what is read at once. */
    memset(large, 'x', sizeof large);
    memcpy(large, one, len - 2);
    memcpy(large + 150000, "\n", 1);
    memcpy(large + 150001, two, len - 2);
    file_with(large, sizeof large, 0, "letter.1", 150001);
    large[sizeof large - 1] = '\n';
    file_with(large, sizeof large, 0, "letter.2", sizeof large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bar_says_how_far_and_how_fast),
        cmocka_unit_test(a_position_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_position_is_refused),
        cmocka_unit_test(a_file_goes_on_behind_its_last_whole_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
