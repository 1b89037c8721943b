/* The table of steps in src/core/life.c: the comment at its head equals the code, and a step that the table does not
 * allow loses no message. That file is compiled in here as for a release: builds for tests abort at such a step. */
#undef ONCEWARD_FAILPOINTS
#include "core/life.c" /* NOLINT(bugprone-suspicious-include) */

#include "core_bed.h"

static int operation_find(const char *name)
{
    for (int op = 0; op < N_OPERATIONS; op++)
        if (!strcmp(operation_infos[(enum operation)op].name, name))
            return op;
    return strcmp(name, "end") ? -1 : N_OPERATIONS;
}

static int fact_find(const char *name)
{
    for (int fact = 0; fact < N_FACTS; fact++)
        if (!strcmp(life_fact_name((enum fact)fact), name))
            return fact;
    return -1;
}

/* Parses " *   claim sent row ─▶ claim lookup …": the place in the table, and the operations that may follow. False:
 * another line. */
static bool line_read(char *line, unsigned table[N_OPERATIONS][PHASE_SENT + 1][N_FACTS])
{
    char op[16], phase[16], fact[16];
    char *to = strstr(line, "─▶");

    if (!to || sscanf(line, " * %15s %15s %15s", op, phase, fact) != 3 ||
        (strcmp(phase, "wanted") && strcmp(phase, "sent")))
        return false;
    int from = operation_find(op), what = fact_find(fact);

    assert_int_in_range(from, 0, N_OPERATIONS - 1);
    assert_int_in_range(what, 0, N_FACTS - 1);
    unsigned *cell = &table[from][strcmp(phase, "sent") ? PHASE_WANTED : PHASE_SENT][what];

    assert_int_equal(*cell, 0); /* not twice */
    for (char *name = strtok(to + strlen("─▶"), " \n"); name; name = strtok(NULL, " \n")) {
        int next = operation_find(name);

        assert_int_in_range(next, 0, N_OPERATIONS);
        *cell |= 1u << next;
    }
    return true;
}

static void test_the_picture_is_the_table(void **state)
{
    static unsigned table[N_OPERATIONS][PHASE_SENT + 1][N_FACTS];
    FILE *f = fopen(ONCEWARD_SOURCE_DIR "/src/core/life.c", "r");
    char line[512];
    int n = 0;

    assert_non_null(f);
    while (fgets(line, sizeof(line), f) && !strstr(line, "*/"))
        n += line_read(line, table);
    fclose(f);
    assert_true(n > 50);
    for (int op = 0; op < N_OPERATIONS; op++)
        for (int phase = 0; phase <= PHASE_SENT; phase++)
            for (int fact = 0; fact < N_FACTS; fact++)
                if (life_allows((enum operation)op, (enum phase)phase, (enum fact)fact) !=
                    table[op][phase][fact])
                    fail_msg("%s %s %s: the picture and the table differ",
                             operation_infos[(enum operation)op].name,
                             phase == PHASE_SENT ? "sent" : "wanted", life_fact_name((enum fact)fact));
}

/* Every reachable operation can be left, and only the broker's operations end a delivery. */
static void test_every_operation_leads_to_an_end(void **state)
{
    bool ends[N_OPERATIONS] = {false};

    for (int round = 0; round < N_OPERATIONS; round++)
        for (int op = 0; op < N_OPERATIONS; op++)
            for (int phase = 0; phase <= PHASE_SENT; phase++)
                for (int fact = 0; fact < N_FACTS; fact++)
                    for (int next = 0; next <= N_OPERATIONS; next++)
                        if (life_allows((enum operation)op, (enum phase)phase, (enum fact)fact) >> next & 1)
                            ends[op] |= next == N_OPERATIONS || ends[next];
    for (int op = 0; op < N_OPERATIONS; op++) {
        unsigned all = 0;

        assert_true(ends[op]);
        for (int phase = 0; phase <= PHASE_SENT; phase++)
            for (int fact = 0; fact < N_FACTS; fact++)
                all |= life_allows((enum operation)op, (enum phase)phase, (enum fact)fact);
        assert_int_equal((all & LIFE_END) != 0, operation_infos[(enum operation)op].link == LINK_BROKER);
    }
}

/* --- a step that the table does not allow --- */

/* Takes a step that the table does not allow: no rule forwards a message because its copy was published. */
static void make_bug(struct bed *b, struct delivery *d)
{
    assert_false(life_allows(d->op, d->phase, FACT_PUBLISHED) & TO(FORWARD));
    life_go(&b->q, b->now, d, FACT_PUBLISHED, step_want(OP_FORWARD));
}

static void is_told(struct bed *b)
{
    assert_int_equal(bed_n_told(b, EVENT_BUG), 1);
    assert_string_equal(bed_told(b, EVENT_BUG)->id, "m");
    assert_string_equal(bed_told(b, EVENT_BUG)->text, "forward sent, published: forward");
}

/* Asserts that the broker got neither ack nor reject. */
static void is_kept_by_broker(const struct bed *b)
{
    assert_int_equal(b->n_taken[ACTION_ACK] + b->n_taken[ACTION_REJECT] + b->n_taken[ACTION_CANCEL], 0);
}

static void test_a_bug_requeues_the_delivery(void **state)
{
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);
    struct delivery *d = bed_sent(b, "m", 1), *follower = bed_deliver(b, "m");
    uint64_t tag = d->arrival->copy.tag.number, request = d->request->ref;

    make_bug(b, d);
    assert_int_equal(bed_does(b, ACTION_ABANDON)->ref, request);
    assert_int_equal(bed_does(b, ACTION_REQUEUE)->tag.number, tag);
    assert_ptr_equal(bed_asks(b, OP_CLAIM), follower);
    is_told(b);
    is_kept_by_broker(b);
    bed_rest(b);
    bed_end(b);
}

