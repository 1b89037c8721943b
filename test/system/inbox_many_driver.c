/* Drives the inbox adapter with several queues on one connection against a real PostgreSQL: batches over
 * queues, ended instances, presence, operator commands, registration. The environment is that of
 * inbox_driver.c. */
#include "inbox_bed.h"

#include "onceward/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two queues whose rows the sidecar completes, and between their names a `transaction` queue, which refuses
 * none. */
static void connect_three(struct bed *b)
{
    b->n_queues = 3;
    b->queues[0].consumer = "ä-response";
    b->queues[1].consumer = "m-transaction";
    b->queues[2].consumer = "a-response";
    b->queues[1].transaction = true;
    b->queues[2].max_attempts = 1;
    b->queues[2].token_window_ms = 10000;
    bed_connect(b);
    for (size_t k = 0; k < 3; k++)
        assert_int_equal(inbox_registration(b->inbox, k, NULL), INBOX_REGISTERED);
}

/* Sets an item of this queue and id. */
static void item_set(struct bed *b, size_t k, size_t queue, const char *id)
{
    snprintf(b->ids[k], sizeof(b->ids[k]), "%s", id);
    b->items[k].message_id = slice_of(b->ids[k]);
    b->items[k].queue = queue;
}

static const char *status_of(struct bed *b, size_t k)
{
    return bed_text(b, "SELECT status FROM onceward.inbox WHERE consumer = '%s' AND message_id = '%s'",
                    b->queues[b->items[k].queue].consumer, b->ids[k]);
}

/* Items of queues 0 and 2, unsorted; both have the same ids. */
static void items_of_two(struct bed *b, size_t n)
{
    items_make(b, n);
    for (size_t k = 0; k < n; k++) {
        char id[24];

        snprintf(id, sizeof(id), "id-%04zu", k / 2);
        item_set(b, k, k % 2 ? 0 : 2, id);
    }
}

static void all_are(struct bed *b, enum row_answer answer)
{
    const struct answers *a = bed_collect(b, b->n);

    for (size_t k = 0; k < a->n; k++) {
        if (a->rows[k].row.answer != answer)
            print_error("ref %zu: %s %s\n", (size_t)a->rows[k].ref, row_answer_name(a->rows[k].row.answer),
                        a->details[k]);
        assert_int_equal(a->rows[k].row.answer, answer);
        assert_int_equal(a->rows[k].queue, b->items[a->rows[k].ref].queue);
        assert_int_equal(a->rows[k].op, a->rows[0].op);
    }
}

static void test_a_batch_has_items_of_all_queues(void **state)
{
    struct bed *b = *state;

    connect_three(b);
    items_of_two(b, 200);
    bed_submit(b, INBOX_CLAIM);
    all_are(b, ROW_CLAIMED);
    for (size_t k = 0; k < 200; k += 13)
        assert_string_equal(
            bed_text(b,
                     "SELECT replace(token::text, '-', '') FROM onceward.inbox WHERE consumer = '%s' "
                     "AND message_id = '%s'",
                     b->queues[b->items[k].queue].consumer, b->ids[k]),
            token_hex(&b->items[k]));
    bed_submit(b, INBOX_LOOK);
    all_are(b, ROW_CLAIMED);
    for (size_t k = 0; k < 200; k++)
        assert_int_in_range(bed_row(b, k)->row.wait_ms, k % 2 ? 20000 : 1000, k % 2 ? 30000 : 10000);
    b->n = 100;
    bed_submit(b, INBOX_SETTLE);
    all_are(b, ROW_COMPLETED);
    assert_string_equal(status_of(b, 99), "completed");
    assert_string_equal(status_of(b, 100), "processing");
    b->n = 200;
    bed_submit(b, INBOX_LOOK);
    bed_collect(b, 200);
    for (size_t k = 0; k < 200; k++)
        assert_int_equal(bed_row(b, k)->row.answer, k < 100 ? ROW_COMPLETED : ROW_CLAIMED);
}

