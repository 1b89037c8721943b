/* The text of a progress bar, and the position at which an export continues. */
#include "cmocka_all.h"
#include "command/export_file.h"
#include "command/progress.h"
#include "onceward/base/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    shows(120, 100, 2000, 70, "[##########] 120 of 120, 60/s"); /* more than the expected number */
    shows(5, 10, 1000, 60, "5 of 10, 5/s, 1 s left");           /* too narrow */
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
        assert_non_null(strstr(f.text, "is not a position: expected"));
        export_place_deinit(&p);
    }
}

#define ASKED "{\"consumer\":\"c\"}"
#define UNTIL "2026-01-31T03:00:00.000000Z"

/* Opens a file with this text; checks the result, the position ("": the beginning), and the remaining size. */
static struct fault file_with(const char *text, size_t len, int expected, const char *place, off_t left)
{
    struct export_file x = {0};
    struct fault f = {0};
    struct buf out = {0};
    struct stat found;
    char path[] = "/tmp/onceward-export-XXXXXX";
    int fd = mkstemp(path);

    assert_int_equal(write(fd, text, len), len);
    assert_int_equal(export_file_open(&x, path, slice_of(ASKED), &f), expected);
    if (!expected) {
        assert_int_equal(x.goes_on, left > 0);
        assert_string_equal(x.until, left > 0 ? UNTIL : "");
        assert_int_equal(x.after.is_set, *place != 0);
    }
    if (x.after.is_set) {
        export_place_write(&out, x.after.kind, buf_slice(&x.after.first), buf_slice(&x.after.second),
                           buf_slice(&x.after.third));
        assert_string_equal(buf_text(&out), place);
    }
    assert_int_equal(fstat(fd, &found), 0);
    assert_int_equal(found.st_size, left);
    export_file_deinit(&x);
    close(fd);
    unlink(path);
    buf_deinit(&out);
    return f;
}

static const char head[] = "{\"kind\":\"export\",\"position\":\"start\",\"since\":null,\"until\":\"" UNTIL
                           "\",\"asked\":" ASKED "}\n",
                  one[] = "{\"kind\":\"letter\",\"position\":\"letter.1\"}\n",
                  two[] = "{\"kind\":\"letter\",\"position\":\"letter.2\"}\n";

static void a_file_goes_on_behind_its_last_whole_line(void **state)
{
    size_t n_head = sizeof head - 1, n_one = sizeof one - 1;
    char both[1000];

    (void)state;
    file_with("", 0, 0, "", 0);
    for (size_t cut = 1; cut < n_head; cut++)
        file_with(head, n_head - cut, 0, "", 0); /* no complete line */
    file_with(head, n_head, 0, "", (off_t)n_head);
    snprintf(both, sizeof both, "%s%s%s", head, one, two);
    file_with(both, strlen(both), 0, "letter.2", (off_t)strlen(both));
    for (size_t cut = 1; cut < n_one; cut++)
        file_with(both, strlen(both) - cut, 0, "letter.1", (off_t)(n_head + n_one));
}

static void lines_may_be_longer_than_what_is_read_at_once(void **state)
{
    static char large[400000];
    size_t n = sizeof head - 1;

    (void)state;
    memset(large, 'x', sizeof large);
    memcpy(large, head, n);
    memcpy(large + n, one, sizeof one - 3);
    memcpy(large + 150000, "\n", 1);
    memcpy(large + 150001, two, sizeof two - 3);
    file_with(large, sizeof large, 0, "letter.1", 150001);
    large[sizeof large - 1] = '\n';
    file_with(large, sizeof large, 0, "letter.2", sizeof large);
}

static void what_is_no_export_is_left_alone(void **state)
{
    static const char *const texts[] = {
        "hello\n",
        "hello",
        "{\"kind\":\"row\"}\n",
        "{\"kind\":\"export\"}\n",
        one,
        "{\"kind\":\"export\",\"position\":\"start\",\"since\":null,\"until\":\"\n"};
    struct fault f;
    char text[1000];

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        f = file_with(texts[i], strlen(texts[i]), -1, "", (off_t)strlen(texts[i]));
        assert_non_null(strstr(f.text, "was not written by"));
    }
    snprintf(text, sizeof text, "%shello\n", head);
    file_with(text, strlen(text), -1, "", (off_t)strlen(text));
    snprintf(text, sizeof text, "%.*s,\"x\":1}\n", (int)sizeof head - 3, head);
    f = file_with(text, strlen(text), -1, "", (off_t)strlen(text));
    assert_non_null(strstr(f.text, "begun with other options"));
}

static void what_is_written_is_read_again(void **state)
{
    static const char *const sinces[] = {"", "2026-01-30T03:00:00.000000Z"};
    char path[] = "/tmp/onceward-export-XXXXXX";
    struct fault f = {0};

    (void)state;
    close(mkstemp(path));
    for (size_t i = 0; i < 2; i++) {
        struct export_file first = {.until = UNTIL}, second = {0}, third = {0}, last = {0};

        assert_int_equal(truncate(path, 0), 0);
        snprintf(first.since, sizeof first.since, "%s", sinces[i]);
        assert_int_equal(export_file_open(&first, path, slice_of(ASKED), &f), 0);
        assert_int_equal(export_file_begin(&first, slice_of(ASKED), &f), 0);
        assert_int_equal(export_file_open(&second, path, slice_of(ASKED), &f), -1);
        assert_non_null(strstr(f.text, "another export is writing to it"));
        export_file_deinit(&second);
        assert_int_equal(export_file_end(&first, false, &f), 0);
        export_file_deinit(&first);
        assert_int_equal(export_file_open(&third, path, slice_of(ASKED), &f), 0);
        assert_true(third.goes_on && !third.has_ended);
        assert_string_equal(third.since, sinces[i]);
        assert_int_equal(export_file_begin(&third, slice_of(ASKED), &f), 0); /* no second first line */
        assert_int_equal(export_file_end(&third, true, &f), 0);
        export_file_deinit(&third);
        assert_int_equal(export_file_open(&last, path, slice_of(ASKED), &f), 0);
        assert_true(last.has_ended);
        assert_string_equal(last.until, UNTIL);
        export_file_deinit(&last);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bar_says_how_far_and_how_fast),
        cmocka_unit_test(a_position_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_position_is_refused),
        cmocka_unit_test(a_file_goes_on_behind_its_last_whole_line),
        cmocka_unit_test(lines_may_be_longer_than_what_is_read_at_once),
        cmocka_unit_test(what_is_no_export_is_left_alone),
        cmocka_unit_test(what_is_written_is_read_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
