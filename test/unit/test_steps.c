/* The rules of src/core/life.c and claim_rows.c, one fact at a time: what a delivery wants or waits for after each
 * answer of the application and of the database. */
#include "core_bed.h"

#include "core/notes.h"
#include "onceward/base/buf.h"

#include <math.h>

static struct queue_rules rules_of(bool transaction)
{
    struct queue_rules r = bed_rules();

    r.transaction = transaction;
    return r;
}

static struct bed *bed_of(bool transaction)
{
    struct queue_rules r = rules_of(transaction);

    return bed_new(&r, KIND_QUORUM);
}

/* --- the application's answer --- */

static void test_each_answer_has_its_step(void **state)
{
    static const struct {
        enum answer_kind kind;
        int status;
        enum operation response, transaction;
    } cases[] = {
        {ANSWER_STATUS, 200, OP_COMPLETE, OP_CHECK},
        {ANSWER_STATUS, 204, OP_COMPLETE, OP_CHECK},
        {ANSWER_STATUS, 202, OP_COMPLETE, OP_CHECK},
        {ANSWER_STATUS, 299, OP_COMPLETE, OP_CHECK},
        {ANSWER_STATUS, 300, OP_FAIL, OP_FAIL},
        {ANSWER_STATUS, 404, OP_FAIL, OP_FAIL},
        {ANSWER_STATUS, 500, OP_FAIL, OP_FAIL},
        {ANSWER_STATUS, 501, OP_FAIL, OP_FAIL},
        {ANSWER_STATUS, 505, OP_FAIL, OP_FAIL},
        {ANSWER_STATUS, 600, OP_FAIL, OP_FAIL},
        {ANSWER_STATUS, 408, OP_RELEASE, OP_RELEASE},
        {ANSWER_STATUS, 409, OP_RELEASE, OP_RELEASE},
        {ANSWER_STATUS, 423, OP_RELEASE, OP_RELEASE},
        {ANSWER_STATUS, 425, OP_RELEASE, OP_RELEASE},
        {ANSWER_STATUS, 429, OP_RELEASE, OP_RELEASE},
        {ANSWER_STATUS, 503, OP_RELEASE, OP_RELEASE},
        {ANSWER_STATUS, 400, OP_DEAD_LETTER, OP_DEAD_LETTER},
        {ANSWER_STATUS, 422, OP_DEAD_LETTER, OP_DEAD_LETTER},
        {ANSWER_STATUS, 199, OP_RELEASE, OP_RELEASE},
        {ANSWER_STATUS, 502, OP_RELEASE, OP_RELEASE},
        {ANSWER_STATUS, 504, OP_RELEASE, OP_RELEASE},
        {ANSWER_DIED, 0, OP_RELEASE, OP_RELEASE},
        {ANSWER_UNREACHABLE, 0, OP_RELEASE, OP_RELEASE},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int transaction = 0; transaction < 2; transaction++) {
            struct bed *b = bed_of(transaction);
            struct delivery *other, *d;

            other = bed_sent(b, "other", 1); /* a crash with two requests in flight */
            d = bed_sent(b, "m", 1);
            bed_answer_of(
                b, d,
                (struct answer){.kind = cases[i].kind, .status = cases[i].status, .retry_after_ms = -1});
            assert_string_equal(operation_infos[d->op].name,
                                operation_infos[transaction ? cases[i].transaction : cases[i].response].name);
            assert_int_equal(d->wait, cases[i].status == 202 && transaction ? WAIT_WATCHING : WAIT_NONE);
            assert_int_equal(other->phase, PHASE_SENT);
            bed_end(b);
        }
}

/* Asserts a wait with full jitter, but at least a tenth of its bound. */
static void assert_backoff(const struct delivery *d, int64_t bound_ms)
{
    assert_int_in_range(delivery_delay_ms(d), bound_ms / 10, bound_ms);
}

static void test_a_failure_waits_longer_each_time(void **state)
{
    static const int64_t bounds[] = {1000, 2000, 4000, 8000, 16000, 32000, 64000};

    for (int attempt = 1; attempt <= 8; attempt++) {
        struct bed *b = bed_of(false);
        struct delivery *d = bed_sent(b, "m", attempt);

        bed_answer(b, d, 500);
        if (attempt == 8) {
            bed_wants(d, OP_DEAD_LETTER);
            assert_int_equal(delivery_dead_letter(d)->reason, DEAD_ATTEMPTS);
            assert_int_equal(delivery_dead_letter(d)->row, LETTER_CLAIMED);
        } else {
            bed_wants(d, OP_FAIL);
            assert_true(delivery_failure(d)->charged);
            assert_false(delivery_failure(d)->only_expired);
            assert_backoff(d, bounds[attempt - 1]);
            assert_int_equal(delivery_failure(d)->changes.crashes, -1);
        }
        assert_string_equal(d->outcome.error, "answered 500");
        assert_int_equal(d->outcome.http_status, 500);
        bed_end(b);
    }
}

/* After a proxy's 504 the application may still work. */
static void test_a_failure_without_an_end_waits_for_a_window(void **state)
{
    struct bed *b = bed_of(false);
    struct delivery *other = bed_sent(b, "other", 1), *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 504);
    bed_wants(d, OP_RELEASE);
    assert_int_equal(d->outcome.request, REQUEST_UNANSWERED);
    assert_int_equal(delivery_delay_ms(d), BED_WINDOW_MS);
    assert_int_equal(delivery_release(d)->changes.crashes, 1);
    bed_answer(b, other, 502);
    assert_int_equal(other->outcome.request, REQUEST_CRASHED);
    assert_backoff(other, 1000);
    bed_end(b);
}

static void test_not_now_waits_as_asked(void **state)
{
    static const struct {
        int64_t retry_after_ms, least, most;
    } cases[] = {
        {-1, 100, 1000}, {0, 100, 100}, {99, 100, 100}, {101, 101, 101}, {3600000, 3600000, 3600000}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = bed_sent(b, "m", 1);

        bed_answer_of(
            b, d,
            (struct answer){.kind = ANSWER_STATUS, .status = 409, .retry_after_ms = cases[i].retry_after_ms});
        bed_wants(d, OP_RELEASE);
        int64_t delay_ms = delivery_delay_ms(d);

        assert_int_in_range(delay_ms, cases[i].least, cases[i].most);
        assert_int_equal(d->outcome.request, REQUEST_PUT_OFF);
        assert_int_equal(d->claim->n_given_back, 1);
        assert_ptr_equal(bed_asks(b, OP_RELEASE), d);
        bed_row(b, d, ROW_RELEASED);
        bed_waits(b, d, OP_CLAIM, WAIT_DUE, delay_ms);
        assert_int_equal(b->q.counts.given_back.total, 1);
        assert_int_equal(bed_next(b), !delay_ms);
        assert_int_equal(bed_told(b, EVENT_GIVEN_BACK)->ms, delay_ms);
        bed_end(b);
    }
}

/* Repeated answers with a Retry-After of 0 must not lead to a busy loop. A second is obeyed. */
static void test_not_now_at_once_waits_longer_up_to_a_second(void **state)
{
    static const int64_t waits_ms[] = {100, 200, 400, 800, 1000, 1000};
    struct bed *b = bed_of(false);
    struct delivery *d = bed_sent(b, "m", 1);

    for (size_t i = 0; i < sizeof(waits_ms) / sizeof(waits_ms[0]); i++) {
        bed_answer_of(b, d, (struct answer){.kind = ANSWER_STATUS, .status = 409});
        assert_int_equal(delivery_delay_ms(d), waits_ms[i]);
        bed_asks(b, OP_RELEASE);
        bed_row(b, d, ROW_RELEASED);
        bed_pass(b, waits_ms[i]);
        bed_asks(b, OP_CLAIM);
        bed_row(b, d, ROW_CLAIMED);
        bed_does(b, ACTION_FORWARD);
    }
    bed_answer_of(b, d, (struct answer){.kind = ANSWER_STATUS, .status = 409, .retry_after_ms = 1000});
    assert_int_equal(delivery_delay_ms(d), 1000);
    bed_end(b);
}

/* Each wait is longer, as with failures. */
static void test_not_now_again_and_again_waits_longer(void **state)
{
    struct bed *b = bed_of(false);
    struct delivery *d = bed_sent(b, "m", 1);

    for (int n = 1; n <= 6; n++) {
        bed_answer(b, d, 423);
        assert_int_equal(d->claim->n_given_back, n);
        assert_backoff(d, 1000 << (n - 1));
        bed_asks(b, OP_RELEASE);
        bed_row(b, d, ROW_RELEASED);
        bed_pass(b, delivery_delay_ms(d));
        bed_asks(b, OP_CLAIM);
        bed_row(b, d, ROW_CLAIMED);
        bed_does(b, ACTION_FORWARD);
        assert_int_equal(d->outcome.request, REQUEST_ANSWERED);
    }
    bed_end(b);
}

/* An operator's retry of a held message begins again. */
static void test_not_now_after_a_retry_of_a_held_message_waits_briefly(void **state)
{
    struct bed *b = bed_of(false);
    struct delivery *d = bed_sent(b, "m", 1);

    for (int n = 1; n <= 4; n++) {
        bed_answer(b, d, 423);
        bed_asks(b, OP_RELEASE);
        bed_row(b, d, ROW_RELEASED);
        bed_pass(b, delivery_delay_ms(d));
        bed_asks(b, OP_CLAIM);
        bed_row(b, d, n < 4 ? ROW_CLAIMED : ROW_ON_HOLD);
        if (n < 4)
            bed_does(b, ACTION_FORWARD);
    }
    bed_pass(b, 30000);
    bed_asks(b, OP_CLAIM);
    bed_row(b, d, ROW_CLAIMED);
    bed_does(b, ACTION_FORWARD);
    bed_answer(b, d, 423);
    assert_int_equal(d->claim->n_given_back, 1);
    assert_backoff(d, 1000);
    bed_end(b);
}

static void test_what_was_not_sent_waits_for_the_probe_alone(void **state)
{
    struct bed *b = bed_of(false);
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer_of(b, d, (struct answer){.kind = ANSWER_UNREACHABLE, .refused = true, .retry_after_ms = -1});
    bed_wants(d, OP_RELEASE);
    assert_int_equal(delivery_delay_ms(d), 0);
    assert_int_equal(d->claim->n_given_back, 0);
    assert_true(b->q.pauses[PAUSE_APPLICATION].since_ms > 0);
    assert_true(b->application.gone);
    bed_end(b);
}

static void test_a_permanent_answer_is_a_dead_letter(void **state)
{
    struct bed *b = bed_of(false);
    struct delivery *d = bed_sent(b, "m", 3);

    bed_answer(b, d, 400);
    bed_wants(d, OP_DEAD_LETTER);
    assert_int_equal(delivery_dead_letter(d)->reason, DEAD_PERMANENT);
    assert_true(delivery_dead_letter(d)->charged);
    assert_int_equal(delivery_dead_letter(d)->row, LETTER_CLAIMED);
    assert_false(queue_letter_holds(&b->q, d));
    bed_rest(b); /* others may fail as well */
    bed_pass(b, 1000);
    assert_ptr_equal(bed_asks(b, OP_DEAD_LETTER), d);
    bed_row_of(b, d, (struct row){.answer = ROW_DEAD_LETTERED, .letter = 77, .unproven_ms = -1});
    bed_wants(d, OP_REJECT);
    bed_does(b, ACTION_REJECT);
    bed_rest(b);
    assert_int_equal(bed_told(b, EVENT_DEAD)->n, 77);
    assert_string_equal(bed_told(b, EVENT_DEAD)->reason, "permanent");
    assert_int_equal(b->q.counts.dead.total, 1);
    bed_end(b);
}

/* --- transaction: the row is read --- */

static void test_a_commit_has_a_grace_period(void **state)
{
    static const int64_t waits[] = {20, 40, 80, 160, 320, 380};
    struct bed *b = bed_of(true);
    struct delivery *d = bed_sent(b, "m", 1);
    int64_t answered = b->now;

    bed_answer(b, d, 200);
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        assert_ptr_equal(bed_asks(b, OP_CHECK), d);
        bed_row(b, d, ROW_CLAIMED);
        bed_waits(b, d, OP_CHECK, WAIT_WATCHING, waits[i]);
        bed_rest(b);
        bed_pass(b, waits[i]);
    }
    assert_int_equal(b->now, answered + 1000);
    bed_asks(b, OP_CHECK);
    bed_row(b, d, ROW_CLAIMED);
    bed_wants(d, OP_FAIL);
    assert_string_equal(d->outcome.error, "answered 200 without completing the token");
    assert_false(delivery_failure(d)->only_expired);
    assert_backoff(d, 1000);
    bed_asks(b, OP_FAIL);
    bed_row(b, d, ROW_FAILED);
    bed_waits(b, d, OP_CLAIM, WAIT_DUE, delivery_delay_ms(d));
    bed_rest(b);
    assert_int_equal(bed_told(b, EVENT_RETRY)->ms, delivery_delay_ms(d));
    assert_int_equal(b->q.counts.retried.total, 1);
    assert_int_equal(b->q.counts.given_back.total, 0);
    assert_non_null(bed_told(b, EVENT_ANSWERED_BEFORE_COMMIT));
    assert_false(bed_told(b, EVENT_ANSWERED_BEFORE_COMMIT)->flag);
    bed_end(b);
}

static void test_a_late_commit_is_a_completion(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 200);
    bed_asks(b, OP_CHECK);
    bed_row(b, d, ROW_CLAIMED);
    bed_pass(b, 20);
    bed_asks(b, OP_CHECK);
    bed_row(b, d, ROW_COMPLETED);
    bed_wants(d, OP_ACK);
    bed_pass(b, 500);
    bed_does(b, ACTION_ACK);
    bed_rest(b);
    assert_int_equal(b->q.counts.completed.total, 1);
    assert_int_equal(bed_told(b, EVENT_COMPLETED)->ms, 20);
    assert_true(bed_told(b, EVENT_ANSWERED_BEFORE_COMMIT)->flag);
    bed_end(b);
}

/* Logged at most once a minute. */
static void test_an_answer_before_its_commit_is_logged_rarely(void **state)
{
    static const struct {
        int64_t after_ms;
        size_t n;
    } cases[] = {{0, 1}, {59000, 1}, {2000, 2}};
    struct bed *b = bed_of(true);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char id[8];

        snprintf(id, sizeof(id), "m%zu", i);
        bed_pass(b, cases[i].after_ms);
        bed_rest(b);
        struct delivery *d = bed_sent(b, id, 1);

        bed_answer(b, d, 200);
        bed_asks(b, OP_CHECK);
        bed_row(b, d, ROW_CLAIMED);
        bed_pass(b, 20);
        bed_asks(b, OP_CHECK);
        bed_row(b, d, ROW_COMPLETED);
        bed_pass(b, 500);
        bed_does(b, ACTION_ACK);
        bed_rest(b);
        assert_int_equal(bed_n_told(b, EVENT_ANSWERED_BEFORE_COMMIT), cases[i].n);
    }
    bed_end(b);
}

