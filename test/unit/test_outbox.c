/* The relay's core: its questions, its rows, its position, and the rows it gives up. */
#include "cmocka_all.h"
#include "onceward/core/outbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_MS = 50, PARKED_MAX = 1024 };

/* The table of parked rows. */
struct parked {
    int64_t seq;
    char exchange[16], id[16];
    bool deleted;
};

struct rig {
    struct outbox o;
    int64_t now_ms;
    uint64_t tag;
    int n_sent, n_written, n_looked, n_read, n_given_up, n_asked, n_buried, n_told_nack, n_told_close;
    uint64_t written_batch;
    int64_t written;   /* seq of the latest position; -1: all of the batch */
    const char *key;   /* of the rows read; NULL: k */
    struct slice body; /* of the parked rows read; empty: "body" */
    char last[32];     /* id of the last row sent */
    char told[256];    /* why the channel was closed */
    char buried[300];  /* reason and text of the latest letter */
    struct parked parked[PARKED_MAX];
    int n_parked, n_told_stopped, n_told_open;
    int sent[4096]; /* numbers in the ids of the rows sent */
    int64_t lease;  /* number of the next lease */
    struct {
        int n;
        char text[512]; /* the latest */
    } said[N_OUTBOX_TOLD];
};

static void begin(struct rig *r, char *const *exchanges, size_t n)
{
    struct outbox_rules rules = {
        .poll_ms = POLL_MS, .max_message_bytes = 100, .exchanges = exchanges, .n_exchanges = n};

    memset(r, 0, sizeof(*r));
    r->now_ms = 1000;
    r->lease = 7;
    outbox_init(&r->o, &rules, r->now_ms);
    outbox_database(&r->o, r->now_ms, true, NULL);
}

static void buried_note(struct rig *r)
{
    list_each(&r->o.dead_lettering, k)
    {
        const struct outbox_row *row = container_of(k, struct outbox_row, in_phase);

        if (!row->parking) {
            r->n_buried++;
            snprintf(r->buried, sizeof(r->buried), "%s: %s", dead_reasons[row->reason].name, row->detail);
            continue;
        }
        struct parked *p = &r->parked[r->n_parked++];

        *p = (struct parked){.seq = row->seq};
        snprintf(p->exchange, sizeof(p->exchange), "%.*s", (int)row->exchange.len, row->exchange.data);
        snprintf(p->id, sizeof(p->id), "%.*s", (int)row->message_id.len, row->message_id.data);
    }
}

static int n_left(const struct rig *r)
{
    int n = 0;

    for (int i = 0; i < r->n_parked; i++)
        n += !r->parked[i].deleted;
    return n;
}

static void parked_list(struct rig *r)
{
    for (int i = 0; i < r->n_parked; i++)
        if (!r->parked[i].deleted)
            outbox_parked_exchange(&r->o, r->now_ms, slice_of(r->parked[i].exchange));
    outbox_parked_listed(&r->o, r->now_ms, OUTBOX_DONE);
}

static void parked_read(struct rig *r, const struct outbox_action *a)
{
    int n = 0, i = (int)a->seq;
    struct slice body = r->body.len ? r->body : SLICE("body");

    for (; i < r->n_parked && n < a->n; i++) {
        const struct parked *p = &r->parked[i];

        if (p->deleted || !slice_equal(slice_of(p->exchange), a->exchange->name))
            continue;
        n++;
        outbox_parked_came(&r->o, r->now_ms,
                           &(struct outbox_new){.seq = i + 1,
                                                .exchange = slice_of(p->exchange),
                                                .routing_key = SLICE("k"),
                                                .message_id = slice_of(p->id),
                                                .body = body,
                                                .body_len = body.len,
                                                .parked = true});
    }
    outbox_parked_read_ends(&r->o, r->now_ms, OUTBOX_DONE, n < a->n);
}

static void unpark(struct rig *r)
{
    list_each(&r->o.unparking, k)
    {
        r->parked[container_of(k, struct outbox_row, in_phase)->seq - 1].deleted = true;
    }
    outbox_unparked(&r->o, r->now_ms, OUTBOX_DONE);
}

/* Carries out one action; the broker accepts every row. */
static void carry_out(struct rig *r, const struct outbox_action *a)
{
    switch (a->kind) {
    case OUTBOX_REGISTER:
        outbox_registered(&r->o, r->now_ms, OUTBOX_DONE, "");
        break;
    case OUTBOX_LEASE:
        r->n_asked++;
        outbox_leased(&r->o, r->now_ms, OUTBOX_DONE, r->lease, OUTBOX_LEASE_MS, false);
        break;
    case OUTBOX_GIVE_UP:
        r->n_given_up++;
        outbox_leased(&r->o, r->now_ms, OUTBOX_DONE, 0, 0, false);
        break;
    case OUTBOX_LOOK:
        r->n_looked++; /* answered by the caller */
        break;
    case OUTBOX_READ:
        r->n_read++; /* answered by the caller */
        break;
    case OUTBOX_SEND:
        snprintf(r->last, sizeof(r->last), "%.*s", (int)a->row->message_id.len, a->row->message_id.data);
        r->sent[r->n_sent++ % 4096] = *r->last ? atoi(r->last + 1) : 0;
        outbox_sent(&r->o, r->now_ms, a->row, ++r->tag);
        break;
    case OUTBOX_DEAD_LETTERS:
        buried_note(r);
        for (size_t i = 0; i < r->o.dead_lettering.len; i++)
            outbox_dead_lettered(&r->o, r->now_ms, i, OUTBOX_DONE);
        outbox_dead_letters_end(&r->o, r->now_ms, OUTBOX_DONE);
        break;
    case OUTBOX_WRITE:
        assert_non_null(a->batch);
        r->n_written++;
        r->written_batch = a->batch->number;
        r->written = a->seq;
        outbox_written(&r->o, r->now_ms, OUTBOX_DONE);
        break;
    case OUTBOX_TURN:
        outbox_turned(&r->o, r->now_ms, OUTBOX_DONE, false);
        break;
    case OUTBOX_TELL:
        r->n_told_stopped += a->told == OUTBOX_TOLD_STOPPED;
        r->n_told_open += a->told == OUTBOX_TOLD_OPEN;
        r->n_told_nack += a->told == OUTBOX_TOLD_NACKED;
        r->n_told_close += a->told == OUTBOX_TOLD_CLOSED;
        if (a->told == OUTBOX_TOLD_CLOSED)
            snprintf(r->told, sizeof(r->told), "%s", a->text);
        r->said[a->told].n++;
        snprintf(r->said[a->told].text, sizeof(r->said[a->told].text), "%s", a->text);
        break;
    case OUTBOX_PARKED_LIST:
        parked_list(r);
        break;
    case OUTBOX_PARKED_READ:
        parked_read(r, a);
        break;
    case OUTBOX_UNPARK:
        unpark(r);
        break;
    case OUTBOX_RESTORE:
        break;
    }
}

/* Takes all present actions. */
static void turn(struct rig *r)
{
    struct outbox_action a;

    while (outbox_next(&r->o, r->now_ms, true, &a))
        carry_out(r, &a);
}

/* Takes the present actions up to one of this kind, which is left to the caller. False: there is none. */
static bool turn_to(struct rig *r, enum outbox_action_kind kind, struct outbox_action *a)
{
    while (outbox_next(&r->o, r->now_ms, true, a)) {
        if (a->kind == kind)
            return true;
        carry_out(r, a);
    }
    return false;
}

/* Asserts that the next question of this kind comes after that time, and leaves its answer to the caller. */
static struct outbox_action asks_in(struct rig *r, enum outbox_action_kind kind, int64_t ms)
{
    int64_t end_ms = r->now_ms + ms;
    struct outbox_action a;

    for (; r->now_ms < end_ms; r->now_ms++)
        assert_false(turn_to(r, kind, &a));
    assert_true(turn_to(r, kind, &a));
    return a;
}

/* Lets time pass, and asserts that nothing happens before outbox_due_ms. */
static void pass(struct rig *r, int64_t ms)
{
    int64_t end_ms = r->now_ms + ms, due_ms;
    struct outbox_action a;

    turn(r);
    due_ms = outbox_due_ms(&r->o, r->now_ms);
    assert_true(due_ms > r->now_ms);
    r->now_ms = due_ms < end_ms ? due_ms - 1 : end_ms - 1;
    assert_false(outbox_next(&r->o, r->now_ms, true, &a));
    r->now_ms = end_ms;
    turn(r);
}

/* Answers a read with rows "m<from>" to "m<to>" of one batch, to an exchange. */
static void answer(struct rig *r, int from, int to, bool over, const char *exchange)
{
    char id[16];

    outbox_batch_came(&r->o, r->now_ms, SLICE("batch"), over);
    for (int i = from; i <= to; i++) {
        snprintf(id, sizeof(id), "m%d", i);
        outbox_row_came(&r->o, r->now_ms,
                        &(struct outbox_new){.seq = i,
                                             .exchange = slice_of(exchange),
                                             .routing_key = slice_of(r->key ? r->key : "k"),
                                             .message_id = slice_of(id),
                                             .body = SLICE("body"),
                                             .body_len = 4});
    }
    outbox_read_ends(&r->o, r->now_ms, OUTBOX_DONE);
    turn(r);
}

static void start(struct rig *r)
{
    begin(r, NULL, 0);
    turn(r);
    assert_int_equal(r->n_asked, 0); /* without a broker the lease is not requested */
    outbox_linked(&r->o, r->now_ms);
    turn(r);
    assert_true(outbox_holds(&r->o, r->now_ms));
    assert_int_equal(r->said[OUTBOX_TOLD_HELD].n, 1);
    assert_int_equal(r->n_read, 1);
}

/* Makes the exchange known. */
static void prove(struct rig *r)
{
    answer(r, 1, 1, true, "x");
    outbox_confirmed(&r->o, r->now_ms, r->tag, false, false);
    turn(r);
    pass(r, 100);
    assert_int_equal(r->n_sent, 1);
    assert_int_equal(r->written, -1);
}

static void confirm_all(struct rig *r)
{
    outbox_confirmed(&r->o, r->now_ms, r->tag, true, false);
    turn(r);
}

static void test_the_position_waits_for_all_before_it(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 4, true, "x");
    assert_int_equal(r.n_sent, 4);
    outbox_confirmed(&r.o, r.now_ms, r.tag, false, false); /* the last one only */
    pass(&r, 1000);
    assert_int_equal(r.n_written, 1);
    outbox_confirmed(&r.o, r.now_ms, r.tag - 2, false, false);
    pass(&r, 1000);
    assert_int_equal(r.n_written, 2);
    assert_int_equal(r.written, 2);
    outbox_confirmed(&r.o, r.now_ms, r.tag - 1, false, false);
    pass(&r, 1000);
    assert_int_equal(r.written, -1);
    outbox_deinit(&r.o);
}

static void test_it_is_idle_only_when_a_lost_connection_repeats_nothing(void **state)
{
    struct rig r;

    start(&r);
    assert_false(outbox_is_idle(&r.o)); /* a read is in flight */
    answer(&r, 1, 1, true, "x");
    assert_false(outbox_is_idle(&r.o)); /* a message is in flight */
    outbox_confirmed(&r.o, r.now_ms, r.tag, false, false);
    assert_false(outbox_is_idle(&r.o)); /* the position is not written */
    pass(&r, 100);
    assert_int_equal(r.n_written, 1);
    answer(&r, 1, 0, true, "x");
    assert_true(outbox_is_idle(&r.o));
    outbox_deinit(&r.o);
}

static void test_what_was_out_is_sent_again(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 6, true, "x");
    outbox_confirmed(&r.o, r.now_ms, 3, true, false);
    outbox_unlinked(&r.o, r.now_ms, 0, "");
    turn(&r);
    outbox_linked(&r.o, r.now_ms);
    r.n_sent = 0;
    turn(&r);
    assert_string_equal(r.last, "m4"); /* alone: the exchange is not proven on this connection */
    outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
    turn(&r);
    assert_int_equal(r.n_sent, 3);
    assert_int_equal(r.o.counts.resent.total, 3);
    outbox_deinit(&r.o);
}

static void test_the_one_that_closes_the_channel_is_found(void **state)
{
    struct rig r;
    int n_closed = 0;

    start(&r);
    prove(&r);
    answer(&r, 2, 101, true, "x");
    assert_int_equal(r.o.sent.len, 100);
    while (r.o.sent.len && n_closed < 100) {
        bool bad = false;

        list_each(&r.o.sent, k)
        {
            bad |= container_of(k, struct outbox_row, in_phase)->seq == 77;
        }
        if (bad) {
            n_closed++;
            outbox_channel_lost(&r.o, r.now_ms, 406, "PRECONDITION_FAILED");
            outbox_channel_open(&r.o, r.now_ms);
        } else {
            outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
        }
        turn(&r);
    }
    assert_int_in_range(n_closed, 2, 8);
    assert_int_equal(r.n_buried, 1);
    pass(&r, 1000);
    assert_int_equal(r.written, -1);
    assert_int_equal(r.o.counts.letters.total, 1);
    outbox_deinit(&r.o);
}

static const struct outbox_row *row_out(struct rig *r, int64_t seq)
{
    list_each(&r->o.sent, k)
    {
        const struct outbox_row *row = container_of(k, struct outbox_row, in_phase);

        if (row->seq == seq)
            return row;
    }
    return NULL;
}

static bool is_out(struct rig *r, int64_t seq)
{
    return row_out(r, seq);
}

static void relink(struct rig *r, int code, const char *why)
{
    outbox_unlinked(&r->o, r->now_ms, code, why);
    outbox_linked(&r->o, r->now_ms);
    turn(r);
}

