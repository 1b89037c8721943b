/* Very many requests to a port without a listener: 100,000 in the release build, which would show slowness or a
 * leaked descriptor per request. */

#include "forward_rig.h"

#include <sys/resource.h>

#ifdef __SANITIZE_ADDRESS__
enum { TOTAL = 20000 };
#else
enum { TOTAL = 100000 };
#endif

enum { OUT = 64, PATIENCE_MS = 90000, FILES = 256 };

/* Asserts that no error of a transfer looks like a success, in kind, status or verdict. */
static void answer_is_no_success(const struct answer *a)
{
    static const struct outcome_rules rules[] = {{.transaction = false}, {.transaction = true}};

    assert_int_equal(a->kind, ANSWER_UNREACHABLE);
    assert_int_equal(a->status, 0);
    assert_int_equal(a->body.len, 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(outcome_of(a->kind, a->status, &rules[i]), VERDICT_UNAVAILABLE);
}

static void test_many_to_a_dead_port(void **state)
{
    struct rlimit files = {FILES, FILES};
    struct rig r;
    struct answer a;
    uint64_t sent = 0, got = 0;
    int fd;
    (void)state;

    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    rig_init(&r);
    snprintf(r.url, sizeof(r.url), "http://127.0.0.1:%d/",
             port_bound(&fd, -1)); /* no other process listens there */
    r.q.forward.concurrency = OUT;
    rig_forward(&r);
    for (int64_t end = clock_ms() + PATIENCE_MS; got < TOTAL;) {
        while (sent < TOTAL && forward_in_flight(r.w) < OUT)
            send_one(&r, ++sent, 3, PATIENCE_MS);
        turn(&r, 100);
        for (; step(&r, &a); got++)
            answer_is_no_success(&a);
        assert_true(clock_ms() < end);
    }
    assert_int_equal(forward_in_flight(r.w), 0);
    close(fd);
    rig_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_to_a_dead_port)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