/* Each row follows its own queue's settings. */
static void test_queues_have_their_own_rules(void **state)
{
    struct bed *b = *state;

    connect_three(b);
    items_of_two(b, 20);
    bed_submit(b, INBOX_CLAIM);
    all_are(b, ROW_CLAIMED);
    bed_submit(b, INBOX_FAIL);
    all_are(b, ROW_FAILED);
    items_of_two(b, 20);
    bed_submit(b, INBOX_CLAIM);
    bed_collect(b, 20);
    for (size_t k = 0; k < 20; k++) {
        assert_int_equal(bed_row(b, k)->row.answer, k % 2 ? ROW_CLAIMED : ROW_EXHAUSTED);
        assert_int_equal(bed_row(b, k)->row.attempt, k % 2 ? 2 : 1);
    }
}

/* Both kinds of claims are in flight at the same time, and only one of them waits for its commit. */
static void test_claims_of_two_kinds(void **state)
{
    struct bed *b = *state;

    connect_three(b);
    bed_sql(b, "CREATE TABLE commits (consumer text, sync text)");
    bed_sql(b, "GRANT ALL ON commits TO PUBLIC");
    bed_sql(b, "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $f$ BEGIN INSERT "
               "INTO public.commits "
               "VALUES (NEW.consumer, current_setting('synchronous_commit')); RETURN NULL; END $f$");
    bed_sql(b, "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON onceward.inbox INITIALLY DEFERRED FOR EACH "
               "ROW EXECUTE FUNCTION note()");
    items_make(b, 2);
    item_set(b, 0, 0, "x");
    item_set(b, 1, 2, "x");
    bed_submit(b, INBOX_CLAIM);
    assert_true(inbox_is_free(b->inbox, INBOX_CLAIM_ASYNC));
    items_make(b, 1);
    item_set(b, 0, 1, "x");
    b->items[0].ref = 7;
    bed_submit(b, INBOX_CLAIM_ASYNC);
    assert_false(inbox_is_free(b->inbox, INBOX_CLAIM_ASYNC));
    const struct answers *a = bed_collect(b, 3);
    for (size_t k = 0; k < 3; k++) {
        assert_int_equal(a->rows[k].row.answer, ROW_CLAIMED);
        assert_int_equal(a->rows[k].op, INBOX_CLAIM);
    }
    assert_string_equal(
        bed_text(b, "SELECT string_agg(sync, ' ' ORDER BY consumer COLLATE \"C\") FROM commits"),
        "on off on");
}

/* The data of an item make the batch fail: the item is found among those of other queues, which are served. */
static void test_bad_data_of_one_queue(void **state)
{
    struct bed *b = *state;

    connect_three(b);
    items_of_two(b, 64);
    b->items[20].message_id = SLICE("id-\xFF");
    bed_submit(b, INBOX_CLAIM);
    const struct answers *a = bed_collect(b, 64);
    size_t n_claimed = 0;
    for (size_t k = 0; k < a->n; k++) {
        assert_int_equal(a->rows[k].queue, b->items[a->rows[k].ref].queue);
        n_claimed += a->rows[k].row.answer == ROW_CLAIMED;
    }
    assert_int_equal(n_claimed, 63);
    assert_int_equal(bed_row(b, 20)->row.answer, ROW_INVALID);
    assert_string_equal(bed_text(b, "SELECT count(DISTINCT consumer) || ' ' || count(*) FROM onceward.inbox"),
                        "2 63");
    assert_string_equal(bed_text(b, "SELECT count(*) FROM onceward.inbox WHERE token_expires_at < "
                                    "clock_timestamp() + interval '15 s' AND "
                                    "consumer <> 'a-response'"),
                        "0");
}

