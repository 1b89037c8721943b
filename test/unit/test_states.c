/* The delivery machine: every pair of state and event against a second, independent list of what may happen,
 * and the laws that hold for the whole table. */
#include "worker/states.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define S(x) DELIVERY_##x
#define E(x) DELIVERY_EV_##x

/* By event, where the machine's own table is by state. */
static const struct {
    int event, from, to;
} allowed[] = {
    {E(SENT), S(TO_CLAIM), S(CLAIMING)},
    {E(SENT), S(CLAIMED), S(FORWARDING)},
    {E(SENT), S(TO_REVOKE), S(REVOKING)},
    {E(SENT), S(TO_CHECK), S(CHECKING)},
    {E(SENT), S(TO_SETTLE), S(SETTLING)},
    {E(SENT), S(TO_FAIL), S(FAILING)},
    {E(SENT), S(TO_RELEASE), S(RELEASING)},
    {E(SENT), S(TO_BURY), S(BURYING)},
    {E(SENT), S(TO_LOOK), S(LOOKING)},
    {E(SENT), S(SUSPECT), S(CLAIMING)},
    {E(SENT), S(TO_ACK), S(GONE)},
    {E(SENT), S(TO_REJECT), S(GONE)},
    {E(SENT), S(TO_RETURN), S(GONE)},
    {E(CLAIMED), S(CLAIMING), S(CLAIMED)},
    {E(CLAIMED), S(CHECKING), S(WATCHING)},
    {E(CLAIMED), S(LOOKING), S(TO_CLAIM)},
    {E(COMPLETED), S(CLAIMING), S(TO_ACK)},
    {E(COMPLETED), S(REVOKING), S(TO_ACK)},
    {E(COMPLETED), S(CHECKING), S(TO_ACK)},
    {E(COMPLETED), S(SETTLING), S(TO_ACK)},
    {E(COMPLETED), S(FAILING), S(TO_ACK)},
    {E(COMPLETED), S(RELEASING), S(TO_ACK)},
    {E(COMPLETED), S(BURYING), S(TO_ACK)},
    {E(COMPLETED), S(LOOKING), S(TO_ACK)},
    {E(COMPLETED), S(FOLLOWING), S(TO_ACK)},
    {E(NOT_NOW), S(TO_CLAIM), S(PARKED)},
    {E(NOT_NOW), S(CLAIMING), S(PARKED)},
    {E(NOT_NOW), S(LOOKING), S(PARKED)},
    {E(NOT_NOW), S(PARKED), S(PARKED)},
    {E(NOT_NOW), S(TO_BURY), S(PARKED)},
    {E(DUE), S(LOOKING), S(TO_CLAIM)},
    {E(AGAIN), S(CLAIMING), S(TO_CLAIM)},
    {E(AGAIN), S(REVOKING), S(TO_CLAIM)},
    {E(AGAIN), S(CHECKING), S(TO_CLAIM)},
    {E(AGAIN), S(SETTLING), S(TO_CLAIM)},
    {E(AGAIN), S(FAILING), S(TO_CLAIM)},
    {E(AGAIN), S(RELEASING), S(TO_CLAIM)},
    {E(AGAIN), S(BURYING), S(TO_CLAIM)},
    {E(AGAIN), S(LOOKING), S(TO_CLAIM)},
    {E(REPEAT), S(CLAIMING), S(TO_CLAIM)},
    {E(REPEAT), S(REVOKING), S(FORWARDING)},
    {E(REPEAT), S(CHECKING), S(TO_CHECK)},
    {E(REPEAT), S(SETTLING), S(TO_SETTLE)},
    {E(REPEAT), S(FAILING), S(TO_FAIL)},
    {E(REPEAT), S(RELEASING), S(TO_RELEASE)},
    {E(REPEAT), S(BURYING), S(TO_BURY)},
    {E(REPEAT), S(LOOKING), S(TO_CLAIM)},
    {E(LOCKED), S(REVOKING), S(FORWARDING)},
    {E(LOCKED), S(SETTLING), S(TO_SETTLE)},
    {E(LOCKED), S(FAILING), S(TO_FAIL)},
    {E(LOCKED), S(RELEASING), S(TO_RELEASE)},
    {E(LOCKED), S(BURYING), S(TO_BURY)},
    {E(EXTENDED), S(REVOKING), S(FORWARDING)},
    {E(EXTENDED), S(FAILING), S(WATCHING)},
    {E(DONE), S(REVOKING), S(PARKED)},
    {E(DONE), S(FAILING), S(PARKED)},
    {E(DONE), S(RELEASING), S(PARKED)},
    {E(DONE), S(BURYING), S(TO_REJECT)},
    {E(GIVE_UP), S(TO_CLAIM), S(TO_BURY)},
    {E(GIVE_UP), S(CLAIMING), S(TO_BURY)},
    {E(GIVE_UP), S(CLAIMED), S(TO_BURY)},
    {E(GIVE_UP), S(FORWARDING), S(TO_BURY)},
    {E(GIVE_UP), S(TO_REVOKE), S(TO_BURY)},
    {E(GIVE_UP), S(CHECKING), S(TO_BURY)},
    {E(GIVE_UP), S(PARKED), S(TO_BURY)},
    {E(GIVE_UP), S(LOOKING), S(TO_BURY)},
    {E(GIVE_UP), S(FOLLOWING), S(TO_BURY)},
    {E(GIVE_UP), S(TO_LOOK), S(TO_BURY)},
    {E(WAS_DEAD), S(TO_CLAIM), S(TO_REJECT)},
    {E(WAS_DEAD), S(CLAIMING), S(TO_REJECT)},
    {E(WAS_DEAD), S(BURYING), S(TO_REJECT)},
    {E(WAS_DEAD), S(PARKED), S(TO_REJECT)},
    {E(WAS_DEAD), S(LOOKING), S(TO_CLAIM)},
    {E(UNWRITABLE), S(CLAIMING), S(TO_BURY)},
    {E(UNWRITABLE), S(REVOKING), S(TO_RELEASE)},
    {E(UNWRITABLE), S(SETTLING), S(TO_SETTLE)},
    {E(UNWRITABLE), S(FAILING), S(TO_FAIL)},
    {E(UNWRITABLE), S(RELEASING), S(TO_RELEASE)},
    {E(UNWRITABLE), S(BURYING), S(PARKED)},
    {E(UNWRITABLE), S(LOOKING), S(TO_CLAIM)},
    {E(SETTLE), S(FORWARDING), S(TO_SETTLE)},
    {E(SETTLE), S(TO_REVOKE), S(TO_SETTLE)},
    {E(CHECK), S(FORWARDING), S(TO_CHECK)},
    {E(CHECK), S(TO_REVOKE), S(TO_CHECK)},
    {E(FAIL), S(CLAIMED), S(TO_FAIL)},
    {E(FAIL), S(FORWARDING), S(TO_FAIL)},
    {E(FAIL), S(TO_REVOKE), S(TO_FAIL)},
    {E(FAIL), S(CHECKING), S(TO_FAIL)},
    {E(GIVE_BACK), S(CLAIMED), S(TO_RELEASE)},
    {E(GIVE_BACK), S(FORWARDING), S(TO_RELEASE)},
    {E(GIVE_BACK), S(TO_REVOKE), S(TO_RELEASE)},
    {E(GIVE_BACK), S(TO_CHECK), S(TO_RELEASE)},
    {E(GIVE_BACK), S(CHECKING), S(TO_RELEASE)},
    {E(GIVE_BACK), S(WATCHING), S(TO_RELEASE)},
    {E(GIVE_BACK), S(TO_FAIL), S(TO_RELEASE)},
    {E(GIVE_BACK), S(TO_BURY), S(TO_RELEASE)},
    {E(STALE), S(CLAIMED), S(TO_CLAIM)},
    {E(TIMER), S(TO_CLAIM), S(TO_CLAIM)},
    {E(TIMER), S(FORWARDING), S(TO_REVOKE)},
    {E(TIMER), S(TO_REVOKE), S(TO_REVOKE)},
    {E(TIMER), S(TO_CHECK), S(TO_CHECK)},
    {E(TIMER), S(WATCHING), S(TO_CHECK)},
    {E(TIMER), S(TO_SETTLE), S(TO_SETTLE)},
    {E(TIMER), S(TO_FAIL), S(TO_FAIL)},
    {E(TIMER), S(TO_RELEASE), S(TO_RELEASE)},
    {E(TIMER), S(TO_BURY), S(TO_BURY)},
    {E(TIMER), S(TO_LOOK), S(TO_LOOK)},
    {E(TIMER), S(PARKED), S(TO_CLAIM)},
    {E(LOOK), S(TO_CLAIM), S(TO_LOOK)},
    {E(LOOK), S(PARKED), S(TO_LOOK)},
    {E(ALONE), S(PARKED), S(SUSPECT)},
    {E(ALONE), S(RELEASING), S(SUSPECT)},
    {E(RETURN), S(TO_CLAIM), S(TO_RETURN)},
    {E(RETURN), S(RELEASING), S(TO_RETURN)},
    {E(RETURN), S(TO_BURY), S(TO_RETURN)},
    {E(RETURN), S(PARKED), S(TO_RETURN)},
    {E(RETURN), S(TO_LOOK), S(TO_RETURN)},
    {E(RETURN), S(SUSPECT), S(TO_RETURN)},
    {E(RETURN), S(FOLLOWING), S(TO_RETURN)},
    {E(RETURN), S(FORWARDING), S(TO_RETURN)},
    {E(RETURN), S(TO_REVOKE), S(TO_RETURN)},
    {E(RETURN), S(CLAIMING), S(TO_RETURN)},
    {E(RETURN), S(CLAIMED), S(TO_RETURN)},
    {E(RETURN), S(REVOKING), S(TO_RETURN)},
    {E(RETURN), S(TO_CHECK), S(TO_RETURN)},
    {E(RETURN), S(CHECKING), S(TO_RETURN)},
    {E(RETURN), S(WATCHING), S(TO_RETURN)},
    {E(RETURN), S(TO_SETTLE), S(TO_RETURN)},
    {E(RETURN), S(SETTLING), S(TO_RETURN)},
    {E(RETURN), S(TO_FAIL), S(TO_RETURN)},
    {E(RETURN), S(FAILING), S(TO_RETURN)},
    {E(RETURN), S(TO_RELEASE), S(TO_RETURN)},
    {E(RETURN), S(BURYING), S(TO_RETURN)},
    {E(RETURN), S(LOOKING), S(TO_RETURN)},
    {E(GIVE_BACK), S(TO_CLAIM), S(TO_RELEASE)},
    {E(GIVE_BACK), S(PARKED), S(TO_RELEASE)},
    {E(GIVE_BACK), S(SUSPECT), S(TO_RELEASE)},
    {E(ALONE), S(TO_CLAIM), S(SUSPECT)},
    {E(TIMER), S(SUSPECT), S(SUSPECT)},
    {E(FOLLOW), S(TO_CLAIM), S(FOLLOWING)},
    {E(FOLLOW), S(PARKED), S(FOLLOWING)},
    {E(LEADER_LEFT), S(FOLLOWING), S(TO_CLAIM)},
    {E(TAG_LOST), S(TO_CLAIM), S(GONE)},
    {E(TAG_LOST), S(TO_BURY), S(GONE)},
    {E(TAG_LOST), S(PARKED), S(GONE)},
    {E(TAG_LOST), S(TO_LOOK), S(GONE)},
    {E(TAG_LOST), S(SUSPECT), S(GONE)},
    {E(TAG_LOST), S(FOLLOWING), S(GONE)},
    {E(TAG_LOST), S(TO_ACK), S(GONE)},
    {E(TAG_LOST), S(TO_REJECT), S(GONE)},
    {E(TAG_LOST), S(TO_RETURN), S(GONE)},
};