/* The broker crashes over a row, and closes the connection. */
static void test_the_one_that_closes_the_connection_is_found(void **state)
{
    struct rig r;
    int n_closed = 0, n_alone = 0;

    start(&r);
    prove(&r);
    answer(&r, 2, 101, true, "x");
    while (r.o.sent.len && n_closed < 100) {
        if (is_out(&r, 77)) {
            n_closed++;
            n_alone += r.o.sent.len == 1;
            relink(&r, 541, "the broker closed the connection: 541 INTERNAL_ERROR");
        } else {
            outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
            turn(&r);
        }
    }
    assert_int_in_range(n_closed, 4, 11);
    assert_int_equal(n_alone, 3);
    assert_int_equal(r.n_buried, 1);
    assert_string_equal(r.buried, "refused: the broker closed the connection: 541 INTERNAL_ERROR");
    pass(&r, 1000);
    assert_int_equal(r.written, -1);
    assert_int_equal(r.o.counts.published.total, 100);
    outbox_deinit(&r.o);
}

static void test_the_second_of_two_rows_is_found_if_it_closes_the_connection(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 3, true, "x");
    assert_int_equal(r.o.sent.len, 2);
    for (int i = 0; i < 10 && r.o.sent.len; i++) {
        if (is_out(&r, 3))
            relink(&r, 541, "INTERNAL_ERROR");
        else
            confirm_all(&r);
    }
    assert_int_equal(r.n_buried, 1);
    assert_int_equal(r.o.counts.published.total, 2);
    outbox_deinit(&r.o);
}

/* A connection that is closed while another row is also in flight does not count. */
static void test_a_row_is_given_up_after_it_closes_three_connections_alone(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 3, true, "x");
    assert_int_equal(r.o.sent.len, 2);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r.n_buried, 0);
        assert_true(is_out(&r, 2));
        relink(&r, 541, "INTERNAL_ERROR");
    }
    assert_int_equal(r.n_buried, 1);
    outbox_deinit(&r.o);
}

static void test_a_connection_that_ends_otherwise_is_no_rows_fault(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 1, 2, true, "x");
    for (int i = 0; i < 20; i++) {
        assert_int_equal(r.o.sent.len, 1);
        relink(&r, i % 2 ? 320 : 0, "CONNECTION_FORCED");
    }
    for (int i = 0; i < 10; i++) { /* a nacked row is not the one that the broker crashes over */
        relink(&r, 541, "INTERNAL_ERROR");
        relink(&r, 541, "INTERNAL_ERROR");
        outbox_confirmed(&r.o, r.now_ms, r.tag, false, true);
        pass(&r, 1000);
        assert_int_equal(r.o.sent.len, 1);
    }
    assert_int_equal(r.n_buried, 0);
    outbox_confirmed(&r.o, r.now_ms, r.tag, false, false);
    turn(&r);
    outbox_confirmed(&r.o, r.now_ms, r.tag, false, false);
    pass(&r, 1000);
    assert_int_equal(r.written, -1);
    outbox_deinit(&r.o);
}

static const char missing[] = "NOT_FOUND - no exchange 'y'";

/* The broker refuses the row in flight, whose exchange is missing. */
static void refuse(struct rig *r)
{
    assert_int_equal(r->o.sent.len, 1);
    outbox_channel_lost(&r->o, r->now_ms, 404, missing);
    outbox_channel_open(&r->o, r->now_ms);
    turn(r);
}

static void test_a_missing_exchange_takes_nobody_along(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 9, false, "x");
    answer(&r, 10, 19, true, "missing");
    assert_int_equal(r.o.sent.len, 8); /* refused until it is alone */
    outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
    turn(&r);
    assert_int_equal(r.o.sent.len, 1);
    outbox_channel_lost(&r.o, r.now_ms, 404, "NOT_FOUND - no exchange 'missing'");
    outbox_channel_open(&r.o, r.now_ms);
    turn(&r);
    assert_int_equal(r.n_buried, 1);
    assert_int_equal(r.o.sent.len, 1);
    outbox_deinit(&r.o);
}

static void read_on(struct rig *r)
{
    for (int i = 0; r->o.reading.ask != OUTBOX_ASKED; i++) {
        assert_true(i < 10000);
        pass(r, 1);
    }
}

static void test_the_third_refusal_in_a_row_stops_an_exchange_and_no_other(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 11, true, "y");
    refuse(&r);
    refuse(&r);
    assert_int_equal(r.n_buried, 2);
    refuse(&r);
    assert_int_equal(r.n_buried, 2);
    assert_int_equal(r.n_parked, 8);
    assert_int_equal(r.n_told_stopped, 1);
    pass(&r, 100);
    assert_int_equal(r.written, -1); /* the position does not wait for parked rows */
    read_on(&r);
    answer(&r, 12, 13, true, "x");
    assert_int_equal(r.o.sent.len, 2);
    assert_string_equal(r.last, "m13");
    confirm_all(&r);
    for (int i = 0; i < 120; i++) { /* the first row is tried each second, and the lease is kept */
        r.n_sent = 0;
        pass(&r, 1000);
        assert_int_equal(r.n_sent, 1);
        assert_string_equal(r.last, "m4");
        refuse(&r);
    }
    assert_int_in_range(r.n_told_stopped, 2, 3);
    assert_int_equal(r.n_given_up, 0);
    assert_int_equal(r.n_buried, 2);
    outbox_deinit(&r.o);
}

/* The broker may close the channel because of that row: all rows in flight beside it would be sent twice. */
static void test_no_row_is_in_flight_beside_one_to_an_unproven_exchange(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 2, false, "new");
    assert_int_equal(r.n_sent, 2);
    answer(&r, 3, 4, true, "x");
    assert_int_equal(r.n_sent, 2);
    confirm_all(&r);
    assert_int_equal(r.n_sent, 4);
    outbox_deinit(&r.o);
}

/* The lag is the time from the publish, as recorded by the database, to the confirm. */
static void test_the_lag_of_a_confirmed_row_is_measured(void **state)
{
    struct rig r;

    start(&r);
    outbox_batch_came(&r.o, r.now_ms, SLICE("batch"), true);
    outbox_row_came(&r.o, r.now_ms, &(struct outbox_new){.seq = 1, .exchange = SLICE("x"), .age_ms = 4000});
    outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
    turn(&r);
    pass(&r, 1000);
    confirm_all(&r);
    assert_int_equal(r.o.lag_ms, 5000);
    assert_in_range(histogram_quantile(&r.o.lag_us, 500), 4900000, 5100000);
    outbox_deinit(&r.o);
}

static void test_a_stopped_exchange_is_logged_with_the_brokers_reason(void **state)
{
    static const char why[] = "ACCESS_REFUSED - access to exchange in vhost '/' refused for user 'u'";
    char name[121], expected[300];
    struct rig r;

    for (size_t len = 99; len <= 120; len += 1 + (len > 101)) {
        memset(name, 'y', len);
        name[len] = '\0';
        snprintf(expected, sizeof(expected), "exchange '%.100s' is stopped: %s", name, why);
        start(&r);
        answer(&r, 1, 2, true, name);
        outbox_channel_lost(&r.o, r.now_ms, 403, why);
        turn(&r);
        assert_string_equal(r.said[OUTBOX_TOLD_STOPPED].text, why);
        assert_string_equal(r.o.parked.text, expected);
        outbox_deinit(&r.o);
    }
}

/* The first read misses rows that are still being written into the table. */
static void test_an_empty_page_of_parked_rows_is_read_again_a_millisecond_later(void **state)
{
    struct outbox_action a;
    struct rig r;

    start(&r);
    answer(&r, 1, 1, true, "y");
    confirm_all(&r);
    read_on(&r);
    answer(&r, 2, 3, false, "y");
    outbox_channel_lost(&r.o, r.now_ms, 404, missing);
    outbox_channel_open(&r.o, r.now_ms);
    turn(&r);
    outbox_channel_lost(&r.o, r.now_ms, 404, missing);
    outbox_channel_open(&r.o, r.now_ms);
    assert_true(turn_to(&r, OUTBOX_DEAD_LETTERS, &a));
    asks_in(&r, OUTBOX_PARKED_READ, 1000);
    outbox_parked_read_ends(&r.o, r.now_ms, OUTBOX_DONE, true);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(outbox_due_ms(&r.o, r.now_ms), r.now_ms + 1);
        asks_in(&r, OUTBOX_PARKED_READ, 1);
        outbox_parked_read_ends(&r.o, r.now_ms, OUTBOX_DONE, true);
    }
    outbox_deinit(&r.o);
}

static void refuse_for(struct rig *r, int code, const char *why)
{
    assert_int_equal(r->o.sent.len, 1);
    outbox_channel_lost(&r->o, r->now_ms, code, why);
    outbox_channel_open(&r->o, r->now_ms);
    turn(r);
}

/* A missing permission is no message's fault, also for a relay that has just started. */
static void test_an_exchange_that_may_not_be_written_to_stops_at_once(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 1, 5, true, "y");
    refuse_for(&r, 403, "ACCESS_REFUSED - access to exchange 'y' in vhost '/' refused for user 'u'");
    assert_int_equal(r.n_buried, 0);
    assert_int_equal(r.o.parked.n_stopped, 1);
    assert_int_equal(n_left(&r), 5);
    outbox_deinit(&r.o);
}

/* Other topics of the exchange may be allowed, as long as some are. */
static void test_a_forbidden_topic_becomes_a_letter_until_twenty_in_a_row_are(void **state)
{
    static const char why[] = "ACCESS_REFUSED - access to topic 'a.b' in exchange 'y' in vhost '/' refused";

    for (int some = 0; some < 2; some++) {
        struct rig r;
        int n = 0;

        start(&r);
        answer(&r, 1, 40, true, "y");
        for (int i = 0; i < 40 && r.o.sent.len == 1; i++) {
            if (some && i % 2) {
                outbox_confirmed(&r.o, r.now_ms, r.tag, false, false);
                turn(&r);
                while (r.o.sent.len > 1) { /* beside others */
                    outbox_channel_lost(&r.o, r.now_ms, 403, why);
                    outbox_channel_open(&r.o, r.now_ms);
                    turn(&r);
                }
                continue;
            }
            refuse_for(&r, 403, why);
            n++;
        }
        assert_int_equal(r.n_buried, some ? n : OUTBOX_TOPIC_REFUSALS - 1);
        assert_int_equal(r.o.parked.n_stopped, !some);
        assert_int_equal(n_left(&r), some ? 0 : 40 - (OUTBOX_TOPIC_REFUSALS - 1));
        outbox_deinit(&r.o);
    }
}

/* A parked row is larger than the room for rows read ahead. */
static void test_a_large_parked_row_stops_no_other_exchange(void **state)
{
    size_t n_bytes = 2 * OUTBOX_HELD_BYTES;
    char *large = calloc(1, n_bytes);
    struct rig r;

    start(&r);
    r.o.rules.max_message_bytes = n_bytes;
    r.body = (struct slice){large, n_bytes};
    prove(&r);
    answer(&r, 2, 5, true, "y");
    for (int i = 0; i < 3; i++)
        refuse(&r);
    assert_int_equal(n_left(&r), 2);
    for (int i = 0; i < 3; i++) {
        pass(&r, 1000);
        assert_string_equal(r.last, "m4");
        assert_int_equal(r.o.sent.len, 1);
        read_on(&r); /* also while it is in flight */
        refuse(&r);
        assert_int_equal(r.o.parked_rows.len, 0);
        answer(&r, 6 + i, 6 + i, true, "x");
        confirm_all(&r);
    }
    for (int i = 0; i < 4; i++) { /* the exchange exists now: they are sent in order */
        pass(&r, 1000);
        confirm_all(&r);
    }
    assert_int_equal(n_left(&r), 0);
    assert_int_equal(r.o.parked.n_bytes, 0);
    assert_int_equal(r.sent[r.n_sent - 2], 4);
    assert_int_equal(r.sent[r.n_sent - 1], 5);
    outbox_deinit(&r.o);
    free(large);
}

static void test_a_stopped_exchange_goes_on_in_order_and_new_rows_behind_what_is_parked(void **state)
{
    struct rig r;
    int at = 202, first;

    start(&r);
    answer(&r, 1, 1, true, "y");
    confirm_all(&r); /* the exchange has worked: the first refusal stops it */
    read_on(&r);
    answer(&r, 2, 201, true, "y");
    while (r.o.sent.len) { /* halved until one is alone */
        outbox_channel_lost(&r.o, r.now_ms, 404, missing);
        outbox_channel_open(&r.o, r.now_ms);
        turn(&r);
    }
    assert_int_equal(r.n_buried, 0);
    assert_int_equal(n_left(&r), 200);
    pass(&r, 1000);
    first = r.n_sent - 1;
    for (int i = 0; i < 1000 && (r.o.parked.n_stopped || at < 300); i++) {
        if (r.o.sent.len && i % 3 == 0)
            outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
        turn(&r);
        if (r.o.reading.ask == OUTBOX_ASKED && at < 300) {
            answer(&r, at, at + 6, true, "y");
            at += 7;
        }
        pass(&r, 2);
    }
    for (; r.o.sent.len; pass(&r, 2))
        confirm_all(&r);
    assert_int_equal(r.o.parked.n_stopped, 0);
    assert_int_equal(r.n_told_open, 1);
    assert_int_equal(n_left(&r), 0);
    assert_int_equal(r.n_buried, 0);
    for (int i = 0; i < at - 2; i++)
        assert_int_equal(r.sent[first + i], i + 2);
    assert_int_equal(r.n_sent, first + at - 2);
    outbox_deinit(&r.o);
}