static void test_crashes_and_charges(void **state)
{
    struct bed *b = *state;

    connect_three(b);
    items_of_two(b, 4);
    bed_submit(b, INBOX_CLAIM);
    all_are(b, ROW_CLAIMED);
    for (size_t k = 0; k < 4; k++)
        assert_true(bed_row(b, k)->row.unproven_ms == -1 && bed_row(b, k)->row.crashes == 0);
    for (size_t k = 0; k < 4; k++)
        b->items[k].crashes = (int)k;
    b->items[2].unproven_step = 4;
    b->items[3].crashes = -1;
    b->items[3].unproven_step = 0;
    bed_submit(b, INBOX_RELEASE);
    all_are(b, ROW_RELEASED);
    items_of_two(b, 4);
    bed_submit(b, INBOX_CLAIM);
    all_are(b, ROW_CLAIMED);
    for (size_t k = 0; k < 4; k++) {
        const struct inbox_row *row = bed_row(b, k);

        assert_int_equal(row->row.attempt, 1);
        assert_int_equal(row->row.crashes, k == 3 ? 0 : k);
        assert_int_equal(row->row.unproven_step, k == 2 ? 4 : 0);
        assert_true(k >= 2 ? row->row.unproven_ms >= 0 && row->row.unproven_ms < 20000
                           : row->row.unproven_ms == -1);
    }
    /* Values that are not given stay. */
    b->items[1].give_back = true;
    bed_submit(b, INBOX_FAIL);
    bed_collect(b, 4);
    assert_int_equal(bed_row(b, 1)->row.answer, ROW_RELEASED);
    assert_int_equal(bed_row(b, 2)->row.answer, ROW_FAILED);
    bed_submit(b, INBOX_LOOK);
    bed_collect(b, 4);
    assert_int_equal(bed_row(b, 1)->row.crashes, 1);
    assert_int_equal(bed_row(b, 2)->row.crashes, 2);
    assert_int_equal(bed_row(b, 2)->row.unproven_step, 4);
}

/* --- ended instances --- */

static void claim_as(struct bed *b, const char *instance, int64_t number, size_t queue, const char *id)
{
    bed_disconnect(b);
    b->self = (struct inbox_self){.instance = instance, .number = number};
    bed_connect(b);
    items_make(b, 1);
    item_set(b, 0, queue, id);
    bed_submit(b, b->queues[queue].transaction ? INBOX_CLAIM_ASYNC : INBOX_CLAIM);
    all_are(b, ROW_CLAIMED);
}

static const struct inbox_row *ask_again(struct bed *b, enum inbox_op op, size_t queue, const char *id,
                                         bool alone)
{
    items_make(b, 1);
    item_set(b, 0, queue, id);
    b->items[0].alone = alone;
    bed_submit(b, op);
    bed_collect(b, 1);
    return bed_row(b, 0);
}

static void test_an_earlier_life_and_a_gone_instance(void **state)
{
    struct bed *b = *state;
    const char *const gone[] = {"nobody", "g\"o\\ne, {1}"};

    b->n_queues = 2;
    b->queues[0].transaction = true;
    claim_as(b, "me", 3, 0, "mine");
    claim_as(b, gone[1], 9, 0, "theirs");
    claim_as(b, "me", 3, 1, "response");
    claim_as(b, "me", 5, 0, "later");
    bed_disconnect(b);

    b->self = (struct inbox_self){.instance = "me", .number = 4, .own = true};
    bed_connect(b);
    const struct inbox_row *row = ask_again(b, INBOX_LOOK, 0, "theirs", false);
    assert_int_equal(row->row.answer, ROW_HELD);
    assert_false(row->namesake);
    assert_int_equal(ask_again(b, INBOX_LOOK, 0, "mine", false)->row.answer, ROW_DUE);
    assert_int_equal(ask_again(b, INBOX_CLAIM, 1, "response", false)->row.answer, ROW_HELD);
    row = ask_again(b, INBOX_CLAIM_ASYNC, 0, "later", false);
    assert_true(row->row.answer == ROW_HELD && row->namesake);
    assert_string_equal(bed_detail(b, 0), "me/5");

    inbox_set_gone(b->inbox, gone, 2);
    assert_int_equal(ask_again(b, INBOX_LOOK, 0, "theirs", false)->row.answer, ROW_DUE);
    inbox_set_gone(b->inbox, gone, 1);
    assert_int_equal(ask_again(b, INBOX_LOOK, 0, "theirs", false)->row.answer, ROW_HELD);
    inbox_set_gone(b->inbox, gone, 2);
    row = ask_again(b, INBOX_CLAIM_ASYNC, 0, "theirs", false);
    assert_true(row->row.answer == ROW_CLAIMED && row->row.taken_over && row->row.takeovers == 1 &&
                row->row.attempt == 1);
    row = ask_again(b, INBOX_CLAIM_ASYNC, 0, "mine", true);
    assert_true(row->row.answer == ROW_CLAIMED && row->row.taken_over && row->row.takeovers == 1);
    assert_string_equal(bed_text(b, "SELECT alone FROM onceward.inbox WHERE message_id = 'mine'"), "t");

    bed_sql(b, "UPDATE onceward.inbox SET token_expires_at = token_expires_at - interval '40 s'");
    row = ask_again(b, INBOX_CLAIM_ASYNC, 0, "mine", false);
    assert_true(row->row.answer == ROW_DUE && row->row.takeovers == 1 && row->row.attempt == 1);
    assert_int_equal(ask_again(b, INBOX_CLAIM_ASYNC, 0, "mine", true)->row.takeovers, 2);
}

