/* The question to ask while the kind of a queue is unknown: see queue_doubt. */
#include "core_bed.h"

static struct bed *bed_with_room(int max_parked)
{
    struct queue_rules rules = bed_rules();

    rules.max_parked = max_parked;
    return bed_new(&rules, KIND_UNKNOWN);
}

/* Asks for the depth; the broker answers at once. */
static void told_depth(struct bed *b, int64_t depth)
{
    queue_depth_asked(&b->q, b->now);
    queue_depth(&b->q, b->now, depth, false);
}

static void test_the_depth_is_asked_for_after_a_second_and_the_kind_after_two(void **state)
{
    struct bed *b = bed_with_room(100);

    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_NONE);
    bed_pass(b, 999);
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_NONE);
    bed_pass(b, 1);
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_DEPTH);
    told_depth(b, -1); /* the broker did not report it */
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_DEPTH);
    told_depth(b, 1);
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_NONE);
    bed_pass(b, 999);
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_NONE);
    bed_pass(b, 1);
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_KIND);
    bed_end(b);
}

static void test_an_empty_queue_raises_no_doubt(void **state)
{
    struct bed *b = bed_with_room(100);

    bed_pass(b, 2000);
    told_depth(b, 0);
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_NONE);
    bed_end(b);
}

static void test_a_depth_from_the_first_second_is_asked_for_again(void **state)
{
    struct bed *b = bed_with_room(100);

    bed_pass(b, 999);
    told_depth(b, 1);
    bed_pass(b, 1001);
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_DEPTH);
    bed_end(b);
}

static void test_a_delivery_ends_the_doubt(void **state)
{
    struct bed *b = bed_with_room(100);

    bed_pass(b, 2000);
    told_depth(b, 1);
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_KIND);
    bed_deliver(b, "a");
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_NONE);
    while (bed_next(b))
        ;
    bed_end(b);
}

static void test_a_starting_consumer_raises_no_doubt(void **state)
{
    struct bed *b = bed_with_room(100);

    bed_pass(b, 2000);
    told_depth(b, 1);
    b->q.consumer.state = CONSUMER_STARTING;
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_NONE);
    bed_end(b);
}

/* Delivers a message whose next attempt is far away. */
static void park(struct bed *b, const char *id)
{
    struct delivery *d;

    bed_deliver(b, id);
    d = bed_asks(b, OP_CLAIM);
    bed_row_of(b, d,
               (struct row){.answer = ROW_NOT_DUE, .attempt = 1, .unproven_ms = -1, .wait_ms = 3600000});
}

static void test_the_kind_is_asked_for_when_more_than_half_of_max_parked_wait(void **state)
{
    struct bed *b = bed_with_room(4);

    park(b, "a");
    park(b, "b");
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_NONE);
    park(b, "c");
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_KIND);
    queue_channel_lost(&b->q, b->now, 0, "closed"); /* deliveries are forgotten with their channel */
    assert_int_equal(queue_doubt(&b->q, b->now), DOUBT_NONE);
    while (bed_next(b))
        ;
    bed_end(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_depth_is_asked_for_after_a_second_and_the_kind_after_two),
        cmocka_unit_test(test_an_empty_queue_raises_no_doubt),
        cmocka_unit_test(test_a_depth_from_the_first_second_is_asked_for_again),
        cmocka_unit_test(test_a_delivery_ends_the_doubt),
        cmocka_unit_test(test_a_starting_consumer_raises_no_doubt),
        cmocka_unit_test(test_the_kind_is_asked_for_when_more_than_half_of_max_parked_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
