/* The drawing of `top`: it fits on any screen, and outside values move no cursor. */
#include "cmocka_all.h"
#include "command/top_view.h"

#include <stdio.h>
#include <string.h>

static struct fleet_queue queues[] = {
    {.instance = "0b7c5a6e-9f1d-4c1e-8a53-2f1de1a7c001",
     .queue = "payments",
     .state = "consuming",
     .reason = "",
     .detail = "",
     .limit_reason = "answered 429",
     .seen_ms = 1200,
     .in_flight = 16,
     .accepted = 7,
     .limit = 16,
     .held = 128,
     .depth = 123456,
     .received_per_s = 285.7,
     .completed_per_s = 12345.6,
     .forward_ms_p50 = 2.1,
     .forward_ms_p99 = 14,
     .end_to_end_ms_p50 = -1,
     .end_to_end_ms_p99 = -1},
    {.instance = "b",
     .queue = "a queue with a name that is far too long, \x1b[2J and ü",
     .state = "paused",
     .reason = "operator",
     .detail = "ann: deploy\n\x1b[31m of v2, which takes as long as it takes, and a little longer than that",
     .limit_reason = "no answer",
     .paused_for_ms = 240000,
     .depth = -1},
};

static struct fleet_command commands[] = {{.consumer = "payments",
                                           .paused = true,
                                           .reason = "deploy",
                                           .by = "ann",
                                           .since_ms = 240000,
                                           .n_give_up = 3,
                                           .give_up_by = "bob",
                                           .stopped = ""}};

static struct fleet fleet = {
    .queues = queues, .n_queues = 2, .n_replicas = 2, .commands = commands, .n_commands = 1};

static size_t n_chars(const char *text, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

static const char *drawn(struct buf *out, int width, int height, bool colour)
{
    struct top_screen s = {
        .width = width, .height = height, .colour = colour, .where = "db:5432/app", .clock = "12:00:00 UTC"};

    buf_reset(out);
    top_draw(out, &s, &fleet);
    return buf_text(out);
}

static void test_it_fits_on_any_screen(void **state)
{
    struct buf out = {0};

    for (int width = 1; width <= 200; width++)
        for (int height = 1; height <= 12; height++) {
            int n = 0;

            for (const char *at = drawn(&out, width, height, false), *end; *at; at = end + 1, n++) {
                end = strchr(at, '\n');
                assert_non_null(end);
                assert_true(n_chars(at, (size_t)(end - at)) <= (size_t)width);
            }
            assert_true(n <= height);
            assert_null(strchr(buf_text(&out), '\x1b'));
        }
    buf_deinit(&out);
}

static void test_what_is_shown(void **state)
{
    struct buf out = {0};
    const char *text = drawn(&out, 0, 0, false);

    assert_non_null(strstr(text, "2 replicas"));
    assert_non_null(strstr(text, "payments was paused 4 min ago by ann: deploy; 3 messages to be given up"));
    assert_non_null(strstr(text, "16/16"));
    assert_non_null(strstr(text, "  └ limit 16: answered 429\n"));
    assert_null(strstr(text, "no answer")); /* the reason of a pause outranks it */
    assert_non_null(strstr(text, "ACCEPTED"));
    assert_non_null(strstr(text, "12.3k"));
    assert_non_null(strstr(text, "123.5k"));
    assert_non_null(strstr(text, "2.1/14.0 ms"));
    assert_non_null(strstr(text, "operator for 4 min: ann: deploy\\n"));
    assert_null(strchr(text, '\x1b'));
    text = drawn(&out, 40, 0, false); /* the least important columns go first */
    assert_non_null(strstr(text, "STATE"));
    assert_null(strstr(text, "FORWARD"));
    buf_deinit(&out);
}

static void test_colours_are_ended_on_their_line(void **state)
{
    struct buf out = {0};
    const char *text = drawn(&out, 120, 40, true);

    assert_non_null(strstr(text, "\x1b[32mconsuming\x1b[0m"));
    assert_non_null(strstr(text, "\x1b[33mpaused\x1b[0m"));
    assert_null(strstr(text, "\x1b[2J"));
    for (const char *at = text, *end; *at; at = end + 1) {
        const char *last = NULL;

        end = strchr(at, '\n');
        for (const char *c = at; c < end; c++)
            last = *c == '\x1b' ? c : last;
        assert_true(!last || !strncmp(last, "\x1b[0m", 4));
    }
    buf_deinit(&out);
}

static void test_nobody_is_there(void **state)
{
    struct fleet none = {0};
    struct top_screen s = {
        .width = 80, .height = 24, .where = "-", .clock = "", .fault = "no newer figures: gone"};
    struct buf out = {0};

    top_draw(&out, &s, &none);
    assert_non_null(strstr(buf_text(&out), "No replica has been seen for 15 s."));
    assert_non_null(strstr(buf_text(&out), "no newer figures: gone"));
    buf_deinit(&out);
}

/* `kubectl get pods` shows host names. Two replicas on one host are shown by their instances. */
static void test_a_replica_is_named_by_its_host_where_that_is_one_instances(void **state)
{
    struct buf out = {0};

    (void)state;
    queues[0].host = "payments-7d9f8b6c4-x2x9z";
    queues[0].is_foreign = true;
    queues[1].host = "pod-b";
    assert_non_null(strstr(drawn(&out, 0, 0, false), "payments-7d9f8b6c4-x2x9z"));
    assert_non_null(strstr(drawn(&out, 0, 0, false), "payments *"));
    assert_null(strstr(drawn(&out, 0, 0, false), "0b7c5a6e"));
    queues[1].host = queues[0].host;
    assert_non_null(strstr(drawn(&out, 0, 0, false), "0b7c5a6e"));
    assert_null(strstr(drawn(&out, 0, 0, false), "payments-7d9f"));
    queues[0].host = queues[1].host = NULL;
    queues[0].is_foreign = false;
    buf_deinit(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_fits_on_any_screen),
        cmocka_unit_test(test_what_is_shown),
        cmocka_unit_test(test_colours_are_ended_on_their_line),
        cmocka_unit_test(test_nobody_is_there),
        cmocka_unit_test(test_a_replica_is_named_by_its_host_where_that_is_one_instances),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