static void test_a_bug_after_the_loss_of_the_channel_ends_the_delivery(void **state)
{
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);
    struct delivery *d = bed_sent(b, "m", 1);
    uint64_t request = d->request->ref;

    queue_channel_lost(&b->q, b->now, 0, "gone");
    assert_true(delivery_is_in_flight(d));
    make_bug(b, d);
    assert_true(delivery_has_ended(d));
    assert_int_equal(bed_does(b, ACTION_ABANDON)->ref, request);
    queue_channel_open(&b->q, b->now, 2, 4, 0, KIND_QUORUM);
    bed_rest(b);
    is_told(b);
    is_kept_by_broker(b);
    assert_int_equal(b->n_taken[ACTION_REQUEUE], 0);
    assert_int_equal(queue_n_held(&b->q), 0);

    d = bed_deliver(b, "m"); /* the broker delivers it again */
    assert_ptr_equal(bed_asks(b, OP_CLAIM), d);
    bed_end(b);
}

static struct delivery *deliver_of_key(struct bed *b, const char *id)
{
    struct arrival *a = bed_arrival(&b->q, id);

    a->has_key = true;
    queue_delivered(&b->q, b->now, a, NULL);
    return bed_newest(b);
}

static void test_a_bug_returns_an_ordered_queue_as_a_whole(void **state)
{
    struct queue_rules rules = bed_rules();

    rules.ordered = true;
    struct bed *b = bed_new(&rules, KIND_QUORUM);
    struct delivery *d = deliver_of_key(b, "m"), *next = deliver_of_key(b, "n");

    bed_row(b, bed_asks(b, OP_CLAIM), ROW_CLAIMED);
    bed_does(b, ACTION_FORWARD);
    make_bug(b, d);
    bed_does(b, ACTION_ABANDON);
    assert_int_equal(next->wait, WAIT_ORDER); /* its predecessor has not ended */
    bed_pass(b, 1);
    bed_does(b, ACTION_REOPEN);
    bed_rest(b);
    is_told(b);
    is_kept_by_broker(b);
    assert_int_equal(b->n_taken[ACTION_REQUEUE], 0);

    queue_channel_lost(&b->q, b->now, 0, "closed");
    bed_rest(b);
    assert_int_equal(queue_n_held(&b->q), 0);
    bed_end(b);
}

/* --- the claim of a delivery --- */

static void test_a_claim_begins_with_the_lead(void **state)
{
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);
    struct delivery *d = bed_deliver(b, "m"), *follower = bed_deliver(b, "m");

    assert_non_null(d->claim);
    assert_null(follower->claim);
    bed_row_of(b, bed_asks(b, OP_CLAIM),
               (struct row){.answer = ROW_CLAIMED, .attempt = 1, .takeovers = 1, .unproven_ms = -1});
    bed_does(b, ACTION_FORWARD);
    make_bug(b, d);
    assert_ptr_equal(follower->leader, follower);
    assert_int_equal(follower->claim->takeovers, 1);
    assert_int_equal(follower->claim->tried_ms, b->now);
    assert_false(delivery_has_token(follower));
    bed_end(b);
}

static void test_a_delivery_that_is_only_returned_has_no_claim(void **state)
{
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_CLASSIC);

    queue_delivered(&b->q, b->now, bed_skipped(&b->q, "large", 1), NULL);
    assert_int_equal(bed_newest(b)->wait, WAIT_ROOM);
    assert_null(bed_newest(b)->claim);
    bed_end(b);
}

static void test_a_letter_without_a_row_has_a_claim_for_its_token(void **state)
{
    struct queue_rules rules = bed_rules();
    struct bed *b = bed_new(&rules, KIND_QUORUM);
    struct arrival *a = bed_arrival(&b->q, "");

    a->no_id = DEAD_NO_MESSAGE_ID;
    queue_delivered(&b->q, b->now, a, "no id");
    assert_non_null(bed_newest(b)->claim);
    bed_pass(b, 1000);
    bed_asks(b, OP_DEAD_LETTER);
    assert_true(b->last.new_token);
    bed_end(b);
}

/* The next step of its key wants a claim, and no rule has begun one. */
static void test_a_copy_with_a_bug_can_be_claimed_in_its_turn(void **state)
{
    struct queue_rules rules = bed_rules();

    rules.ordered = true;
    struct bed *b = bed_new(&rules, KIND_QUORUM);
    struct delivery *d = deliver_of_key(b, "m"), *copy = deliver_of_key(b, "m");

    assert_ptr_equal(bed_asks(b, OP_CLAIM), d);
    assert_null(copy->claim);
    make_bug(b, copy);
    assert_int_equal(copy->wait, WAIT_ORDER);
    bed_row(b, d, ROW_COMPLETED);
    bed_wants(copy, OP_CLAIM);
    assert_non_null(copy->claim);
    bed_end(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_picture_is_the_table),
        cmocka_unit_test(test_every_operation_leads_to_an_end),
        cmocka_unit_test(test_a_bug_requeues_the_delivery),
        cmocka_unit_test(test_a_bug_after_the_loss_of_the_channel_ends_the_delivery),
        cmocka_unit_test(test_a_bug_returns_an_ordered_queue_as_a_whole),
        cmocka_unit_test(test_a_claim_begins_with_the_lead),
        cmocka_unit_test(test_a_delivery_that_is_only_returned_has_no_claim),
        cmocka_unit_test(test_a_letter_without_a_row_has_a_claim_for_its_token),
        cmocka_unit_test(test_a_copy_with_a_bug_can_be_claimed_in_its_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
