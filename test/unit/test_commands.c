/* The rules of src/core/queue_commands.c: which deliveries an operator command concerns, and what is logged. */
#include "core_bed.h"

/* --- give-up --- */

/* A list of ids, each with its NUL. */
#define IDS(text) (text), sizeof(text)

/* The list is read repeatedly, and shrinks when rows become dead or disappear. Only new ids are logged. */
static void test_only_new_ids_are_logged(void **state)
{
    static const struct {
        const char *ids;
        size_t len;
        bool is_logged;
    } cases[] = {{IDS("abc\0m"), true}, {IDS("abc\0m"), false}, {IDS("m"), false},    {IDS("mm"), true},
                 {IDS("m"), true},      {IDS("n\0m"), true},    {IDS("m\0n"), false}, {NULL, 0, false}};
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);

    bed_deliver(b, "m");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = bed_n_told(b, EVENT_COMMAND);

        queue_command_give_up(&b->q, b->now, "ann", cases[i].ids, cases[i].len);
        bed_next(b);
        assert_int_equal(bed_n_told(b, EVENT_COMMAND) - n, cases[i].is_logged);
        if (!i) {
            assert_string_equal(bed_told(b, EVENT_COMMAND)->reason, "give_up");
            assert_string_equal(bed_told(b, EVENT_COMMAND)->text, "ann");
            assert_int_equal(bed_told(b, EVENT_COMMAND)->n, 1);
        }
    }
    bed_end(b);
}

enum { LIMIT = 5 };

/* The copy in the queue becomes the dead letter. */
static void test_a_renewed_message_that_is_given_up_is_acked_at_once(void **state)
{
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);
    struct arrival *a = bed_arrival(&b->q, "m");
    struct delivery *d;

    queue_limits_known(&b->q,
                       &(struct queue_limits){.read = true, .delivery_limit = LIMIT, .needs_consumer = true});
    a->copy.delivery_count = LIMIT - 2;
    queue_delivered(&b->q, b->now, a, NULL);
    d = bed_asks(b, OP_RENEW);
    bed_row_of(b, d, (struct row){.answer = ROW_TOO_OFTEN, .wait_ms = 5000, .unproven_ms = -1});
    queue_published(&b->q, b->now, bed_does(b, ACTION_PUBLISH)->ref, PUBLICATION_CONFIRMED, NULL);
    bed_waits(b, d, OP_ACK, WAIT_RENEWAL, 5000);
    queue_command_give_up(&b->q, b->now, "ann", IDS("m"));
    bed_wants(d, OP_ACK);
    bed_end(b);
}

/* --- give-up --held --- */

static struct row row_of(enum row_answer answer)
{
    return (struct row){.answer = answer, .attempt = 1, .wait_ms = 90000, .unproven_ms = -1};
}

/* Answers the request with this status, and the operation that follows with this row. */
static void fail_with(struct bed *b, struct delivery *d, int status, enum row_answer answer)
{
    bed_answer(b, d, status);
    bed_asks(b, d->op);
    bed_row_of(b, d, row_of(answer));
}

/* Claims a message that has failed before. */
static struct delivery *claim_again(struct bed *b, enum row_answer answer)
{
    struct delivery *d = bed_sent(b, "m", 1);

    fail_with(b, d, 500, ROW_FAILED);
    bed_pass(b, d->timer.at_ms - b->now);
    bed_asks(b, OP_CLAIM);
    bed_row_of(b, d, row_of(answer));
    return d;
}

static struct delivery *is_new(struct bed *b)
{
    return bed_deliver(b, "m");
}

static struct delivery *is_not_due(struct bed *b)
{
    struct delivery *d = bed_deliver(b, "m");

    bed_asks(b, OP_CLAIM);
    bed_row_of(b, d, row_of(ROW_NOT_DUE));
    return d;
}

static struct delivery *is_without_id(struct bed *b)
{
    struct arrival *a = bed_arrival(&b->q, "");

    a->no_id = DEAD_NO_MESSAGE_ID;
    queue_delivered(&b->q, b->now, a, "no id");
    return bed_newest(b);
}

static struct delivery *has_failed(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    fail_with(b, d, 500, ROW_FAILED);
    return d;
}

static struct delivery *failure_is_sent(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 500);
    bed_asks(b, OP_FAIL);
    return d;
}

static struct delivery *failure_is_wanted(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 500);
    return d;
}

static struct delivery *release_is_wanted(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 409);
    return d;
}

static struct delivery *is_due(struct bed *b)
{
    struct delivery *d = has_failed(b);

    bed_pass(b, d->timer.at_ms - b->now);
    queue_time(&b->q, b->now);
    return d;
}

static struct delivery *is_locked(struct bed *b)
{
    return claim_again(b, ROW_LOCKED);
}

static struct delivery *is_on_hold(struct bed *b)
{
    return claim_again(b, ROW_ON_HOLD);
}

