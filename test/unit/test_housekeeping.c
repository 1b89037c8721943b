/* Walks of one process in virtual time: the database is this test, which answers each call after TOOK_MS. */

#include "cmocka_all.h"
#include "sidecar/sidecar.h"

enum { CONSUMERS = 16, TOOK_MS = 3, RUN_MS = 120000 };

static struct {
    bool moves, expires, history_is_due; /* work that the calls find */
    int n_walks, n_expiries;
} database;

void __wrap_inbox_ask_housekeep(struct inbox *i, const struct inbox_housekeep *h);
int __wrap_inbox_housekept(struct inbox *i, struct inbox_housekept *ret, struct fault *f);
void __wrap_inbox_ask_expire_history(struct inbox *i, const struct inbox_expire_history *e);
int __wrap_inbox_history_expired(struct inbox *i, struct inbox_history_expired *ret, struct fault *f);
int64_t __wrap_inbox_waiting_ms(const struct inbox *i);

void __wrap_inbox_ask_housekeep(struct inbox *i, const struct inbox_housekeep *h)
{
    database.n_walks++;
}

int __wrap_inbox_housekept(struct inbox *i, struct inbox_housekept *ret, struct fault *f)
{
    *ret = (struct inbox_housekept){.n_moved = database.moves ? 16 : 0,
                                    .next_page = 1,
                                    .n_pages = 1 << 30,
                                    .took_us = TOOK_MS * 1000,
                                    .history_is_due = database.history_is_due};
    return 1;
}

void __wrap_inbox_ask_expire_history(struct inbox *i, const struct inbox_expire_history *e)
{
    database.n_expiries++;
}

int __wrap_inbox_history_expired(struct inbox *i, struct inbox_history_expired *ret, struct fault *f)
{
    /* All pages but one are done, so that this walk is never behind. */
    *ret = (struct inbox_history_expired){.n_expired = database.expires ? 16 : 0,
                                          .next_page = (1 << 30) - 1,
                                          .n_pages = 1 << 30,
                                          .took_us = TOOK_MS * 1000};
    return 1;
}

int64_t __wrap_inbox_waiting_ms(const struct inbox *i)
{
    return 0;
}

/* Time in ms of the calls of a process that runs for RUN_MS with that many consumers. */
static int64_t took_ms(size_t n_consumers)
{
    static struct sidecar_queue sidecar_queues[CONSUMERS];
    static struct config_queue queues[CONSUMERS];
    static struct config config;
    static struct sidecar s;
    static char name[] = "q";

    s = (struct sidecar){
        .config = &config, .queues = sidecar_queues, .n_queues = n_consumers, .now_ms = 1, .is_idle = true};
    s.database.inbox = (struct inbox *)&s; /* never used: the calls end here */
    s.database.core.linked = true;
    s.database.housekeeps = SIZE_MAX;
    config.log.stats_interval_ms = 2 * RUN_MS;
    for (size_t i = 0; i < n_consumers; i++) {
        queues[i] = (struct config_queue){
            .name = name, .consumer = name, .entry = i, .retention_ms = INT64_C(604800000)};
        sidecar_queues[i] = (struct sidecar_queue){
            .sidecar = &s, .config = &queues[i], .index = i, .first = &sidecar_queues[i]};
        sidecar_queues[i].house.compacted.not_before_ms = sidecar_queues[i].house.expired.not_before_ms =
            INT64_MAX; /* no lines */
    }
    database.n_walks = database.n_expiries = 0;
    while (s.now_ms < RUN_MS) {
        int64_t due_ms = housekeeping_due_ms(&s);

        s.now_ms = s.database.housekeeps != SIZE_MAX ? s.now_ms + TOOK_MS
                   : due_ms > s.now_ms               ? due_ms
                                                     : s.now_ms;
        housekeeping_step(&s);
    }
    return (int64_t)TOOK_MS * (database.n_walks + database.n_expiries);
}

static void test_the_walks_of_all_consumers_share_the_bound_of_one(void **state)
{
    database.moves = true;
    database.expires = database.history_is_due = false;
    int64_t one = took_ms(1), all = took_ms(CONSUMERS);

    assert_int_in_range(one, RUN_MS * PACE_MOST / 1000 * 9 / 10, RUN_MS * PACE_MOST / 1000);
    assert_int_in_range(all, one, RUN_MS * PACE_MOST / 1000);
}

static void test_the_walk_through_the_history_shares_that_bound(void **state)
{
    database.moves = database.expires = database.history_is_due = true;
    assert_int_in_range(took_ms(1), RUN_MS * PACE_MOST / 1000 * 9 / 10, RUN_MS * PACE_MOST / 1000);
    /* Each of the two has half of it. */
    assert_int_in_range(database.n_expiries, database.n_walks * 9 / 10, database.n_walks * 11 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_walks_of_all_consumers_share_the_bound_of_one),
        cmocka_unit_test(test_the_walk_through_the_history_shares_that_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
