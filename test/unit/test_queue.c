/* A queue's core in a small world: a broker that delivers, an inbox that is a table, an application that answers by a
 * rule. The simulator tests this at length; here are single cases for a reader. */
#include "bed.h"
#include "core/notes.h"

enum { N_MESSAGES = 64, ALL = ~0u, UNANSWERED = -1, UNSENT = -2 };

struct world {
    struct queue q;
    struct application application;
    struct database database;
    int64_t now;
    int n_rows[N_MESSAGES]; /* 0: none, 1: processing, 2: completed, 3: dead, 4: failed or waiting,
                                5: completed with another body */
    int attempts[N_MESSAGES];
    int64_t due[N_MESSAGES], age_ms;
    int n_acks, n_looks, n_claims, n_paused, n_resumed;
    int n_posts[N_MESSAGES], n_acked, n_rejected, n_requeued, n_published, n_letters, n_dead[N_MESSAGES];
    bool acked_early;
    int n_consumers;
    bool unsubscribed; /* the last consumer was cancelled */
    int (*status)(struct world *, int message, int attempt);
    int prefetch;
    uint64_t last_out;
    bool has_keys; /* all messages have one */
};

static int number_of(const struct delivery *d)
{
    return atoi(d->arrival->id);
}

static void deliver_again(struct world *w, int message, int delivery_count)
{
    char id[16];
    static uint64_t tag;

    snprintf(id, sizeof(id), "%d", message);
    struct arrival *a = bed_skipped(&w->q, id, ++tag);

    a->copy.tag.generation = 1;
    a->message = message_new();
    a->copy.delivery_count = delivery_count;
    a->copy.n_bytes = 10;
    a->has_key = w->q.rules.ordered && w->has_keys;
    queue_delivered(&w->q, w->now, a, NULL);
}

static void deliver(struct world *w, int message)
{
    deliver_again(w, message, 0);
}

static void at_database(struct world *w, struct delivery *d)
{
    int n = number_of(d);
    struct row r = {.op = d->op, .unproven_ms = -1};

    switch (d->op) {
    case OP_CLAIM:
        w->n_claims++;
        if (w->n_rows[n] == 2)
            r.answer = ROW_COMPLETED;
        else if (w->n_rows[n] == 3)
            r.answer = ROW_DEAD;
        else if (w->n_rows[n] == 5) {
            r.answer = ROW_MISMATCH;
            r.detail = slice_of("{\"first_fingerprint\" : \"00c0ffee\", \"first_status\" : \"completed\"}");
        } else if (w->n_rows[n] == 4 && w->attempts[n] >= w->q.rules.max_attempts) {
            r.answer = ROW_EXHAUSTED;
        } else if (w->n_rows[n] == 4 && w->due[n] > w->now) {
            r.answer = ROW_NOT_DUE;
            r.wait_ms = w->due[n] - w->now;
        } else {
            r.answer = ROW_CLAIMED;
            r.age_ms = w->age_ms;
            w->n_rows[n] = 1;
            w->attempts[n]++;
        }
        break;
    case OP_LOOK:
        w->n_looks++;
        r.answer = w->n_rows[n] == 2 ? ROW_COMPLETED : ROW_DUE;
        break;
    case OP_CHECK:
        r.answer = w->n_rows[n] == 2 ? ROW_COMPLETED : ROW_CLAIMED;
        break;
    case OP_RENEW:
        r.answer = w->n_rows[n] == 2 ? ROW_COMPLETED : ROW_RENEWED;
        break;
    case OP_COMPLETE:
        r.answer = ROW_COMPLETED;
        w->n_rows[n] = 2;
        break;
    case OP_FAIL:
    case OP_REVOKE:
    case OP_RELEASE:
        r.answer = d->op == OP_RELEASE || !delivery_failure(d)->charged ? ROW_RELEASED : ROW_FAILED;
        w->attempts[n] -= r.answer == ROW_RELEASED;
        w->n_rows[n] = 4;
        w->due[n] = w->now + delivery_delay_ms(d);
        break;
    case OP_DEAD_LETTER:
        r.answer = ROW_DEAD_LETTERED;
        w->n_rows[n] = 3;
        w->n_letters++;
        w->n_dead[n] = (int)delivery_dead_letter(d)->reason + 1;
        break;
    default:
        fail();
    }
    r.attempt = w->attempts[n];
    queue_row(&w->q, w->now, d->ref, &r);
}

static void at_application(struct world *w, const struct request *r)
{
    int n = number_of(request_first(r)), status = w->status(w, n, ++w->n_posts[n]);

    w->last_out = r->ref;
    if (status == UNANSWERED)
        return;
    struct answer a = {.kind = status == UNSENT ? ANSWER_UNREACHABLE
                               : status         ? ANSWER_STATUS
                                                : ANSWER_DIED,
                       .status = status > 0 ? status : 0,
                       .retry_after_ms = -1,
                       .brief = "answered",
                       .error = "answered",
                       .took_us = 1000};

    queue_answered(&w->q, w->now, r->ref, &a);
}

static void carry_out(struct world *w, const struct action *a)
{
    switch (a->kind) {
    case ACTION_DATABASE:
        at_database(w, a->d);
        break;
    case ACTION_FORWARD:
        at_application(w, a->request);
        break;
    case ACTION_ACK:
        w->n_acks++;
        w->n_acked += (int)a->n;
        w->acked_early |= w->n_rows[number_of(a->d)] != 2 && w->n_rows[number_of(a->d)] != 5;
        break;
    case ACTION_REJECT:
        w->n_rejected++;
        w->acked_early |= w->n_rows[number_of(a->d)] != 3;
        break;
    case ACTION_REQUEUE:
        w->n_requeued++;
        break;
    case ACTION_CONSUME:
        w->n_consumers++;
        queue_consuming(&w->q, w->now, a->number);
        break;
    case ACTION_CANCEL:
        w->unsubscribed |= --w->n_consumers == 0;
        queue_stopped(&w->q, w->now, a->number);
        break;
    case ACTION_PUBLISH:
        w->n_published++;
        w->n_rows[number_of(a->d)] = 2; /* its ack is expected */
        queue_published(&w->q, w->now, a->ref, PUBLICATION_CONFIRMED, NULL);
        break;
    case ACTION_TELL:
        w->n_paused += a->note.event == EVENT_PAUSED;
        w->n_resumed += a->note.event == EVENT_RESUMED;
        break;
    default:
        break;
    }
}

/* Runs until nothing is held, or until that time. */
static void run(struct world *w, int64_t until)
{
    struct action a;

    while (w->now < until) {
        int n = 0;

        if (application_wants_probe(&w->application, w->now)) {
            application_probe_sent(&w->application);
            application_probed(&w->application, w->now, true, false, 1);
        }
        queue_time(&w->q, w->now);
        for (; n < 10000 && queue_next(&w->q, w->now, ALL, &a); n++)
            carry_out(w, &a);
        assert_true(n < 10000);
        queue_reap(&w->q);
        if (!queue_n_held(&w->q) && w->now > 100)
            return;
        int64_t next = queue_deadline(&w->q, w->now), other = application_deadline(&w->application, w->now);

        next = next < other ? next : other;
        next = next > w->now ? next : w->now + 1;
        w->now = next < until ? next : until;
    }
}

static void pass(struct world *w, int64_t ms)
{
    for (int64_t end = w->now + ms; w->now < end; w->now += 100)
        run(w, w->now + 1);
}

static struct world *world(int (*status)(struct world *, int, int))
{
    const struct queue_rules rules = bed_rules();
    struct world *w = calloc(1, sizeof(*w));

    w->now = 1;
    w->status = status;
    bed_start(&w->application, &w->database, &w->q, 1, &rules, w->now);
    queue_channel_open(&w->q, w->now, 1, 3, 0, KIND_CLASSIC);
    run(w, 50);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    return w;
}

static void end(struct world *w)
{
    assert_false(w->acked_early);
    queue_deinit(&w->q);
    bed_is_empty(&w->application);
    free(w);
}

static int good(struct world *w, int message, int attempt)
{
    return 200;
}