static struct delivery *is_in_flight(struct bed *b)
{
    return bed_sent(b, "m", 1);
}

static struct delivery *is_accepted(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 202);
    return d;
}

static struct delivery *is_checked(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 200);
    return d;
}

static struct delivery *is_dead(struct bed *b)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 400);
    return d;
}

/* The command concerns failed messages that wait while everything fails, and messages that wait for the circuit
 * breaker. */
static void test_give_up_held_concerns_failed_messages_that_wait(void **state)
{
    static const struct {
        const char *name;
        struct delivery *(*make)(struct bed *);
        bool is_held;
    } cases[] = {{"new", is_new, false},
                 {"never tried, and not due", is_not_due, false},
                 {"without an id", is_without_id, true},
                 {"failed", has_failed, true},
                 {"failure wanted", failure_is_wanted, true},
                 {"failure sent", failure_is_sent, true},
                 {"release wanted", release_is_wanted, true},
                 {"due again", is_due, true},
                 {"locked", is_locked, false},
                 {"on hold", is_on_hold, false},
                 {"in flight", is_in_flight, false},
                 {"accepted", is_accepted, false},
                 {"being checked", is_checked, false},
                 {"dead, and spared while everything fails", is_dead, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int k = 0; k < 3;
             k++) { /* everything fails; it does not; the message arrived after the command */
            struct queue_rules rules = bed_rules();

            rules.transaction = true;
            struct bed *b = bed_new(&rules, KIND_QUORUM);
            struct delivery *d = cases[i].make(b);

            if (k != 1)
                brake_force(&b->q.own.brake, b->now, "");
            queue_time(&b->q, b->now);
            if (k != 1 && cases[i].make == is_without_id)
                assert_int_equal(d->wait, WAIT_BRAKE);
            queue_command_give_up_held(&b->q, b->now, "ann", d->arrival->received_ms - (k == 2));
            if (d->given_up != (cases[i].is_held && k == 0))
                fail_msg("%s, %d", cases[i].name, k);
            bed_next(b);
            assert_string_equal(bed_told(b, EVENT_COMMAND)->reason, "give_up_held");
            assert_int_equal(bed_told(b, EVENT_COMMAND)->n, cases[i].is_held && k == 0);
            bed_end(b);
        }
}

/* --- retry --- */

static void test_a_retry_concerns_messages_in_backoff_and_on_hold(void **state)
{
    static const struct {
        struct delivery *(*make)(struct bed *);
        bool is_tried;
    } cases[] = {{has_failed, true},
                 {is_not_due, true},
                 {is_on_hold, true},
                 {is_locked, false},
                 {is_in_flight, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules rules = bed_rules();
        struct bed *b = bed_new(&rules, KIND_QUORUM);
        struct delivery *d = cases[i].make(b);

        queue_command_retry(&b->q, b->now, "ann");
        if (cases[i].is_tried)
            bed_wants(d, OP_CLAIM);
        else
            assert_true(d->wait != WAIT_NONE || d->op != OP_CLAIM);
        assert_int_equal(d->row_end, ROW_END_NONE);
        bed_next(b);
        assert_string_equal(bed_told(b, EVENT_COMMAND)->reason, "retry");
        assert_int_equal(bed_told(b, EVENT_COMMAND)->n, cases[i].is_tried);
        bed_end(b);
    }
}

/* --- pause --- */

/* The caller passes a pause each time that it reads it. A new reason and the end are logged once each. */
static void test_a_pause_is_logged_once_per_reason(void **state)
{
    static const struct {
        bool paused;
        const char *by, *why, *text;
        size_t n_paused, n_resumed;
    } cases[] = {{true, "ann", "deploy", "ann: deploy", 1, 0},
                 {true, "ann", "deploy", "ann: deploy", 1, 0},
                 {true, "ann", "", "ann", 2, 0},
                 {true, "", "deploy", "deploy", 3, 0},
                 {false, "bob", "", "", 3, 1},
                 {false, "eve", "why", "", 3, 1},
                 {true, "eve", "again", "eve: again", 4, 1}};
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        queue_command_pause(&b->q, b->now, cases[i].paused, cases[i].by, cases[i].why);
        bed_pass(b, 2000);
        bed_next(b);
        assert_int_equal(bed_n_told(b, EVENT_PAUSED), cases[i].n_paused);
        assert_int_equal(bed_n_told(b, EVENT_RESUMED), cases[i].n_resumed);
        if (cases[i].paused)
            assert_string_equal(bed_told(b, EVENT_PAUSED)->text, cases[i].text);
    }
    bed_end(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_new_ids_are_logged),
        cmocka_unit_test(test_a_renewed_message_that_is_given_up_is_acked_at_once),
        cmocka_unit_test(test_give_up_held_concerns_failed_messages_that_wait),
        cmocka_unit_test(test_a_retry_concerns_messages_in_backoff_and_on_hold),
        cmocka_unit_test(test_a_pause_is_logged_once_per_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