static void test_what_is_parked_outlives_its_relay_and_goes_first(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 1, 5, true, "y");
    for (int i = 0; i < 3; i++)
        refuse(&r);
    assert_int_equal(r.n_parked, 3);
    outbox_database(&r.o, r.now_ms, false, "lost"); /* like a takeover by another relay */
    outbox_database(&r.o, r.now_ms, true, NULL);
    r.n_sent = 0;
    turn(&r);
    assert_int_equal(r.n_sent, 1);
    answer(&r, 6, 7, true, "y");
    for (; r.o.sent.len; pass(&r, 2))
        confirm_all(&r);
    for (int i = 0; i < 5; i++)
        assert_int_equal(r.sent[i], i + 3);
    assert_int_equal(n_left(&r), 0);
    assert_int_equal(r.o.parked.n_stopped, 0);
    outbox_deinit(&r.o);
}

static void test_a_letter_of_a_parked_row_lets_those_behind_it_go_on(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 1, 5, true, "y");
    for (int i = 0; i < 3; i++)
        refuse(&r);
    pass(&r, 1000);
    outbox_channel_lost(&r.o, r.now_ms, 406, "PRECONDITION_FAILED");
    outbox_channel_open(&r.o, r.now_ms);
    pass(&r, 1000);
    assert_int_equal(r.n_buried, 3);
    assert_string_equal(r.last, "m4");
    outbox_deinit(&r.o);
}

/* The only parked row was refused for another reason. The exchange has never worked. */
static void test_an_exchange_that_reopens_without_a_confirm_stops_again_at_the_third_refusal(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 1, 3, true, "y");
    for (int i = 0; i < 3; i++)
        refuse(&r);
    pass(&r, 1000);
    outbox_channel_lost(&r.o, r.now_ms, 406, "PRECONDITION_FAILED");
    outbox_channel_open(&r.o, r.now_ms);
    pass(&r, 1000);
    assert_int_equal(r.n_told_open, 1);
    read_on(&r);
    answer(&r, 4, 7, true, "y");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r.n_buried, 3 + i);
        assert_int_equal(r.n_told_stopped, 1);
        refuse(&r);
    }
    assert_int_equal(r.n_buried, 5);
    assert_int_equal(r.o.parked.n_stopped, 1);
    outbox_deinit(&r.o);
}

static void test_the_lease_is_offered_over_an_exchange_that_is_not_allowed(void **state)
{
    char x[] = "x";
    char *exchanges[] = {x};
    struct rig r;
    int asked;

    begin(&r, exchanges, 1);
    outbox_linked(&r.o, r.now_ms);
    turn(&r);
    answer(&r, 1, 5, true, "y");
    assert_int_equal(r.n_given_up, 1);
    assert_int_equal(r.n_buried, 0);
    asked = r.n_asked;
    pass(&r, 5999);
    assert_int_equal(r.n_asked, asked);
    pass(&r, 1);
    assert_int_equal(r.n_asked, asked + 1); /* no other sidecar has taken the lease */
    answer(&r, 1, 5, true, "y");
    assert_int_equal(r.n_buried, 2);
    assert_string_equal(r.buried, "not_allowed: the exchange is not in outbox.exchanges");
    assert_int_equal(r.n_parked, 3);
    pass(&r, 100);
    assert_int_equal(r.written, -1);
    read_on(&r);
    answer(&r, 6, 6, true, "z"); /* another exchange within a minute: it waits for the next offer */
    assert_int_equal(r.n_given_up, 1);
    assert_int_equal(r.n_parked, 4);
    assert_int_equal(r.n_sent, 0);
    read_on(&r);
    answer(&r, 7, 7, true, "x");
    assert_int_equal(r.n_sent, 1);
    confirm_all(&r);
    pass(&r, 60000);
    pass(&r, 1);
    assert_int_equal(r.n_given_up, 2);
    outbox_deinit(&r.o);
}

static void test_one_offer_is_for_all_exchanges_that_wait_and_those_are_bounded(void **state)
{
    enum { N = OUTBOX_STOPPED_MAX + 10 };
    char x[] = "x", name[16];
    char *exchanges[] = {x};
    struct rig r;

    begin(&r, exchanges, 1);
    outbox_linked(&r.o, r.now_ms);
    turn(&r);
    answer(&r, 1, 1, true, "first");
    assert_int_equal(r.n_given_up, 1);
    assert_string_equal(r.said[OUTBOX_TOLD_LEFT].text,
                        "a row is for an exchange that is not in outbox.exchanges: "
                        "another sidecar that allows it may take the lease");
    pass(&r, OUTBOX_OFFER_MS);
    for (int i = 0; i < N; i++) {
        read_on(&r);
        snprintf(name, sizeof(name), "y%d", i);
        answer(&r, 2 + i, 2 + i, true, name);
        assert_int_equal(r.n_given_up, 1);
    }
    assert_int_equal(r.o.parked.n_stopped, OUTBOX_STOPPED_MAX);
    assert_int_equal(r.n_parked, OUTBOX_STOPPED_MAX);
    assert_int_equal(r.n_buried, N - OUTBOX_STOPPED_MAX);
    for (int i = 0; i < 600; i++)
        pass(&r, 1000);
    assert_int_equal(r.n_given_up, 2);
    assert_int_equal(n_left(&r), OUTBOX_STOPPED_MAX);
    outbox_deinit(&r.o);
}

/* No more exchanges can stop. The other rows of a missing exchange become dead letters without a try of their own,
 * which would cost the channel. */
static void test_rows_behind_three_refused_ones_are_not_tried(void **state)
{
    char name[16];
    int seq = 0;
    struct rig r;

    start(&r);
    for (int i = 0; i < OUTBOX_STOPPED_MAX; i++) {
        snprintf(name, sizeof(name), "y%d", i);
        if (i)
            read_on(&r);
        answer(&r, seq + 1, seq + OUTBOX_REFUSALS, true, name);
        for (seq += OUTBOX_REFUSALS; r.o.sent.len;)
            refuse(&r);
    }
    assert_int_equal(r.o.parked.n_stopped, OUTBOX_STOPPED_MAX);
    int n_buried = r.n_buried, n_sent = r.n_sent;

    read_on(&r);
    answer(&r, seq + 1, seq + OUTBOX_REFUSALS + 2, true, "z");
    for (int i = 0; i < OUTBOX_REFUSALS; i++)
        refuse(&r);
    assert_int_equal(r.o.sent.len, 0);
    assert_int_equal(r.n_sent - n_sent, OUTBOX_REFUSALS);
    pass(&r, 1);
    assert_int_equal(r.n_buried - n_buried, OUTBOX_REFUSALS + 2);
    outbox_deinit(&r.o);
}

/* Sends `n` rows, round robin to that many exchanges. Returns the number of waits for the broker. */
static int round_trips(struct rig *r, int *at, int n, int n_exchanges)
{
    char exchange[16], id[16];
    int n_trips = 0;

    while (n) {
        assert_int_equal(r->o.reading.ask, OUTBOX_ASKED);
        outbox_batch_came(&r->o, r->now_ms, SLICE("batch"), false);
        for (int i = 0; n && i < 256; i++, n--) {
            snprintf(exchange, sizeof(exchange), "x%d", *at % n_exchanges);
            snprintf(id, sizeof(id), "m%d", ++*at);
            outbox_row_came(&r->o, r->now_ms,
                            &(struct outbox_new){.seq = *at,
                                                 .exchange = slice_of(exchange),
                                                 .routing_key = SLICE("k"),
                                                 .message_id = slice_of(id)});
        }
        outbox_read_ends(&r->o, r->now_ms, OUTBOX_DONE);
        turn(r);
        for (; r->o.sent.len; n_trips++) {
            outbox_confirmed(&r->o, r->now_ms, r->tag, true, false);
            turn(r);
        }
    }
    return n_trips;
}

static void test_a_thousand_exchanges_are_known(void **state)
{
    struct rig r;
    int at = 0;

    start(&r);
    assert_int_equal(round_trips(&r, &at, OUTBOX_EXCHANGES, OUTBOX_EXCHANGES), OUTBOX_EXCHANGES);
    assert_int_equal(round_trips(&r, &at, OUTBOX_EXCHANGES, OUTBOX_EXCHANGES), OUTBOX_EXCHANGES / 256);
    for (int i = 0; i < 10; i++) { /* an exchange in use is not the one that is dropped */
        at = 0;
        assert_int_equal(round_trips(&r, &at, 2, 1), 1);
        at = 2000 + i * 200;
        round_trips(&r, &at, 200, 100000);
    }
    answer(&r, 100000, 100003, false, "x0");
    assert_int_equal(r.o.sent.len, 4);
    confirm_all(&r);
    answer(&r, 100004, 100007, false, "x1");
    assert_int_equal(r.o.sent.len, 1);
    assert_int_equal(r.o.exchanges.len, OUTBOX_EXCHANGES);
    outbox_deinit(&r.o);
}

static void test_what_is_refused_is_not_forgotten_for_others(void **state)
{
    struct rig r;
    int at = 1;

    start(&r);
    answer(&r, 1, 1, false, "missing");
    for (int i = 0; i < 2; i++) {
        refuse(&r);
        answer(&r, 2 + i, 2 + i, false, "missing");
    }
    refuse(&r);
    assert_int_equal(r.n_parked, 1);
    round_trips(&r, &at, 2 * OUTBOX_EXCHANGES, 100000);
    assert_int_equal(r.o.exchanges.len, OUTBOX_EXCHANGES);
    r.n_sent = 0;
    answer(&r, at + 1, at + 5, false, "missing");
    assert_int_equal(r.n_sent, 0);
    assert_int_equal(r.n_buried, 2);
    assert_int_equal(r.n_parked, 6);
    pass(&r, 1000);
    assert_int_equal(r.n_sent, 1); /* the exchange may exist now */
    assert_string_equal(r.last, "m3");
    outbox_deinit(&r.o);
}

static void test_what_is_not_allowed_or_too_large_is_not_sent(void **state)
{
    char x[] = "x";
    char *exchanges[] = {x};
    struct rig r;

    begin(&r, exchanges, 1);
    outbox_linked(&r.o, r.now_ms);
    turn(&r);
    outbox_batch_came(&r.o, r.now_ms, SLICE("b"), true);
    outbox_row_came(&r.o, r.now_ms, &(struct outbox_new){.seq = 1, .exchange = SLICE("y"), .body_len = 1});
    outbox_row_came(&r.o, r.now_ms, &(struct outbox_new){.seq = 2, .exchange = SLICE("x"), .body_len = 101});
    outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
    turn(&r);
    assert_int_equal(r.n_sent, 0);
    assert_int_equal(r.n_given_up, 1); /* for the first; the other one is a letter, and read again */
    outbox_deinit(&r.o);
}

/* The answering application copies that key from a client. */
static void test_a_direct_reply_is_not_sent(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    r.key = "amq.rabbitmq.reply-to.%%%.x";
    answer(&r, 2, 2, true, "");
    assert_int_equal(r.n_sent, 1);
    assert_int_equal(r.n_buried, 1);
    assert_string_equal(r.buried, "unroutable: " OUTBOX_DIRECT_REPLY);
    pass(&r, 100);
    answer(&r, 3, 3, true, "x"); /* with another exchange it is an ordinary key */
    assert_string_equal(r.last, "m3");
    r.key = "amq.rabbitmq.reply-to";
    outbox_confirmed(&r.o, r.now_ms, r.tag, false, false);
    pass(&r, 100);
    answer(&r, 4, 4, true, "");
    assert_string_equal(r.last, "m4");
    assert_int_equal(r.n_buried, 1);
    outbox_deinit(&r.o);
}

static void test_what_comes_back_is_a_letter(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 4, true, "x");
    outbox_returned(&r.o, SLICE("x"), SLICE("k"), SLICE("m3"), 4);
    outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
    turn(&r);
    assert_int_equal(r.n_buried, 1);
    assert_int_equal(r.o.counts.published.total, 3);
    outbox_deinit(&r.o);
}

/* A headers exchange takes the second row and returns the first, or the reverse. */
static void test_rows_that_a_return_cannot_tell_apart_go_one_by_one(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    outbox_hint(&r.o, r.now_ms);
    turn(&r);
    outbox_batch_came(&r.o, r.now_ms, SLICE("batch"), true);
    for (int i = 2; i <= 5; i++)
        outbox_row_came(&r.o, r.now_ms,
                        &(struct outbox_new){.seq = i,
                                             .exchange = SLICE("x"),
                                             .routing_key = SLICE("k"),
                                             .message_id = i == 4 ? SLICE("other") : SLICE("same"),
                                             .body = SLICE("body"),
                                             .body_len = 4});
    outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
    turn(&r);
    assert_true(is_out(&r, 2));
    assert_false(is_out(&r, 3));
    assert_false(is_out(&r, 4)); /* in order */
    confirm_all(&r);
    assert_true(is_out(&r, 3) && is_out(&r, 4));
    assert_false(is_out(&r, 5));
    outbox_returned(&r.o, SLICE("x"), SLICE("k"), SLICE("same"), 4);
    confirm_all(&r);
    assert_int_equal(r.n_buried, 1);
    assert_true(is_out(&r, 5));
    confirm_all(&r);
    assert_int_equal(r.o.counts.published.total, 4); /* including that of prove() */
    outbox_deinit(&r.o);
}

/* --- ordered exchanges --- */

static char x_name[] = "x";
static char *x_names[] = {x_name};

static void start_ordered(struct rig *r)
{
    start(r);
    r->o.rules.ordered = x_names;
    r->o.rules.n_ordered = 1;
    prove(r);
    outbox_hint(&r->o, r->now_ms);
    turn(r);
}

/* Answers a read with rows `from` to `to` with routing keys in turn. */
static void answer_keys(struct rig *r, int from, int to, const char *const *keys)
{
    for (int i = from; i <= to; i++) {
        r->key = keys[i - from];
        outbox_hint(&r->o, r->now_ms);
        pass(r, 100);
        answer(r, i, i, true, "x");
    }
}