static void test_each_is_completed_and_acked_once(void **state)
{
    struct world *w = world(good);

    for (int i = 0; i < N_MESSAGES; i++)
        deliver(w, i);
    run(w, 10000);
    assert_int_equal(w->n_acked, N_MESSAGES);
    for (int i = 0; i < N_MESSAGES; i++)
        assert_int_equal(w->n_posts[i], 1);
    assert_true(w->now < 2000);
    end(w);
}

static int first_20_only(struct world *w, int message, int attempt)
{
    return message < 20 ? 200 : UNANSWERED;
}

/* An eighth of the prefetch is acked at once, the rest after a while. */
static void test_acks_gather_while_others_wait_for_a_slot(void **state)
{
    struct world *w = world(first_20_only);
    int64_t start;

    for (int i = 0; i < N_MESSAGES; i++)
        deliver(w, i);
    start = w->now;
    run(w, start + 50);
    assert_int_equal(w->n_acks, 1);
    assert_int_in_range(w->n_acked, 16, 19);
    run(w, start + 200);
    assert_int_equal(w->n_acks, 2);
    assert_int_equal(w->n_acked, 20);
    w->status = good;
    run(w, 100000); /* the windows end */
    end(w);
}

static int first_is_busy(struct world *w, int message, int attempt)
{
    return message ? 200 : 503;
}

static int first_takes_long(struct world *w, int message, int attempt)
{
    return message ? 200 : UNANSWERED;
}

/* The first delivery is parked, or in flight. */
static void test_acks_do_not_wait_for_the_first_delivery(void **state)
{
    struct world *w = world(first_is_busy);

    for (int i = 0; i < 40; i++)
        deliver(w, i);
    run(w, w->now + 100);
    assert_int_equal(w->q.held.waiting[WAIT_DUE].len, 1);
    assert_int_equal(w->n_acked, 39);
    w->status = good;
    run(w, 100000);
    end(w);

    w = world(first_takes_long);
    for (int i = 0; i < 40; i++)
        deliver(w, i);
    run(w, w->now + 100);
    assert_int_equal(w->n_acked, 39);
    w->status = good;
    run(w, 100000); /* the window ends */
    end(w);
}

static int never(struct world *w, int message, int attempt)
{
    return UNANSWERED;
}

/* A message that crashes the application each time, and is not charged while the circuit breaker is on, is
 * not the first each time. */
static void test_others_go_first_where_a_killer_is_not_charged(void **state)
{
    struct world *w = world(good);

    run(w, w->now + 10);
    application_unreachable(&w->application, w->now, true);
    w->application.n_crashes = 1;
    w->application.probe.at_ms = w->now + 20;
    deliver(w, 0);
    deliver(w, 1);
    container_of(list_first(&w->q.held.wanted[OP_CLAIM]), struct delivery, in_list)->claim->crashes = 2;
    w->q.share->brake.on = true;
    run(w, w->now + 60);
    assert_int_equal(w->n_posts[0], 0);
    assert_int_equal(w->n_posts[1], 1);
    run(w, w->now + 1000);
    assert_int_equal(w->n_posts[0], 1);
    end(w);
}

/* Without a transaction the application may still work, so the next owner waits for the end of the window. */
static void test_a_drain_releases_what_is_not_answered_within_the_grace(void **state)
{
    for (int transaction = 0; transaction < 2; transaction++) {
        struct world *w = world(never);

        w->q.rules.transaction = transaction;
        deliver(w, 0);
        pass(w, 300);
        assert_int_equal(w->n_posts[0], 1);
        int64_t start = w->now;
        queue_drain(&w->q, w->now, w->now + 1000);
        pass(w, 3000);
        assert_int_equal(w->n_requeued, 1);
        assert_int_equal(w->due[0] < start, !transaction);
        end(w);
    }
}

static int first_kills(struct world *w, int message, int attempt)
{
    return message ? 200 : 0;
}

/* While one message at a time is tried, a crash is a failed try: the next message would meet an application that
 * still starts, so it waits. */
static void test_a_crash_ends_a_try(void **state)
{
    struct world *w = world(first_kills);
    struct limiter *l = &w->q.share->limiter;

    run(w, w->now + 10);
    limiter_collapse(l, w->now);
    for (int i = 0; i < 10; i++) /* the latest waits were long */
        limiter_bad(l, w->now, l->n_cuts, LIMITER_WAIT_LAST_MS, -1, 0);
    deliver(w, 0);
    deliver(w, 1);
    run(w, l->wait_until_ms + 500);
    assert_int_equal(w->n_posts[0], 1);
    assert_int_equal(w->n_posts[1], 0);
    run(w, w->now + 2 * LIMITER_WAIT_LAST_MS);
    assert_int_equal(w->n_posts[1], 1);
    w->status = good;
    run(w, w->now + 100000);
    end(w);
}

/* When most are copies none is claimed before its lookup, so lookups postponed while copies were few are due. */
static void test_looks_that_were_put_off_are_due_where_most_are_copies(void **state)
{
    struct world *w = world(never);

    w->q.flow.duplicates = 0.5;
    for (int i = 0; i < 40; i++)
        deliver(w, i);
    run(w, w->now + 10);
    assert_int_equal(w->n_looks, 0);
    assert_true(w->q.flow.look_ms > w->now + 5);
    int n = (int)w->q.held.wanted[OP_CLAIM].len;
    w->q.flow.duplicates = 0.9;
    run(w, w->now + 2);
    assert_int_equal(w->n_looks, n);
    assert_true(n > 0);
    w->status = good;
    run(w, 100000); /* the windows end */
    end(w);
}

/* While claims follow each other, and no message was completed before, a lookup would be useless. */
static void test_what_waits_is_looked_at_where_nothing_is_claimed(void **state)
{
    struct world *w = world(never);
    struct answer yes = {.kind = ANSWER_STATUS, .status = 200, .retry_after_ms = -1, .took_us = 1000};

    for (int i = 0; i < 40; i++)
        deliver(w, i);
    run(w, w->now + 50);
    for (int i = 0; i < 10; i++) {
        queue_answered(&w->q, w->now, w->last_out, &yes);
        run(w, w->now + 50);
    }
    assert_int_equal(w->n_looks, 0);
    w->n_rows[39] = 2; /* completed by another replica */
    int n = (int)w->q.held.wanted[OP_CLAIM].len, acked = w->n_acked;
    assert_true(n > 0);
    run(w, w->now + 1000);
    assert_int_equal(w->n_looks, n);
    assert_int_equal(w->q.held.wanted[OP_CLAIM].len, n - 1);
    run(w, w->now + 1000);
    assert_int_equal(w->n_looks, n); /* a lookup for each */
    assert_true(w->n_acked >= acked);
    w->status = good;
    run(w, 100000); /* the windows end */
    end(w);
}

/* The full prefetch follows when every reason for caution has gone. */
static void test_a_cautious_start_takes_one_at_a_time(void **state)
{
    struct world *w = world(good);

    queue_caution_begin(&w->q, CAUTION_LIMIT);
    queue_caution_begin(&w->q, CAUTION_UNCLEAN);
    queue_channel_lost(&w->q, w->now, 0, "lost");
    queue_channel_open(&w->q, w->now, 1, 3, 0, KIND_CLASSIC);
    run(w, w->now + 100);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    assert_int_equal(w->q.consumer.prefetch, 1);
    queue_caution_end(&w->q, CAUTION_LIMIT);
    run(w, w->now + 100);
    assert_int_equal(w->q.consumer.prefetch, 1);
    queue_caution_end(&w->q, CAUTION_UNCLEAN);
    run(w, w->now + 100);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    assert_int_equal(w->q.consumer.prefetch, 128);
    end(w);
}

static void test_copies_are_acked_without_a_post(void **state)
{
    struct world *w = world(good);

    for (int i = 0; i < 40; i++)
        deliver(w, i % 4);
    run(w, 10000);
    assert_int_equal(w->n_acked, 40);
    assert_int_equal(w->n_posts[0] + w->n_posts[1] + w->n_posts[2] + w->n_posts[3], 4);
    end(w);
}

static int accepts(struct world *w, int message, int attempt)
{
    return 202;
}