static void test_accepted_is_watched_until_its_window_ends(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_sent(b, "m", 1);
    int64_t ends = d->claim->window_ends_ms;

    bed_answer(b, d, 202);
    bed_waits(b, d, OP_CHECK, WAIT_WATCHING, 20);
    assert_int_equal(d->claim->accepted_until_ms, ends);
    assert_int_equal(b->application.n_accepted, 1);
    while (b->now < ends) {
        bed_pass(b, d->timer.at_ms - b->now);
        bed_asks(b, OP_CHECK);
        bed_row_of(b, d, (struct row){.answer = ROW_CLAIMED, .wait_ms = ends - b->now, .unproven_ms = -1});
        if (b->now < ends)
            assert_int_in_range(d->timer.at_ms - b->now, 1, 1000);
    }
    assert_int_equal(b->now, ends);
    bed_wants(d, OP_FAIL);
    assert_true(delivery_failure(d)->only_expired);
    assert_int_equal(d->outcome.request, REQUEST_UNANSWERED);
    assert_true(delivery_delay_ms(d) >= BED_WINDOW_MS);
    assert_string_equal(d->outcome.error, "accepted with 202, and not completed within the window");
    bed_asks(b, OP_FAIL);
    assert_int_equal(b->application.n_accepted, 0); /* its slot is free */
    bed_row_of(b, d, (struct row){.answer = ROW_EXTENDED, .wait_ms = 5000, .unproven_ms = -1});
    bed_waits(b, d, OP_CHECK, WAIT_WATCHING, 20);
    assert_int_equal(d->claim->accepted_until_ms, b->now + 5000 + 20);
    assert_int_equal(b->application.n_accepted, 1);
    bed_pass(b, 20);
    bed_asks(b, OP_CHECK);
    bed_row(b, d, ROW_COMPLETED);
    bed_wants(d, OP_ACK);
    assert_int_equal(b->application.n_accepted, 0);
    bed_end(b);
}

/* The application has extended the token: it is watched for as long. */
static void test_an_extension_of_an_accepted_message_is_seen(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer(b, d, 202);
    bed_pass(b, 20);
    bed_asks(b, OP_CHECK);
    bed_row_of(b, d, (struct row){.answer = ROW_CLAIMED, .wait_ms = 90000, .unproven_ms = -1});
    assert_int_equal(d->claim->accepted_until_ms, b->now + 90000);
    bed_end(b);
}

/* --- the window --- */

static void test_the_end_of_a_window_revokes_the_token(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_sent(b, "m", 2);
    int64_t ends = d->claim->window_ends_ms;

    assert_int_equal(ends, b->now + BED_WINDOW_MS);
    bed_pass(b, BED_WINDOW_MS - 1);
    bed_rest(b);
    bed_pass(b, 1);
    assert_ptr_equal(bed_asks(b, OP_REVOKE), d);
    assert_true(delivery_failure(d)->only_expired);
    assert_int_equal(d->outcome.request, REQUEST_UNANSWERED);
    assert_true(delivery_failure(d)->charged);
    assert_int_equal(d->outcome.http_status, 0);
    assert_int_equal(delivery_delay_ms(d), BED_WINDOW_MS);
    assert_string_equal(d->outcome.error, "no answer within the window of 30000 ms");
    bed_row_of(b, d, (struct row){.answer = ROW_EXTENDED, .wait_ms = 700, .unproven_ms = -1});
    assert_int_equal(d->op, OP_FORWARD);
    assert_int_equal(d->phase, PHASE_SENT);
    assert_int_equal(d->claim->window_ends_ms, b->now + 720);
    bed_pass(b, 719);
    bed_rest(b);
    bed_pass(b, 1);
    bed_asks(b, OP_REVOKE);
    bed_row(b, d, ROW_LOCKED);
    bed_waits(b, d, OP_REVOKE, WAIT_LOCKED, 20);
    bed_pass(b, 20);
    bed_asks(b, OP_REVOKE);
    bed_row_of(b, d, (struct row){.answer = ROW_FAILED, .attempt = 2, .unproven_ms = -1});
    bed_waits(b, d, OP_CLAIM, WAIT_DUE, BED_WINDOW_MS);
    assert_false(delivery_has_token(d));
    bed_does(b, ACTION_ABANDON);
    bed_rest(b);
    assert_non_null(bed_told(b, EVENT_TOKEN_EXPIRED));
    assert_int_equal(b->q.counts.retried.total, 1);
    assert_int_equal(b->q.share->brake.n, 1);
    bed_end(b);
}

/* An answer while the row is asked for counts if the token is valid after all. */
static void test_an_answer_during_the_question_is_kept(void **state)
{
    struct bed *b = bed_of(false);
    struct delivery *d = bed_sent(b, "m", 1);

    bed_pass(b, BED_WINDOW_MS);
    bed_asks(b, OP_REVOKE);
    bed_answer(b, d, 200);
    assert_int_equal(d->op, OP_REVOKE);
    assert_int_equal(d->phase, PHASE_SENT);
    bed_row_of(b, d, (struct row){.answer = ROW_EXTENDED, .wait_ms = 700, .unproven_ms = -1});
    bed_wants(d, OP_COMPLETE);
    bed_end(b);
}

static void test_a_kept_answer_is_void_when_the_token_is(void **state)
{
    struct bed *b = bed_of(false);
    struct delivery *d = bed_sent(b, "m", 1);

    bed_pass(b, BED_WINDOW_MS);
    bed_asks(b, OP_REVOKE);
    bed_answer(b, d, 200);
    bed_row(b, d, ROW_FAILED);
    bed_waits(b, d, OP_CLAIM, WAIT_DUE, BED_WINDOW_MS);
    assert_null(d->claim->kept);
    bed_end(b);
}

static void test_a_kept_answer_is_freed_with_its_queue(void **state)
{
    struct bed *b = bed_of(false);
    struct delivery *d = bed_sent(b, "m", 1);

    bed_pass(b, BED_WINDOW_MS);
    bed_asks(b, OP_REVOKE);
    bed_answer(b, d, 200);
    assert_non_null(d->claim->kept);
    bed_end(b); /* frees it */
}

/* The answer of one attempt is never stored with the completion of another. */
static void test_an_empty_answer_stores_nothing(void **state)
{
    struct queue_rules r = rules_of(false);

    r.store_response_bytes = 100;
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer_of(b, d,
                  (struct answer){
                      .kind = ANSWER_STATUS, .status = 200, .retry_after_ms = -1, .body = slice_of("first")});
    assert_ptr_equal(bed_asks(b, OP_COMPLETE), d);
    assert_int_equal(d->outcome.complete.result_len, strlen("first"));
    bed_row(b, d, ROW_LOST);
    bed_pass(b, 20);
    assert_ptr_equal(bed_asks(b, OP_CLAIM), d);
    bed_row_of(b, d, (struct row){.answer = ROW_CLAIMED, .attempt = 2, .unproven_ms = -1});
    bed_does(b, ACTION_FORWARD);
    bed_answer(b, d, 200);
    assert_ptr_equal(bed_asks(b, OP_COMPLETE), d);
    assert_int_equal(d->outcome.complete.result_len, 0);
    bed_end(b);
}

/* --- answers to a claim --- */

static void test_each_answer_to_a_claim_has_its_step(void **state)
{
    static const struct {
        enum row_answer answer;
        int64_t wait_ms;
        enum operation op;
        enum wait_reason wait;
        int64_t in_ms;
    } cases[] = {
        {ROW_CLAIMED, 0, OP_FORWARD, WAIT_NONE, -1},
        {ROW_COMPLETED, 0, OP_ACK, WAIT_NONE, -1},
        {ROW_HELD, 5000, OP_LOOK, WAIT_HELD, 1000},
        {ROW_HELD, 500, OP_LOOK, WAIT_HELD, 520},
        {ROW_HELD, 980, OP_LOOK, WAIT_HELD, 1000},
        {ROW_HELD, -100, OP_LOOK, WAIT_HELD, 20},
        {ROW_NOT_DUE, 700, OP_CLAIM, WAIT_DUE, 700},
        {ROW_NOT_DUE, 0, OP_CLAIM, WAIT_DUE, 1},
        {ROW_NOT_DUE, -5, OP_CLAIM, WAIT_DUE, 1},
        {ROW_NOT_DUE, 300000, OP_CLAIM, WAIT_DUE, 300000},
        {ROW_NOT_DUE, 300001, OP_CLAIM, WAIT_DUE, 300000},
        {ROW_LOCKED, 0, OP_CLAIM, WAIT_LOCKED, 20},
        {ROW_EXHAUSTED, 0, OP_DEAD_LETTER, WAIT_NONE, -1},
        {ROW_DEAD, 0, OP_REJECT, WAIT_NONE, -1},
        {ROW_ON_HOLD, 0, OP_CLAIM, WAIT_ON_HOLD, 30000},
        {ROW_MISMATCH, 0, OP_DEAD_LETTER, WAIT_NONE, -1},
        {ROW_DUE, 0, OP_CLAIM, WAIT_NONE, -1},
        {ROW_INVALID, 0, OP_DEAD_LETTER, WAIT_NONE, -1},
        {ROW_VANISHED, 0, OP_CLAIM, WAIT_AGAIN, 20},
        {ROW_LOST, 0, OP_CLAIM, WAIT_AGAIN, 20},
        {ROW_UNKNOWN, 0, OP_CLAIM, WAIT_NONE, -1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = bed_deliver(b, "m");

        bed_asks(b, OP_CLAIM);
        assert_true(delivery_has_token(d));
        bed_row_of(b, d,
                   (struct row){.answer = cases[i].answer,
                                .wait_ms = cases[i].wait_ms,
                                .attempt = 3,
                                .takeovers = 1,
                                .unproven_ms = -1});
        if (cases[i].wait == WAIT_NONE)
            bed_wants(d, cases[i].op);
        else
            bed_waits(b, d, cases[i].op, cases[i].wait, cases[i].in_ms);
        if (cases[i].answer == ROW_DUE)
            assert_int_equal(d->claim->takeovers, 2); /* including that of the next claim */
        if (cases[i].answer == ROW_HELD || cases[i].answer == ROW_NOT_DUE || cases[i].answer == ROW_DUE)
            assert_false(delivery_has_token(d)); /* the next claim has a new one */
        bed_end(b);
    }
}

static void test_a_claim_tells_the_row_to_the_delivery(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");

    bed_asks(b, OP_CLAIM);
    bed_row_of(b, d,
               (struct row){.answer = ROW_CLAIMED,
                            .attempt = 4,
                            .takeovers = 1,
                            .crashes = 0,
                            .unproven_step = 3,
                            .unproven_ms = 250,
                            .batch_cap = 7,
                            .taken_over = true});
    assert_int_equal(d->claim->attempt, 4);
    assert_int_equal(d->claim->takeovers, 1);
    assert_int_equal(d->claim->unproven_step, 3);
    assert_int_equal(d->claim->unproven_at_ms, b->now - 250);
    assert_int_equal(d->claim->batch_cap, 7);
    assert_true(delivery_owns_row(d));
    bed_does(b, ACTION_FORWARD);
    assert_non_null(bed_told(b, EVENT_TAKEN_OVER));
    bed_end(b);
}

static void test_a_parked_message_is_logged_with_its_reason(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");
    const struct bed_line *l;

    bed_asks(b, OP_CLAIM);
    bed_row_of(b, d,
               (struct row){.answer = ROW_NOT_DUE,
                            .wait_ms = 800,
                            .detail = SLICE("answered 500: \"secret\""),
                            .unproven_ms = -1});
    bed_rest(b);
    l = bed_told(b, EVENT_PARKED);
    assert_string_equal(l->reason, "not_due");
    assert_string_equal(l->text, "answered 500");
    assert_int_equal(l->ms, 800);
    assert_false(l->flag);
    bed_pass(b, 800);
    bed_asks(b, OP_CLAIM);
    bed_row_of(
        b, d,
        (struct row){
            .answer = ROW_HELD, .wait_ms = 900, .detail = SLICE("answered 500: x"), .unproven_ms = -1});
    bed_rest(b);
    l = bed_told(b, EVENT_PARKED);
    assert_string_equal(l->reason, "held");
    assert_string_equal(l->text, "answered 500: x"); /* the claim owner */
    assert_true(l->flag);
    bed_end(b);
}

static void test_the_text_of_a_parked_message_is_cut_at_200_bytes(void **state)
{
    char owner[202];

    memset(owner, 'o', sizeof(owner));
    for (size_t len = 199; len <= sizeof(owner); len++) {
        struct bed *b = bed_of(true);
        struct delivery *d = bed_deliver(b, "m");

        bed_asks(b, OP_CLAIM);
        bed_row_of(
            b, d,
            (struct row){.answer = ROW_HELD, .wait_ms = 900, .detail = {owner, len}, .unproven_ms = -1});
        bed_rest(b);
        assert_int_equal(strlen(bed_told(b, EVENT_PARKED)->text), len < 200 ? len : 200);
        bed_end(b);
    }
}

/* Texts longer than those that the database writes are cut. */
static void test_the_rows_error_is_kept(void **state)
{
    static const struct {
        enum row_answer answer;
        size_t len, kept;
    } cases[] = {
        {ROW_INVALID, 499, 499},    {ROW_INVALID, 500, 500},    {ROW_INVALID, 501, 500},
        {ROW_INVALID, 600, 500},    {ROW_MISMATCH, 999, 999},   {ROW_MISMATCH, 1000, 1000},
        {ROW_MISMATCH, 1001, 1000}, {ROW_MISMATCH, 1100, 1000}, {ROW_ON_HOLD, 100, 100},
        {ROW_EXHAUSTED, 100, 100},
    };
    char detail[1101];

    memset(detail, 'e', sizeof(detail));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = bed_deliver(b, "m");

        bed_asks(b, OP_CLAIM);
        bed_row_of(b, d,
                   (struct row){.answer = cases[i].answer,
                                .detail = {detail, cases[i].len},
                                .sqlstate = "22P05",
                                .unproven_ms = -1});
        assert_int_equal(strlen(d->outcome.error), cases[i].kept);
        bed_next(b);
        const struct bed_line *l = bed_told(b, EVENT_DATABASE_ERROR);
        assert_int_equal(l != NULL, cases[i].answer == ROW_INVALID);
        if (l) {
            assert_string_equal(l->reason, "claim");
            assert_string_equal(l->code, "22P05");
            assert_int_equal(strlen(l->text), 400);
        }
        bed_end(b);
    }
}