static void test_a_routing_key_of_an_ordered_exchange_has_one_row_in_flight(void **state)
{
    static const char *const keys[] = {"k", "k", "j", "k"};
    struct rig r;

    start_ordered(&r);
    answer_keys(&r, 2, 5, keys);
    assert_true(is_out(&r, 2) && is_out(&r, 4));
    assert_false(is_out(&r, 3) || is_out(&r, 5));
    outbox_confirmed(&r.o, r.now_ms, row_out(&r, 2)->tag, false, true); /* a nack */
    pass(&r, 20);
    assert_false(is_out(&r, 3) || is_out(&r, 5));
    confirm_all(&r);
    assert_true(is_out(&r, 2));
    outbox_unlinked(&r.o, r.now_ms, 0, "");
    outbox_linked(&r.o, r.now_ms);
    turn(&r);
    assert_true(is_out(&r, 2));
    assert_false(is_out(&r, 3) || is_out(&r, 5));
    confirm_all(&r);
    assert_true(is_out(&r, 3));
    assert_false(is_out(&r, 5));
    confirm_all(&r);
    confirm_all(&r);
    assert_int_equal(r.o.counts.published.total, 5);
    assert_int_equal(r.o.keys.len, 0);
    outbox_deinit(&r.o);
}

/* The hashes of two keys are equal if each routing key is the name of its exchange. */
static void test_routing_keys_of_two_ordered_exchanges_do_not_wait_for_each_other(void **state)
{
    static char y_name[] = "y";
    char *names[] = {x_name, y_name};
    struct rig r;

    start(&r);
    r.o.rules.ordered = names;
    r.o.rules.n_ordered = 2;
    for (int i = 1; i <= 2; i++) { /* proves both exchanges first */
        r.key = "k";
        answer(&r, i, i, false, names[i - 1]);
        confirm_all(&r);
    }
    for (int i = 3; i <= 6; i++) {
        r.key = names[i % 2];
        answer(&r, i, i, false, names[i % 2]);
    }
    assert_true(is_out(&r, 3) && is_out(&r, 4));
    assert_false(is_out(&r, 5) || is_out(&r, 6));
    confirm_all(&r);
    assert_true(is_out(&r, 5) && is_out(&r, 6));
    outbox_deinit(&r.o);
}

static void test_a_return_stops_an_ordered_exchange_and_its_rows_go_later_in_order(void **state)
{
    static const char *const keys[] = {"k", "k", "j", "j"};

    for (int is_lost = 0; is_lost < 2; is_lost++) {
        struct rig r;

        start_ordered(&r);
        answer_keys(&r, 2, 5, keys);
        outbox_returned(&r.o, SLICE("x"), SLICE("k"), SLICE("m2"), 4);
        outbox_confirmed(&r.o, r.now_ms, row_out(&r, 2)->tag, false, false);
        turn(&r);
        assert_int_equal(r.n_told_stopped, 1);
        assert_int_equal(r.n_buried, 0);
        assert_int_equal(r.n_parked, 2); /* row 5 waits for row 4, which is in flight */
        if (is_lost)
            relink(&r, 0, "");
        else
            outbox_confirmed(&r.o, r.now_ms, row_out(&r, 4)->tag, false, true);
        turn(&r);
        assert_int_equal(r.n_parked, 4);
        assert_string_equal(r.parked[2].id, "m4");
        assert_string_equal(r.parked[3].id, "m5");
        for (int i = 0; i < 6; i++) {
            pass(&r, 1000);
            confirm_all(&r);
        }
        assert_int_equal(n_left(&r), 0);
        assert_int_equal(r.n_told_open, 1);
        assert_int_equal(r.o.counts.published.total, 5);
        outbox_deinit(&r.o);
    }
}

static void test_an_exchange_may_be_published_to_without_mandatory(void **state)
{
    char late[] = "late";
    char *names[] = {late};
    struct outbox_rules rules = {
        .poll_ms = POLL_MS, .max_message_bytes = 100, .not_mandatory = names, .n_not_mandatory = 1};
    struct rig r;

    begin(&r, NULL, 0);
    r.o.rules = rules;
    outbox_linked(&r.o, r.now_ms);
    turn(&r);
    answer(&r, 1, 1, false, "late");
    assert_false(row_out(&r, 1)->mandatory);
    confirm_all(&r);
    answer(&r, 2, 2, true, "x");
    assert_true(row_out(&r, 2)->mandatory);
    outbox_deinit(&r.o);
}

/* The number of waiting rows makes no difference, and neither do reads. */
static void test_a_holder_that_gets_nothing_confirmed_gives_up(void **state)
{
    for (int n = 1; n <= 3; n++) {
        int64_t began_ms;
        struct rig r;

        start(&r);
        answer(&r, 1, n, true, "x");
        began_ms = r.now_ms;
        while (r.now_ms < began_ms + OUTBOX_SILENT_MS) {
            assert_int_equal(r.n_given_up, 0);
            pass(&r, r.now_ms == began_ms + 14500 ? 499 : r.now_ms == began_ms + 14999 ? 1 : 500);
            if (r.o.reading.ask == OUTBOX_ASKED)
                answer(&r, 1, 0, true, "x");
        }
        assert_int_equal(r.n_given_up, 1);
        assert_string_equal(r.said[OUTBOX_TOLD_LEFT].text,
                            "rows wait, and the broker has neither confirmed nor refused any for 15 s");
        int asked = r.n_asked;
        pass(&r, 14999);
        assert_int_equal(r.n_asked, asked);
        pass(&r, 1);
        assert_int_equal(r.n_asked, asked + 1);
        outbox_deinit(&r.o);
    }
}

/* Returns the time after which the lease was given up. */
static int64_t silence(struct rig *r)
{
    int64_t began_ms = r->now_ms;

    while (!r->n_given_up && r->now_ms < began_ms + 20000) {
        pass(r, 500);
        if (r->o.reading.ask == OUTBOX_ASKED)
            answer(r, 1, 0, true, "x");
    }
    return r->now_ms - began_ms;
}

static void test_silence_about_a_parked_row_ends_the_lease(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 1, 5, true, "y");
    for (int i = 0; i < 3; i++)
        refuse(&r);
    pass(&r, 1000);
    assert_int_equal(r.o.sent.len, 1);
    assert_int_equal(silence(&r), 15000);
    outbox_deinit(&r.o);
}

/* The first row of its key becomes a dead letter while no other row waits or is in flight. */
static void test_silence_about_a_parked_row_behind_a_dead_letter_ends_the_lease(void **state)
{
    static const char *const keys[] = {"k", "k", "k"};
    struct rig r;

    start_ordered(&r);
    answer_keys(&r, 2, 4, keys);
    outbox_returned(&r.o, SLICE("x"), SLICE("k"), SLICE("m2"), 4);
    confirm_all(&r);
    assert_int_equal(n_left(&r), 3);
    pass(&r, 1000);
    confirm_all(&r);
    assert_string_equal(r.last, "m3");
    outbox_channel_lost(&r.o, r.now_ms, 406, "PRECONDITION_FAILED");
    outbox_channel_open(&r.o, r.now_ms);
    turn(&r);
    assert_int_equal(r.n_buried, 1);
    assert_string_equal(r.last, "m4");
    assert_int_equal(silence(&r), 15000);
    outbox_deinit(&r.o);
}

/* Rows that arrive meanwhile, and are sent at once, do not extend the time. */
static void test_new_rows_do_not_hide_that_the_broker_is_silent(void **state)
{
    int64_t began_ms;
    struct rig r;

    start(&r);
    prove(&r);
    outbox_hint(&r.o, r.now_ms);
    turn(&r);
    answer(&r, 2, 2, true, "x");
    began_ms = r.now_ms;
    for (int i = 3; !r.n_given_up && i < 100; i++) {
        pass(&r, 500);
        if (r.o.reading.ask == OUTBOX_ASKED)
            answer(&r, i, i, true, "x");
    }
    assert_int_equal(r.now_ms - began_ms, 15000);
    outbox_deinit(&r.o);
}

static void test_the_check_for_silence_is_due_15_s_after_the_row(void **state)
{
    int64_t began_ms;
    struct rig r;

    start(&r);
    answer(&r, 1, 2, true, "x");
    began_ms = r.now_ms;
    pass(&r, 14500);
    assert_int_equal(outbox_due_ms(&r.o, r.now_ms), began_ms + 15000);
    outbox_deinit(&r.o);
}

/* The wait begins when the dead letter is committed, not when the row arrives. */
static void test_silence_about_a_row_behind_a_dead_letter_ends_the_lease(void **state)
{
    struct rig r;

    start_ordered(&r);
    outbox_batch_came(&r.o, r.now_ms, SLICE("batch"), true);
    for (int i = 2; i <= 3; i++)
        outbox_row_came(&r.o, r.now_ms,
                        &(struct outbox_new){.seq = i, .exchange = SLICE("x"), .body_len = i == 2 ? 101 : 0});
    outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
    turn(&r);
    assert_int_equal(r.n_buried, 1);
    assert_int_equal(r.o.sent.len, 1);
    for (int i = 0; i < 15; i++) {
        assert_int_equal(r.n_given_up, 0);
        pass(&r, 1000);
    }
    assert_int_equal(r.n_given_up, 1);
    outbox_deinit(&r.o);
}

/* The first of 256 rows goes to a queue that is full for ten minutes; the broker takes the others. */
static void test_a_nack_is_an_answer_and_the_lease_stays(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 257, true, "x");
    for (int ms = 0; ms < 600000; ms += 5) {
        size_t n = r.o.sent.len;

        if (n)
            outbox_confirmed(&r.o, r.now_ms, r.tag - n + 1, false, true);
        if (n > 1)
            outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
        pass(&r, 5);
        if (r.o.reading.ask == OUTBOX_STALE) /* after losing the lease all is read again */
            outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
        if (r.o.reading.ask == OUTBOX_ASKED && !r.o.rows.len)
            answer(&r, 2, 257, true, "x"); /* the position is before them */
    }
    assert_int_equal(r.n_given_up, 0);
    assert_int_equal(r.o.counts.published.total, 256);
    assert_int_equal(r.n_sent, 257 + (int)r.o.counts.resent.total);
    assert_true(r.o.counts.resent.total >= 500 &&
                r.o.counts.resent.total <= 700); /* the first row, once a second */
    pass(&r, 1000);
    confirm_all(&r);
    pass(&r, 1000);
    assert_int_equal(r.written, -1);
    outbox_deinit(&r.o);
}

static void test_a_drain_waits_for_what_is_out(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 4, true, "x");
    outbox_drain(&r.o, r.now_ms, false);
    turn(&r);
    assert_false(outbox_is_drained(&r.o));
    outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
    turn(&r);
    assert_true(outbox_is_drained(&r.o));
    assert_int_equal(r.written, -1);
    assert_int_equal(r.n_given_up, 1);
    outbox_deinit(&r.o);
}

static void test_a_batch_whose_first_seq_is_0_is_completed(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 0, 0, true, "x");
    confirm_all(&r);
    pass(&r, 100);
    assert_int_equal(r.written, -1);
    outbox_deinit(&r.o);
}

/* The connection to the database is lost before the log line about the lease is written. */
static void test_a_lease_that_is_lost_at_once_is_not_logged_as_held(void **state)
{
    struct outbox_action a;
    struct rig r;

    begin(&r, NULL, 0);
    outbox_linked(&r.o, r.now_ms);
    assert_true(turn_to(&r, OUTBOX_LEASE, &a));
    carry_out(&r, &a);
    outbox_database(&r.o, r.now_ms, false, "lost");
    turn(&r);
    assert_int_equal(r.said[OUTBOX_TOLD_HELD].n, 0);
    assert_string_equal(r.said[OUTBOX_TOLD_LEFT].text, "lost");
    outbox_deinit(&r.o);
}

/* The next relay has a connection of its own to the broker. */
static void test_the_brokers_error_is_forgotten_with_the_lease(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 1, 1, true, "x");
    outbox_confirmed(&r.o, r.now_ms, r.tag, false, true);
    assert_non_null(r.o.error);
    asks_in(&r, OUTBOX_LEASE, 4500);
    assert_non_null(r.o.error);
    outbox_leased(&r.o, r.now_ms, OUTBOX_LOST, 0, 0, false);
    assert_null(r.o.error);
    outbox_deinit(&r.o);
}

static void test_a_drain_ignores_the_read_in_flight(void **state)
{
    struct rig r;

    start(&r);
    outbox_drain(&r.o, r.now_ms, false);
    answer(&r, 1, 3, true, "x");
    assert_int_equal(r.o.rows.len, 0);
    assert_int_equal(r.n_sent, 0);
    assert_true(outbox_is_drained(&r.o));
    assert_string_equal(r.o.why, "it drains");
    outbox_deinit(&r.o);
}

static void test_a_pause_lets_rows_in_flight_end_and_gives_the_lease_up(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 4, true, "x");
    assert_int_equal(r.n_sent, 4);
    outbox_pause(&r.o, "ann");
    answer(&r, 5, 6, true, "x"); /* was read before */
    assert_int_equal(r.n_sent, 4);
    assert_int_equal(r.n_given_up, 0);
    confirm_all(&r);
    assert_int_equal(r.n_sent, 4);
    assert_int_equal(r.n_given_up, 1);
    assert_int_equal(r.written, -1);
    assert_string_equal(r.o.why, "ann");
    assert_false(outbox_holds(&r.o, r.now_ms));
    outbox_pause(&r.o, "ann"); /* another replica has the lease, or none */
    pass(&r, OUTBOX_OFFER_MS);
    assert_true(outbox_holds(&r.o, r.now_ms));
    answer(&r, 5, 6, true, "x");
    assert_int_equal(r.n_sent, 6);
    outbox_deinit(&r.o);
}