static void test_accepted_messages_keep_their_slots(void **state)
{
    struct world *w = world(accepts);
    int n = 0;

    w->q.rules.transaction = true;
    for (int i = 0; i < 40; i++)
        deliver(w, i);
    run(w, w->now + 5000);
    for (int i = 0; i < 40; i++)
        n += w->n_posts[i];
    assert_int_equal(n, 16);
    assert_int_equal(w->q.held.n_accepted, 16);
    assert_int_equal(application_taken(&w->application), 16);
    w->n_rows[0] = 2; /* completed: its slot is free */
    run(w, w->now + 2000);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->q.held.n_accepted, 16);
    w->status = good;
    for (int i = 0; i < 40; i++)
        w->n_rows[i] = 2;
    run(w, 100000);
    assert_int_equal(w->n_acked, 40);
    end(w);
}

static int never_or_500(struct world *w, int message, int attempt)
{
    return message == 0 ? UNANSWERED : message == 1 ? 504 : 500;
}

/* The application may still work on a message without an answer; 500 is its own answer. */
static void test_the_next_attempt_waits_for_a_window_where_no_answer_came(void **state)
{
    struct world *w = world(never_or_500);

    for (int i = 0; i < 3; i++)
        deliver(w, i);
    run(w, w->now + 29000);
    assert_int_equal(w->n_posts[1], 1);
    assert_true(w->n_posts[2] > 2);
    run(w, 40000);
    assert_int_equal(w->n_posts[0], 1);
    assert_true(w->n_posts[1] >= 2);
    run(w, 59000);
    assert_int_equal(w->n_posts[0], 1);
    w->status = good;
    run(w, 1000000);
    assert_int_equal(w->n_acked, 3);
    end(w);
}

static int first_never_or_504(struct world *w, int message, int attempt)
{
    return message > 0 ? 200 : w->age_ms ? 504 : UNANSWERED;
}

/* The application may still work on the first message of the key, which has died. */
static void test_in_response_a_key_waits_a_window_after_an_unanswered_last_attempt(void **state)
{
    enum { WINDOW_MS = 30000 };
    static const struct {
        bool transaction, says_504;
        int n_posts; /* after its first 504 it is tried alone, a window later */
        int64_t least_ms;
    } cases[] = {{false, false, 1, 2 * WINDOW_MS},
                 {false, true, 2, 2 * WINDOW_MS},
                 {true, false, 1, WINDOW_MS},
                 {true, true, 2, WINDOW_MS}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world(first_never_or_504);
        int64_t start = w->now;

        w->q.rules.ordered = w->has_keys = true;
        w->q.rules.transaction = cases[i].transaction;
        w->q.rules.max_attempts = 1;
        w->q.rules.concurrency = 1;
        w->age_ms = cases[i].says_504;
        deliver(w, 0);
        deliver(w, 1);
        while (!w->n_posts[1] && w->now < start + 200000)
            run(w, w->now + 100);
        assert_int_equal(w->n_posts[0], cases[i].n_posts);
        assert_int_in_range(w->now - start, cases[i].least_ms, cases[i].least_ms + 5000);
        assert_int_equal(w->q.counts.retried.total, 0); /* after the last attempt there is no next one */
        assert_int_equal(w->n_letters, 1);
        w->q.rules.transaction = false;
        run(w, w->now + 1000);
        end(w);
    }
}

static int third_fails(struct world *w, int message, int attempt)
{
    return message == 3 ? 500 : 200;
}

static int good_from_40_on(struct world *w, int message, int attempt)
{
    return message < 40 ? 500 : 200;
}

/* Another replica should get all messages, and this one must detect its application's recovery. */
static void test_what_a_broken_replica_tries_with_is_exchanged(void **state)
{
    struct world *w = world(good_from_40_on);
    int64_t left_ms;

    queue_limits_known(&w->q, &(struct queue_limits){.read = true});
    queue_presence(&w->q, w->now, 1);
    for (int i = 0; i < 25; i++)
        deliver(w, i);
    run(w, 45000);
    assert_true(w->q.share->brake.on);
    assert_int_equal(w->n_requeued, 24);
    assert_int_equal(w->q.consumer.state, CONSUMER_NONE);
    run(w, 80000);
    assert_int_equal(w->n_requeued, 25);
    assert_int_equal(queue_n_held(&w->q), 0);
    for (left_ms = w->now; w->q.consumer.state == CONSUMER_NONE && w->now < left_ms + 60000; w->now += 1000)
        run(w, w->now + 1);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    assert_int_equal(w->q.consumer.prefetch, 1);
    assert_int_in_range(w->now - left_ms, 28000, 32000);
    deliver(w, 40);
    run(w, w->now + 3000);
    for (int i = 0; i < 5; i++, w->now += 1000)
        run(w, w->now + 1);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->q.consumer.prefetch, 128);
    assert_int_equal(w->n_letters, 0);
    end(w);
}

/* The other replica may pause at the same time: then the broker would delete the queue with its messages. One
 * delivery stays, so that none is redelivered at once, and after a while another one takes its place. */
static void test_a_queue_that_needs_a_consumer_keeps_it_when_it_is_left_to_others(void **state)
{
    static const struct queue_limits limits[] = {{.read = true, .needs_consumer = true}, {.read = false}};

    for (size_t i = 0; i < 2; i++) {
        struct world *w = world(good_from_40_on);

        queue_limits_known(&w->q, &limits[i]);
        queue_presence(&w->q, w->now, 1);
        for (int m = 0; m < 25; m++)
            deliver(w, m);
        run(w, 45000);
        assert_true(w->q.left_to_others);
        assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
        assert_int_equal(w->q.consumer.prefetch, 1);
        assert_int_equal(w->n_requeued, 24);
        deliver(w, 30);
        uint32_t number = w->q.consumer.number;
        pass(w, 20000);
        assert_int_equal(w->n_requeued, 25); /* the probe message */
        assert_int_equal(w->q.held.unacked.len, 1);
        pass(w, 45000);
        assert_int_equal(w->n_requeued, 26);
        assert_int_equal(w->q.consumer.number, number);
        deliver(w, 40);
        pass(w, 10000);
        assert_int_equal(w->n_acked, 1);
        assert_int_equal(w->q.consumer.prefetch, 128);
        assert_int_equal(w->n_consumers, 1);
        assert_false(w->unsubscribed);
        end(w);
    }
}

/* The other replicas wait for the whole queue, and get no redelivered message. */
static void test_an_ordered_queue_tries_each_second_while_everything_fails(void **state)
{
    struct world *w = world(good_from_40_on);

    w->q.rules.ordered = true;
    queue_presence(&w->q, w->now, 1);
    for (int i = 0; i < 25; i++) {
        deliver(w, i);
        container_of(w->q.held.unacked.head.prev, struct delivery, in_tags)->arrival->message->redelivered =
            true;
    }
    run(w, 20000);
    assert_true(w->q.share->brake.on);
    w->status = good;
    run(w, w->now + 5000);
    assert_false(w->q.share->brake.on);
    w->q.rules.ordered = false;
    end(w);
}

static int refused(struct world *w, int message, int attempt)
{
    return 400;
}

/* The other messages of a bad deployment arrive one by one: the first one fails first, but not alone. */
static void test_nothing_dies_where_everything_fails_from_the_first_message_on(void **state)
{
    struct world *w = world(refused);

    for (int i = 0; i < 30; i++) {
        deliver(w, i);
        run(w, w->now + 20);
    }
    run(w, w->now + 20000);
    assert_true(w->q.share->brake.on);
    assert_int_equal(w->n_letters, 0);
    w->status = good;
    run(w, w->now + 600000);
    assert_int_equal(w->n_acked, 30);
    assert_int_equal(w->n_letters, 0);
    end(w);
}

static int third_is_refused(struct world *w, int message, int attempt)
{
    return message == 3 ? 400 : 200;
}

static void test_a_refused_message_dies_as_soon_as_another_succeeds(void **state)
{
    struct world *w = world(third_is_refused);
    int64_t start;

    deliver(w, 3);
    run(w, w->now + 500);
    assert_int_equal(w->n_letters, 0);
    start = w->now;
    deliver(w, 4);
    run(w, w->now + 100);
    assert_int_equal(w->n_letters, 1);
    deliver(w, 5);
    run(w, w->now + 100);
    assert_true(w->now - start < 500);
    end(w);

    w = world(third_is_refused);
    deliver(w, 3);
    run(w, w->now + 3000);
    assert_int_equal(w->n_letters, 1);
    end(w);
}