/* The broker would drop the message after the next deliveries, and its queue does not take a copy. */
static void test_a_message_near_its_limit_becomes_a_dead_letter_with_the_reason(void **state)
{
    static const struct {
        int count;
        enum row_answer answer;
        enum operation op;
        enum letter_row row;
        const char *error; /* its end */
    } cases[] = {
        {17, ROW_CLAIMED, OP_FORWARD, 0, NULL},
        {18, ROW_CLAIMED, OP_DEAD_LETTER, LETTER_CLAIMED, ""},
        {17, ROW_NOT_DUE, OP_CLAIM, 0, NULL},
        {18, ROW_NOT_DUE, OP_DEAD_LETTER, LETTER_UNCLAIMED, "; last: answered 500"},
        {18, ROW_HELD, OP_LOOK, 0, NULL},
        {19, ROW_HELD, OP_DEAD_LETTER, LETTER_ROWLESS,
         "; its row is claimed elsewhere: check whether it was completed before you redrive it"},
    };
    char expected[300];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(true);

        r.delivery_limit = 20;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct arrival *a = bed_arrival(&b->q, "m");

        b->q.returns.no_renewal = "no right to";
        a->copy.delivery_count = cases[i].count;
        queue_delivered(&b->q, b->now, a, NULL);
        struct delivery *d = bed_newest(b);

        bed_asks(b, OP_CLAIM);
        bed_row_of(b, d,
                   (struct row){.answer = cases[i].answer,
                                .attempt = 5,
                                .wait_ms = 500,
                                .detail = SLICE("answered 500: \"x\""),
                                .unproven_ms = -1});
        assert_string_equal(operation_infos[d->op].name, operation_infos[cases[i].op].name);
        if (cases[i].error) {
            assert_int_equal(delivery_dead_letter(d)->reason, DEAD_DELIVERY_LIMIT);
            assert_int_equal(delivery_dead_letter(d)->row, cases[i].row);
            assert_int_equal(d->claim->attempt, cases[i].answer == ROW_HELD ? 0 : 5);
            snprintf(
                expected, sizeof(expected),
                "delivered %d times before; its delivery limit is 20 (delivery_limit); not published to its "
                "queue again: no right to%s",
                cases[i].count, cases[i].error);
            assert_string_equal(d->outcome.error, expected);
        }
        bed_end(b);
    }
}

/* A moving average over 128 answers to claims and lookups. */
static void test_the_share_of_duplicates_is_averaged(void **state)
{
    struct bed *b = bed_of(true);
    double expected = 0;

    for (int i = 0; i < 300; i++) {
        char id[16];
        bool duplicate = i % 100 < 60;

        snprintf(id, sizeof(id), "m%d", i);
        struct delivery *d = bed_deliver(b, id);
        bed_asks(b, OP_CLAIM);
        if (i % 2) {
            bed_row(b, d, duplicate ? ROW_COMPLETED : ROW_DEAD);
        } else {
            bed_row_of(b, d, (struct row){.answer = ROW_HELD, .unproven_ms = -1});
            expected -= expected / 128;
            bed_pass(b, 20);
            bed_asks(b, OP_LOOK);
            bed_row(b, d, duplicate ? ROW_COMPLETED : ROW_MISMATCH);
        }
        expected += ((duplicate ? 1.0 : 0.0) - expected) / 128;
        assert_true(fabs(b->q.flow.duplicates - expected) < 1e-6);
        bed_pass(b, 1000);
        while (bed_next(b))
            if (b->last.kind == ACTION_DATABASE)
                bed_row(b, b->last.d, ROW_DEAD_LETTERED);
    }
    bed_end(b);
}

static void test_max_age_is_applied_to_a_claim(void **state)
{
    static const struct {
        int64_t max_age_ms, age_ms;
        bool dies;
    } cases[] = {{0, 1 << 30, false}, {5000, 5000, false}, {5000, 5001, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(true);

        r.max_age_ms = cases[i].max_age_ms;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = bed_deliver(b, "m");

        bed_asks(b, OP_CLAIM);
        bed_row_of(b, d, (struct row){.answer = ROW_CLAIMED, .age_ms = cases[i].age_ms, .unproven_ms = -1});
        bed_wants(d, cases[i].dies ? OP_DEAD_LETTER : OP_FORWARD);
        if (cases[i].dies) {
            assert_int_equal(delivery_dead_letter(d)->reason, DEAD_TOO_OLD);
            assert_string_equal(d->outcome.error, "older than max_age");
        }
        bed_end(b);
    }
}

/* A row may be claimed beside others before its crashes are known. */
static void test_a_claimed_row_with_crashes_is_sent_alone_or_released(void **state)
{
    static const struct {
        int crashes, takeovers;
        bool is_busy;      /* other requests are in flight */
        int64_t credit_ms; /* time for which quarantine may keep slots idle */
        enum operation op;
        bool alone;
    } cases[] = {
        {0, 0, false, 1, OP_FORWARD, false}, {0, 1, false, 1, OP_FORWARD, false},
        {0, 2, false, 1, OP_RELEASE, false}, {0, 2, false, 0, OP_FORWARD, false},
        {1, 0, false, 1, OP_FORWARD, true},  {1, 1, false, 1, OP_FORWARD, true},
        {1, 2, false, 1, OP_RELEASE, false}, {1, 2, false, 0, OP_FORWARD, false},
        {2, 0, false, 1, OP_FORWARD, true},  {2, 2, false, 1, OP_RELEASE, false},
        {1, 0, true, 1, OP_RELEASE, false},  {1, 0, true, 0, OP_FORWARD, false},
        {2, 0, true, 0, OP_RELEASE, false},  {0, 1, true, 1, OP_FORWARD, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d;

        if (cases[i].is_busy)
            bed_sent(b, "other", 1), bed_sent(b, "another", 1);
        d = bed_deliver(b, "m");
        bed_asks(b, OP_CLAIM);
        b->application.place.credit_ms = cases[i].credit_ms;
        bed_row_of(b, d,
                   (struct row){.answer = ROW_CLAIMED,
                                .attempt = 1,
                                .crashes = cases[i].crashes,
                                .takeovers = cases[i].takeovers,
                                .unproven_ms = -1});
        bed_wants(d, cases[i].op);
        assert_int_equal(d->claim->alone, cases[i].alone);
        if (cases[i].op == OP_RELEASE) {
            assert_int_equal(delivery_delay_ms(d), 0);
            assert_string_equal(d->outcome.error,
                                "the application crashed while it was in flight: it is sent alone");
        }
        bed_end(b);
    }
}

/* With `on_body_mismatch: duplicate`, the copy stands for the first body, and its claim has that body's fingerprint. */
static void test_a_mismatch_becomes_a_dead_letter_or_a_duplicate(void **state)
{
    static const uint8_t first[16] = {0x00, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde,
                                      0xf0, 0x0f, 0x1e, 0x2d, 0x3c, 0x4b, 0x5a, 0xff};
#define FIRST "{\"first_fingerprint\" : \"00123456789abcdef00f1e2d3c4b5aff\""
    static const struct {
        const char *detail;
        bool duplicate;
        enum operation op;
    } cases[] = {
        {FIRST ", \"first_status\" : \"failed\"}", true, OP_CLAIM},
        {FIRST ", \"first_status\" : \"failed\"}", false, OP_DEAD_LETTER},
        {FIRST ", \"first_status\" : \"completed\"}", true, OP_ACK},
        {FIRST ", \"first_status\" : \"completed\"}", false, OP_DEAD_LETTER},
        {FIRST, true, OP_CLAIM},
        {"{\"first_fingerprint\" : \"00123456789abcdef00f1e2d3c4b5aff", true, OP_CLAIM},
        {"{\"first_fingerprint\" : \"00123456789abcdef00f1e2d3c4b5af", true, OP_DEAD_LETTER}, /* cut */
        {"{\"first_fingerprint\" : \"00123456789abcdef00f1e2d3c4b5a, f\"}", true, OP_DEAD_LETTER},
        {"{\"first_fingerprint\" : null}", true, OP_DEAD_LETTER},
        {"", true, OP_DEAD_LETTER},
    };
#undef FIRST

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(true);
        size_t len = strlen(cases[i].detail);
        char *detail = calloc(1, len + 2);

        r.mismatch_is_duplicate = cases[i].duplicate;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = bed_deliver(b, "m");

        memcpy(detail, cases[i].detail, len);
        detail[len] = 'Z'; /* not part of the detail */
        bed_asks(b, OP_CLAIM);
        bed_row_of(b, d, (struct row){.answer = ROW_MISMATCH, .detail = {detail, len}, .unproven_ms = -1});
        if (cases[i].op == OP_CLAIM) {
            bed_waits(b, d, OP_CLAIM, WAIT_AGAIN, 20);
            assert_memory_equal(d->arrival->fingerprint, first, sizeof(first));
        } else {
            bed_wants(d, cases[i].op);
        }
        if (cases[i].op == OP_DEAD_LETTER) {
            assert_int_equal(delivery_dead_letter(d)->reason, DEAD_BODY_MISMATCH);
            assert_int_equal(delivery_dead_letter(d)->row, LETTER_ROWLESS);
            assert_string_equal(d->outcome.error, cases[i].detail);
            bed_next(b);
            assert_string_equal(bed_told(b, EVENT_BODY_MISMATCH)->text, cases[i].detail);
        }
        bed_end(b);
        free(detail);
    }
}

static void test_attempts_that_are_used_up_are_a_dead_letter(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");

    bed_asks(b, OP_CLAIM);
    bed_row_of(b, d,
               (struct row){.answer = ROW_EXHAUSTED,
                            .attempt = 8,
                            .takeovers = 2,
                            .detail = SLICE("answered 500: \"x\""),
                            .unproven_ms = -1});
    bed_wants(d, OP_DEAD_LETTER);
    assert_int_equal(delivery_dead_letter(d)->row, LETTER_UNCLAIMED);
    assert_int_equal(delivery_dead_letter(d)->reason, DEAD_ATTEMPTS);
    assert_int_equal(d->claim->attempt, 8);
    assert_int_equal(d->claim->takeovers, 2);
    assert_false(delivery_has_token(d));
    assert_string_equal(d->outcome.error, "answered 500");
    assert_string_equal(d->outcome.said, "answered 500: \"x\"");
    d = bed_deliver(b, "without a text");
    while (d->phase != PHASE_SENT)
        assert_true(bed_next(b));
    bed_row_of(b, d, (struct row){.answer = ROW_EXHAUSTED, .attempt = 8, .unproven_ms = -1});
    bed_wants(d, OP_DEAD_LETTER);
    assert_string_equal(d->outcome.error, "all attempts failed");
    bed_end(b);
}

/* --- answers to a lookup --- */

static void test_each_answer_to_a_look_has_its_step(void **state)
{
    static const struct {
        enum row_answer answer;
        enum operation op;
        enum wait_reason wait;
    } cases[] = {{ROW_COMPLETED, OP_ACK, WAIT_NONE},        {ROW_HELD, OP_LOOK, WAIT_HELD},
                 {ROW_MISMATCH, OP_DEAD_LETTER, WAIT_NONE}, {ROW_DUE, OP_CLAIM, WAIT_NONE},
                 {ROW_NOT_DUE, OP_CLAIM, WAIT_NONE},        {ROW_DEAD, OP_CLAIM, WAIT_NONE},
                 {ROW_VANISHED, OP_CLAIM, WAIT_NONE},       {ROW_CLAIMED, OP_CLAIM, WAIT_NONE}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = bed_deliver(b, "m");

        bed_asks(b, OP_CLAIM);
        bed_row_of(b, d, (struct row){.answer = ROW_HELD, .wait_ms = 100, .unproven_ms = -1});
        bed_pass(b, 120);
        bed_asks(b, OP_LOOK);
        bed_row_of(b, d,
                   (struct row){.answer = cases[i].answer,
                                .wait_ms = 100,
                                .attempt = 5,
                                .takeovers = 1,
                                .crashes = 2,
                                .unproven_ms = -1});
        assert_int_equal(d->wait, cases[i].wait);
        assert_string_equal(operation_infos[d->op].name, operation_infos[cases[i].op].name);
        assert_int_equal(d->claim->crashes, cases[i].answer == ROW_DUE ? 2 : 0);
        bed_end(b);
    }
}

/* --- answers to a write --- */

/* Step after an answer to one operation. */
struct row_case {
    enum row_answer answer;
    enum operation op;
    enum wait_reason wait;
    int64_t in_ms;
};

/* Brings a delivery to the operation, which is sent. */
static struct delivery *ask(struct bed *b, enum operation op)
{
    struct delivery *d = bed_sent(b, "m", 1);

    switch (op) {
    case OP_CHECK:
    case OP_COMPLETE:
        bed_answer(b, d, 200);
        break;
    case OP_FAIL:
        bed_answer(b, d, 500);
        break;
    case OP_RELEASE:
        bed_answer_of(b, d, (struct answer){.kind = ANSWER_STATUS, .status = 409, .retry_after_ms = 250});
        break;
    case OP_REVOKE:
        bed_pass(b, BED_WINDOW_MS);
        break;
    default:
        bed_answer(b, d, 400);
        bed_rest(b);
        bed_pass(b, 1000);
    }
    assert_ptr_equal(bed_asks(b, op), d);
    return d;
}

static void check_rows(bool transaction, enum operation op, const struct row_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct bed *b = bed_of(transaction);
        struct delivery *d = ask(b, op);

        bed_row_of(b, d, (struct row){.answer = cases[i].answer, .attempt = 1, .unproven_ms = -1});
        if (cases[i].wait == WAIT_NONE)
            bed_wants(d, cases[i].op);
        else if (cases[i].in_ms >= 0)
            bed_waits(b, d, cases[i].op, cases[i].wait, cases[i].in_ms);
        else
            bed_waits_between(b, d, cases[i].op, cases[i].wait, 1, -cases[i].in_ms);
        bed_end(b);
    }
}
#define CHECK_ROWS(transaction, op, ...)                                                                     \
    check_rows(transaction, op, (struct row_case[]){__VA_ARGS__},                                            \
               sizeof((struct row_case[]){__VA_ARGS__}) / sizeof(struct row_case))