static int expected(int state, int event)
{
    for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
        if (allowed[i].from == state && allowed[i].event == event)
            return allowed[i].to;
    return -1;
}

static void test_every_pair(void **unused)
{
    (void)unused;
    for (int s = 0; s < N_DELIVERY_STATES; s++) {
        for (int e = 0; e < N_DELIVERY_EVENTS; e++) {
            int next = delivery_next((enum delivery_state)s, (enum delivery_event)e);

            if (next != expected(s, e))
                fail_msg("%s on %s: %d, expected %d", delivery_state_name((enum delivery_state)s),
                         delivery_event_name((enum delivery_event)e), next, expected(s, e));
        }
    }
}

static void test_outside_the_table(void **unused)
{
    (void)unused;
    assert_int_equal(delivery_next(N_DELIVERY_STATES, E(SENT)), -1);
    assert_int_equal(delivery_next(S(TO_CLAIM), N_DELIVERY_EVENTS), -1);
    assert_int_equal(delivery_next((enum delivery_state) - 1, E(SENT)), -1);
}

/* Only a row that says completed leads to an ack; only a committed letter, or a row that was dead before, to
 * a reject. */
static void test_only_committed_facts_reach_the_broker(void **unused)
{
    (void)unused;
    for (int s = 0; s < N_DELIVERY_STATES; s++) {
        for (int e = 0; e < N_DELIVERY_EVENTS; e++) {
            int next = delivery_next((enum delivery_state)s, (enum delivery_event)e);

            if (next == S(TO_ACK))
                assert_int_equal(e, E(COMPLETED));
            if (next == S(TO_REJECT))
                assert_true(e == E(WAS_DEAD) || (e == E(DONE) && s == S(BURYING)));
            if (next == S(FORWARDING))
                assert_true(s == S(CLAIMED) || s == S(REVOKING));
        }
    }
}