static void test_a_message_that_always_fails_dies_after_its_attempts(void **state)
{
    struct world *w = world(third_fails);

    for (int i = 0; i < 10; i++)
        deliver(w, i);
    run(w, 3600000);
    assert_int_equal(w->n_posts[3], 8);
    assert_int_equal(w->n_acked, 9);
    assert_int_equal(w->n_rejected, 1);
    assert_int_equal(w->n_letters, 1);
    assert_int_equal(w->n_dead[3], DEAD_ATTEMPTS + 1);
    end(w);
}

static int third_kills(struct world *w, int message, int attempt)
{
    return message == 3 ? 0 : 200;
}

static void test_a_message_that_kills_the_application_dies_alone(void **state)
{
    struct world *w = world(third_kills);

    w->application.rules.has_ready_url = true; /* the application is seen alive after each crash */
    for (int i = 0; i < 10; i++)
        deliver(w, i);
    run(w, 24 * 3600000);
    assert_int_equal(w->n_acked, 9);
    assert_int_equal(w->n_letters, 1);
    assert_int_equal(w->n_dead[3], DEAD_ATTEMPTS + 1);
    end(w);
}

static int third_kills_once_and_hangs(struct world *w, int message, int attempt)
{
    if (message != 3)
        return 200;
    return attempt == 1 ? 0 : UNANSWERED;
}

/* A request whose tokens are extended could otherwise keep the others from the application for hours. */
static void test_a_quarantined_request_has_the_application_for_one_window(void **state)
{
    struct world *w = world(third_kills_once_and_hangs);

    w->application.rules.has_ready_url = true;
    deliver(w, 3);
    for (int i = 0; i < 200 && w->n_posts[3] < 2; i++)
        run(w, w->now + 250);
    assert_int_equal(w->n_posts[3], 2);
    assert_true(w->application.place.taken);
    assert_in_range(w->application.place.until_ms, w->now + BED_WINDOW_MS, w->now + BED_WINDOW_MS + 1000);
    w->status = good;
    run(w, w->now + 24 * 3600000);
    end(w);
}

static int third_kills_beside_long_jobs(struct world *w, int message, int attempt)
{
    if (message == 3)
        return 0;
    if (message >= 50)
        return 200;
    return message >= 40 ? UNANSWERED : 500;
}

/* Lets message 3, which has crashed the application once, wait for quarantine beside a job in flight. */
static void third_waits_to_go_alone(struct world *w)
{
    deliver(w, 40);
    for (int i = 0; i < 40 && !(w->application.place.owner && !w->application.place.taken); i++)
        run(w, w->now + 250);
    assert_true(w->application.place.owner != 0);
    assert_false(w->application.place.taken);
}

static void test_one_that_waits_to_go_alone_behind_the_brake_lets_the_others_go(void **state)
{
    struct world *w = world(third_kills_beside_long_jobs);
    struct answer failed = {.kind = ANSWER_STATUS,
                            .status = 500,
                            .retry_after_ms = -1,
                            .brief = "answered 500",
                            .error = "answered 500",
                            .took_us = 1000};

    deliver(w, 3);
    run(w, 200);
    for (int i = 10; i < 36; i++)
        deliver(w, i);
    run(w, 5000);
    assert_true(w->q.share->brake.on);
    third_waits_to_go_alone(w);
    assert_true(w->q.share->brake.on);
    deliver(w, 50);
    deliver(w, 51);
    run(w, w->now + 150); /* looked up meanwhile */
    assert_int_equal(w->n_acked, 0);
    queue_answered(&w->q, w->now, w->last_out, &failed);
    run(w, w->now + 60000);
    assert_int_equal(w->n_acked, 2);
    w->status = good;
    run(w, w->now + 24 * 3600000);
    end(w);
}

static void test_one_that_waits_to_go_alone_in_a_paused_queue_keeps_nothing_free(void **state)
{
    struct world *w = world(third_kills_beside_long_jobs);

    deliver(w, 3);
    run(w, 200);
    third_waits_to_go_alone(w);
    w->q.commands.paused = true;
    run(w, w->now + 250);
    assert_int_equal(w->application.place.owner, 0);
    w->q.commands.paused = false;
    w->status = good;
    run(w, w->now + 24 * 3600000);
    end(w);
}

static int bad(struct world *w, int message, int attempt)
{
    return 400;
}

static void test_when_everything_fails_nothing_dies(void **state)
{
    struct world *w = world(bad);

    for (int i = 0; i < 30; i++)
        deliver(w, i);
    run(w, 60000);
    assert_int_equal(w->n_letters, 0);
    assert_true(w->q.share->brake.on);
    for (int i = 0; i < 30; i++)
        assert_true(w->attempts[i] == 0);
    w->status = good;
    run(w, 600000);
    assert_int_equal(w->n_acked, 30);
    assert_false(w->q.share->brake.on);
    end(w);
}

static int first_half_bad(struct world *w, int message, int attempt)
{
    return message < 32 ? 400 : 200;
}

static void test_good_ones_behind_many_bad_ones_come_through(void **state)
{
    struct world *w = world(first_half_bad);

    for (int i = 0; i < N_MESSAGES; i++)
        deliver(w, i);
    for (int64_t until = 1000; w->n_acked < 32 && until < 60000; until += 1000)
        run(w, until);
    assert_int_equal(w->n_acked, 32);
    for (int i = 32; i < N_MESSAGES; i++)
        assert_int_equal(w->n_dead[i], 0);
    end(w);
}

static int always_overloaded_first(struct world *w, int message, int attempt)
{
    return message == 0 ? 503 : 200;
}

static void test_one_that_is_always_refused_delays_nobody(void **state)
{
    struct world *w = world(always_overloaded_first);

    for (int i = 0; i < N_MESSAGES; i++)
        deliver(w, i);
    run(w, 2000);
    assert_int_equal(w->n_acked, N_MESSAGES - 1);
    assert_int_equal(w->attempts[0], 0);
    end(w);
}

static void test_a_lost_channel_leaves_nothing_behind(void **state)
{
    struct world *w = world(good);

    w->status = always_overloaded_first;
    for (int i = 0; i < 8; i++)
        deliver(w, i);
    run(w, 300);
    queue_channel_lost(&w->q, w->now, 0, "the connection is gone");
    run(w, 20000);
    assert_int_equal(queue_n_held(&w->q), 0);
    end(w);
}

/* The shell takes a limited number of actions per turn, and reaps then. */
static void test_what_ends_is_there_until_all_that_names_it_was_told(void **state)
{
    struct world *w = world(never);
    struct answer answer = {.kind = ANSWER_STATUS,
                            .status = 200,
                            .retry_after_ms = -1,
                            .brief = "answered",
                            .error = "answered",
                            .took_us = 1000};
    struct action a;
    int n_told = 0;

    deliver(w, 7);
    run(w, 300);
    assert_int_equal(w->n_posts[7], 1);
    queue_channel_lost(&w->q, w->now, 0, "the connection is gone"); /* no tag can be acked any more */
    queue_answered(&w->q, w->now, w->last_out, &answer);
    while (queue_next(&w->q, w->now, ALL, &a)) {
        if (a.kind == ACTION_TELL && a.note.event == EVENT_COMPLETED) {
            assert_int_equal(number_of(a.note.d), 7);
            n_told++;
        }
        carry_out(w, &a);
        queue_reap(&w->q);
    }
    assert_int_equal(n_told, 1);
    assert_int_equal(w->n_rows[7], 2);
    end(w);
}

static void test_a_drain_gives_back_what_only_waits(void **state)
{
    struct world *w = world(always_overloaded_first);

    for (int i = 0; i < 8; i++)
        deliver(w, i);
    run(w, 300);
    queue_drain(&w->q, w->now, w->now + 25000);
    run(w, 40000);
    queue_time(&w->q, w->now);
    assert_int_equal(w->q.drain, DRAIN_DONE);
    assert_int_equal(w->n_requeued, 1);
    assert_int_equal(w->n_acked, 7);
    end(w);
}

/* --- operator commands --- */