/* Answers a lookup: no transaction has ended, or one has. */
static void look(struct rig *r, bool ended)
{
    outbox_looked(&r->o, r->now_ms, ended ? OUTBOX_RESTART : OUTBOX_DONE);
    turn(r);
}

/* The interval grows to five times the configured one, but not above 250 ms unless the configured one is longer. */
static void test_the_interval_between_polls_is_bounded(void **state)
{
    static const struct {
        int poll_ms, waits_ms[5];
    } cases[] = {
        {2, {2, 4, 8, 10, 10}},         {20, {20, 40, 80, 100, 100}},     {50, {50, 100, 200, 250, 250}},
        {51, {51, 102, 204, 250, 250}}, {250, {250, 250, 250, 250, 250}}, {251, {251, 502, 1004, 1255, 1255}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig r;

        start(&r);
        r.o.rules.poll_ms = cases[i].poll_ms;
        outbox_hint(&r.o, r.now_ms);
        answer(&r, 1, 0, true, "x"); /* answers a poll during which a hint came */
        pass(&r, cases[i].poll_ms < 5 ? cases[i].poll_ms : 5);
        answer(&r, 1, 0, true, "x");
        for (int n = 0; n < 5; n++) {
            pass(&r, cases[i].waits_ms[n] - 1);
            assert_int_equal(r.n_looked, n);
            pass(&r, 1);
            assert_int_equal(r.n_looked, n + 1);
            look(&r, false);
        }
        outbox_deinit(&r.o);
    }
}

static void test_the_poll_grows_while_nothing_comes(void **state)
{
    static const int waits[] = {50, 100, 200, 250, 250};
    struct rig r;

    start(&r);
    answer(&r, 1, 0, true, "x");
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        pass(&r, waits[i] - 1);
        assert_int_equal(r.n_looked, i);
        pass(&r, 1);
        assert_int_equal(r.n_looked, i + 1);
        look(&r, false);
    }
    assert_int_equal(r.n_read, 1); /* no row can be read if no transaction has ended */
    outbox_hint(&r.o, r.now_ms);   /* an application has answered */
    turn(&r);
    assert_int_equal(r.n_read, 2);
    outbox_deinit(&r.o);
}

/* The application may have published something after that poll. */
static void test_a_hint_during_a_poll_leads_to_another_one_soon(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 1, 0, true, "x");
    pass(&r, 50);
    assert_int_equal(r.n_looked, 1);
    outbox_hint(&r.o, r.now_ms);
    look(&r, false);
    pass(&r, 4);
    assert_int_equal(r.n_read, 1);
    pass(&r, 1);
    assert_int_equal(r.n_read, 2);
    answer(&r, 1, 0, true, "x"); /* the next poll is an ordinary one */
    pass(&r, 49);
    assert_int_equal(r.n_looked + r.n_read, 3);
    pass(&r, 1);
    assert_int_equal(r.n_looked, 2);
    look(&r, false);
    outbox_hint(&r.o, r.now_ms); /* no poll is in flight */
    turn(&r);
    assert_int_equal(r.n_read, 3);
    answer(&r, 1, 0, true, "x");
    pass(&r, 49);
    assert_int_equal(r.n_looked + r.n_read, 5);
    pass(&r, 1);
    assert_int_equal(r.n_looked, 3);
    outbox_deinit(&r.o);
}

static void test_a_look_that_finds_that_something_ended_is_a_poll(void **state)
{
    struct rig r;

    start(&r);
    answer(&r, 1, 0, true, "x");
    pass(&r, 50);
    assert_int_equal(r.n_looked, 1);
    look(&r, true);
    assert_int_equal(r.n_read, 2);
    answer(&r, 1, 0, true, "x"); /* from another publisher */
    pass(&r, 100);
    assert_int_equal(r.n_looked, 2);
    outbox_looked(&r.o, r.now_ms, OUTBOX_AGAIN); /* the statement failed */
    pass(&r, 999);
    assert_int_equal(r.n_looked + r.n_read, 4);
    pass(&r, 1);
    assert_int_equal(r.n_read, 3);
    outbox_deinit(&r.o);
}

static void test_while_rows_come_it_polls_soon_and_not_always(void **state)
{
    static const int waits[] = {5, 10, 20, 40, 80, 160, 250};
    struct rig r;

    start(&r);
    prove(&r);
    outbox_hint(&r.o, r.now_ms);
    turn(&r);
    assert_int_equal(r.n_read, 2);
    answer(&r, 2, 3, true, "x");
    outbox_hint(&r.o, r.now_ms); /* does not poll again at once */
    pass(&r, 4);
    assert_int_equal(r.n_read, 2);
    pass(&r, 1);
    assert_int_equal(r.n_read, 3);
    answer(&r, 4, 5, true, "x");
    pass(&r, 5);
    assert_int_equal(r.n_read, 4);
    answer(&r, 1, 0, true, "x");
    r.n_looked = 0;
    for (size_t i = 1; i < sizeof(waits) / sizeof(waits[0]); i++) {
        pass(&r, waits[i] - 1);
        assert_int_equal(r.n_looked, i - 1);
        pass(&r, 1);
        assert_int_equal(r.n_looked, i);
        look(&r, false);
    }
    outbox_deinit(&r.o);
}

static void test_polls_that_take_long_come_less_often(void **state)
{
    struct rig r;
    int n = 0;

    start(&r);
    prove(&r);
    outbox_hint(&r.o, r.now_ms);
    turn(&r);
    for (int64_t end_ms = r.now_ms + 5000; r.now_ms < end_ms; r.now_ms++) {
        turn(&r);
        if (r.o.reading.ask != OUTBOX_ASKED || r.now_ms - r.o.reading.asked_ms < 3)
            continue;
        answer(&r, n + 2, n + 2, true, "x");
        n++;
        outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
    }
    assert_int_in_range(n, 5000 / 15, 5000 / 10); /* 3 ms each: a quarter of the time at most */
    outbox_deinit(&r.o);
}

static void test_reading_goes_on_while_confirms_are_out(void **state)
{
    struct rig r;
    int at = 2;

    start(&r);
    prove(&r);
    outbox_hint(&r.o, r.now_ms);
    turn(&r);
    for (; r.o.reading.ask == OUTBOX_ASKED; at += 256)
        answer(&r, at, at + 255, false, "x");
    assert_int_equal(r.o.sent.len, OUTBOX_OUT_MAX);
    assert_int_equal(r.o.rows.len, OUTBOX_HELD_MAX);
    for (int i = 0; i < 8;
         i++) { /* a confirm at once makes room for waiting rows, and those for the next page */
        outbox_confirmed(&r.o, r.now_ms, r.o.counts.published.total + 32, true, false);
        turn(&r);
        assert_int_equal(r.o.sent.len, OUTBOX_OUT_MAX);
    }
    assert_int_equal(r.o.reading.ask, OUTBOX_ASKED);
    assert_true(r.o.wanted.len >= OUTBOX_OUT_MAX); /* enough for that time */
    outbox_deinit(&r.o);
}

/* After 541 and similar codes the broker's text is logged, and everything is sent again. */
static void test_a_channel_closed_over_no_message_is_told_in_the_brokers_words(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 4, true, "x");
    for (int i = 0; i < 30; i++) { /* seconds */
        outbox_channel_lost(&r.o, r.now_ms, 541, i < 20 ? "INTERNAL_ERROR - one" : "INTERNAL_ERROR - two");
        outbox_channel_open(&r.o, r.now_ms);
        pass(&r, 999);
        assert_int_equal(r.o.sent.len, 0);
        assert_string_equal(r.o.error, i < 20 ? "INTERNAL_ERROR - one" : "INTERNAL_ERROR - two");
        pass(&r, 1);
        assert_int_equal(r.o.sent.len, 3);
        outbox_confirmed(&r.o, r.now_ms, r.tag - 2, false, false); /* otherwise the lease would be given up */
        assert_null(r.o.error);
        answer(&r, 5 + i, 5 + i, true, "x");
        turn(&r);
    }
    assert_int_equal(r.n_told_close, 2); /* each once a minute */
    assert_string_equal(r.told, "INTERNAL_ERROR - two");
    assert_int_equal(r.n_buried, 0);
    outbox_deinit(&r.o);
}

static void test_what_was_out_beside_a_nack_goes_again_in_order(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 200, true, "x");
    uint64_t first = r.tag - 198;
    outbox_confirmed(&r.o, r.now_ms, first + 2, true, false); /* m2 to m4 */
    outbox_confirmed(&r.o, r.now_ms, first + 3, false, true); /* m5 */
    outbox_confirmed(&r.o, r.now_ms, first + 5, false, true); /* m7 */
    turn(&r);
    assert_int_equal(r.n_told_nack, 1);
    assert_int_equal(r.o.counts.nacked.total, 2);
    pass(&r, 2000);
    r.n_sent = 0;
    outbox_confirmed(&r.o, r.now_ms, first + 190, true, false); /* all others but eight */
    pass(&r, 2000);
    assert_int_equal(r.n_sent, 0);                       /* no row is sent beside rows in flight */
    outbox_confirmed(&r.o, r.now_ms, r.tag, true, true); /* and those not confirmed */
    turn(&r);
    pass(&r, 19);
    assert_int_equal(r.n_sent, 0);
    pass(&r, 1);
    assert_string_equal(r.last, "m5");
    assert_int_equal(r.o.sent.len, 1);
    confirm_all(&r);
    assert_string_equal(r.last, "m7");
    confirm_all(&r);
    for (int i = 193; i <= 200; i++) {
        char id[16];

        snprintf(id, sizeof(id), "m%d", i);
        assert_string_equal(r.last, id);
        assert_int_equal(r.o.sent.len, 1);
        confirm_all(&r);
    }
    assert_int_equal(r.n_told_nack, 1); /* once a minute */
    outbox_deinit(&r.o);
}

static void test_a_nack_is_logged_with_the_exchange_and_the_key(void **state)
{
    char name[121], key[121], expected[512];

    for (size_t len = 1; len <= 120; len += len < 98 ? 97 : len < 102 ? 1 : 6) {
        struct rig r;

        memset(name, 'y', len);
        memset(key, 'k', len);
        name[len] = key[len] = '\0';
        start(&r);
        r.key = key;
        answer(&r, 1, 1, true, name);
        outbox_confirmed(&r.o, r.now_ms, r.tag, false, true);
        turn(&r);
        snprintf(
            expected, sizeof(expected),
            "the broker refuses (nack) messages to exchange '%.100s' with routing key '%.100s': a queue is full "
            "and rejects, or has no leader; they are sent again until it accepts them, and later messages wait",
            name, key);
        assert_string_equal(r.said[OUTBOX_TOLD_NACKED].text, expected);
        assert_string_equal(r.o.error, expected);
        outbox_deinit(&r.o);
    }
}

static void test_after_nacks_groups_grow(void **state)
{
    struct rig r;
    int at = 3;

    start(&r);
    prove(&r);
    answer(&r, 2, 2, false, "x");
    outbox_confirmed(&r.o, r.now_ms, r.tag, false, true);
    pass(&r, 20);
    confirm_all(&r);
    for (size_t n = 2; n <= OUTBOX_OUT_MAX; n++) {
        for (; r.o.reading.ask == OUTBOX_ASKED; at += 256)
            answer(&r, at, at + 255, false, "x");
        assert_int_equal(r.o.sent.len, n);
        confirm_all(&r);
    }
    assert_false(r.o.link.grows); /* the ordinary mode: rows follow while others are in flight */
    for (int i = 0; i < 6; i++) {
        for (; r.o.reading.ask == OUTBOX_ASKED; at += 256)
            answer(&r, at, at + 255, false, "x");
        assert_int_equal(r.o.sent.len, OUTBOX_OUT_MAX);
        outbox_confirmed(&r.o, r.now_ms, r.tag - OUTBOX_OUT_MAX / 2, true, false);
        turn(&r);
    }
    outbox_deinit(&r.o);
}

/* Empty batches are dropped, and so are those before a position that is being written. */
static void test_batches_that_are_done_are_dropped(void **state)
{
    struct outbox_action a;
    struct rig r;

    start(&r);
    answer(&r, 1, 0, true, "x");
    for (int i = 0; i < 20; i++) {
        outbox_hint(&r.o, r.now_ms);
        pass(&r, 5);
        answer(&r, 1, 0, true, "x");
        assert_int_equal(r.o.batches.len, 1);
    }
    for (int i = 1; i <= 20; i++) {
        outbox_hint(&r.o, r.now_ms);
        r.now_ms += 1000;
        if (turn_to(&r, OUTBOX_WRITE, &a)) /* the caller does not answer it */
            turn(&r);
        answer(&r, i, i, true, "x");
        outbox_confirmed(&r.o, r.now_ms, r.tag, true, false);
        r.o.lease.until_ms = r.now_ms + OUTBOX_LEASE_MS;
        assert_in_range(r.o.batches.len, 1, 2);
    }
    outbox_deinit(&r.o);
}

static void test_the_wait_after_a_nack_doubles_until_something_passes(void **state)
{
    static const int waits[] = {20, 40, 80, 160, 320, 640, 1000, 1000};
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 3, true, "x");
    outbox_confirmed(&r.o, r.now_ms, r.tag, true, true); /* two of them, and one wait */
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        r.n_sent = 0;
        pass(&r, waits[i] - 1);
        assert_int_equal(r.n_sent, 0);
        assert_int_equal(outbox_due_ms(&r.o, r.now_ms) - r.now_ms, 1);
        pass(&r, 1);
        assert_int_equal(r.n_sent, 1);
        assert_string_equal(r.last, "m2");
        if (i + 1 < sizeof(waits) / sizeof(waits[0]))
            outbox_confirmed(&r.o, r.now_ms, r.tag, false, true);
    }
    confirm_all(&r);
    assert_string_equal(r.last, "m3"); /* at once */
    outbox_confirmed(&r.o, r.now_ms, r.tag, false, true);
    pass(&r, 19);
    assert_int_equal(r.n_sent, 2);
    pass(&r, 1);
    assert_int_equal(r.n_sent, 3);
    outbox_deinit(&r.o);
}