static void test_a_message_that_ended_its_holders_is_buried(void **state)
{
    struct bed *b = *state;
    struct inbox_letter letter = {.reason = "attempts",
                                  .exhausted = true,
                                  .attempts = 11,
                                  .body = SLICE("body"),
                                  .content_header = SLICE("\0\x3C\xFF")};

    bed_connect(b);
    items_make(b, 1);
    bed_submit(b, INBOX_CLAIM);
    all_are(b, ROW_CLAIMED);
    bed_sql(b, "UPDATE onceward.inbox SET takeovers = 10, alone = true, token_expires_at = token_expires_at "
               "- interval '40 s'");
    const struct inbox_row *row = ask_again(b, INBOX_CLAIM, 0, "id-0000", true);
    assert_true(row->row.answer == ROW_EXHAUSTED && row->row.takeovers == 10 && row->row.attempt == 1);
    b->items[0].letter = &letter;
    bed_submit(b, INBOX_DEAD_LETTER);
    all_are(b, ROW_DEAD_LETTERED);
    assert_string_equal(
        bed_text(b, "SELECT encode(content_header, 'hex') || ' ' || attempts FROM onceward.dead_letter"),
        "003cff 11");
}

/* --- registration --- */

static void test_one_refused_queue_stops_no_other(void **state)
{
    struct bed *b = *state;
    struct fault f = {0};

    bed_connect(b);
    bed_disconnect(b);
    b->n_queues = 3;
    b->queues[0].queue = "another";
    bed_connect(b);
    assert_int_equal(inbox_registration(b->inbox, 0, &f), INBOX_REFUSED);
    assert_non_null(strstr(f.text, "belongs to queue \"driver\" in vhost \"/\", not to queue \"another\""));
    assert_int_equal(inbox_registration(b->inbox, 1, &f), INBOX_REGISTERED);
    assert_int_equal(inbox_registration(b->inbox, 2, &f), INBOX_REGISTERED);
    items_make(b, 2);
    item_set(b, 0, 1, "x");
    item_set(b, 1, 2, "x");
    bed_submit(b, INBOX_CLAIM);
    all_are(b, ROW_CLAIMED);

    /* Asked again, the answer stays until the record has changed. */
    inbox_ask_registration(b->inbox, false);
    bed_submit(b, INBOX_LOOK);
    all_are(b, ROW_CLAIMED);
    assert_int_equal(inbox_registration(b->inbox, 0, NULL), INBOX_REFUSED);
    bed_sql(b, "UPDATE onceward.consumer SET queue = 'another' WHERE consumer = 'driver'");
    inbox_ask_registration(b->inbox, false);
    assert_int_equal(inbox_registration(b->inbox, 0, NULL), INBOX_REFUSED);
    bed_submit(b, INBOX_LOOK);
    all_are(b, ROW_CLAIMED);
    assert_int_equal(inbox_registration(b->inbox, 0, NULL), INBOX_REGISTERED);
    inbox_ask_registration(b->inbox, false); /* no question is left */
    assert_int_equal(inbox_waiting_ms(b->inbox), 0);
}

/* Another session has locked the record of one of them. */
static void test_a_record_that_is_being_changed(void **state)
{
    struct bed *b = *state;
    struct fault f = {0};

    bed_connect(b);
    bed_disconnect(b);
    b->n_queues = 2;
    b->queues[0].queue = "another";
    b->queues[0].takes_over = "driver";
    bed_sql(b, "BEGIN");
    bed_sql(b, "SELECT FROM onceward.consumer WHERE consumer = 'driver' FOR UPDATE");
    bed_connect(b);
    assert_int_equal(inbox_registration(b->inbox, 0, &f), INBOX_BUSY);
    assert_true(fault_is_set(&f));
    assert_int_equal(inbox_registration(b->inbox, 1, NULL), INBOX_REGISTERED);
    bed_sql(b, "ROLLBACK");
    inbox_ask_registration(b->inbox, false);
    for (int64_t end = clock_ms() + 5000; inbox_registration(b->inbox, 0, NULL);) {
        assert_true(clock_ms() < end);
        assert_int_equal(bed_wait(b), 0);
    }
}