static int slow_down(struct world *w, int message, int attempt)
{
    return attempt == 1 ? 500 : 200;
}

static void test_nothing_is_begun_before_the_commands_are_known(void **state)
{
    struct world *w = world(good);

    queue_commands_await(&w->q);
    deliver(w, 1);
    run(w, 5000);
    assert_int_equal(w->n_posts[1], 0);
    assert_int_equal(w->q.consumer.prefetch, 1);
    queue_command_pause(&w->q, w->now, false, "", "");
    run(w, 10000);
    assert_int_equal(w->n_acked, 1);
    end(w);
}

static int said(struct world *w, enum event e, const char *reason, const char *text)
{
    int n = 0;

    for (size_t i = w->q.notes.at; i < w->q.notes.n; i++) {
        const struct note *note = &w->q.notes.items[i];

        n += note->event == e && note->reason && !strcmp(note->reason, reason) &&
             (!text || (note->text && !strcmp(note->text, text)));
    }
    return n;
}

static void test_a_pause_holds_until_it_is_ended(void **state)
{
    struct world *w = world(good);

    queue_command_pause(&w->q, w->now, true, "ann", "deploy");
    queue_time(&w->q, w->now);
    assert_int_equal(said(w, EVENT_PAUSED, "operator", "ann: deploy"), 1);
    deliver(w, 1);
    run(w, 100000);
    assert_int_equal(w->n_posts[1], 0);
    assert_int_equal(w->n_requeued, 0);
    assert_int_equal(queue_state(&w->q), QUEUE_PAUSED);
    queue_command_pause(&w->q, w->now, true, "ann", "deploy");
    queue_time(&w->q, w->now);
    assert_int_equal(said(w, EVENT_PAUSED, "operator", NULL), 0);
    queue_command_pause(&w->q, w->now, true, "bob", ""); /* operator and reason may change */
    queue_time(&w->q, w->now);
    assert_int_equal(said(w, EVENT_PAUSED, "operator", "bob"), 1);
    queue_command_pause(&w->q, w->now, false, "cat", "");
    assert_int_equal(said(w, EVENT_RESUMED, "operator", NULL), 1);
    assert_string_equal(w->q.commands.by, "cat");
    run(w, 110000);
    assert_int_equal(w->n_acked, 1);
    end(w);
}

/* Otherwise the broker would delete an auto-delete queue. */
static void test_a_pause_keeps_one_consumer_with_a_prefetch_of_1(void **state)
{
    struct world *w = world(good);

    queue_command_pause(&w->q, w->now, true, "ann", "");
    pass(w, 1000);
    assert_int_equal(w->q.consumer.prefetch, 1);
    deliver(w, 1);
    pass(w, 10000);
    assert_int_equal(w->n_posts[1], 0);
    assert_int_equal(w->q.consumer.prefetch, 1);
    queue_command_pause(&w->q, w->now, false, "ann", "");
    pass(w, 1000);
    assert_int_equal(w->q.consumer.prefetch, 128);
    database_lost(&w->database, w->now, "gone");
    queue_database_lost(&w->q, w->now);
    pass(w, 3000);
    assert_int_equal(w->q.consumer.prefetch, 1);
    database_linked(&w->database);
    queue_database_linked(&w->q, w->now);
    pass(w, 3000);
    assert_int_equal(w->q.consumer.prefetch, 128);
    assert_int_equal(w->n_consumers, 1);
    assert_false(w->unsubscribed);
    end(w);
}

static void test_after_an_unclean_end_one_delivery_comes_first(void **state)
{
    struct world *w = world(good);

    queue_caution_begin(&w->q, CAUTION_UNCLEAN);
    pass(w, 1000);
    assert_int_equal(w->q.consumer.prefetch, 1);
    deliver(w, 1);
    pass(w, 1000);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->q.consumer.prefetch, 128);
    end(w);
}

/* A lost database leads to a new consumer beside the first delivery, which has shown nothing yet. */
static void test_after_an_unclean_end_a_lost_database_shows_nothing(void **state)
{
    struct world *w = world(good);

    queue_caution_begin(&w->q, CAUTION_UNCLEAN);
    pass(w, 1000);
    database_lost(&w->database, w->now, "gone");
    queue_database_lost(&w->q, w->now);
    deliver(w, 1);
    pass(w, 3000);
    assert_int_equal(w->q.consumer.prefetch, 1);
    assert_true(w->q.consumer.cautions & CAUTION_UNCLEAN);
    database_linked(&w->database);
    queue_database_linked(&w->q, w->now);
    pass(w, 3000);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->q.consumer.prefetch, 128);
    end(w);
}

static int always_busy(struct world *w, int message, int attempt)
{
    return 429;
}

/* The delivery limit decides how many messages may be taken. */
static void test_nothing_is_consumed_before_the_limits_of_the_queue_are_known(void **state)
{
    struct world *w = world(good);

    queue_channel_lost(&w->q, w->now, 0, "lost");
    queue_channel_open(&w->q, w->now, 2, 3, 0, KIND_CLASSIC);
    queue_limits_await(&w->q);
    run(w, w->now + 60000);
    assert_int_equal(w->q.consumer.state, CONSUMER_NONE);
    queue_limits_known(&w->q, &(struct queue_limits){.read = true});
    run(w, w->now + 100);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    end(w);
}

/* A queue that was missing is consumed as soon as it exists again, also if it is empty. */
static void test_a_queue_that_exists_again_is_consumed_at_once(void **state)
{
    struct world *w = world(good);

    queue_channel_lost(&w->q, w->now, 404, "no queue");
    queue_depth(&w->q, w->now, -1, true);
    queue_channel_open(&w->q, w->now, 2, 3, 0, KIND_CLASSIC);
    run(w, w->now + 10);
    assert_int_equal(w->q.consumer.state, CONSUMER_NONE);
    queue_depth(&w->q, w->now, 0, false);
    run(w, w->now + 10);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    end(w);
}

static int never_ready(struct world *w, int message, int attempt)
{
    return 503;
}