/* A queue that rejects messages without room. */
struct full {
    int max, n, n_in, latest, n_behind;
};

/* Passes the sent rows to the queue, in order. */
static void full_take(struct rig *r, struct full *q)
{
    uint64_t last = r->tag;
    int64_t seqs[OUTBOX_OUT_MAX];
    size_t n = 0;

    list_each(&r->o.sent, k)
    {
        seqs[n++] = container_of(k, struct outbox_row, in_phase)->seq;
    }
    for (size_t i = 0; i < n; i++) {
        bool no = q->n == q->max;

        if (!no) {
            q->n++;
            q->n_in++;
            q->n_behind += seqs[i] < q->latest;
            q->latest = (int)seqs[i];
        }
        outbox_confirmed(&r->o, r->now_ms, last - n + 1 + i, false, no);
    }
}

static void test_a_full_queue_gets_what_its_consumer_takes(void **state)
{
    struct full q = {.max = 25};
    int n_taken = 0, at = 2;
    struct rig r;

    start(&r);
    prove(&r);
    outbox_hint(&r.o, r.now_ms);
    turn(&r);
    for (int ms = 0; ms < 20000; ms++) {
        pass(&r, 1);
        for (; r.o.reading.ask == OUTBOX_ASKED; at += 100)
            answer(&r, at, at + 99, false, "x");
        full_take(&r, &q);
        if (ms % 2 || !q.n)
            continue; /* 500/s */
        q.n--;
        n_taken++;
    }
    assert_int_in_range(n_taken, 9900, 10000);
    assert_int_in_range(q.n_behind, 0, n_taken / 100);
    assert_true(r.o.counts.nacked.total > 0);
    outbox_deinit(&r.o);
}

static void test_an_answer_to_what_is_forgotten_is_of_no_use(void **state)
{
    struct rig r;

    start(&r);
    outbox_leased(&r.o, r.now_ms, OUTBOX_LOST, 0, 0, false); /* an unexpected answer */
    assert_true(outbox_holds(&r.o, r.now_ms));
    pass(&r, 4500);
    outbox_written(&r.o, r.now_ms, OUTBOX_LOST);
    assert_true(outbox_holds(&r.o, r.now_ms));
    r.now_ms += OUTBOX_LEASE_MS;
    assert_false(outbox_holds(&r.o, r.now_ms));
    turn(&r); /* a new lease; the answer for the old one arrives now */
    answer(&r, 1, 3, true, "x");
    assert_int_equal(r.o.rows.len, 0);
    outbox_deinit(&r.o);
}

/* Nacks, and closes of the channel for one reason, are logged once a minute. */
static void test_a_lasting_fault_is_logged_once_a_minute(void **state)
{
    static const struct {
        bool is_nack;
        int64_t last_ms;
        int n;
    } cases[] = {{true, 59999, 1}, {true, 60000, 2}, {false, 59999, 1}, {false, 60000, 2}};
    char why[300] = ""; /* longer than its buffer */

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t began_ms;
        struct rig r;

        start(&r);
        prove(&r);
        answer(&r, 2, 2, true, "x");
        began_ms = r.now_ms;
        for (int64_t ms = 0; ms <= 60000; ms += 10000) {
            r.now_ms = began_ms + (ms < 60000 ? ms : cases[i].last_ms);
            r.o.link.quiet_since_ms = r.now_ms; /* as if other rows were confirmed */
            turn(&r);
            assert_int_equal(r.o.sent.len, 1);
            if (cases[i].is_nack)
                outbox_confirmed(&r.o, r.now_ms, r.tag, false, true);
            else
                outbox_channel_lost(&r.o, r.now_ms, 541, memset(why, 'e', sizeof(why) - 1));
            outbox_channel_open(&r.o, r.now_ms);
            turn(&r);
            assert_int_equal(r.said[cases[i].is_nack ? OUTBOX_TOLD_NACKED : OUTBOX_TOLD_CLOSED].n,
                             ms < 60000 ? 1 : cases[i].n);
        }
        outbox_deinit(&r.o);
    }
}

static void test_a_row_that_cannot_be_encoded_becomes_a_dead_letter(void **state)
{
    struct outbox_action a;
    struct rig r;

    start(&r);
    answer(&r, 1, 0, false, "x");
    outbox_batch_came(&r.o, r.now_ms, SLICE("batch"), true);
    for (int i = 1; i <= 2; i++)
        outbox_row_came(&r.o, r.now_ms, &(struct outbox_new){.seq = i, .exchange = SLICE("x")});
    outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
    assert_true(turn_to(&r, OUTBOX_SEND, &a));
    outbox_unfit(&r.o, a.row, DEAD_INVALID_DATA, "a header is too long");
    turn(&r);
    assert_int_equal(r.n_buried, 1);
    assert_string_equal(r.buried, "invalid_data: a header is too long");
    assert_int_equal(r.n_sent, 1);
    outbox_deinit(&r.o);
}

/* A statement writes up to 64 dead letters with up to 1 MiB of bodies, or a single larger one. */
static void test_dead_letters_are_written_together_within_bounds(void **state)
{
    static const struct {
        size_t body_len;
        int n;
        size_t expected[4];
    } cases[] = {
        {1000, 64, {64}},
        {1000, 65, {64, 1}},
        {OUTBOX_LETTERS_BYTES / 4, 9, {4, 4, 1}},
        {OUTBOX_LETTERS_BYTES / 4 + 1, 9, {3, 3, 3}},
        {OUTBOX_LETTERS_BYTES + 1, 2, {1, 1}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct outbox_action a;
        struct rig r;

        start(&r);
        outbox_batch_came(&r.o, r.now_ms, SLICE("batch"), true);
        for (int n = 1; n <= cases[i].n; n++)
            outbox_row_came(
                &r.o, r.now_ms,
                &(struct outbox_new){.seq = n, .exchange = SLICE("x"), .body_len = cases[i].body_len});
        outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
        for (size_t k = 0; cases[i].expected[k]; k++) {
            assert_true(turn_to(&r, OUTBOX_DEAD_LETTERS, &a));
            assert_int_equal(r.o.dead_lettering.len, cases[i].expected[k]);
            carry_out(&r, &a);
        }
        assert_false(turn_to(&r, OUTBOX_DEAD_LETTERS, &a));
        assert_int_equal(r.n_buried, cases[i].n);
        snprintf(r.told, sizeof(r.told), "too_large: %zu bytes; outbox.max_message is 100",
                 cases[i].body_len);
        assert_string_equal(r.buried, r.told);
        outbox_deinit(&r.o);
    }
}

/* The batch stays in memory, even if a later one has been read. */
static void test_the_position_may_be_in_an_earlier_batch(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    outbox_hint(&r.o, r.now_ms);
    turn(&r);
    answer(&r, 2, 2, true, "x");
    confirm_all(&r);
    outbox_hint(&r.o, r.now_ms);
    pass(&r, 5);
    answer(&r, 3, 4, true, "x");
    confirm_all(&r);
    assert_int_equal(r.n_written, 2);
    pass(&r, 5);
    answer(&r, 1, 0, true, "x");
    r.written = 0;
    pass(&r, 100);
    assert_int_equal(r.written, -1);
    assert_int_equal(r.written_batch, 3);
    outbox_deinit(&r.o);
}

/* A position is written 100 ms after the previous one, or after 256 rows. */
static void test_the_position_is_written_at_intervals(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    outbox_hint(&r.o, r.now_ms);
    turn(&r);
    answer(&r, 2, 259, true, "x");
    for (uint64_t i = 2; i <= 258; i++) {
        outbox_confirmed(&r.o, r.now_ms, i, false, false);
        turn(&r);
        assert_int_equal(r.n_written, i < 258 ? 2 : 3);
        assert_int_equal(r.written, i < 258 ? 2 : 258);
    }
    confirm_all(&r);
    pass(&r, 99);
    assert_int_equal(r.n_written, 3);
    pass(&r, 1);
    assert_int_equal(r.n_written, 4);
    assert_int_equal(r.written, -1);
    outbox_deinit(&r.o);
}

static void test_each_read_begins_after_the_previous_one(void **state)
{
    struct outbox_action a;
    struct rig r;

    begin(&r, NULL, 0);
    outbox_linked(&r.o, r.now_ms);
    assert_true(turn_to(&r, OUTBOX_READ, &a));
    assert_null(a.batch); /* at the written position */
    assert_int_equal(a.seq, -1);
    outbox_batch_came(&r.o, r.now_ms, SLICE("first"), false);
    for (int i = 1; i <= 900; i += 100)
        outbox_row_came(&r.o, r.now_ms, &(struct outbox_new){.seq = i, .exchange = SLICE("x")});
    outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
    assert_true(turn_to(&r, OUTBOX_READ, &a)); /* the next page, at once */
    assert_string_equal(a.batch->text, "first");
    assert_int_equal(a.seq, 801);
    outbox_batch_came(&r.o, r.now_ms, SLICE("first again"), true);
    outbox_row_came(&r.o, r.now_ms, &(struct outbox_new){.seq = 901, .exchange = SLICE("x")});
    outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
    a = asks_in(&r, OUTBOX_READ, 5); /* the next batch */
    assert_string_equal(a.batch->text, "first again");
    assert_int_equal(a.seq, -1);
    outbox_batch_came(&r.o, r.now_ms, SLICE("second"), true);
    outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
    a = asks_in(&r, OUTBOX_LOOK, 10);
    assert_string_equal(a.batch->text, "second");
    assert_int_equal(a.seq, -1);
    outbox_deinit(&r.o);
}

/* Rows in memory are bounded in number and in bytes. */
static void test_reading_stops_while_too_many_rows_are_in_memory(void **state)
{
    static const struct {
        int n_rows;
        size_t n_bytes; /* total; 0: small rows */
        int n;          /* rows asked for; 0: no read */
    } cases[] = {
        {767, 0, 256},
        {768, 0, 256},
        {769, 0, 0},
        {1024, 0, 0},
        {2, OUTBOX_HELD_BYTES - 1, 256},
        {2, OUTBOX_HELD_BYTES, 0},
    };
    char *large = calloc(1, OUTBOX_HELD_BYTES);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct outbox_action a;
        struct rig r;
        size_t n_bytes = cases[i].n_bytes;

        start(&r);
        r.o.rules.max_message_bytes = OUTBOX_HELD_BYTES;
        outbox_batch_came(&r.o, r.now_ms, SLICE("batch"), false);
        for (int n = 1; n <= cases[i].n_rows; n++) {
            size_t len = n == 2 && n_bytes ? n_bytes - 2 * (sizeof(struct outbox_row) + 1) : 0;

            outbox_row_came(&r.o, r.now_ms,
                            &(struct outbox_new){
                                .seq = n, .exchange = SLICE("x"), .body = {large, len}, .body_len = len});
        }
        outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
        assert_int_equal(outbox_due_ms(&r.o, r.now_ms) == r.now_ms, cases[i].n > 0);
        assert_int_equal(turn_to(&r, OUTBOX_READ, &a), cases[i].n > 0);
        if (cases[i].n)
            assert_int_equal(a.n, cases[i].n);
        else
            assert_true(outbox_due_ms(&r.o, r.now_ms) > r.now_ms);
        outbox_deinit(&r.o);
    }
    free(large);
}

/* --- questions that fail, or whose answer comes too late --- */

/* Sends a question of this kind, and leaves it unanswered. Exchange y is missing. */
static void ask(struct rig *r, enum outbox_action_kind kind)
{
    struct outbox_action a;

    start(r);
    switch (kind) {
    case OUTBOX_READ:
        return; /* in flight already */
    case OUTBOX_LOOK:
        answer(r, 1, 0, true, "x");
        break;
    case OUTBOX_WRITE:
        answer(r, 1, 1, true, "x");
        outbox_confirmed(&r->o, r->now_ms, r->tag, false, false);
        break;
    case OUTBOX_DEAD_LETTERS:
        answer(r, 1, 1, true, "y");
        outbox_channel_lost(&r->o, r->now_ms, 404, missing);
        outbox_channel_open(&r->o, r->now_ms);
        break;
    case OUTBOX_PARKED_READ:
    case OUTBOX_UNPARK:
        answer(r, 1, 3, true, "y");
        for (int i = 0; i < 3; i++)
            refuse(r);
        break;
    case OUTBOX_PARKED_LIST:
    case OUTBOX_LEASE:
        outbox_database(&r->o, r->now_ms, false, "lost");
        outbox_database(&r->o, r->now_ms, true, NULL);
        break;
    case OUTBOX_REGISTER:
        outbox_linked(&r->o, r->now_ms);
        break;
    case OUTBOX_RESTORE:
        outbox_database(&r->o, r->now_ms, false, "lost");
        outbox_database(&r->o, r->now_ms, true, NULL);
        assert_true(turn_to(r, OUTBOX_LEASE, &a));
        outbox_leased(&r->o, r->now_ms, OUTBOX_DONE, r->lease, OUTBOX_LEASE_MS, true);
        break;
    default:
        break;
    }
    for (int i = 0; i < 10000 && !turn_to(r, kind, &a); i++) {
        r->now_ms++;
        if (kind == OUTBOX_UNPARK && r->o.sent.len)
            outbox_confirmed(&r->o, r->now_ms, r->tag, true, false);
    }
    assert_int_equal(a.kind, kind);
}