/* --- figures, presence, operator commands --- */

static void test_figures_of_each_queue(void **state)
{
    struct bed *b = *state;
    struct inbox_letter letter = {.reason = "no_message_id", .rowless = true, .body = SLICE("body")};
    struct inbox_figures figures;

    connect_three(b);
    items_make(b, 3);
    for (size_t k = 0; k < 3; k++) {
        b->items[k].message_id = (struct slice){0};
        b->items[k].queue = k ? 2 : 0;
        b->items[k].letter = &letter;
    }
    bed_submit(b, INBOX_DEAD_LETTER);
    all_are(b, ROW_DEAD_LETTERED);
    inbox_ask_figures(b->inbox);
    inbox_ask_figures(b->inbox);
    for (int64_t end = clock_ms() + 5000; !inbox_figures(b->inbox, &figures);) {
        assert_true(clock_ms() < end);
        assert_int_equal(bed_wait(b), 0);
    }
    assert_int_equal(figures.dead_letters[0], 1);
    assert_int_equal(figures.dead_letters[1], 0);
    assert_int_equal(figures.dead_letters[2], 2);
    assert_true(figures.dead_letter_bytes > 0);
}

static void presence_get(struct bed *b, const char *states, struct inbox_presence *ret)
{
    int got;

    static const char *const owners[] = {"zoe", "bob"};
    struct inbox_shown shown = {.version = "1.2.3",
                                .host = "pod-1",
                                .queues_json = slice_of(states),
                                .owners = owners,
                                .n_owners = 2,
                                .count = true};

    inbox_ask_presence(b->inbox, &shown);
    shown.version = "not asked twice";
    inbox_ask_presence(b->inbox, &shown);
    for (int64_t end = clock_ms() + 5000; !(got = inbox_presence(b->inbox, ret, &b->fault));) {
        assert_true(clock_ms() < end);
        assert_int_equal(bed_wait(b), 0);
    }
    if (got < 0)
        print_error("%s\n", b->fault.text);
    assert_int_equal(got, 1);
    assert_int_equal(inbox_presence(b->inbox, ret, &b->fault), 0);
}

static void test_presence(void **state)
{
    struct bed *b = *state;
    struct inbox_presence p;

    b->n_queues = 3;
    b->self = (struct inbox_self){.instance = "me", .number = 7};
    bed_connect(b);
    presence_get(b, "[{\"consumer\": \"driver\", \"state\": \"consuming\"}]", &p);
    assert_true(p.n_others && !p.n_others[0] && !p.n_counted && !p.n_owners && !p.n_controls && !p.namesake);
    assert_string_equal(
        bed_text(
            b,
            "SELECT instance || ' ' || number || ' ' || counter || ' ' || version || ' ' || host || ' ' || queues FROM "
            "onceward.replica"),
        "me 7 1 1.2.3 pod-1 [{\"consumer\": \"driver\", \"state\": \"consuming\"}]");
    bed_sql(
        b, "INSERT INTO onceward.replica VALUES ('zoe', 2, 40, '9', '', '[{\"consumer\": \"driver2\", "
           "\"may_consume\": true}, "
           "{\"consumer\": \"driver\", \"state\": \"paused\"}]', now()), ('ann', 1, 3, '', '', '[]', now())");
    presence_get(b, "[]", &p);
    assert_true(!p.n_others[0] && !p.n_others[1] && p.n_others[2] == 1);
    assert_int_equal(p.n_counted, 2);
    assert_int_equal(p.n_owners, 1);
    assert_string_equal(p.owners[0].instance, "zoe");
    assert_int_equal(p.owners[0].counter, 40);
    assert_false(p.namesake);

    /* Another process counts under this name. */
    bed_sql(b, "UPDATE onceward.replica SET counter = counter + 1 WHERE instance = 'me'");
    presence_get(b, "[]", &p);
    assert_true(p.namesake);
    presence_get(b, "[]", &p);
    assert_false(p.namesake);
    /* A row written by an earlier connection is this instance's own. */
    bed_disconnect(b);
    bed_connect(b);
    presence_get(b, "[]", &p);
    assert_true(!p.namesake && p.n_counted == 2);
}