static void test_the_reason_of_a_lower_limit_names_the_status(void **state)
{
    static const struct {
        int (*status)(struct world *w, int message, int attempt);
        const char *reason;
    } cases[] = {{always_busy, "answered 429"}, {never_ready, "answered 503"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world(cases[i].status);

        for (int m = 0; m < 16; m++)
            deliver(w, m);
        run(w, w->now + 60000);
        assert_non_null(limiter_reason(&w->q.share->limiter));
        assert_string_equal(limiter_reason(&w->q.share->limiter), cases[i].reason);
        end(w);
    }
}

/* A cancel would hand the queue to a waiting replica. */
static void test_a_single_active_consumer_is_never_cancelled_for_credit(void **state)
{
    struct world *w = world(always_busy);

    w->q.rules.prefetch = 16;
    queue_caution_begin(&w->q, CAUTION_UNCLEAN);
    queue_channel_lost(&w->q, w->now, 0, "lost");
    queue_limits_known(&w->q, &(struct queue_limits){.read = true, .single_active = true});
    queue_channel_open(&w->q, w->now, 1, 3, 0, KIND_CLASSIC);
    run(w, w->now + 100);
    uint32_t first = w->q.consumer.number;
    assert_int_equal(w->q.consumer.prefetch, 16);
    for (int i = 0; i < 16; i++)
        deliver(w, i);
    pass(w, w->now + 60000);
    assert_int_equal(w->q.consumer.state, CONSUMER_ACTIVE);
    assert_int_equal(w->q.consumer.number, first);
    queue_command_pause(&w->q, w->now, true, "ann", "");
    run(w, w->now + 100);
    assert_int_equal(w->q.consumer.number, first);
    assert_int_equal(w->q.consumer.prefetch, 16);
    end(w);
}

/* A waiting replica may have a database. Once per pause. */
static void test_a_single_active_consumer_hands_the_queue_on_when_its_database_is_gone(void **state)
{
    static const int prefetches[] = {1, 16};

    for (size_t i = 0; i < 2; i++) {
        struct world *w = world(good);

        w->q.rules.prefetch = prefetches[i];
        queue_channel_lost(&w->q, w->now, 0, "lost");
        queue_limits_known(&w->q, &(struct queue_limits){.read = true, .single_active = true});
        queue_channel_open(&w->q, w->now, 1, 3, 0, KIND_CLASSIC);
        run(w, w->now + 100);
        uint32_t number = w->q.consumer.number;
        int n_consumers = w->n_consumers;
        for (uint32_t n = 1; n <= 2; n++) {
            database_lost(&w->database, w->now, "gone");
            queue_database_lost(&w->q, w->now);
            pass(w, 10000);
            assert_int_equal(w->q.consumer.number, number + n);
            assert_int_equal(w->q.consumer.prefetch, prefetches[i]);
            database_linked(&w->database);
            queue_database_linked(&w->q, w->now);
            pass(w, 10000);
            assert_int_equal(w->q.consumer.number, number + n);
        }
        assert_int_equal(w->n_consumers, n_consumers);
        end(w);
    }
}

static void test_credit_is_renewed_before_the_former_consumer_is_cancelled(void **state)
{
    struct world *w = world(always_busy);
    uint32_t first = w->q.consumer.number;

    w->q.rules.prefetch = w->q.consumer.prefetch = 16;
    for (int i = 0; i < 16; i++)
        deliver(w, i);
    pass(w, 60000);
    assert_int_not_equal(w->q.consumer.number, first);
    assert_int_equal(w->n_consumers, 1);
    assert_false(w->unsubscribed);
    end(w);
}

static void test_a_retry_looks_at_once(void **state)
{
    struct world *w = world(slow_down);

    w->q.rules.backoff_ms = w->q.rules.max_backoff_ms = 200000;
    deliver(w, 1);
    run(w, 1000);
    assert_int_equal(w->n_posts[1], 1);
    assert_true(w->due[1] > w->now + 2000);
    w->due[1] = w->now; /* as the command does */
    queue_command_retry(&w->q, w->now, "ann");
    assert_int_equal(said(w, EVENT_COMMAND, "retry", "ann"), 1);
    run(w, 2000);
    assert_int_equal(w->n_acked, 1);
    end(w);
}

static void test_what_is_given_up_dies_when_it_is_at_hand(void **state)
{
    static const char ids[] = "1\0"
                              "2\0"
                              "3";
    struct world *w = world(slow_down);

    w->q.rules.backoff_ms = w->q.rules.max_backoff_ms = 200000;
    deliver(w, 1);
    deliver(w, 4);
    run(w, 1000);
    queue_command_give_up(&w->q, w->now, "ann", ids, sizeof(ids));
    assert_int_equal(said(w, EVENT_COMMAND, "give_up", "ann"), 1);
    run(w, 2000); /* its next attempt is minutes away */
    assert_int_equal(w->n_dead[1], DEAD_OPERATOR + 1);
    w->n_rows[1] = 4; /* redriven, while the list was not read again */
    w->due[1] = w->now;
    deliver(w, 1);
    run(w, 3000);
    assert_int_equal(w->n_acked, 1);
    deliver(w, 2);
    run(w, 4000);
    assert_int_equal(w->n_dead[2], DEAD_OPERATOR + 1);
    assert_int_equal(w->n_posts[2], 0);
    queue_command_give_up(&w->q, w->now, "ann", ids + 4, 2);
    queue_command_give_up(&w->q, w->now, "", NULL, 0); /* a shorter list is not logged */
    assert_int_equal(said(w, EVENT_COMMAND, "give_up", NULL), 0);
    deliver(w, 3);
    run(w, 400000);
    assert_int_equal(w->n_acked, 3);
    assert_int_equal(w->n_letters, 2);
    end(w);
}

static void test_what_is_given_up_while_it_is_paused_dies_too(void **state)
{
    static const char ids[] = "1";
    struct world *w = world(good);

    queue_command_pause(&w->q, w->now, true, "ann", "");
    deliver(w, 1);
    run(w, 1000);
    queue_command_give_up(&w->q, w->now, "ann", ids, sizeof(ids));
    run(w, 2000);
    assert_int_equal(w->n_dead[1], DEAD_OPERATOR + 1);
    assert_int_equal(w->n_posts[1], 0);
    end(w);
}

static struct arrival *without_id(struct world *w, uint64_t tag)
{
    struct arrival *a = bed_skipped(&w->q, "", tag);

    a->message = message_new();
    a->copy.n_bytes = 10;
    a->no_id = DEAD_NO_MESSAGE_ID;
    return a;
}

/* Messages that are held only for their letters need no claim, nor another's success. */
static void test_messages_without_an_id_can_be_given_up(void **state)
{
    struct world *w = world(good);

    w->q.share->brake.threshold = 5;
    for (int i = 0; i < 8; i++) {
        struct arrival *a = without_id(w, 100 + (uint64_t)i);

        queue_delivered(&w->q, w->now, a, "no message_id");
    }
    run(w, 5000);
    assert_int_equal(w->q.held.waiting[WAIT_BRAKE].len, 8);
    queue_command_give_up_held(&w->q, w->now, "ann", w->now);
    run(w, 6000);
    assert_int_equal(w->n_letters, 8);
    assert_int_equal(w->n_rejected, 8);
    assert_int_equal(w->n_dead[0], DEAD_OPERATOR + 1);
    end(w);
}

static void test_what_waits_is_renewed_when_the_queue_turns_out_to_count(void **state)
{
    struct world *w = world(good);

    queue_command_pause(&w->q, w->now, true, "ann", "");
    deliver_again(w, 1, 5);
    run(w, 1000);
    assert_int_equal(w->n_rows[1], 0);
    queue_kind_known(&w->q, KIND_QUORUM);
    run(w, 2000);
    assert_int_equal(w->n_published, 1);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->n_posts[1] + w->n_letters, 0);
    end(w);
}

/* --- statements refused because of one of their items --- */

enum { REFUSED = 63 /* the message whose claim is always refused, with all others in the statement */ };

struct claims {
    uint64_t refs[N_MESSAGES];
    size_t n;
    int64_t answered_ms; /* 0: none in flight */
    bool refused;
};

static void claims_answer(struct world *w, struct claims *c, const char *code)
{
    for (size_t i = 0; i < c->n; i++) {
        struct delivery *d = (struct delivery *)queue_find(&w->q, c->refs[i]);
        struct row r = {.op = OP_CLAIM, .answer = ROW_RETRY, .unproven_ms = -1};

        snprintf(r.sqlstate, sizeof(r.sqlstate), "%s", code);
        if (c->refused)
            queue_row(&w->q, w->now, d->ref, &r);
        else
            at_database(w, d);
    }
    *c = (struct claims){0};
}

static void claims_take(struct world *w, struct claims *c, const struct action *a)
{
    if (a->kind != ACTION_DATABASE || a->d->op != OP_CLAIM) {
        carry_out(w, a);
        return;
    }
    c->refused |= number_of(a->d) == REFUSED;
    c->refs[c->n++] = a->d->ref;
}

/* Runs with claims that share one statement at a time, as at a database that works otherwise. */
static void run_with_claims_together(struct world *w, struct claims *c, int64_t for_ms, const char *code,
                                     int64_t refused_takes_ms)
{
    struct action a;

    for (int64_t until = w->now + for_ms; w->now < until; w->now++) {
        if (c->answered_ms && w->now >= c->answered_ms)
            claims_answer(w, c, code);
        if (database_wants_try(&w->database, w->now)) {
            database_try_sent(&w->database);
            database_tried(&w->database, w->now, true, "", 1);
        }
        queue_time(&w->q, w->now);
        while (queue_next(&w->q, w->now, c->answered_ms ? ALL & ~(1u << OP_CLAIM) : ALL, &a))
            claims_take(w, c, &a);
        if (c->n && !c->answered_ms)
            c->answered_ms = w->now + (c->refused ? refused_takes_ms : 2);
        queue_reap(&w->q);
    }
}

static void deliver_some(struct world *w, int from, int to)
{
    for (int i = from; i < to; i++)
        deliver(w, i);
}

/* Number of completed messages: an ack waits for earlier ones. */
static int n_done(const struct world *w)
{
    int n = 0;

    for (int i = 0; i < N_MESSAGES; i++)
        n += w->n_rows[i] == 2;
    return n;
}

