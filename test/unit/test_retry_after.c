/* Retry-After: seconds and dates. */

#include "cmocka_all.h"
#include "forward/retry_after.h"

/* Sun, 06 Nov 1994 08:49:37 GMT */
static const int64_t example_ms = INT64_C(784111777) * 1000;

enum { CAP_MS = 3600000 };

static const struct row {
    const char *text;
    int64_t off_ms; /* time by which now precedes the example's date */
    int64_t expected_ms;
} rows[] = {
    {"0", 0, 0},
    {"1", 0, 1000},
    {"120", 0, 120000},
    {"00120", 0, 120000},
    {"3600", 0, CAP_MS},
    {"3601", 0, CAP_MS},
    {"9223372036854775", 0, CAP_MS},
    {"9223372036854775808", 0, CAP_MS},
    {"99999999999999999999999999999999999999999999", 0, CAP_MS},
    {"99999999999999999999999999999999999999999999x", 0, -1},
    {"", 0, -1},
    {"-1", 0, -1},
    {"+1", 0, -1},
    {"1.5", 0, -1},
    {"1 2", 0, -1},
    {"0x10", 0, -1},
    {"1s", 0, -1},
    {"soon", 0, -1},
    {"Soon: GMT", 0, -1},
    {"Sun, 06 Nov 1994 08:49:37 GMT", 0, 0},
    {"Sun, 06 Nov 1994 08:49:37 GMT", 5000, 5000},
    {"Sun, 06 Nov 1994 08:49:37 GMT", 1, 1},
    {"Sun, 06 Nov 1994 08:49:37 GMT", -1, 0},
    {"Sun, 06 Nov 1994 08:49:37 GMT", -86400000, 0},
    {"Sun, 06 Nov 1994 08:49:37 GMT", 86400000, CAP_MS},
    {"Sunday, 06-Nov-94 08:49:37 GMT", 5000, 5000},
    {"Sun Nov  6 08:49:37 1994", 5000, 5000},
    {"Sun Nov 06 08:49:37 1994", 5000, 5000},
    {"Wed Nov 16 08:49:37 1994", 5000, CAP_MS},
    {"Thu, 29 Feb 1996 08:49:37 GMT", 0, CAP_MS},
    {"Sun, 06 Nov 1994 24:49:37 GMT", 0, -1},
    {"Sun, 00 Nov 1994 08:49:37 GMT", 0, -1},
    {"Sun, 06 Mai 1994 08:49:37 GMT", 0, -1},
    /* other time zones, and malformed dates */
    {"Sun, 06 Nov 1994 08:49:37", 0, -1},
    {"Sun, 06 Nov 1994 08:49:37 UTC", 0, -1},
    {"Sun, 06 Nov 1994 08:49:37 EST", 0, -1},
    {"Sun, 06 Nov 1994 08:49:37 +0000", 0, -1},
    {"Sun, 06 Nov 1994 08:49:37 +0200", 0, -1},
    {"Sun Nov  6 08:49:37 1994 EST", 0, -1},
    {"Sun, 06 Nov 1994 08:49:37 GMT!", 0, -1},
    {"Sun, 06 Nov 1994 GMT", 0, -1},
    {"Sun Nov 6 1994", 0, -1},
    {"Sun", 0, -1},
    {"19941106", 0, CAP_MS}, /* seconds */
    {"1994-11-06T08:49:37Z", 0, -1},
    {"1994-11-06 08:49:37 GMT", 0, -1},
};

static void test_retry_after(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int64_t got = retry_after_ms(rows[i].text, example_ms - rows[i].off_ms, CAP_MS);

        if (got != rows[i].expected_ms)
            fail_msg("\"%s\": %lld", rows[i].text, (long long)got);
    }
    assert_true(retry_after_ms("9223372036854775", example_ms, INT64_MAX) == INT64_C(9223372036854775000));
    assert_true(retry_after_ms("9223372036854776", example_ms, INT64_MAX) == INT64_MAX);
    assert_true(retry_after_ms("5", example_ms, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_retry_after)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