static void test_what_is_idle_can_always_be_given_back(void **unused)
{
    (void)unused;
    for (int s = 0; s < N_DELIVERY_STATES; s++) {
        if (!delivery_is_idle((enum delivery_state)s))
            continue;
        assert_int_equal(delivery_next((enum delivery_state)s, E(RETURN)), S(TO_RETURN));
        assert_int_equal(delivery_next((enum delivery_state)s, E(TAG_LOST)), S(GONE));
    }
}

/* Whatever is asked, the database may say: completed, not yours any more, or nothing at all. */
static void test_what_is_at_the_database_has_every_common_answer(void **unused)
{
    (void)unused;
    for (int s = 0; s < N_DELIVERY_STATES; s++) {
        if (!delivery_is_at_database((enum delivery_state)s))
            continue;
        assert_int_equal(delivery_next((enum delivery_state)s, E(COMPLETED)), S(TO_ACK));
        assert_int_equal(delivery_next((enum delivery_state)s, E(AGAIN)), S(TO_CLAIM));
        assert_true(delivery_next((enum delivery_state)s, E(REPEAT)) >= 0);
    }
}

static void reach(int s, bool seen[N_DELIVERY_STATES])
{
    if (seen[s])
        return;
    seen[s] = true;
    for (int e = 0; e < N_DELIVERY_EVENTS; e++) {
        int next = delivery_next((enum delivery_state)s, (enum delivery_event)e);

        if (next >= 0)
            reach(next, seen);
    }
}

static void test_every_state_is_reached_and_ends(void **unused)
{
    bool from_start[N_DELIVERY_STATES] = {false};

    (void)unused;
    reach(S(TO_CLAIM), from_start);
    for (int s = 0; s < N_DELIVERY_STATES; s++) {
        bool seen[N_DELIVERY_STATES] = {false};

        assert_true(from_start[s]);
        reach(s, seen);
        assert_true(seen[S(GONE)]);
    }
    for (int e = 0; e < N_DELIVERY_EVENTS; e++)
        assert_int_equal(delivery_next(S(GONE), (enum delivery_event)e), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair),
        cmocka_unit_test(test_outside_the_table),
        cmocka_unit_test(test_only_committed_facts_reach_the_broker),
        cmocka_unit_test(test_what_is_idle_can_always_be_given_back),
        cmocka_unit_test(test_what_is_at_the_database_has_every_common_answer),
        cmocka_unit_test(test_every_state_is_reached_and_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