static void test_one_that_spoils_its_statement_keeps_no_neighbour(void **state)
{
    static const struct {
        const char *code;
        int64_t takes_ms, within_ms; /* 55P03: lock_timeout is 1 s */
    } cases[] = {{"XX001", 2, 500}, {"58030", 2, 500}, {"42501", 2, 500},    {"53200", 2, 500},
                 {"54001", 2, 500}, {"40001", 2, 500}, {"55P03", 1000, 5000}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world *w = world(good);
        struct claims c = {0};

        deliver_some(w, 0, 16);
        run_with_claims_together(w, &c, 100, NULL, 0);
        assert_int_equal(n_done(w), 16);
        deliver_some(w, 16, 36);
        deliver(w, REFUSED);
        deliver_some(w, 36, 50);
        run_with_claims_together(w, &c, cases[i].within_ms, cases[i].code, cases[i].takes_ms);
        assert_int_equal(n_done(w), 50);
        run_with_claims_together(w, &c, 60000, cases[i].code, cases[i].takes_ms);
        assert_true(database_is_up(&w->database));
        deliver_some(w, 50, 60);
        run_with_claims_together(w, &c, 2 * cases[i].takes_ms + 200, cases[i].code, cases[i].takes_ms);
        assert_int_equal(n_done(w), 60);
        end(w);
    }
}

static void deliver_without_id(struct world *w, bool redelivered)
{
    static uint64_t tag = 1000000;
    struct arrival *a = without_id(w, ++tag);

    a->message->redelivered = redelivered;
    queue_delivered(&w->q, w->now, a, "no id");
}

static void reconnect(struct world *w)
{
    queue_channel_lost(&w->q, w->now, 0, "lost");
    queue_channel_open(&w->q, w->now, w->now, 3, 0, KIND_CLASSIC);
    w->now += 100;
}

/* Each delivery of a message without an id is a new one, so a redelivery is recognised by its content. */
static void test_messages_without_an_id_count_once_when_they_are_delivered_again(void **state)
{
    struct world *w = world(good);

    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 15; i++)
            deliver_without_id(w, round > 0);
        assert_int_equal(w->q.share->brake.n, 15);
        reconnect(w);
    }
    for (int i = 0; i < 4; i++)
        deliver_without_id(w, false);
    assert_false(w->q.share->brake.on);
    deliver_without_id(w, false);
    assert_true(w->q.share->brake.on);
    end(w);
}

/* Messages that another process held are new to this one. */
static void test_messages_without_an_id_count_when_another_process_had_them(void **state)
{
    struct world *w = world(good);

    for (int i = 0; i < 20; i++)
        deliver_without_id(w, true);
    assert_true(w->q.share->brake.on);
    end(w);
}

static struct delivery *next_burial(struct world *w)
{
    struct action a;

    for (;;) {
        queue_time(&w->q, w->now);
        while (queue_next(&w->q, w->now, ALL, &a)) {
            if (a.kind == ACTION_DATABASE && a.d->op == OP_DEAD_LETTER)
                return a.d;
            carry_out(w, &a);
        }
        assert_true(w->now < 600000);
        w->now += 10;
    }
}

/* A redelivery does not imply a letter: another message with the same content may have it. Only a letter that this
 * very delivery requested is looked for. */
static void test_a_letter_without_a_row_is_new_unless_this_delivery_may_have_written_it(void **state)
{
    static const enum row_answer nothing_learnt[] = {ROW_UNKNOWN, ROW_LOCKED, ROW_RETRY};
    struct world *w = world(good);

    for (int redelivered = 0; redelivered < 2; redelivered++) {
        struct row r = {.op = OP_DEAD_LETTER, .unproven_ms = -1, .sqlstate = "57014"};

        deliver_without_id(w, redelivered);
        struct delivery *d = next_burial(w);

        assert_true(queue_letter_is_new(d) && !queue_letter_is_looked_for(d));
        r.answer = ROW_LOCKED; /* no letter was written */
        queue_row(&w->q, w->now, d->ref, &r);
        assert_ptr_equal(next_burial(w), d);
        assert_true(queue_letter_is_new(d) && !queue_letter_is_looked_for(d));
        for (size_t i = 0; i < 3; i++) {
            r.answer = nothing_learnt[i];
            queue_row(&w->q, w->now, d->ref, &r);
            assert_ptr_equal(next_burial(w), d);
            assert_true(!queue_letter_is_new(d) && queue_letter_is_looked_for(d));
        }
        r.answer = ROW_DEAD_LETTERED;
        queue_row(&w->q, w->now, d->ref, &r);
        w->n_rows[0] = 3;
        run(w, w->now + 1000);
    }
    assert_int_equal(w->n_rejected, 2);
    end(w);
}

static void test_what_is_held_while_everything_fails_is_given_up_once(void **state)
{
    struct world *w = world(bad);

    queue_command_give_up_held(&w->q, w->now, "ann", w->now); /* no message is held */
    assert_int_equal(said(w, EVENT_COMMAND, "give_up_held", "ann"), 1);
    for (int i = 0; i < 30; i++)
        deliver(w, i);
    run(w, 60000);
    assert_true(w->q.share->brake.on);
    int64_t pulled = w->now;

    for (int i = 30; i < 40; i++) { /* arrived after the command, and before it was read */
        w->now = pulled + 1000;
        deliver(w, i);
    }
    run(w, pulled + 4000);
    queue_command_give_up_held(&w->q, w->now, "ann", pulled);
    run(w, pulled + 64000);
    assert_int_equal(w->n_letters, 30);
    for (int i = 0; i < 30; i++)
        assert_int_equal(w->n_dead[i], DEAD_OPERATOR + 1);
    assert_true(w->q.share->brake.on);
    w->status = good;
    run(w, pulled + 600000);
    assert_int_equal(w->n_acked, 10);
    end(w);
}

static int unsent_for_a_minute(struct world *w, int message, int attempt)
{
    return w->now < 60000 ? UNSENT : 200;
}

/* Each connect succeeds, but no request can be sent. That is logged and costs one try per second, and after the
 * recovery no message waits long. */
static void test_where_nothing_can_be_sent_a_pause_is_told_and_tries_are_rare(void **state)
{
    struct world *w = world(unsent_for_a_minute);

    for (int i = 0; i < 20; i++)
        deliver(w, i);
    run(w, 3000);
    assert_int_equal(w->n_paused, 1);
    assert_true(w->q.pauses[PAUSE_APPLICATION].told);
    assert_string_equal(w->q.pauses[PAUSE_APPLICATION].text, "answered");
    run(w, 60000);
    assert_int_equal(w->n_paused, 1);
    assert_int_equal(w->n_resumed, 0);
    assert_int_in_range(w->n_claims, 40, 70);
    run(w, 70000);
    assert_int_equal(w->n_acked, 20);
    assert_true(w->now <= 62000);
    deliver(w, 20);
    run(w, w->now + 1000);
    assert_int_equal(w->n_acked, 21);
    assert_int_equal(w->n_resumed, 1);
    end(w);
}

/* The application is away, and all waiting messages were looked up: no wake-up is needed. */
static void test_where_most_are_copies_what_was_looked_at_wakes_nobody(void **state)
{
    struct world *w = world(never);
    struct action a;
    int n_turns = 0;

    w->q.flow.duplicates = 0.9;
    application_unreachable(&w->application, w->now, true);
    w->application.probe.sent = true; /* without an answer */
    for (int i = 0; i < 40; i++)
        deliver(w, i);
    for (int64_t until = w->now + 10000; w->now < until; n_turns++) {
        queue_time(&w->q, w->now);
        while (queue_next(&w->q, w->now, ALL, &a))
            carry_out(w, &a);
        queue_reap(&w->q);
        int64_t next = queue_deadline(&w->q, w->now);
        w->now = next > w->now ? next : w->now + 1;
    }
    assert_int_equal(w->n_looks, 40);
    assert_true(n_turns < 100);
    end(w);
}

/* During a drain near the delivery limit, the lock for the letter is taken: it has no row that could be claimed
 * elsewhere. */