static void test_each_answer_to_a_write_has_its_step(void **state)
{
    CHECK_ROWS(true, OP_CHECK, {ROW_COMPLETED, OP_ACK}, {ROW_CLAIMED, OP_CHECK, WAIT_WATCHING, 20},
               {ROW_LOCKED, OP_CHECK, WAIT_LOCKED, 20}, {ROW_DUE, OP_CLAIM, WAIT_AGAIN, 20},
               {ROW_LOST, OP_CLAIM, WAIT_AGAIN, 20}, {ROW_UNKNOWN, OP_CHECK},
               {ROW_RETRY, OP_CHECK, WAIT_AGAIN, -20});
    CHECK_ROWS(false, OP_COMPLETE, {ROW_COMPLETED, OP_ACK}, {ROW_LOCKED, OP_COMPLETE, WAIT_LOCKED, 20},
               {ROW_INVALID, OP_COMPLETE, WAIT_AGAIN, 20}, {ROW_LOST, OP_CLAIM, WAIT_AGAIN, 20},
               {ROW_VANISHED, OP_CLAIM, WAIT_AGAIN, 20}, {ROW_UNKNOWN, OP_COMPLETE});
    CHECK_ROWS(true, OP_FAIL, {ROW_FAILED, OP_CLAIM, WAIT_DUE, -1000}, {ROW_COMPLETED, OP_ACK},
               {ROW_RELEASED, OP_CLAIM, WAIT_DUE, -1000}, {ROW_LOCKED, OP_FAIL, WAIT_LOCKED, 20},
               {ROW_INVALID, OP_FAIL, WAIT_AGAIN, 1000}, {ROW_LOST, OP_CLAIM, WAIT_AGAIN, 20},
               {ROW_UNKNOWN, OP_FAIL});
    CHECK_ROWS(true, OP_REVOKE, {ROW_FAILED, OP_CLAIM, WAIT_DUE, BED_WINDOW_MS}, {ROW_COMPLETED, OP_ACK},
               {ROW_LOCKED, OP_REVOKE, WAIT_LOCKED, 20}, {ROW_INVALID, OP_REVOKE, WAIT_AGAIN, 1000},
               {ROW_LOST, OP_CLAIM, WAIT_AGAIN, 20}, {ROW_UNKNOWN, OP_REVOKE});
    CHECK_ROWS(true, OP_RELEASE, {ROW_RELEASED, OP_CLAIM, WAIT_DUE, 250}, {ROW_COMPLETED, OP_ACK},
               {ROW_LOCKED, OP_RELEASE, WAIT_LOCKED, 20}, {ROW_INVALID, OP_RELEASE, WAIT_AGAIN, 1000},
               {ROW_LOST, OP_CLAIM, WAIT_AGAIN, 20}, {ROW_UNKNOWN, OP_RELEASE});
    CHECK_ROWS(true, OP_DEAD_LETTER, {ROW_DEAD_LETTERED, OP_REJECT}, {ROW_DEAD, OP_REJECT},
               {ROW_COMPLETED, OP_ACK}, {ROW_ON_HOLD, OP_CLAIM, WAIT_ON_HOLD, 30000},
               {ROW_LOCKED, OP_DEAD_LETTER, WAIT_LOCKED, 20},
               {ROW_INVALID, OP_DEAD_LETTER, WAIT_AGAIN, 300000}, {ROW_LOST, OP_CLAIM, WAIT_AGAIN, 20},
               {ROW_UNKNOWN, OP_DEAD_LETTER});
}

/* The row of a letter that was written without a claim may have been completed with another body. */
static void test_a_completed_row_that_was_never_claimed_is_claimed(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");

    bed_asks(b, OP_CLAIM);
    bed_row_of(b, d, (struct row){.answer = ROW_NOT_DUE, .unproven_ms = -1, .wait_ms = 1000});
    queue_command_give_up(&b->q, b->now, "ann", "m", sizeof("m"));
    bed_asks(b, OP_CLAIM);
    bed_row_of(b, d, (struct row){.answer = ROW_NOT_DUE, .attempt = 5, .unproven_ms = -1, .wait_ms = 1000});
    assert_int_equal(d->claim->attempt, 5);
    bed_asks(b, OP_DEAD_LETTER);
    bed_row(b, d, ROW_COMPLETED);
    bed_waits(b, d, OP_CLAIM, WAIT_AGAIN, 20);
    assert_int_equal(b->q.counts.completed.total, 0);
    bed_end(b);
}

/* The wait for a lock doubles from 20 ms to 1 s. */
static void test_a_locked_row_is_read_at_growing_intervals(void **state)
{
    static const int64_t waits[] = {20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000, 1000};
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");
    int64_t since = b->now;

    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        bed_asks(b, OP_CLAIM);
        bed_row(b, d, ROW_LOCKED);
        bed_waits(b, d, OP_CLAIM, WAIT_LOCKED, waits[i]);
        assert_int_equal(d->claim->locked_since_ms, since);
        bed_pass(b, waits[i]);
    }
    bed_end(b);
}

/* A single item is refused while the database works for others: in the end it is tried every five minutes. */
static void test_a_refused_item_is_tried_ever_more_rarely(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");
    int64_t bound = 20;

    for (int i = 0; i < 20; i++) {
        struct row r = {
            .op = OP_CLAIM, .answer = ROW_RETRY, .unproven_ms = -1, .detail = SLICE("it says no")};

        snprintf(r.sqlstate, sizeof(r.sqlstate), "57014");
        bed_asks(b, OP_CLAIM);
        queue_row(&b->q, b->now, d->ref, &r);
        bed_waits_between(b, d, OP_CLAIM, WAIT_AGAIN, bound - bound / 2, bound);
        if (!i) {
            bed_rest(b);
            assert_string_equal(bed_told(b, EVENT_DATABASE_ERROR)->code, "57014");
            assert_string_equal(bed_told(b, EVENT_DATABASE_ERROR)->text, "it says no");
            assert_string_equal(bed_told(b, EVENT_DATABASE_ERROR)->reason, "claim");
        }
        bed_pass(b, d->timer.at_ms - b->now);
        b->database.down_since_ms = 0; /* other items are accepted */
        b->database.refuses = false;
        bound = bound * 2 < 1000 ? bound * 2 : i < 7 ? 1000 : bound * 2;
        if (bound > 300000)
            bound = 300000;
    }
    bed_end(b);
}

/* --- circling, and the circuit breaker --- */

static struct delivery *deliver_circling(struct bed *b, const char *id, int64_t n_rejected)
{
    struct arrival *a = bed_arrival(&b->q, id);

    a->copy.n_rejected = n_rejected;
    queue_delivered(&b->q, b->now, a, NULL);
    return bed_newest(b);
}

static void test_a_dead_message_that_circles_waits_longer_each_round(void **state)
{
    static const struct {
        int64_t n_rejected, bound;
    } cases[] = {{1, 2000}, {3, 2000}, {4, 2000}, {5, 4000}, {6, 8000}, {20, 300000}, {200, 300000}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = deliver_circling(b, "m", cases[i].n_rejected);
        int64_t wait;

        bed_asks(b, OP_CLAIM);
        bed_row(b, d, ROW_DEAD);
        bed_waits_between(b, d, OP_REJECT, WAIT_CIRCLING, cases[i].bound / 10, cases[i].bound);
        wait = d->timer.at_ms - b->now;
        assert_null(d->arrival->message); /* no memory meanwhile */
        assert_false(delivery_has_token(d));
        bed_rest(b);
        assert_int_equal(bed_told(b, EVENT_DEAD_AGAIN)->ms, wait);
        bed_pass(b, wait);
        bed_does(b, ACTION_REJECT);
        bed_rest(b);
        bed_end(b);
    }
}

/* RabbitMQ 4 keeps the number of deliveries when it dead-letters a message. */
static void test_a_dead_message_that_circles_waits_near_the_delivery_limit_too(void **state)
{
    struct bed *b = bed_of(true);
    struct arrival *a = bed_arrival(&b->q, "m");

    a->copy.n_rejected = 4;
    a->copy.delivery_count = 4;
    queue_delivered(&b->q, b->now, a, NULL);
    struct delivery *d = bed_newest(b);

    bed_asks(b, OP_RENEW);
    bed_row(b, d, ROW_DEAD);
    bed_waits_between(b, d, OP_REJECT, WAIT_CIRCLING, 200, 2000);
    bed_end(b);
}

static void test_a_message_that_never_circled_is_rejected_at_once(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");

    bed_asks(b, OP_CLAIM);
    bed_row(b, d, ROW_DEAD);
    bed_wants(d, OP_REJECT);
    bed_does(b, ACTION_REJECT);
    bed_rest(b);
    assert_non_null(bed_told(b, EVENT_DEAD_AGAIN));
    bed_end(b);
}

static void fail_others(struct bed *b, int n)
{
    for (int i = 0; i < n; i++) {
        char id[32];

        snprintf(id, sizeof(id), "other%d", i);
        struct delivery *d = bed_sent(b, id, 1);

        bed_answer(b, d, 500);
        bed_asks(b, d->op);
        bed_row(b, d, d->op == OP_FAIL ? ROW_FAILED : ROW_RELEASED);
    }
}

/* A death that was decided before everything failed, and circles meanwhile, waits for the breaker like all others. */
static void test_a_circling_death_waits_for_the_breaker(void **state)
{
    struct queue_rules r = rules_of(true);

    r.brake = 5;
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct arrival *a = bed_arrival(&b->q, "");

    a->no_id = DEAD_NO_MESSAGE_ID;
    a->copy.n_rejected = 1;
    queue_delivered(&b->q, b->now, a, NULL);
    struct delivery *d = bed_newest(b);

    bed_waits_between(b, d, OP_DEAD_LETTER, WAIT_CIRCLING, 200, 2000);
    int64_t wait = d->timer.at_ms - b->now;

    fail_others(b, 4);
    assert_null(bed_told(b, EVENT_DEAD_AGAIN)); /* the message has no dead letter yet */
    assert_int_equal(bed_told(b, EVENT_PARKED)->ms, wait);
    assert_true(b->q.share->brake.on);
    bed_pass(b, 2000);
    bed_next(b);
    assert_int_equal(d->op, OP_DEAD_LETTER);
    assert_int_equal(d->wait, WAIT_BRAKE);
    assert_false(delivery_dead_letter(d)->charged);
    brake_succeeded(&b->q.share->brake);
    queue_time(&b->q, b->now);
    bed_wants(d, OP_DEAD_LETTER); /* this dead letter has waited for its round already */
    bed_end(b);
}

/* Sends the claim of a trial, while the circuit breaker is on. */
static void try_again(struct bed *b, struct delivery *d)
{
    for (int i = 0; i < 100 && !(d->op == OP_CLAIM && d->phase == PHASE_SENT); i++) {
        bed_pass(b, 100);
        if (bed_next(b) && b->last.d == d && d->op == OP_LOOK)
            bed_row(b, d, ROW_DUE);
    }
    assert_int_equal(d->phase, PHASE_SENT);
}

static void has_no_attempts(struct bed *b, struct delivery *d)
{
    bed_row_of(b, d, (struct row){.answer = ROW_EXHAUSTED, .attempt = 8, .unproven_ms = -1});
}

static void test_a_message_without_attempts_waits_for_the_breaker(void **state)
{
    struct queue_rules r = rules_of(true);

    r.brake = 5;
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct delivery *d;

    fail_others(b, 5);
    assert_true(b->q.share->brake.on);
    d = bed_deliver(b, "m");
    try_again(b, d);
    has_no_attempts(b, d);
    bed_waits(b, d, OP_CLAIM, WAIT_BRAKE, -1);
    bed_end(b);
}

static struct delivery *deliver_keyed(struct bed *b, const char *id, uint8_t key)
{
    struct arrival *a = bed_arrival(&b->q, id);

    a->has_key = true;
    a->key[0] = key;
    queue_delivered(&b->q, b->now, a, NULL);
    return bed_newest(b);
}

/* No other message can be tried then, and the breaker would never be reset. */
static void test_a_message_without_attempts_dies_when_only_its_key_waits(void **state)
{
    struct queue_rules r = rules_of(true);

    r.brake = 5;
    r.ordered = true;
    r.delivery_limit = LIMIT_NONE;
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct delivery *d = deliver_keyed(b, "head", 1), *other;

    assert_true(brake_force(&b->q.own.brake, b->now, ""));
    try_again(b, d);
    has_no_attempts(b, d);
    bed_waits(b, d, OP_CLAIM, WAIT_BRAKE, -1);
    assert_int_equal(deliver_keyed(b, "follower", 1)->wait, WAIT_ORDER);
    other = deliver_keyed(b, "other", 2);
    try_again(b, other);
    try_again(b, d);
    has_no_attempts(b, d);
    bed_waits(b, d, OP_CLAIM, WAIT_BRAKE, -1);
    has_no_attempts(b, other);
    bed_waits(b, other, OP_CLAIM, WAIT_BRAKE, -1);
    try_again(b, d);
    has_no_attempts(b, d);
    bed_wants(d, OP_DEAD_LETTER);
    assert_int_equal(delivery_dead_letter(d)->reason, DEAD_ATTEMPTS);
    bed_end(b);
}