static void test_levers(void **state)
{
    struct bed *b = *state;
    struct inbox_presence p;

    b->n_queues = 3;
    bed_connect(b);
    bed_sql(
        b,
        "INSERT INTO onceward.control (consumer, paused, reason, by, since, give_up, give_up_by) VALUES "
        "('driver2', true, 'deploy', 'ann', '2026-01-02T03:04:05.678Z', '{m1,ä,NULL}', 'bob'), "
        "('driver1', false, NULL, NULL, NULL, '{x}', NULL), "
        "('driver', false, 'no', 'cat', now(), '{}', NULL), ('stranger', true, NULL, NULL, NULL, '{y}', "
        "NULL); UPDATE onceward.control SET held_number = 3, held_by = 'dan', held_at = clock_timestamp() - "
        "interval '7 s', retry_number = 4, retry_by = 'eve' WHERE consumer = 'driver1'");
    presence_get(b, "[]", &p);
    assert_int_equal(p.n_controls, 3);
    const struct inbox_control *none = &p.controls[0], *one = &p.controls[1], *two = &p.controls[2];
    assert_true(none->queue == 0 && !none->paused && !none->n_give_up);
    assert_true(!none->held.number && !none->retry.number);
    assert_string_equal(none->by, "cat");
    assert_true(one->queue == 1 && !one->paused && one->n_give_up == 1);
    assert_string_equal(one->reason, "");
    assert_true(slice_equal(one->give_up[0], SLICE("x")));
    assert_true(one->held.number == 3 && one->held.ago_ms >= 7000 && one->retry.number == 4);
    assert_string_equal(one->held.by, "dan");
    assert_string_equal(one->retry.by, "eve");
    assert_true(two->queue == 2 && two->paused && two->n_give_up == 2 && !two->held.number);
    assert_string_equal(two->reason, "deploy");
    assert_string_equal(two->by, "ann");
    assert_string_equal(two->give_up_by, "bob");
    assert_true(two->since_ms == 1767323045678);
    assert_true(slice_equal(two->give_up[1], SLICE("ä")));
}

static void test_presence_that_fails(void **state)
{
    struct bed *b = *state;
    struct inbox_presence p;
    struct fault f = {0};
    int got;

    bed_connect(b);
    inbox_ask_presence(b->inbox,
                       &(struct inbox_shown){.version = "", .host = "", .queues_json = slice_of("no json")});
    for (int64_t end = clock_ms() + 5000; !(got = inbox_presence(b->inbox, &p, &f));) {
        assert_true(clock_ms() < end);
        assert_int_equal(bed_wait(b), 0);
    }
    assert_int_equal(got, -1);
    assert_string_equal(f.code, "22P02");
    presence_get(b, "[]", &p); /* and the connection still works */
}

/* Questions in flight, or answered and not read, end with the inbox. */
static void test_questions_are_left_behind(void **state)
{
    struct bed *b = *state;

    b->n_queues = 3;
    bed_connect(b);
    inbox_ask_presence(b->inbox,
                       &(struct inbox_shown){.version = "", .host = "", .queues_json = slice_of("[]")});
    inbox_ask_figures(b->inbox);
    items_make(b, 1);
    bed_submit(b, INBOX_CLAIM);
    bed_collect(b, 1);
    inbox_ask_try(b->inbox);
}

/* --- the compact history --- */

/* 255 bytes of 3 each. */
#define EURO_5  "\u20AC\u20AC\u20AC\u20AC\u20AC"
#define EURO_85 EURO_17 EURO_17 EURO_17 EURO_17 EURO_17
#define EURO_17 EURO_5 EURO_5 EURO_5 "\u20AC\u20AC"

static const char *const id_kinds[] = {
    "plain", "\u00E4/\u00E9", "e\u0301",     "\u00E9", "clef \U0001D11E", EURO_85,
    " ",     "\1\177",        "'quoted\"\\", "{NULL}",
};
enum { N_KINDS = sizeof(id_kinds) / sizeof(*id_kinds) };