static void test_a_letter_without_a_row_keeps_its_reason(void **state)
{
    struct world *w = world(good);
    struct arrival *arrived = without_id(w, 5000000);
    struct row locked = {.op = OP_DEAD_LETTER, .unproven_ms = -1, .answer = ROW_LOCKED};
    struct action a;
    int n_asked = 0;

    queue_kind_known(&w->q, KIND_QUORUM);
    w->q.returns.server_major = 4;
    arrived->copy.delivery_count = 18;
    queue_delivered(&w->q, w->now, arrived, "no id");
    queue_drain(&w->q, w->now, w->now + 1000);
    for (int64_t until = w->now + 6000; w->now < until; w->now++) {
        queue_time(&w->q, w->now);
        while (queue_next(&w->q, w->now, ALL, &a)) {
            if (a.kind != ACTION_DATABASE || a.d->op != OP_DEAD_LETTER) {
                carry_out(w, &a);
                continue;
            }
            assert_int_equal(delivery_dead_letter(a.d)->reason, DEAD_NO_MESSAGE_ID);
            n_asked++;
            w->n_rows[0] = 3;
            queue_row(&w->q, w->now, a.d->ref, &locked);
        }
        queue_reap(&w->q);
    }
    assert_true(n_asked > 0);
    end(w);
}

/* No request of this process could have lost the database connection. */
static void test_a_message_that_is_too_old_at_its_first_claim_dies(void **state)
{
    struct world *w = world(good);

    w->q.rules.max_age_ms = 1000;
    w->age_ms = 5000;
    deliver(w, 3);
    run(w, 60000);
    assert_int_equal(w->n_posts[3], 0);
    assert_int_equal(w->n_dead[3], DEAD_TOO_OLD + 1);
    assert_int_equal(w->n_claims, 1);
    assert_int_equal(w->n_rejected, 1);
    end(w);
}

/* Logs 20 lines of an event in this second. Returns the number of those that are shown. */
static int n_logged(struct world *w, enum event e, int second)
{
    int n = 0;

    for (int i = 0; i < 20; i++)
        n += notes_tell_limited(&w->q, second * 1000 + i, e, NULL) != NULL;
    return n;
}

static void test_answers_of_not_now_are_no_flood_of_lines(void **state)
{
    struct world *w = world(good);

    assert_int_equal(n_logged(w, EVENT_GIVEN_BACK, 100), 10);
    for (int second = 101; second < 110; second++) {
        assert_int_equal(n_logged(w, EVENT_GIVEN_BACK, second), 1);
        assert_int_equal(n_logged(w, EVENT_RETRY, second), 10);
    }
    assert_int_equal(n_logged(w, EVENT_GIVEN_BACK, 113), 4); /* three quiet seconds */
    assert_int_equal(n_logged(w, EVENT_GIVEN_BACK, 1000), 10);
    end(w);
}

/* The known part of the first body's fingerprint does not suffice for another claim, which would create a row
 * with it if the entry of the history expired meanwhile. */
static void test_a_copy_with_another_body_of_a_completed_message_is_acked_without_another_claim(void **state)
{
    (void)state;
    struct world *w = world(good);

    w->q.rules.mismatch_is_duplicate = true;
    w->n_rows[1] = 5;
    deliver(w, 1);
    run(w, 60000);
    assert_int_equal(w->n_acked, 1);
    assert_int_equal(w->n_claims, 1);
    assert_int_equal(w->n_posts[1], 0);
    assert_false(w->acked_early);
    end(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_that_is_too_old_at_its_first_claim_dies),
        cmocka_unit_test(test_where_most_are_copies_what_was_looked_at_wakes_nobody),
        cmocka_unit_test(test_a_letter_without_a_row_keeps_its_reason),
        cmocka_unit_test(test_each_is_completed_and_acked_once),
        cmocka_unit_test(test_acks_gather_while_others_wait_for_a_slot),
        cmocka_unit_test(test_acks_do_not_wait_for_the_first_delivery),
        cmocka_unit_test(test_accepted_messages_keep_their_slots),
        cmocka_unit_test(test_the_next_attempt_waits_for_a_window_where_no_answer_came),
        cmocka_unit_test(test_in_response_a_key_waits_a_window_after_an_unanswered_last_attempt),
        cmocka_unit_test(test_what_waits_is_looked_at_where_nothing_is_claimed),
        cmocka_unit_test(test_looks_that_were_put_off_are_due_where_most_are_copies),
        cmocka_unit_test(test_others_go_first_where_a_killer_is_not_charged),
        cmocka_unit_test(test_a_crash_ends_a_try),
        cmocka_unit_test(test_a_cautious_start_takes_one_at_a_time),
        cmocka_unit_test(test_copies_are_acked_without_a_post),
        cmocka_unit_test(test_a_copy_with_another_body_of_a_completed_message_is_acked_without_another_claim),
        cmocka_unit_test(test_what_a_broken_replica_tries_with_is_exchanged),
        cmocka_unit_test(test_an_ordered_queue_tries_each_second_while_everything_fails),
        cmocka_unit_test(test_a_queue_that_needs_a_consumer_keeps_it_when_it_is_left_to_others),
        cmocka_unit_test(test_messages_without_an_id_count_once_when_they_are_delivered_again),
        cmocka_unit_test(test_messages_without_an_id_count_when_another_process_had_them),
        cmocka_unit_test(test_nothing_dies_where_everything_fails_from_the_first_message_on),
        cmocka_unit_test(test_a_refused_message_dies_as_soon_as_another_succeeds),
        cmocka_unit_test(test_a_message_that_always_fails_dies_after_its_attempts),
        cmocka_unit_test(test_a_message_that_kills_the_application_dies_alone),
        cmocka_unit_test(test_a_quarantined_request_has_the_application_for_one_window),
        cmocka_unit_test(test_one_that_waits_to_go_alone_behind_the_brake_lets_the_others_go),
        cmocka_unit_test(test_one_that_waits_to_go_alone_in_a_paused_queue_keeps_nothing_free),
        cmocka_unit_test(test_when_everything_fails_nothing_dies),
        cmocka_unit_test(test_good_ones_behind_many_bad_ones_come_through),
        cmocka_unit_test(test_one_that_is_always_refused_delays_nobody),
        cmocka_unit_test(test_a_lost_channel_leaves_nothing_behind),
        cmocka_unit_test(test_what_ends_is_there_until_all_that_names_it_was_told),
        cmocka_unit_test(test_a_drain_gives_back_what_only_waits),
        cmocka_unit_test(test_a_drain_releases_what_is_not_answered_within_the_grace),
        cmocka_unit_test(test_nothing_is_begun_before_the_commands_are_known),
        cmocka_unit_test(test_a_pause_holds_until_it_is_ended),
        cmocka_unit_test(test_a_pause_keeps_one_consumer_with_a_prefetch_of_1),
        cmocka_unit_test(test_after_an_unclean_end_one_delivery_comes_first),
        cmocka_unit_test(test_after_an_unclean_end_a_lost_database_shows_nothing),
        cmocka_unit_test(test_credit_is_renewed_before_the_former_consumer_is_cancelled),
        cmocka_unit_test(test_the_reason_of_a_lower_limit_names_the_status),
        cmocka_unit_test(test_nothing_is_consumed_before_the_limits_of_the_queue_are_known),
        cmocka_unit_test(test_a_queue_that_exists_again_is_consumed_at_once),
        cmocka_unit_test(test_a_single_active_consumer_is_never_cancelled_for_credit),
        cmocka_unit_test(test_a_single_active_consumer_hands_the_queue_on_when_its_database_is_gone),
        cmocka_unit_test(test_a_retry_looks_at_once),
        cmocka_unit_test(test_what_is_given_up_dies_when_it_is_at_hand),
        cmocka_unit_test(test_what_is_given_up_while_it_is_paused_dies_too),
        cmocka_unit_test(test_messages_without_an_id_can_be_given_up),
        cmocka_unit_test(test_what_waits_is_renewed_when_the_queue_turns_out_to_count),
        cmocka_unit_test(test_a_letter_without_a_row_is_new_unless_this_delivery_may_have_written_it),
        cmocka_unit_test(test_one_that_spoils_its_statement_keeps_no_neighbour),
        cmocka_unit_test(test_what_is_held_while_everything_fails_is_given_up_once),
        cmocka_unit_test(test_where_nothing_can_be_sent_a_pause_is_told_and_tries_are_rare),
        cmocka_unit_test(test_answers_of_not_now_are_no_flood_of_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