/* The other message can be tried, and would show that the application has recovered. */
static void test_a_message_without_attempts_left_waits_while_another_can_be_tried(void **state)
{
    static const struct {
        struct row other;
        bool dies;
    } cases[] = {
        {{.answer = ROW_EXHAUSTED, .attempt = 8}, true},
        {{.answer = ROW_EXHAUSTED, .attempt = 7, .takeovers = 10}, true},
        {{.answer = ROW_EXHAUSTED, .attempt = 7, .takeovers = 9}, false},
        {{.answer = ROW_ON_HOLD, .attempt = 1}, true},
        {{.answer = ROW_HELD, .wait_ms = 900000}, false},
        {{.answer = ROW_NOT_DUE, .wait_ms = 900000}, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(true);

        r.ordered = true;
        r.delivery_limit = LIMIT_NONE;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = deliver_keyed(b, "head", 1), *other;

        assert_true(brake_force(&b->q.own.brake, b->now, ""));
        try_again(b, d);
        has_no_attempts(b, d);
        deliver_keyed(b, "follower", 1);
        other = bed_deliver(b, "other");
        try_again(b, other);
        try_again(b, d);
        bed_row_of(b, other, cases[i].other);
        has_no_attempts(b, d);
        if (cases[i].dies)
            bed_wants(d, OP_DEAD_LETTER);
        else
            bed_waits(b, d, OP_CLAIM, WAIT_BRAKE, -1);
        bed_end(b);
    }
}

/* --- the row is completed already --- */

/* Brings a delivery to an operation that writes or reads its row, after this answer. */
static struct delivery *ask_after(struct bed *b, enum operation op, enum answer_kind kind, int status)
{
    struct delivery *d = bed_sent(b, "m", 1);

    bed_answer_of(b, d, (struct answer){.kind = kind, .status = status, .retry_after_ms = -1});
    if (op == OP_FAIL && status == 200) { /* not completed within the grace period */
        for (int i = 0; i < 20 && d->op == OP_CHECK; i++) {
            assert_ptr_equal(bed_asks(b, OP_CHECK), d);
            bed_row(b, d, ROW_CLAIMED);
            bed_pass(b, d->op == OP_CHECK ? d->timer.at_ms - b->now : 0);
        }
    }
    while (!bed_next(b) || b->last.kind != ACTION_DATABASE)
        bed_pass(b, 100);
    b->n_told = 0;
    assert_ptr_equal(b->last.d, d);
    assert_string_equal(operation_infos[d->op].name, operation_infos[op].name);
    return d;
}

/* A completed row contradicts the answer of a failure. It does not contradict the end of a window, nor a message that
 * was not sent. */
static void test_a_completed_row_contradicts_a_failure(void **state)
{
    static const struct {
        bool transaction;
        enum operation op;
        enum answer_kind kind;
        int status;
        const char *text; /* NULL: no contradiction */
    } cases[] = {
        {true, OP_CHECK, ANSWER_STATUS, 200, NULL},
        {true, OP_CHECK, ANSWER_STATUS, 202, NULL},
        {true, OP_FAIL, ANSWER_STATUS, 200, NULL},
        {false, OP_COMPLETE, ANSWER_STATUS, 200, NULL},
        {true, OP_FAIL, ANSWER_STATUS, 500, "answered 500"},
        {true, OP_RELEASE, ANSWER_STATUS, 409, "answered 409"},
        {true, OP_DEAD_LETTER, ANSWER_STATUS, 400, "answered 400"},
        {true, OP_RELEASE, ANSWER_DIED, 0, "reset"},
        {true, OP_RELEASE, ANSWER_UNREACHABLE, 0, NULL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(cases[i].transaction);
        bool early = cases[i].op == OP_FAIL && cases[i].status == 200;

        bed_sent(b, "other", 1);
        struct delivery *d = ask_after(b, cases[i].op, cases[i].kind, cases[i].status);

        bed_pass(b, 60000); /* interval between two log lines about early answers */
        bed_row(b, d, ROW_COMPLETED);
        bed_wants(d, OP_ACK);
        while (bed_next(b))
            ;
        const struct bed_line *l = bed_told(b, EVENT_ANSWER_CONTRADICTS_ROW);

        assert_int_equal(l != NULL, cases[i].text != NULL);
        if (l)
            assert_string_equal(l->text, cases[i].text);
        assert_int_equal(bed_n_told(b, EVENT_ANSWERED_BEFORE_COMMIT), early);
        assert_int_equal(b->q.counts.completed.total, 1);
        bed_end(b);
    }
}

static void test_a_completed_row_does_not_contradict_the_end_of_its_window(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = ask(b, OP_REVOKE);

    bed_row(b, d, ROW_COMPLETED);
    bed_does(b, ACTION_ABANDON);
    while (bed_next(b))
        ;
    assert_null(bed_told(b, EVENT_ANSWER_CONTRADICTS_ROW));
    assert_null(bed_told(b, EVENT_ANSWERED_BEFORE_COMMIT));
    bed_end(b);
}

static void test_a_later_copy_is_a_duplicate(void **state)
{
    struct bed *b = bed_of(false);
    struct delivery *d = bed_sent(b, "m", 1), *copy = bed_deliver(b, "m");

    bed_answer(b, d, 200);
    bed_asks(b, OP_COMPLETE);
    bed_row(b, d, ROW_COMPLETED);
    bed_wants(copy, OP_ACK);
    assert_int_equal(b->q.counts.duplicates.total, 1);
    assert_int_equal(b->q.counts.completed.total, 1);
    bed_pass(b, 500);
    while (bed_next(b))
        ;
    assert_int_equal(bed_n_told(b, EVENT_DUPLICATE), 1);
    bed_end(b);
}

/* --- crashes --- */

static void test_the_first_crash_beside_other_requests_is_logged(void **state)
{
    for (int crashes = 0; crashes < 3; crashes++) {
        struct bed *b = bed_of(true);
        struct delivery *d;

        bed_sent(b, "other", 1);
        bed_deliver(b, "m");
        d = bed_asks(b, OP_CLAIM);
        b->application.place.credit_ms = 0; /* no message can be sent alone now */
        bed_row_of(b, d,
                   (struct row){.answer = ROW_CLAIMED, .attempt = 1, .crashes = crashes, .unproven_ms = -1});
        if (crashes == 2) {
            bed_wants(d, OP_RELEASE);
            bed_end(b);
            continue;
        }
        bed_does(b, ACTION_FORWARD);
        bed_answer_of(b, d, (struct answer){.kind = ANSWER_DIED, .retry_after_ms = -1});
        bed_wants(d, OP_RELEASE);
        assert_int_equal(delivery_release(d)->changes.crashes, crashes + 1);
        while (bed_next(b))
            ;
        assert_int_equal(bed_n_told(b, EVENT_ALONE), !crashes);
        bed_end(b);
    }
}

/* Another message crashes the application while this one waits for its commit. This one may be at fault, but is not
 * charged. */
static void test_a_crash_during_the_wait_for_a_commit_is_counted_and_not_charged(void **state)
{
    static const int statuses[] = {200, 202};

    for (size_t i = 0; i < 2; i++) {
        struct bed *b = bed_of(true);
        bool accepted = statuses[i] == 202;
        struct delivery *other = bed_sent(b, "other", 1), *d = bed_sent(b, "m", 1);

        bed_answer(b, d, statuses[i]);
        bed_answer_of(b, other, (struct answer){.kind = ANSWER_DIED, .retry_after_ms = -1});
        bed_pass(b, accepted ? BED_WINDOW_MS : 2000);
        while (d->op != OP_CHECK || d->phase != PHASE_SENT)
            assert_true(bed_next(b));
        bed_row(b, d, ROW_CLAIMED);
        bed_wants(d, accepted ? OP_FAIL : OP_RELEASE);
        assert_int_equal(delivery_changes(d)->crashes, 1);
        assert_int_equal(delivery_changes(d)->unproven_step, -1);
        if (accepted) {
            assert_true(delivery_failure(d)->only_expired);
            assert_false(delivery_failure(d)->charged);
        }
        assert_int_equal(delivery_delay_ms(d) >= BED_WINDOW_MS, accepted);
        assert_int_equal(b->q.share->brake.n, 0);
        bed_end(b);
    }
}

/* The application may have been down, so a message alone is charged at growing intervals only. */
static void test_an_unproven_crash_is_charged_at_growing_intervals(void **state)
{
    enum { WAIT_MS = 300000 };
    static const struct {
        bool alive; /* an answer came before the crash */
        int64_t unproven_ms;
        int step;
        enum operation op;
        int next_step;
    } cases[] = {{false, -1, 0, OP_FAIL, 1},          {false, WAIT_MS - 1, 1, OP_RELEASE, -1},
                 {false, WAIT_MS, 1, OP_FAIL, 2},     {false, 2 * WAIT_MS - 1, 2, OP_RELEASE, -1},
                 {false, 2 * WAIT_MS, 2, OP_FAIL, 3}, {true, 1, 1, OP_FAIL, -1}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = bed_deliver(b, "m");

        bed_asks(b, OP_CLAIM);
        bed_row_of(b, d,
                   (struct row){.answer = ROW_CLAIMED,
                                .attempt = 1,
                                .crashes = 1,
                                .unproven_ms = cases[i].unproven_ms,
                                .unproven_step = cases[i].step});
        assert_true(d->claim->alone);
        bed_does(b, ACTION_FORWARD);
        b->application.seen_alive = cases[i].alive;
        bed_answer_of(b, d, (struct answer){.kind = ANSWER_DIED, .retry_after_ms = -1});
        bed_wants(d, cases[i].op);
        assert_int_equal(delivery_changes(d)->crashes, 2);
        assert_int_equal(delivery_changes(d)->unproven_step, cases[i].next_step);
        assert_int_equal(d->claim->n_given_back, cases[i].op == OP_RELEASE);
        assert_backoff(d, 1000);
        if (cases[i].op == OP_FAIL)
            assert_true(delivery_failure(d)->charged);
        bed_end(b);
    }
}

/* --- giving up --- */

static void test_a_message_that_is_given_up_keeps_its_last_error(void **state)
{
    static const struct {
        int status; /* 0: never forwarded */
        const char *by, *error;
    } cases[] = {{0, "ann", "given up by ann"},
                 {0, "", "given up by an operator"},
                 {500, "ann", "answered 500"},
                 {409, "", "answered 409"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(false);
        struct delivery *d;

        if (cases[i].status) {
            d = bed_sent(b, "m", 1);
            bed_answer(b, d, cases[i].status);
            bed_asks(b, d->op);
            bed_row(b, d, d->op == OP_FAIL ? ROW_FAILED : ROW_RELEASED);
        } else {
            d = bed_deliver(b, "m");
            bed_asks(b, OP_CLAIM);
            bed_row_of(b, d, (struct row){.answer = ROW_NOT_DUE, .wait_ms = 9000, .unproven_ms = -1});
        }
        queue_command_give_up(&b->q, b->now, cases[i].by, "m", sizeof("m"));
        assert_ptr_equal(bed_asks(b, OP_CLAIM), d);
        bed_row_of(b, d, (struct row){.answer = ROW_NOT_DUE, .wait_ms = 9000, .unproven_ms = -1});
        bed_wants(d, OP_DEAD_LETTER);
        assert_int_equal(delivery_dead_letter(d)->reason, DEAD_OPERATOR);
        assert_int_equal(delivery_dead_letter(d)->row, LETTER_UNCLAIMED);
        assert_string_equal(d->outcome.error, cases[i].error);
        bed_end(b);
    }
}

/* The later attempt has claimed the row, so it does not matter whether the earlier dead letter was written. */
static void test_a_later_attempt_does_not_look_for_an_earlier_dead_letter(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = ask(b, OP_DEAD_LETTER);

    bed_row(b, d, ROW_UNKNOWN);
    assert_true(queue_letter_is_looked_for(d));
    bed_pass(b, 1000);
    assert_ptr_equal(bed_asks(b, OP_DEAD_LETTER), d);
    bed_row(b, d, ROW_ON_HOLD);
    queue_command_retry(&b->q, b->now, "ann");
    bed_asks(b, OP_CLAIM);
    bed_row(b, d, ROW_CLAIMED);
    bed_does(b, ACTION_FORWARD);
    bed_answer(b, d, 400);
    bed_wants(d, OP_DEAD_LETTER);
    assert_false(queue_letter_is_looked_for(d));
    bed_end(b);
}

/* --- near the delivery limit --- */

enum { LIMIT = 5 };

/* Brings a delivery near its limit to this state. Its queue takes a copy only in the states of a renewal. */
static struct delivery *near_limit(struct bed *b, enum operation op, enum wait_reason wait)
{
    struct arrival *a = bed_arrival(&b->q, "m");
    struct delivery *d;

    a->copy.delivery_count = LIMIT - 1;
    a->message->redelivered = true;
    if (op != OP_RENEW && op != OP_PUBLISH)
        b->q.returns.no_renewal = "its queue drops its head";
    queue_delivered(&b->q, b->now, a, NULL);
    d = bed_newest(b);
    if (op == OP_CLAIM && wait == WAIT_NONE)
        return d;
    if (op == OP_RENEW && wait == WAIT_NONE)
        return bed_asks(b, OP_RENEW);
    bed_asks(b, op == OP_PUBLISH || op == OP_RENEW ? OP_RENEW : OP_CLAIM);
    switch (op) {
    case OP_PUBLISH:
        bed_row(b, d, ROW_RENEWED);
        break;
    case OP_DEAD_LETTER:
        bed_row(b, d, ROW_CLAIMED);
        if (wait == WAIT_LOCKED) {
            bed_asks(b, OP_DEAD_LETTER);
            bed_row(b, d, ROW_LOCKED);
        }
        break;
    default:
        bed_row_of(b, d,
                   (struct row){.answer = wait == WAIT_LOCKED ? ROW_LOCKED : ROW_LOST, .unproven_ms = -1});
    }
    return d;
}

/* A dead letter keeps its own reason only if it has no row, or waits for the circuit breaker. */
static void test_a_message_stored_near_its_limit_has_that_reason(void **state)
{
    static const struct {
        enum operation op;
        enum wait_reason wait;
        bool elsewhere;
    } cases[] = {{OP_CLAIM, WAIT_LOCKED, true},
                 {OP_RENEW, WAIT_LOCKED, false},
                 {OP_PUBLISH, WAIT_NONE, false},
                 {OP_DEAD_LETTER, WAIT_NONE, true},
                 {OP_DEAD_LETTER, WAIT_LOCKED, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(true);

        r.delivery_limit = LIMIT;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = near_limit(b, cases[i].op, cases[i].wait);

        assert_string_equal(operation_infos[d->op].name, operation_infos[cases[i].op].name);
        assert_int_equal(d->wait, cases[i].wait);
        error_text_set(d, "its own error", NULL);
        life_go(&b->q, b->now, d, FACT_LEAVE, life_dead_letter_held(&b->q, b->now, d));
        bed_wants(d, OP_DEAD_LETTER);
        assert_int_equal(delivery_dead_letter(d)->reason, DEAD_DELIVERY_LIMIT);
        assert_true(delivery_is_rowless(d));
        assert_false(delivery_has_token(d));
        assert_non_null(strstr(d->outcome.error, "delivered 4 times before; "));
        assert_int_equal(strstr(d->outcome.error, "; its row is claimed elsewhere") != NULL,
                         cases[i].elsewhere);
        bed_end(b);
    }
}

/* The claim decides what becomes of a message that is claimed, or is about to be. */
static void test_a_message_leaves_near_its_limit_if_it_can_be_stored(void **state)
{
    static const struct {
        enum operation op;
        bool waits, has_token, works, has_body;
        bool leaves;
    } cases[] = {{OP_CLAIM, true, false, true, true, true},       {OP_CLAIM, false, false, true, true, false},
                 {OP_CLAIM, true, false, false, true, false},     {OP_CLAIM, true, true, true, true, false},
                 {OP_CLAIM, true, false, true, false, false},     {OP_CLAIM, true, true, false, true, false},
                 {OP_DEAD_LETTER, false, false, true, true, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(true);

        r.delivery_limit = LIMIT;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = near_limit(b, cases[i].op, cases[i].waits ? WAIT_AGAIN : WAIT_NONE);

        if (cases[i].has_token)
            d->claim->of_row = CLAIM_OFFERED;
        else
            delivery_drop_token(d);
        if (!cases[i].works)
            b->database.linked = false;
        if (!cases[i].has_body)
            held_drop_body(&b->q, d);
        struct step s = life_leave(&b->q, b->now, d);

        assert_int_equal(s.kind, cases[i].leaves ? STEP_WANT : STEP_STAY);
        if (cases[i].leaves)
            assert_int_equal(s.op, OP_DEAD_LETTER);
        bed_end(b);
    }
}

static void test_failed_publishes_do_not_lengthen_the_wait_for_the_row(void **state)
{
    static const enum publication ends[] = {PUBLICATION_REFUSED, PUBLICATION_FORBIDDEN};

    for (size_t i = 0; i < 2; i++) {
        struct queue_rules r = rules_of(true);

        r.delivery_limit = LIMIT;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = near_limit(b, OP_PUBLISH, WAIT_NONE);

        for (int n = 1; n <= 3; n++) {
            int64_t bound_ms = 500 << (n - 1);
            uint64_t ref = bed_does(b, ACTION_PUBLISH)->ref;

            queue_published(&b->q, b->now, ref, PUBLICATION_FAILED, "nack");
            bed_waits_between(b, d, OP_PUBLISH, WAIT_DUE, bound_ms / 10, bound_ms);
            int64_t wait = d->timer.at_ms - b->now;

            bed_rest(b);
            assert_int_equal(bed_told(b, EVENT_NOT_RENEWED)->ms, wait);
            assert_string_equal(bed_told(b, EVENT_NOT_RENEWED)->text, "nack");
            bed_pass(b, wait);
        }
        queue_published(&b->q, b->now, bed_does(b, ACTION_PUBLISH)->ref, ends[i], "not permitted");
        assert_ptr_equal(bed_asks(b, OP_CLAIM), d);
        bed_row(b, d, ROW_LOCKED);
        bed_waits(b, d, OP_CLAIM, WAIT_LOCKED, 20);
        assert_int_equal(b->q.returns.no_renewal != NULL, ends[i] == PUBLICATION_FORBIDDEN);
        bed_end(b);
    }
}

/* --- messages that share a request --- */

/* Rules of requests with two messages. */
static struct queue_rules rules_of_pairs(void)
{
    struct queue_rules r = bed_batch_rules(2);

    r.transaction = true;
    r.concurrency = 1;
    return r;
}

/* Claims two messages, and sends them in one request. */
static void send_pair(struct bed *b, struct delivery *pair[2])
{
    pair[0] = bed_deliver(b, "m");
    pair[1] = bed_deliver(b, "n");
    for (int i = 0; i < 2; i++)
        assert_ptr_equal(bed_asks(b, OP_CLAIM), pair[i]);
    for (int i = 0; i < 2; i++)
        bed_row(b, pair[i], ROW_CLAIMED);
    bed_does(b, ACTION_FORWARD);
    assert_int_equal(b->last.request->n_sent, 2);
}

/* A failure beside a completed message is not counted. Messages that are not charged count as one failed request. */
static void test_failures_of_one_request_count_for_the_breaker(void **state)
{
    static const struct {
        enum row_answer rows[2];
        int n;
    } cases[] = {{{ROW_COMPLETED, ROW_FAILED}, 0},  {{ROW_FAILED, ROW_COMPLETED}, 0},
                 {{ROW_FAILED, ROW_FAILED}, 2},     {{ROW_RELEASED, ROW_FAILED}, 1},
                 {{ROW_RELEASED, ROW_RELEASED}, 1}, {{ROW_FAILED, ROW_RELEASED}, 2}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of_pairs();
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *pair[2];

        send_pair(b, pair);
        bed_pass(b, BED_WINDOW_MS);
        for (int k = 0; k < 2; k++)
            assert_ptr_equal(bed_asks(b, OP_REVOKE), pair[k]);
        for (int k = 0; k < 2; k++)
            bed_row(b, pair[k], cases[i].rows[k]);
        assert_int_equal(b->q.share->brake.n, cases[i].n);
        bed_end(b);
    }
}

/* The request of a quarantined group waits until all claims of the group are answered. */
static void test_a_quarantined_group_waits_for_its_claims(void **state)
{
    struct queue_rules r = rules_of_pairs();
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct delivery *pair[2];

    send_pair(b, pair);
    bed_answer_of(b, pair[0], (struct answer){.kind = ANSWER_DIED, .retry_after_ms = -1});
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(bed_asks(b, OP_RELEASE), pair[i]);
        assert_int_equal(pair[i]->claim->crashes, 1);
    }
    for (int i = 0; i < 2; i++)
        bed_row(b, pair[i], ROW_RELEASED);
    bed_application_is_up(&b->application, b->now);
    bed_pass(b, 1000); /* both are due */
    for (int i = 0; i < 100 && !(pair[0]->phase == PHASE_SENT && pair[1]->phase == PHASE_SENT); i++) {
        if (!bed_next(b))
            bed_pass(b, 100);
        else if (b->last.d->op == OP_LOOK)
            bed_row_of(b, b->last.d, (struct row){.answer = ROW_DUE, .crashes = 1, .unproven_ms = -1});
    }
    assert_int_equal(b->q.quarantine.n, 2);
    bed_row_of(b, pair[1],
               (struct row){.answer = ROW_CLAIMED, .attempt = 1, .crashes = 1, .unproven_ms = -1});
    bed_pass(b, 1000);
    bed_rest(b);
    bed_row_of(b, pair[0],
               (struct row){.answer = ROW_CLAIMED, .attempt = 1, .crashes = 1, .unproven_ms = -1});
    bed_does(b, ACTION_FORWARD);
    assert_int_equal(b->last.request->n_sent, 2);
    bed_end(b);
}

/* --- copies with another body --- */

/* Only a claim shows whether the leader's body is that of the row. Until then the copy waits. */
static void test_a_copy_with_another_body_differs_from_a_known_row(void **state)
{
    static const struct {
        enum operation op;
        enum wait_reason wait;
        bool after_failure, known;
    } cases[] = {{OP_CLAIM, WAIT_NONE, false, false},  {OP_CLAIM, WAIT_DUE, false, false},
                 {OP_CLAIM, WAIT_DUE, true, true},     {OP_CLAIM, WAIT_NONE, true, false},
                 {OP_CLAIM, WAIT_LOCKED, true, false}, {OP_CLAIM, WAIT_ON_HOLD, true, false},
                 {OP_LOOK, WAIT_HELD, true, false},    {OP_FORWARD, WAIT_NONE, false, true},
                 {OP_FAIL, WAIT_NONE, false, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = cases[i].after_failure || cases[i].op == OP_FAIL || cases[i].op == OP_FORWARD
                                 ? bed_sent(b, "m", 1)
                                 : bed_deliver(b, "m");
        struct arrival *a = bed_arrival(&b->q, "m");

        if (cases[i].after_failure || cases[i].op == OP_FAIL)
            bed_answer(b, d, 500);
        if (cases[i].after_failure) {
            bed_asks(b, OP_FAIL);
            bed_row(b, d, ROW_FAILED);
        }
        if (cases[i].wait != WAIT_NONE && !(cases[i].wait == WAIT_DUE && cases[i].after_failure)) {
            bed_pass(b, d->timer.slot ? d->timer.at_ms - b->now : 0);
            bed_asks(b, OP_CLAIM);
            bed_row_of(b, d,
                       (struct row){.answer = cases[i].wait == WAIT_LOCKED    ? ROW_LOCKED
                                              : cases[i].wait == WAIT_ON_HOLD ? ROW_ON_HOLD
                                              : cases[i].wait == WAIT_HELD    ? ROW_HELD
                                                                              : ROW_NOT_DUE,
                                    .wait_ms = 5000,
                                    .unproven_ms = -1});
        } else if (cases[i].op == OP_CLAIM && cases[i].wait == WAIT_NONE && cases[i].after_failure) {
            bed_pass(b, 1000);
            queue_time(&b->q, b->now);
        }
        assert_string_equal(operation_infos[d->op].name, operation_infos[cases[i].op].name);
        assert_int_equal(d->wait, cases[i].wait);
        a->fingerprint[0] = 1;
        queue_delivered(&b->q, b->now, a, NULL);
        struct delivery *copy = bed_newest(b);

        assert_ptr_not_equal(copy, d);
        if (cases[i].known) {
            bed_wants(copy, OP_DEAD_LETTER);
            assert_int_equal(delivery_dead_letter(copy)->reason, DEAD_BODY_MISMATCH);
            assert_int_equal(delivery_dead_letter(copy)->row, LETTER_ROWLESS);
        } else {
            assert_int_equal(copy->wait, WAIT_SURPLUS);
        }
        bed_end(b);
    }
}

/* --- late answers --- */

/* A row counts only for the operation that was sent, while it is in flight. */
static void test_a_row_for_another_operation_is_ignored(void **state)
{
    static const enum operation others[] = {OP_CLAIM, OP_LOOK, OP_COMPLETE, OP_FAIL, OP_RELEASE};
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");

    bed_row(b, d, ROW_COMPLETED); /* wanted, not sent */
    bed_wants(d, OP_CLAIM);
    bed_asks(b, OP_CLAIM);
    bed_row(b, d, ROW_CLAIMED);
    bed_does(b, ACTION_FORWARD);
    bed_row(b, d, ROW_COMPLETED); /* forwarding is not an operation of the database */
    assert_int_equal(d->phase, PHASE_SENT);
    bed_answer(b, d, 200);
    assert_ptr_equal(bed_asks(b, OP_CHECK), d);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        queue_row(&b->q, b->now, d->ref,
                  &(struct row){.op = others[i], .answer = ROW_COMPLETED, .unproven_ms = -1});
        assert_int_equal(d->op, OP_CHECK);
        assert_int_equal(d->phase, PHASE_SENT);
    }
    queue_row(&b->q, b->now, d->ref + 1, &(struct row){.op = OP_CHECK, .answer = ROW_COMPLETED});
    assert_int_equal(d->phase, PHASE_SENT);
    bed_row(b, d, ROW_COMPLETED);
    bed_wants(d, OP_ACK);
    bed_end(b);
}

/* Partitions with batches conclude from another message's success that a refused one may be at fault itself. */
static void test_each_2xx_answer_is_a_success_of_the_application(void **state)
{
    static const struct {
        enum answer_kind kind;
        int status;
        bool succeeds;
    } cases[] = {{ANSWER_STATUS, 200, true},  {ANSWER_STATUS, 299, true},  {ANSWER_STATUS, 199, false},
                 {ANSWER_STATUS, 300, false}, {ANSWER_STATUS, 500, false}, {ANSWER_DIED, 200, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(false);
        struct delivery *d = bed_sent(b, "m", 1);

        bed_answer_of(
            b, d, (struct answer){.kind = cases[i].kind, .status = cases[i].status, .retry_after_ms = -1});
        assert_int_equal(b->application.n_succeeded, cases[i].succeeds);
        bed_end(b);
    }
}

/* --- texts --- */

static void test_the_text_of_the_limit_names_why_no_copy_is_published(void **state)
{
    static const struct {
        int64_t count;
        const char *not_renewed, *no_renewal, *error; /* of the message, of the queue, of the latest try */
        const char *begin, *end;
    } cases[] = {
        {1, NULL, NULL, NULL, "delivered 1 time before; ", NULL},
        {2, NULL, NULL, NULL, "delivered 2 times before; ", NULL},
        {4, "refused", "forbidden", "nack", "delivered 4 times",
         "; not published to its queue again: refused"},
        {4, NULL, "forbidden", "nack", "delivered 4 times", "; not published to its queue again: forbidden"},
        {4, NULL, NULL, "nack", "delivered 4 times", "; not published to its queue again: nack"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(true);
        struct buf text = {0};

        r.delivery_limit = LIMIT;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = near_limit(b, OP_PUBLISH, WAIT_NONE);

        d->arrival->copy.delivery_count = cases[i].count;
        d->not_renewed = cases[i].not_renewed;
        b->q.returns.no_renewal = cases[i].no_renewal;
        error_text_set(d, cases[i].error, NULL);
        life_limit_words(&b->q, d, &text);
        assert_memory_equal(buf_text(&text), cases[i].begin, strlen(cases[i].begin));
        const char *why = strstr(buf_text(&text), "; not published");

        assert_int_equal(why != NULL, cases[i].end != NULL);
        if (why)
            assert_string_equal(why, cases[i].end);
        buf_deinit(&text);
        bed_end(b);
    }
}

static void test_the_text_of_a_mismatch_names_both_fingerprints(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_sent(b, "m", 1), *copy;
    struct arrival *a = bed_arrival(&b->q, "m");

    d->arrival->fingerprint[15] = 0xab;
    a->fingerprint[0] = 0x12;
    bed_pass(b, 345);
    queue_delivered(&b->q, b->now, a, NULL);
    copy = bed_newest(b);
    assert_string_equal(copy->outcome.error,
                        "{\"fingerprint\" : \"12000000000000000000000000000000\", "
                        "\"first_fingerprint\" : \"000000000000000000000000000000ab\", "
                        "\"first_status\" : \"processing\", \"first_came_ms_ago\" : 345}");
    bed_next(b);
    assert_string_equal(bed_told(b, EVENT_BODY_MISMATCH)->reason, "in flight here");
    bed_end(b);
}

/* The application's own text goes to the row, and not to the log. */
static void test_the_text_of_an_answer_is_kept_beside_its_brief(void **state)
{
    static const struct {
        enum answer_kind kind;
        int status;
        const char *error, *said;
        enum request_end end;
    } cases[] = {{ANSWER_STATUS, 500, "answered 500: x", "answered 500: x", REQUEST_ANSWERED},
                 {ANSWER_STATUS, 500, "answered 500", NULL, REQUEST_ANSWERED},
                 {ANSWER_STATUS, 500, NULL, NULL, REQUEST_ANSWERED},
                 {ANSWER_STATUS, 504, NULL, NULL, REQUEST_UNANSWERED},
                 {ANSWER_TIMEOUT, 0, NULL, NULL, REQUEST_UNANSWERED},
                 {ANSWER_TIMEOUT, 500, NULL, NULL, REQUEST_UNANSWERED}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = bed_sent(b, "m", 1);

        queue_answered(&b->q, b->now, d->request->ref,
                       &(struct answer){.kind = cases[i].kind,
                                        .status = cases[i].status,
                                        .brief = "answered 500",
                                        .error = cases[i].error,
                                        .batch = -1,
                                        .retry_after_ms = -1});
        assert_string_equal(d->outcome.error, "answered 500");
        if (cases[i].said)
            assert_string_equal(d->outcome.said, cases[i].said);
        else
            assert_null(d->outcome.said);
        assert_int_equal(d->outcome.http_status, cases[i].status);
        assert_int_equal(d->outcome.request, cases[i].end);
        bed_end(b);
    }
}

static void test_an_answer_above_its_bound_is_not_stored(void **state)
{
    static const struct {
        int status;
        const char *body;
        size_t stored;
    } cases[] = {{200, "12345", 5}, {200, "123456", 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(false);

        r.store_response_bytes = 5;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = bed_sent(b, "m", 1);

        bed_answer_of(b, d,
                      (struct answer){.kind = ANSWER_STATUS,
                                      .status = cases[i].status,
                                      .retry_after_ms = -1,
                                      .body = slice_of(cases[i].body)});
        bed_wants(d, OP_COMPLETE);
        assert_int_equal(d->outcome.complete.result_len, cases[i].stored);
        assert_memory_equal(d->outcome.complete.result ? d->outcome.complete.result : "", cases[i].body,
                            cases[i].stored);
        bed_end(b);
    }
}

/* --- the last attempt --- */

/* The next claim finds the attempts used up, so it does not wait. */
static void test_a_failed_last_attempt_does_not_wait(void **state)
{
    static const struct {
        int attempt;
        enum row_answer answer;
        bool waits;
        int n_retried, n_given_back;
    } cases[] = {{7, ROW_FAILED, true, 1, 0}, {8, ROW_FAILED, false, 0, 0}, {8, ROW_RELEASED, true, 0, 1}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = bed_sent(b, "m", cases[i].attempt);

        bed_pass(b, BED_WINDOW_MS);
        bed_asks(b, OP_REVOKE);
        int64_t delay_ms = delivery_delay_ms(d);

        bed_row(b, d, cases[i].answer);
        bed_waits(b, d, OP_CLAIM, WAIT_DUE, cases[i].waits ? delay_ms : 0);
        assert_int_equal(b->q.counts.retried.total, cases[i].n_retried);
        assert_int_equal(b->q.counts.given_back.total, cases[i].n_given_back);
        while (bed_next(b))
            ;
        assert_int_equal(bed_n_told(b, EVENT_RETRY), cases[i].n_retried);
        assert_int_equal(bed_n_told(b, EVENT_TOKEN_EXPIRED), 1);
        bed_end(b);
    }
}

/* The limiter counts a bad answer per request, not per message. */
static void test_an_unanswered_request_counts_once_for_the_limiter(void **state)
{
    struct queue_rules r = rules_of_pairs();
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct limiter *l = &b->q.share->limiter;
    struct delivery *pair[2];

    l->most = l->threshold = 4;
    l->limit = 4;
    send_pair(b, pair);
    double budget = l->budget;

    bed_pass(b, BED_WINDOW_MS);
    for (int k = 0; k < 2; k++)
        bed_asks(b, OP_REVOKE);
    for (int k = 0; k < 2; k++) {
        bed_row(b, pair[k], ROW_RELEASED);
        assert_true(l->budget > budget - 1.1 && l->budget < budget - 0.9);
        assert_int_equal(pair[k]->claim->next_cap, 1); /* a hanging pair is sent as two requests */
    }
    bed_end(b);
}

/* --- the circuit breaker --- */

/* Everything fails, so a message that was to be dead-lettered is released, unless an operator gave it up. */
static void test_the_breaker_spares_messages_that_were_to_be_dead_lettered(void **state)
{
    for (int given_up = 0; given_up < 2; given_up++) {
        struct queue_rules r = rules_of(true);

        r.brake = 5;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = bed_sent(b, "m", 1);

        b->can = ~(1u << OP_DEAD_LETTER);
        bed_answer(b, d, 400);
        if (given_up)
            d->outcome.dead_letter.charged = false;
        fail_others(b, 4);
        assert_true(b->q.share->brake.on);
        bed_wants(d, given_up ? OP_DEAD_LETTER : OP_RELEASE);
        if (!given_up) {
            assert_int_equal(d->claim->n_given_back, 1);
            assert_int_equal(delivery_release(d)->changes.crashes, 0);
            assert_backoff(d, 1000);
        }
        assert_true(b->q.pauses[PAUSE_EVERYTHING_FAILS].since_ms);
        assert_false(b->q.pauses[PAUSE_NO_MESSAGE_IDS].since_ms);
        brake_succeeded(&b->q.share->brake);
        bed_next(b);
        assert_false(b->q.pauses[PAUSE_EVERYTHING_FAILS].since_ms);
        bed_end(b);
    }
}

/* A message on hold takes no attempt of the breaker from others, until an operator gives it up. */
static void test_a_message_on_hold_uses_no_attempt_of_the_breaker(void **state)
{
    for (int k = 0; k < 3; k++) { /* breaker off; on; on, and given up */
        struct bed *b = bed_of(true);
        struct delivery *d = bed_deliver(b, "m");

        bed_asks(b, OP_CLAIM);
        bed_row(b, d, ROW_ON_HOLD);
        if (k)
            brake_force(&b->q.own.brake, b->now, "");
        d->given_up = k == 2;
        bed_pass(b, 30000);
        b->can = 0;
        bed_rest(b);
        assert_int_equal(d->op, OP_CLAIM);
        assert_int_equal(d->wait, k == 1 ? WAIT_ON_HOLD : WAIT_NONE);
        if (k == 1)
            bed_waits(b, d, OP_CLAIM, WAIT_ON_HOLD, 30000);
        bed_end(b);
    }
}

/* A copy that cannot be published for a while is replaced by a dead letter. A drain keeps trying. */
static void test_a_message_whose_copy_cannot_be_published_becomes_a_dead_letter(void **state)
{
    static const struct {
        enum operation op;
        bool failed, drains, is_down;
        int64_t passed_ms;
        enum step_kind kind;
        enum operation then;
    } cases[] = {{OP_CLAIM, false, false, false, 0, STEP_WANT, OP_PUBLISH},
                 {OP_CLAIM, false, false, true, 0, STEP_WANT, OP_PUBLISH},
                 {OP_PUBLISH, false, false, false, 29999, STEP_STAY, OP_NONE},
                 {OP_PUBLISH, false, false, false, 30000, STEP_WANT, OP_DEAD_LETTER},
                 {OP_PUBLISH, false, true, false, 30000, STEP_STAY, OP_NONE},
                 {OP_PUBLISH, false, false, true, 30000, STEP_STAY, OP_NONE},
                 {OP_PUBLISH, true, false, false, 0, STEP_WANT, OP_DEAD_LETTER},
                 {OP_PUBLISH, true, true, false, 0, STEP_STAY, OP_NONE},
                 {OP_RENEW, true, false, false, 0, STEP_WANT, OP_DEAD_LETTER},
                 {OP_RENEW, true, false, true, 0, STEP_STAY, OP_NONE}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(true);

        r.delivery_limit = LIMIT;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = near_limit(b, cases[i].op, WAIT_NONE);

        b->q.returns.no_renewal = NULL;
        if (cases[i].op == OP_RENEW)
            bed_row_of(b, d, (struct row){.answer = ROW_TOO_OFTEN, .unproven_ms = -1});
        else if (cases[i].failed)
            queue_published(&b->q, b->now, bed_does(b, ACTION_PUBLISH)->ref, PUBLICATION_FAILED, "nack");
        bed_pass(b, cases[i].passed_ms);
        b->database.linked = !cases[i].is_down;
        b->q.drain = cases[i].drains ? DRAIN_FINISHING : DRAIN_NO;
        struct step s = life_leave(&b->q, b->now, d);

        if (s.kind != cases[i].kind || (s.kind == STEP_WANT && s.op != cases[i].then))
            fail_msg("case %d", (int)i);
        bed_end(b);
    }
}

/* --- released claims --- */

/* A delivery is requeued if its claim was released for that, and at the end of a drain. */
static void test_a_released_delivery_waits_or_is_requeued(void **state)
{
    static const struct {
        bool then_requeue;
        enum drain_state drain;
        enum row_answer answer;
        enum operation op;
    } cases[] = {
        {false, DRAIN_NO, ROW_RELEASED, OP_CLAIM},          {true, DRAIN_NO, ROW_RELEASED, OP_REQUEUE},
        {false, DRAIN_FINISHING, ROW_RELEASED, OP_CLAIM},   {false, DRAIN_NO, ROW_LOST, OP_CLAIM},
        {false, DRAIN_RELEASING, ROW_RELEASED, OP_REQUEUE}, {true, DRAIN_NO, ROW_LOST, OP_REQUEUE},
        {true, DRAIN_NO, ROW_VANISHED, OP_REQUEUE},         {true, DRAIN_NO, ROW_COMPLETED, OP_ACK},
        {true, DRAIN_NO, ROW_LOCKED, OP_RELEASE},           {true, DRAIN_NO, ROW_UNKNOWN, OP_RELEASE}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = ask(b, OP_RELEASE);

        d->outcome.release.then_requeue = cases[i].then_requeue;
        b->q.drain = cases[i].drain;
        bed_row(b, d, cases[i].answer);
        assert_string_equal(operation_infos[d->op].name, operation_infos[cases[i].op].name);
        if (cases[i].op == OP_REQUEUE || cases[i].op == OP_CLAIM)
            assert_false(delivery_has_token(d));
        bed_end(b);
    }
}

/* --- after the loss of the channel --- */

/* The broker redelivers the message, so a delivery that only waits ends. A valid claim is released first. */
static void test_a_row_after_the_loss_of_the_channel_ends_the_delivery(void **state)
{
    static const struct {
        enum operation op; /* in flight at the database */
        enum row_answer answer;
        enum operation then; /* NONE: the delivery has ended */
    } cases[] = {
        {OP_CLAIM, ROW_NOT_DUE, OP_NONE},
        {OP_CLAIM, ROW_HELD, OP_NONE},
        {OP_CLAIM, ROW_COMPLETED, OP_NONE},
        {OP_CLAIM, ROW_DEAD, OP_NONE},
        {OP_CLAIM, ROW_UNKNOWN, OP_RELEASE},
        {OP_CLAIM, ROW_LOCKED, OP_RELEASE},
        {OP_FAIL, ROW_FAILED, OP_NONE},
        {OP_FAIL, ROW_COMPLETED, OP_NONE},
        {OP_FAIL, ROW_UNKNOWN, OP_FAIL},
        {OP_RELEASE, ROW_RELEASED, OP_NONE},
        {OP_RELEASE, ROW_UNKNOWN, OP_RELEASE},
        {OP_CHECK, ROW_COMPLETED, OP_NONE},
        {OP_CHECK, ROW_CLAIMED, OP_CHECK},
        {OP_DEAD_LETTER, ROW_DEAD_LETTERED, OP_NONE},
        {OP_DEAD_LETTER, ROW_UNKNOWN, OP_DEAD_LETTER},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d;

        if (cases[i].op == OP_CLAIM) {
            bed_deliver(b, "m");
            d = bed_asks(b, OP_CLAIM);
        } else {
            d = ask(b, cases[i].op);
        }
        queue_channel_lost(&b->q, b->now, 0, "gone");
        assert_int_equal(d->phase, PHASE_SENT);
        bed_row_of(b, d,
                   (struct row){.answer = cases[i].answer, .wait_ms = 500, .attempt = 1, .unproven_ms = -1});
        if (delivery_has_ended(d) != (cases[i].then == OP_NONE))
            fail_msg("case %d", (int)i);
        if (cases[i].then != OP_NONE)
            assert_string_equal(operation_infos[d->op].name, operation_infos[cases[i].then].name);
        if (cases[i].op == OP_CLAIM && cases[i].then == OP_RELEASE) {
            assert_string_equal(d->outcome.error, "released before it was sent");
            assert_true(delivery_release(d)->then_requeue);
            assert_int_equal(delivery_delay_ms(d), 0);
        }
        bed_end(b);
    }
}

/* --- successes --- */

/* While the breaker is on, only a request on probation that was sent since then shows a recovery. */
static void test_a_success_resets_the_breaker_if_it_shows_a_recovery(void **state)
{
    static const struct {
        bool on, probation, before, is_bad;
        bool ends;
    } cases[] = {{false, false, false, false, true}, {false, false, false, true, false},
                 {true, true, false, false, true},   {true, false, false, false, false},
                 {true, true, true, false, false},   {true, true, false, true, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bed *b = bed_of(false);
        struct brake *brake = &b->q.own.brake;
        struct delivery *d = bed_sent(b, "m", 1);

        if (cases[i].on)
            brake_force(brake, b->now, "");
        else
            brake_failed(brake, b->now, &(struct brake_failure){.id = 5, .text = ""});
        d->request->probation = cases[i].probation;
        d->request->sent_ms = b->now - cases[i].before;
        d->request->is_bad = cases[i].is_bad;
        bed_answer(b, d, 200);
        bed_asks(b, OP_COMPLETE);
        bed_row(b, d, ROW_COMPLETED);
        if ((brake->on || brake->n) == cases[i].ends)
            fail_msg("case %d", (int)i);
        bed_end(b);
    }
}

/* Many waiting messages would keep others from arriving, so those that circle wait for a second at most. */
static void test_a_dead_message_circles_faster_while_many_messages_wait(void **state)
{
    static const struct {
        int max_parked;
        int64_t max_hold_ms, bound_ms;
    } cases[] = {{5, 1500000, 8000}, {4, 1500000, 8000}, {3, 1500000, 1000},
                 {2, 1500000, 1000}, {9, 3000, 3000},    {2, 500, 500}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t most = 0;

        for (unsigned random = 0; random < 20; random++) {
            struct queue_rules r = rules_of(true);

            r.max_hold_ms = cases[i].max_hold_ms;
            r.max_parked = cases[i].max_parked;
            struct bed *b = bed_new(&r, KIND_QUORUM);
            struct delivery *d = bed_deliver(b, "parked");

            b->q.random = random;
            bed_asks(b, OP_CLAIM);
            bed_row_of(b, d, (struct row){.answer = ROW_NOT_DUE, .wait_ms = 200000, .unproven_ms = -1});
            d = deliver_circling(b, "m", 6);
            bed_asks(b, OP_CLAIM);
            bed_row(b, d, ROW_DEAD);
            assert_int_equal(d->wait, WAIT_CIRCLING);
            most = d->timer.at_ms - b->now > most ? d->timer.at_ms - b->now : most;
            bed_end(b);
        }
        assert_int_in_range(most, cases[i].bound_ms / 2, cases[i].bound_ms);
    }
}

/* --- refused values --- */

static struct row row_invalid(struct slice detail)
{
    struct row r = {.answer = ROW_INVALID, .detail = detail, .unproven_ms = -1};

    snprintf(r.sqlstate, sizeof(r.sqlstate), "22P05");
    return r;
}

/* The database refuses the stored answer or the error text, not the end of the attempt. */
static void test_a_refused_text_is_dropped(void **state)
{
    static const struct {
        enum operation op;
        int status;
        const char *error;
    } cases[] = {{OP_COMPLETE, 200, "answered 200"},
                 {OP_FAIL, 500, "failed, with an error text that the database refuses"},
                 {OP_RELEASE, 409, "released, with an error text that the database refuses"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(false);

        r.store_response_bytes = 100;
        struct bed *b = bed_new(&r, KIND_QUORUM);
        struct delivery *d = bed_sent(b, "m", 1);

        bed_answer_of(b, d,
                      (struct answer){.kind = ANSWER_STATUS,
                                      .status = cases[i].status,
                                      .retry_after_ms = -1,
                                      .body = slice_of("bad")});
        bed_asks(b, cases[i].op);
        if (cases[i].op == OP_COMPLETE)
            assert_int_equal(d->outcome.complete.result_len, 3);
        bed_row_of(b, d, row_invalid(SLICE("no such character")));
        if (cases[i].op == OP_COMPLETE) {
            assert_int_equal(d->outcome.complete.result_len, 0);
            assert_null(d->outcome.complete.result);
        }
        assert_string_equal(d->outcome.error, cases[i].error);
        assert_int_equal(d->wait, WAIT_AGAIN);
        bed_rest(b);
        const struct bed_line *l = bed_told(b, EVENT_DATABASE_ERROR);

        assert_string_equal(l->text, "no such character");
        assert_string_equal(l->code, "22P05");
        assert_string_equal(l->reason, operation_infos[cases[i].op].name);
        bed_pass(b, d->timer.at_ms - b->now);
        assert_ptr_equal(bed_asks(b, cases[i].op), d);
        bed_end(b);
    }
}

static void test_the_text_of_a_refusal_is_cut(void **state)
{
    static const size_t lens[] = {1, 179, 180, 181, 400, 401};
    char detail[500];

    memset(detail, 'x', sizeof(detail));
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        struct bed *b = bed_of(true);
        struct delivery *d = bed_deliver(b, "m");
        struct row r = row_invalid((struct slice){detail, lens[i]});

        bed_asks(b, OP_CLAIM);
        r.answer = ROW_RETRY;
        snprintf(r.sqlstate, sizeof(r.sqlstate), "53100"); /* disk full: the whole database refuses */
        bed_row_of(b, d, r);
        bed_rest(b);
        assert_int_equal(strlen(bed_told(b, EVENT_DATABASE_ERROR)->text), lens[i] < 400 ? lens[i] : 400);
        assert_int_equal(strspn(b->database.reason, "x"), lens[i] < 180 ? lens[i] : 180);
        assert_string_equal(b->database.reason + strspn(b->database.reason, "x"), " (53100)");
        bed_end(b);
    }
}

static void test_a_refusal_without_a_text_gets_a_default_text(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");
    struct row r = row_invalid((struct slice){0});

    bed_asks(b, OP_CLAIM);
    r.answer = ROW_RETRY;
    snprintf(r.sqlstate, sizeof(r.sqlstate), "53100");
    bed_row_of(b, d, r);
    bed_rest(b);
    assert_string_equal(b->database.reason, "a statement was refused (53100)");
    bed_end(b);
}

/* --- copies, bodies and dead letters --- */

/* The number of copies in an ordered queue has no bound. */
static void test_all_copies_are_acked_with_their_leader(void **state)
{
    enum { COPIES = 40 };
    struct queue_rules r = rules_of(false);

    r.ordered = true;
    r.delivery_limit = LIMIT_NONE;
    struct bed *b = bed_new(&r, KIND_QUORUM);
    struct delivery *d = deliver_keyed(b, "m", 1), *copies[COPIES], *next;

    bed_asks(b, OP_CLAIM);
    bed_row(b, d, ROW_CLAIMED);
    bed_does(b, ACTION_FORWARD);
    for (int i = 0; i < COPIES; i++)
        copies[i] = deliver_keyed(b, "m", 1);
    next = deliver_keyed(b, "n", 1);
    bed_answer(b, d, 200);
    bed_asks(b, OP_COMPLETE);
    bed_row(b, d, ROW_COMPLETED);
    for (int i = 0; i < COPIES; i++)
        bed_wants(copies[i], OP_ACK);
    bed_wants(next, OP_CLAIM);
    assert_int_equal(b->q.counts.duplicates.total, COPIES);
    bed_end(b);
}

/* A message whose body did not fit waits while the queue pauses, and is requeued once the body fits. */
static void test_a_message_is_requeued_once_its_body_fits(void **state)
{
    static const struct {
        size_t held, n_bytes;
        bool is_paused, fits;
    } cases[] = {
        {400, 600, false, true}, {400, 601, false, false}, {400, 600, true, false}, {0, 5000, false, true}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct queue_rules r = rules_of(true);

        r.max_bytes = 1000;
        struct bed *b = bed_new(&r, KIND_CLASSIC);
        struct arrival *a = bed_arrival(&b->q, "m");

        b->can = 1u << OP_REQUEUE | 1u << OP_ACK;
        a->copy.n_bytes = cases[i].held;
        queue_delivered(&b->q, b->now, a, NULL);
        a = bed_skipped(&b->q, "large", 1000000);
        a->copy.body_len = a->copy.n_bytes = cases[i].n_bytes;
        queue_delivered(&b->q, b->now, a, NULL);
        struct delivery *d = bed_newest(b);

        b->q.consumer.largest.seen = cases[i].is_paused ? 700 : 0;
        bed_waits(b, d, OP_REQUEUE, WAIT_ROOM, 250);
        bed_rest(b);
        bed_pass(b, 250);
        if (cases[i].fits)
            bed_does(b, ACTION_REQUEUE);
        else
            bed_rest(b);
        bed_end(b);
    }
}

/* The next claim decides again, so the message may be renewed near its limit. */
static void test_a_dead_letter_that_was_not_written_is_forgotten(void **state)
{
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");

    bed_asks(b, OP_CLAIM);
    bed_row_of(b, d, (struct row){.answer = ROW_MISMATCH, .unproven_ms = -1});
    assert_true(delivery_is_rowless(d));
    bed_pass(b, 1000);
    assert_ptr_equal(bed_asks(b, OP_DEAD_LETTER), d);
    bed_row(b, d, ROW_LOST);
    bed_waits(b, d, OP_CLAIM, WAIT_AGAIN, 20);
    assert_false(delivery_is_rowless(d));
    assert_true(held_can_renew(&b->q, d));
    bed_end(b);
}

/* The log gets the last error without the application's text, and the row gets it with that text. */
static void test_the_last_error_is_kept_up_to_1024_bytes(void **state)
{
    static const char why[] = "too many attempts, and this is why there will not be another one";
    struct bed *b = bed_of(true);
    struct delivery *d = bed_deliver(b, "m");
    char last[1100];
    static const size_t lens[] = {1023, 1024, 1025};

    memset(last, 'x', sizeof(last));
    memcpy(last, "answered 500:", 13);
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        error_text_set_last(d, why, (struct slice){last, lens[i]});
        assert_int_equal(strlen(d->outcome.error), sizeof(why) - 1 + strlen("; last: answered 500"));
        assert_int_equal(strlen(d->outcome.said),
                         sizeof(why) - 1 + strlen("; last: ") + (lens[i] < 1024 ? lens[i] : 1024));
    }
    bed_end(b);
}

static void test_a_large_letter_asks_for_its_connection_once(void **state)
{
    struct bed *b = bed_of(true);

    assert_false(queue_take_large_letter(&b->q));
    b->q.asks.large_letter = true;
    assert_true(queue_take_large_letter(&b->q));
    assert_false(queue_take_large_letter(&b->q));
    bed_end(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_answer_has_its_step),
        cmocka_unit_test(test_a_failure_waits_longer_each_time),
        cmocka_unit_test(test_a_failure_without_an_end_waits_for_a_window),
        cmocka_unit_test(test_not_now_waits_as_asked),
        cmocka_unit_test(test_not_now_at_once_waits_longer_up_to_a_second),
        cmocka_unit_test(test_not_now_again_and_again_waits_longer),
        cmocka_unit_test(test_not_now_after_a_retry_of_a_held_message_waits_briefly),
        cmocka_unit_test(test_what_was_not_sent_waits_for_the_probe_alone),
        cmocka_unit_test(test_a_permanent_answer_is_a_dead_letter),
        cmocka_unit_test(test_a_commit_has_a_grace_period),
        cmocka_unit_test(test_a_late_commit_is_a_completion),
        cmocka_unit_test(test_an_answer_before_its_commit_is_logged_rarely),
        cmocka_unit_test(test_accepted_is_watched_until_its_window_ends),
        cmocka_unit_test(test_an_extension_of_an_accepted_message_is_seen),
        cmocka_unit_test(test_the_end_of_a_window_revokes_the_token),
        cmocka_unit_test(test_an_answer_during_the_question_is_kept),
        cmocka_unit_test(test_a_kept_answer_is_void_when_the_token_is),
        cmocka_unit_test(test_an_empty_answer_stores_nothing),
        cmocka_unit_test(test_each_answer_to_a_claim_has_its_step),
        cmocka_unit_test(test_a_claim_tells_the_row_to_the_delivery),
        cmocka_unit_test(test_a_parked_message_is_logged_with_its_reason),
        cmocka_unit_test(test_the_text_of_a_parked_message_is_cut_at_200_bytes),
        cmocka_unit_test(test_the_rows_error_is_kept),
        cmocka_unit_test(test_a_message_near_its_limit_becomes_a_dead_letter_with_the_reason),
        cmocka_unit_test(test_the_share_of_duplicates_is_averaged),
        cmocka_unit_test(test_max_age_is_applied_to_a_claim),
        cmocka_unit_test(test_attempts_that_are_used_up_are_a_dead_letter),
        cmocka_unit_test(test_each_answer_to_a_look_has_its_step),
        cmocka_unit_test(test_each_answer_to_a_write_has_its_step),
        cmocka_unit_test(test_a_completed_row_that_was_never_claimed_is_claimed),
        cmocka_unit_test(test_a_locked_row_is_read_at_growing_intervals),
        cmocka_unit_test(test_a_refused_item_is_tried_ever_more_rarely),
        cmocka_unit_test(test_a_dead_message_that_circles_waits_longer_each_round),
        cmocka_unit_test(test_a_dead_message_that_circles_waits_near_the_delivery_limit_too),
        cmocka_unit_test(test_a_message_that_never_circled_is_rejected_at_once),
        cmocka_unit_test(test_a_circling_death_waits_for_the_breaker),
        cmocka_unit_test(test_a_message_without_attempts_waits_for_the_breaker),
        cmocka_unit_test(test_a_message_without_attempts_dies_when_only_its_key_waits),
        cmocka_unit_test(test_a_message_without_attempts_left_waits_while_another_can_be_tried),
        cmocka_unit_test(test_a_claimed_row_with_crashes_is_sent_alone_or_released),
        cmocka_unit_test(test_a_mismatch_becomes_a_dead_letter_or_a_duplicate),
        cmocka_unit_test(test_a_completed_row_contradicts_a_failure),
        cmocka_unit_test(test_a_completed_row_does_not_contradict_the_end_of_its_window),
        cmocka_unit_test(test_a_later_copy_is_a_duplicate),
        cmocka_unit_test(test_the_first_crash_beside_other_requests_is_logged),
        cmocka_unit_test(test_a_crash_during_the_wait_for_a_commit_is_counted_and_not_charged),
        cmocka_unit_test(test_a_message_that_is_given_up_keeps_its_last_error),
        cmocka_unit_test(test_a_later_attempt_does_not_look_for_an_earlier_dead_letter),
        cmocka_unit_test(test_a_message_stored_near_its_limit_has_that_reason),
        cmocka_unit_test(test_a_message_leaves_near_its_limit_if_it_can_be_stored),
        cmocka_unit_test(test_a_kept_answer_is_freed_with_its_queue),
        cmocka_unit_test(test_failures_of_one_request_count_for_the_breaker),
        cmocka_unit_test(test_a_quarantined_group_waits_for_its_claims),
        cmocka_unit_test(test_a_copy_with_another_body_differs_from_a_known_row),
        cmocka_unit_test(test_a_row_for_another_operation_is_ignored),
        cmocka_unit_test(test_each_2xx_answer_is_a_success_of_the_application),
        cmocka_unit_test(test_the_text_of_the_limit_names_why_no_copy_is_published),
        cmocka_unit_test(test_the_text_of_a_mismatch_names_both_fingerprints),
        cmocka_unit_test(test_the_text_of_an_answer_is_kept_beside_its_brief),
        cmocka_unit_test(test_an_answer_above_its_bound_is_not_stored),
        cmocka_unit_test(test_a_failed_last_attempt_does_not_wait),
        cmocka_unit_test(test_an_unanswered_request_counts_once_for_the_limiter),
        cmocka_unit_test(test_the_breaker_spares_messages_that_were_to_be_dead_lettered),
        cmocka_unit_test(test_a_message_on_hold_uses_no_attempt_of_the_breaker),
        cmocka_unit_test(test_an_unproven_crash_is_charged_at_growing_intervals),
        cmocka_unit_test(test_failed_publishes_do_not_lengthen_the_wait_for_the_row),
        cmocka_unit_test(test_a_message_whose_copy_cannot_be_published_becomes_a_dead_letter),
        cmocka_unit_test(test_a_released_delivery_waits_or_is_requeued),
        cmocka_unit_test(test_a_row_after_the_loss_of_the_channel_ends_the_delivery),
        cmocka_unit_test(test_a_success_resets_the_breaker_if_it_shows_a_recovery),
        cmocka_unit_test(test_a_dead_message_circles_faster_while_many_messages_wait),
        cmocka_unit_test(test_a_refused_text_is_dropped),
        cmocka_unit_test(test_the_text_of_a_refusal_is_cut),
        cmocka_unit_test(test_a_refusal_without_a_text_gets_a_default_text),
        cmocka_unit_test(test_all_copies_are_acked_with_their_leader),
        cmocka_unit_test(test_a_message_is_requeued_once_its_body_fits),
        cmocka_unit_test(test_a_dead_letter_that_was_not_written_is_forgotten),
        cmocka_unit_test(test_the_last_error_is_kept_up_to_1024_bytes),
        cmocka_unit_test(test_a_large_letter_asks_for_its_connection_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