static void answer_as(struct rig *r, enum outbox_action_kind kind, enum outbox_answer as)
{
    switch (kind) {
    case OUTBOX_REGISTER:
        outbox_registered(&r->o, r->now_ms, as, "another virtual host");
        break;
    case OUTBOX_LEASE:
        outbox_leased(&r->o, r->now_ms, as, r->lease, OUTBOX_LEASE_MS, false);
        break;
    case OUTBOX_RESTORE:
        outbox_restored(&r->o, r->now_ms, as);
        break;
    case OUTBOX_LOOK:
        outbox_looked(&r->o, r->now_ms, as);
        break;
    case OUTBOX_READ:
        outbox_read_ends(&r->o, r->now_ms, as);
        break;
    case OUTBOX_DEAD_LETTERS:
        outbox_dead_letters_end(&r->o, r->now_ms, as);
        break;
    case OUTBOX_WRITE:
        outbox_written(&r->o, r->now_ms, as);
        break;
    case OUTBOX_PARKED_LIST:
        outbox_parked_listed(&r->o, r->now_ms, as);
        break;
    case OUTBOX_PARKED_READ:
        outbox_parked_read_ends(&r->o, r->now_ms, as, false);
        break;
    case OUTBOX_UNPARK:
        outbox_unparked(&r->o, r->now_ms, as);
        break;
    default:
        outbox_turned(&r->o, r->now_ms, as, false);
    }
}

/* A single row is in flight. Four codes are about that row. After any other code it is sent again, a second later or at
 * once on a new connection. */
static void test_each_code_of_a_closed_channel_has_its_own_consequence(void **state)
{
    static const struct {
        int code;
        const char *buried; /* NULL: it is sent again */
    } cases[] = {
        {311, "too_large: why"},
        {403, "refused: why"},
        {404, "no_exchange: why"},
        {406, "refused: why"},
        {310, NULL},
        {402, NULL},
        {405, NULL},
        {407, NULL},
        {504, NULL},
        {541, NULL},
        {0, NULL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig r;

        start(&r);
        answer(&r, 1, 2, true, "x"); /* the second row waits for the first */
        outbox_channel_lost(&r.o, r.now_ms, cases[i].code, cases[i].code == 403 ? "why topic 't'" : "why");
        turn(&r);
        assert_int_equal(r.o.sent.len, 0);
        outbox_channel_open(&r.o, r.now_ms);
        turn(&r);
        assert_int_equal(r.n_buried, cases[i].buried != NULL);
        if (cases[i].buried) {
            assert_memory_equal(r.buried, cases[i].buried, strlen(cases[i].buried));
            assert_string_equal(r.last, "m2");
            assert_int_equal(r.o.sent.len, 1);
        } else {
            assert_string_equal(r.said[OUTBOX_TOLD_CLOSED].text, "why");
            pass(&r, 999);
            assert_int_equal(r.o.sent.len, 0);
            if (i % 2) {
                outbox_unlinked(&r.o, r.now_ms, 0, "");
                outbox_linked(&r.o, r.now_ms);
                turn(&r);
            } else {
                pass(&r, 1);
            }
            assert_int_equal(r.o.sent.len, 1);
            assert_string_equal(r.last, "m1");
        }
        outbox_deinit(&r.o);
    }
}

/* The database does not know the batch, or has no position: the relay renews its lease, and begins at the position
 * that it gets with it. */
static void test_a_restart_forgets_the_rows_and_reads_again_after_100_ms(void **state)
{
    static const enum outbox_action_kind kinds[] = {OUTBOX_READ, OUTBOX_WRITE};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct outbox_action a;
        struct rig r;

        start(&r);
        if (kinds[i] == OUTBOX_WRITE) {
            answer(&r, 1, 2, false, "x");
            assert_true(r.o.reading.ask == OUTBOX_ASKED);
            outbox_read_ends(&r.o, r.now_ms, OUTBOX_AGAIN);
            outbox_confirmed(&r.o, r.now_ms, r.tag, false, false);
            assert_true(turn_to(&r, OUTBOX_WRITE, &a));
        }
        r.n_asked = 0;
        answer_as(&r, kinds[i], OUTBOX_RESTART);
        outbox_hint(&r.o, r.now_ms); /* does not shorten the wait */
        assert_int_equal(r.o.rows.len, 0);
        a = asks_in(&r, OUTBOX_READ, 100);
        assert_null(a.batch);
        assert_int_equal(r.n_asked, 1);
        assert_int_equal(r.said[OUTBOX_TOLD_LEFT].n, 0);
        outbox_deinit(&r.o);
    }
}

/* A row that is confirmed but not yet deleted would otherwise be read and sent again. */
static void test_parked_rows_stay_in_memory_while_one_is_being_deleted(void **state)
{
    struct outbox_action a;
    struct rig r;

    start(&r);
    answer(&r, 1, 5, true, "y");
    for (int i = 0; i < 3; i++)
        refuse(&r);
    pass(&r, 1000);
    assert_string_equal(r.last, "m3");
    outbox_confirmed(&r.o, r.now_ms, r.tag, false, false);
    assert_true(turn_to(&r, OUTBOX_UNPARK, &a));
    turn(&r);
    assert_int_equal(r.o.sent.len, 2);
    outbox_channel_lost(&r.o, r.now_ms, 404, missing);
    outbox_channel_open(&r.o, r.now_ms);
    turn(&r);
    assert_int_equal(r.o.sent.len, 1);
    outbox_channel_lost(&r.o, r.now_ms, 404, missing);
    outbox_channel_open(&r.o, r.now_ms);
    turn(&r);
    assert_int_equal(r.o.parked_rows.len, 3);
    unpark(&r);
    assert_int_equal(r.o.parked_rows.len, 2);
    r.n_sent = 0;
    for (int i = 0; i < 3; i++, confirm_all(&r))
        pass(&r, 1000);
    assert_int_equal(r.n_sent, 2);
    assert_int_equal(n_left(&r), 0);
    outbox_deinit(&r.o);
}

/* Only a committed dead letter completes its row. */
static void test_a_dead_letter_that_is_not_committed_is_written_again(void **state)
{
    struct rig r;

    ask(&r, OUTBOX_DEAD_LETTERS);
    outbox_dead_lettered(&r.o, r.now_ms, 0, OUTBOX_AGAIN);
    outbox_dead_letters_end(&r.o, r.now_ms, OUTBOX_DONE);
    assert_int_equal(r.o.counts.letters.total, 0);
    assert_int_equal(r.o.rows.len, 1);
    asks_in(&r, OUTBOX_DEAD_LETTERS, 1000);
    outbox_dead_lettered(&r.o, r.now_ms, 0, OUTBOX_DONE);
    outbox_dead_letters_end(&r.o, r.now_ms, OUTBOX_DONE);
    assert_int_equal(r.o.counts.letters.total, 1);
    assert_int_equal(r.o.rows.len, 0);
    outbox_deinit(&r.o);
}

static void test_a_question_that_failed_is_asked_again_a_second_later(void **state)
{
    static const enum outbox_action_kind kinds[] = {
        OUTBOX_REGISTER,    OUTBOX_LEASE,       OUTBOX_RESTORE, OUTBOX_READ,  OUTBOX_DEAD_LETTERS,
        OUTBOX_PARKED_LIST, OUTBOX_PARKED_READ, OUTBOX_UNPARK,  OUTBOX_WRITE,
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct rig r;

        ask(&r, kinds[i]);
        turn(&r);
        assert_true(outbox_due_ms(&r.o, r.now_ms) > r.now_ms); /* the question in flight makes nothing due */
        answer_as(&r, kinds[i], OUTBOX_AGAIN);
        if (kinds[i] == OUTBOX_READ)
            outbox_hint(&r.o, r.now_ms); /* does not shorten the wait */
        asks_in(&r, kinds[i], 1000);
        assert_int_equal(r.said[OUTBOX_TOLD_LEFT].n, kinds[i] == OUTBOX_LEASE || kinds[i] == OUTBOX_RESTORE ||
                                                         kinds[i] == OUTBOX_PARKED_LIST);
        outbox_deinit(&r.o);
    }
}

/* A lost connection to the database answers none of its questions. */
static void test_each_question_is_asked_again_on_a_new_connection(void **state)
{
    static const enum outbox_action_kind kinds[] = {OUTBOX_REGISTER,    OUTBOX_LEASE,       OUTBOX_READ,
                                                    OUTBOX_PARKED_LIST, OUTBOX_PARKED_READ, OUTBOX_TURN};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct rig r;

        ask(&r, kinds[i]);
        outbox_database(&r.o, r.now_ms, false, "lost");
        outbox_database(&r.o, r.now_ms, true, NULL);
        asks_in(&r, kinds[i], 0);
        outbox_deinit(&r.o);
    }
}

static void test_a_new_lease_does_not_wait_for_questions_of_the_previous_one(void **state)
{
    static const enum outbox_action_kind kinds[] = {OUTBOX_READ, OUTBOX_WRITE, OUTBOX_PARKED_LIST,
                                                    OUTBOX_UNPARK};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct rig r;

        ask(&r, kinds[i]);
        answer_as(&r, kinds[i], OUTBOX_AGAIN);
        outbox_database(&r.o, r.now_ms, false, "lost");
        outbox_database(&r.o, r.now_ms, true, NULL);
        r.n_read = 0;
        asks_in(&r, OUTBOX_PARKED_LIST, 0);
        parked_list(&r);
        turn(&r);
        assert_int_equal(r.n_read, 1);
        outbox_deinit(&r.o);
    }
}

static void test_an_answer_that_the_lease_is_lost_ends_the_relays_work(void **state)
{
    static const struct {
        enum outbox_action_kind kind;
        int64_t again_ms;
        const char *why;
    } cases[] = {
        {OUTBOX_REGISTER, 5000, "another virtual host"},
        {OUTBOX_LEASE, 4500, NULL}, /* the lease was not held */
        {OUTBOX_RESTORE, 1000, "another sidecar has the lease"},
        {OUTBOX_WRITE, 1000, "another sidecar has the lease"},
        {OUTBOX_DEAD_LETTERS, 1000, "another sidecar has the lease"},
        {OUTBOX_TURN, 1000, "another sidecar has the lease"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig r;

        ask(&r, cases[i].kind);
        memset(r.said, 0, sizeof(r.said));
        answer_as(&r, cases[i].kind, OUTBOX_LOST);
        assert_false(outbox_holds(&r.o, r.now_ms));
        assert_int_equal(r.o.rows.len, 0);
        asks_in(&r, cases[i].kind == OUTBOX_REGISTER ? OUTBOX_REGISTER : OUTBOX_LEASE, cases[i].again_ms);
        assert_int_equal(r.said[OUTBOX_TOLD_LEFT].n, cases[i].why != NULL);
        assert_string_equal(r.said[OUTBOX_TOLD_LEFT].text, cases[i].why ? cases[i].why : "");
        outbox_deinit(&r.o);
    }
}

static void test_an_answer_to_a_question_of_the_previous_lease_is_ignored(void **state)
{
    static const enum outbox_action_kind kinds[] = {
        OUTBOX_RESTORE,     OUTBOX_LOOK,        OUTBOX_READ,   OUTBOX_DEAD_LETTERS, OUTBOX_WRITE,
        OUTBOX_PARKED_LIST, OUTBOX_PARKED_READ, OUTBOX_UNPARK, OUTBOX_TURN,
    };
    struct outbox_action a;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct rig r;

        ask(&r, kinds[i]);
        r.now_ms += OUTBOX_LEASE_MS;
        r.lease++;
        assert_true(turn_to(&r, OUTBOX_LEASE, &a));
        assert_string_equal(r.said[OUTBOX_TOLD_LEFT].text, "the lease ran out");
        carry_out(&r, &a);
        assert_int_equal(r.o.rows.len + r.o.parked_rows.len + r.o.unparking.len, 0);
        answer_as(&r, kinds[i], OUTBOX_LOST);
        turn(&r);
        assert_true(outbox_holds(&r.o, r.now_ms));
        assert_int_equal(r.o.lease.number, r.lease);
        outbox_deinit(&r.o);
    }
}

static void test_a_restored_dump_is_prepared_before_anything_else(void **state)
{
    struct outbox_action a;
    struct rig r;

    ask(&r, OUTBOX_RESTORE);
    assert_int_equal(r.said[OUTBOX_TOLD_RESTORED].n, 1);
    assert_int_equal(r.n_read, 1);
    assert_false(outbox_next(&r.o, r.now_ms, true, &a));
    assert_true(outbox_due_ms(&r.o, r.now_ms) == r.o.lease.at_ms);
    answer_as(&r, OUTBOX_RESTORE, OUTBOX_RESTART);
    assert_int_equal(outbox_due_ms(&r.o, r.now_ms), r.now_ms);
    asks_in(&r, OUTBOX_RESTORE, 0);
    answer_as(&r, OUTBOX_RESTORE, OUTBOX_DONE);
    turn(&r);
    assert_int_equal(r.n_read, 2);
    assert_int_equal(r.said[OUTBOX_TOLD_RESTORED].n, 1);
    outbox_deinit(&r.o);
}

/* The turn of the tables is checked each second while rows arrive, and every five seconds otherwise. */
static void test_the_next_turn_comes_at_once_while_more_remains(void **state)
{
    struct rig r;

    ask(&r, OUTBOX_TURN);
    outbox_turned(&r.o, r.now_ms, OUTBOX_DONE, true);
    asks_in(&r, OUTBOX_TURN, 0);
    outbox_turned(&r.o, r.now_ms, OUTBOX_DONE, false);
    outbox_hint(&r.o, r.now_ms);
    turn(&r);
    answer(&r, 1, 1, true, "x"); /* a row since the latest check */
    asks_in(&r, OUTBOX_TURN, 5000);
    outbox_turned(&r.o, r.now_ms, OUTBOX_DONE, false);
    asks_in(&r, OUTBOX_TURN, 1000);
    outbox_turned(&r.o, r.now_ms, OUTBOX_DONE, false);
    asks_in(&r, OUTBOX_TURN, 5000);
    outbox_deinit(&r.o);
}