/* An entry whose hash the database computes, for an id of items_make's body. */
static void entry_make(struct bed *b, const char *consumer, const char *id)
{
    char hex[600] = "";

    for (size_t k = 0; id[k]; k++)
        snprintf(hex + 2 * k, 3, "%02x", (uint8_t)id[k]);
    bed_sql(b,
            "INSERT INTO onceward.history SELECT onceward.history_hash('%s', convert_from('\\x%s', 'UTF8')), "
            "onceward.history_print('\\x07070707'), 1, 9000",
            consumer, hex);
    bed_sql(
        b, "INSERT INTO onceward.history_begun SELECT WHERE NOT EXISTS (SELECT FROM onceward.history_begun)");
}

static void test_hashes_are_those_of_the_schema(void **state)
{
    struct bed *b = *state;

    b->queues[0].compacts = true;
    connect_three(b);
    for (size_t k = 0; k < N_KINDS; k++)
        entry_make(b, b->queues[0].consumer, id_kinds[k]);
    items_make(b, N_KINDS);
    for (size_t k = 0; k < N_KINDS; k++)
        b->items[k].message_id = slice_of(id_kinds[k]);
    bed_submit(b, INBOX_CLAIM);
    all_are(b, ROW_COMPLETED);

    /* With an id that is not text the batch is sent in pieces. */
    b->items[2].message_id = slice_of("not \xFF text");
    bed_submit(b, INBOX_CLAIM);
    bed_collect(b, N_KINDS);
    for (size_t k = 0; k < N_KINDS; k++)
        assert_int_equal(bed_row(b, k)->row.answer, k == 2 ? ROW_INVALID : ROW_COMPLETED);
}

static void test_hashes_are_sent_for_queues_that_compact(void **state)
{
    static const enum inbox_op kinds[] = {INBOX_CLAIM, INBOX_CLAIM_STORE};
    struct bed *b = *state;

    b->queues[0].compacts = true;
    connect_three(b);
    for (size_t k = 0; k < 2; k++) {
        entry_make(b, b->queues[0].consumer, id_kinds[k]);
        entry_make(b, b->queues[2].consumer, id_kinds[k]);
    }
    /* Now the database itself finds no entry. */
    bed_sql(
        b,
        "CREATE OR REPLACE FUNCTION onceward.history_hash(p_consumer text, p_message_id text) RETURNS uuid "
        "LANGUAGE sql STABLE AS 'SELECT md5(p_message_id)::uuid'");
    for (size_t k = 0; k < 2; k++) {
        items_make(b, 2);
        for (size_t i = 0; i < 2; i++) {
            b->items[i].message_id = slice_of(id_kinds[k]);
            b->items[i].queue = 2 * i;
        }
        bed_submit(b, kinds[k]);
        bed_collect(b, 2);
        assert_int_equal(bed_row(b, 0)->row.answer, ROW_COMPLETED);
        assert_int_equal(bed_row(b, 1)->row.answer, ROW_CLAIMED);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bed_setup, bed_teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_batch_has_items_of_all_queues),
        TEST(test_queues_have_their_own_rules),
        TEST(test_claims_of_two_kinds),
        TEST(test_bad_data_of_one_queue),
        TEST(test_crashes_and_charges),
        TEST(test_an_earlier_life_and_a_gone_instance),
        TEST(test_a_message_that_ended_its_holders_is_buried),
        TEST(test_one_refused_queue_stops_no_other),
        TEST(test_a_record_that_is_being_changed),
        TEST(test_figures_of_each_queue),
        TEST(test_presence),
        TEST(test_levers),
        TEST(test_presence_that_fails),
        TEST(test_questions_are_left_behind),
        TEST(test_hashes_are_those_of_the_schema),
        TEST(test_hashes_are_sent_for_queues_that_compact),
    };

    if (!getenv("ONCEWARD_TEST_PG")) {
        fputs("ONCEWARD_TEST_PG is not set: skipped\n", stderr);
        return 77;
    }
    if (argc > 1) /* a pattern of tests */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, bed_group_setup, bed_group_teardown);
}