/* The same name may lead to the broker of another virtual host. */
static void test_each_connection_asks_which_virtual_host_owns_the_outbox(void **state)
{
    struct outbox_action a;
    struct rig r;

    ask(&r, OUTBOX_REGISTER);
    assert_false(turn_to(&r, OUTBOX_SEND, &a));
    answer(&r, 1, 2, true, "x");
    assert_int_equal(r.n_sent, 0); /* no row is sent before the answer */
    answer_as(&r, OUTBOX_REGISTER, OUTBOX_DONE);
    turn(&r);
    assert_int_equal(r.n_sent, 1);
    outbox_database(&r.o, r.now_ms, false, "lost");
    outbox_database(&r.o, r.now_ms, true, NULL);
    assert_true(turn_to(&r, OUTBOX_REGISTER, &a)); /* perhaps another database */
    carry_out(&r, &a);
    turn(&r);
    outbox_linked(&r.o, r.now_ms);
    assert_true(turn_to(&r, OUTBOX_REGISTER, &a));
    r.said[OUTBOX_TOLD_LEFT].n = 0;
    answer_as(&r, OUTBOX_REGISTER, OUTBOX_LOST);
    turn(&r);
    assert_false(outbox_holds(&r.o, r.now_ms));
    assert_int_equal(r.said[OUTBOX_TOLD_LEFT].n, 1);
    for (int i = 0; i < 3; i++) {
        asks_in(&r, OUTBOX_REGISTER, 5000);
        answer_as(&r, OUTBOX_REGISTER, OUTBOX_LOST);
    }
    assert_int_equal(r.said[OUTBOX_TOLD_REFUSED].n, 0); /* the same reason as at the end of the lease */
    asks_in(&r, OUTBOX_REGISTER, 5000);
    outbox_registered(&r.o, r.now_ms, OUTBOX_LOST, "a third one");
    turn(&r);
    assert_int_equal(r.said[OUTBOX_TOLD_REFUSED].n, 1);
    assert_string_equal(r.said[OUTBOX_TOLD_REFUSED].text, "a third one");
    outbox_deinit(&r.o);
}

/* The lease is kept between the closes: another relay would begin to count from the start. */
static void test_a_row_that_ends_connections_is_found_where_they_take_long(void **state)
{
    struct rig r;
    int64_t redial_ms = 0;

    start(&r);
    prove(&r);
    answer(&r, 2, 2, true, "x");
    for (int64_t end = r.now_ms + 60000; r.now_ms < end && !r.n_buried; pass(&r, 100)) {
        if (r.o.link.broker && r.o.sent.len) {
            outbox_unlinked(&r.o, r.now_ms, 541, "INTERNAL_ERROR");
            redial_ms = r.now_ms + 9000;
        } else if (!r.o.link.broker && r.now_ms >= redial_ms) {
            outbox_linked(&r.o, r.now_ms);
        }
    }
    assert_int_equal(r.n_given_up, 0);
    assert_int_equal(r.n_buried, 1);
    outbox_deinit(&r.o);
}

/* A lease is for a sidecar that can send. */
static void test_nothing_is_due_without_a_broker_or_in_a_drain(void **state)
{
    for (int linked = 0; linked < 2; linked++)
        for (int draining = 0; draining < 2; draining++) {
            struct rig r;

            begin(&r, NULL, 0);
            if (linked)
                outbox_linked(&r.o, r.now_ms);
            if (draining)
                outbox_drain(&r.o, r.now_ms, false);
            assert_int_equal(outbox_due_ms(&r.o, r.now_ms) == INT64_MAX, !linked || draining);
            turn(&r);
            assert_int_equal(r.n_asked > 0, linked && !draining);
            outbox_deinit(&r.o);
        }
}

static void test_the_silence_of_a_parked_row_begins_when_it_is_read(void **state)
{
    struct rig r;

    start(&r);
    prove(&r);
    answer(&r, 2, 5, true, "y");
    for (int i = 0; i < OUTBOX_REFUSALS; i++)
        refuse(&r);
    assert_int_equal(r.o.parked.n_stopped, 1);
    pass(&r, 1000);
    assert_int_equal(r.o.sent.len, 1);
    for (int64_t ms = 500; ms < OUTBOX_SILENT_MS; ms += 500)
        pass(&r, 500);
    pass(&r, 499);
    assert_int_equal(r.n_given_up, 0);
    pass(&r, 1);
    assert_int_equal(r.n_given_up, 1);
    outbox_deinit(&r.o);
}

/* An earlier row is not done: its dead letter is still being written. */
static void test_silence_begins_with_the_first_row_that_waits(void **state)
{
    struct outbox_action a;
    struct rig r;

    start(&r);
    prove(&r);
    outbox_batch_came(&r.o, r.now_ms, SLICE("batch"), true);
    outbox_row_came(&r.o, r.now_ms,
                    &(struct outbox_new){.seq = 2,
                                         .exchange = SLICE("x"),
                                         .routing_key = SLICE("k"),
                                         .message_id = SLICE("m2"),
                                         .body_len = 101});
    outbox_read_ends(&r.o, r.now_ms, OUTBOX_DONE);
    assert_true(turn_to(&r, OUTBOX_DEAD_LETTERS, &a));
    turn(&r);
    read_on(&r);
    answer(&r, 3, 3, true, "x");
    confirm_all(&r);
    for (int64_t ms = 0; ms < OUTBOX_SILENT_MS; ms += 500)
        pass(&r, 500);
    read_on(&r);
    answer(&r, 4, 4, true, "x");
    assert_int_equal(r.o.sent.len, 1);
    pass(&r, 500);
    assert_int_equal(r.n_given_up, 0);
    outbox_deinit(&r.o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_that_ends_connections_is_found_where_they_take_long),
        cmocka_unit_test(test_the_position_waits_for_all_before_it),
        cmocka_unit_test(test_it_is_idle_only_when_a_lost_connection_repeats_nothing),
        cmocka_unit_test(test_what_was_out_is_sent_again),
        cmocka_unit_test(test_the_one_that_closes_the_channel_is_found),
        cmocka_unit_test(test_the_one_that_closes_the_connection_is_found),
        cmocka_unit_test(test_a_connection_that_ends_otherwise_is_no_rows_fault),
        cmocka_unit_test(test_a_missing_exchange_takes_nobody_along),
        cmocka_unit_test(test_the_third_refusal_in_a_row_stops_an_exchange_and_no_other),
        cmocka_unit_test(test_a_large_parked_row_stops_no_other_exchange),
        cmocka_unit_test(test_an_exchange_that_may_not_be_written_to_stops_at_once),
        cmocka_unit_test(test_a_forbidden_topic_becomes_a_letter_until_twenty_in_a_row_are),
        cmocka_unit_test(test_a_stopped_exchange_goes_on_in_order_and_new_rows_behind_what_is_parked),
        cmocka_unit_test(test_what_is_parked_outlives_its_relay_and_goes_first),
        cmocka_unit_test(test_a_letter_of_a_parked_row_lets_those_behind_it_go_on),
        cmocka_unit_test(test_the_lease_is_offered_over_an_exchange_that_is_not_allowed),
        cmocka_unit_test(test_one_offer_is_for_all_exchanges_that_wait_and_those_are_bounded),
        cmocka_unit_test(test_rows_behind_three_refused_ones_are_not_tried),
        cmocka_unit_test(test_a_thousand_exchanges_are_known),
        cmocka_unit_test(test_what_is_refused_is_not_forgotten_for_others),
        cmocka_unit_test(test_what_is_not_allowed_or_too_large_is_not_sent),
        cmocka_unit_test(test_a_direct_reply_is_not_sent),
        cmocka_unit_test(test_what_comes_back_is_a_letter),
        cmocka_unit_test(test_rows_that_a_return_cannot_tell_apart_go_one_by_one),
        cmocka_unit_test(test_a_routing_key_of_an_ordered_exchange_has_one_row_in_flight),
        cmocka_unit_test(test_a_return_stops_an_ordered_exchange_and_its_rows_go_later_in_order),
        cmocka_unit_test(test_an_exchange_may_be_published_to_without_mandatory),
        cmocka_unit_test(test_a_holder_that_gets_nothing_confirmed_gives_up),
        cmocka_unit_test(test_a_nack_is_an_answer_and_the_lease_stays),
        cmocka_unit_test(test_a_drain_waits_for_what_is_out),
        cmocka_unit_test(test_a_drain_ignores_the_read_in_flight),
        cmocka_unit_test(test_a_dead_letter_that_is_not_committed_is_written_again),
        cmocka_unit_test(test_a_batch_whose_first_seq_is_0_is_completed),
        cmocka_unit_test(test_a_lease_that_is_lost_at_once_is_not_logged_as_held),
        cmocka_unit_test(test_the_brokers_error_is_forgotten_with_the_lease),
        cmocka_unit_test(test_a_pause_lets_rows_in_flight_end_and_gives_the_lease_up),
        cmocka_unit_test(test_the_poll_grows_while_nothing_comes),
        cmocka_unit_test(test_a_look_that_finds_that_something_ended_is_a_poll),
        cmocka_unit_test(test_while_rows_come_it_polls_soon_and_not_always),
        cmocka_unit_test(test_polls_that_take_long_come_less_often),
        cmocka_unit_test(test_reading_goes_on_while_confirms_are_out),
        cmocka_unit_test(test_a_channel_closed_over_no_message_is_told_in_the_brokers_words),
        cmocka_unit_test(test_what_was_out_beside_a_nack_goes_again_in_order),
        cmocka_unit_test(test_after_nacks_groups_grow),
        cmocka_unit_test(test_the_wait_after_a_nack_doubles_until_something_passes),
        cmocka_unit_test(test_a_full_queue_gets_what_its_consumer_takes),
        cmocka_unit_test(test_an_answer_to_what_is_forgotten_is_of_no_use),
        cmocka_unit_test(test_a_row_that_cannot_be_encoded_becomes_a_dead_letter),
        cmocka_unit_test(test_new_rows_do_not_hide_that_the_broker_is_silent),
        cmocka_unit_test(test_each_question_is_asked_again_on_a_new_connection),
        cmocka_unit_test(test_a_row_is_given_up_after_it_closes_three_connections_alone),
        cmocka_unit_test(test_silence_about_a_parked_row_ends_the_lease),
        cmocka_unit_test(test_silence_about_a_parked_row_behind_a_dead_letter_ends_the_lease),
        cmocka_unit_test(test_a_nack_is_logged_with_the_exchange_and_the_key),
        cmocka_unit_test(test_the_second_of_two_rows_is_found_if_it_closes_the_connection),
        cmocka_unit_test(test_the_position_may_be_in_an_earlier_batch),
        cmocka_unit_test(test_the_check_for_silence_is_due_15_s_after_the_row),
        cmocka_unit_test(test_silence_about_a_row_behind_a_dead_letter_ends_the_lease),
        cmocka_unit_test(test_batches_that_are_done_are_dropped),
        cmocka_unit_test(test_each_read_begins_after_the_previous_one),
        cmocka_unit_test(test_routing_keys_of_two_ordered_exchanges_do_not_wait_for_each_other),
        cmocka_unit_test(test_an_exchange_that_reopens_without_a_confirm_stops_again_at_the_third_refusal),
        cmocka_unit_test(test_the_interval_between_polls_is_bounded),
        cmocka_unit_test(test_each_code_of_a_closed_channel_has_its_own_consequence),
        cmocka_unit_test(test_a_restart_forgets_the_rows_and_reads_again_after_100_ms),
        cmocka_unit_test(test_parked_rows_stay_in_memory_while_one_is_being_deleted),
        cmocka_unit_test(test_a_lasting_fault_is_logged_once_a_minute),
        cmocka_unit_test(test_dead_letters_are_written_together_within_bounds),
        cmocka_unit_test(test_the_position_is_written_at_intervals),
        cmocka_unit_test(test_reading_stops_while_too_many_rows_are_in_memory),
        cmocka_unit_test(test_a_question_that_failed_is_asked_again_a_second_later),
        cmocka_unit_test(test_a_new_lease_does_not_wait_for_questions_of_the_previous_one),
        cmocka_unit_test(test_an_answer_that_the_lease_is_lost_ends_the_relays_work),
        cmocka_unit_test(test_an_answer_to_a_question_of_the_previous_lease_is_ignored),
        cmocka_unit_test(test_a_restored_dump_is_prepared_before_anything_else),
        cmocka_unit_test(test_the_next_turn_comes_at_once_while_more_remains),
        cmocka_unit_test(test_each_connection_asks_which_virtual_host_owns_the_outbox),
        cmocka_unit_test(test_a_hint_during_a_poll_leads_to_another_one_soon),
        cmocka_unit_test(test_no_row_is_in_flight_beside_one_to_an_unproven_exchange),
        cmocka_unit_test(test_the_lag_of_a_confirmed_row_is_measured),
        cmocka_unit_test(test_a_stopped_exchange_is_logged_with_the_brokers_reason),
        cmocka_unit_test(test_an_empty_page_of_parked_rows_is_read_again_a_millisecond_later),
        cmocka_unit_test(test_nothing_is_due_without_a_broker_or_in_a_drain),
        cmocka_unit_test(test_the_silence_of_a_parked_row_begins_when_it_is_read),
        cmocka_unit_test(test_silence_begins_with_the_first_row_that_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
