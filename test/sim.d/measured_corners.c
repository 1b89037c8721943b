/* Measured scenarios that random plans do not reach: a few messages, and faults at given moments. */
#include "measured_rig.h"

#include <stdio.h>

/* Messages to be given up while the circuit breaker is on hold no credit: there are more than the prefetch, and the
 * good ones behind them still arrive. */
void no_ids(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    plan_plain(&p, 20);
    plan_add(&p, 0, CHARACTER_NO_ID, 200, 0, 0);
    plan_add(&p, 0, CHARACTER_GOOD, 50, 1000, 0);
    p.stop_us = 120 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu of 50 good ones done, the last after %.1f s, at most 60 s",
             f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND);
    verdict(r, &f, f.n_done[CHARACTER_GOOD] == 50 && f.last_good_us <= 60 * (int64_t)SECOND,
            "200 without an id before 50 good ones", text);
}

/* All messages were delivered before, the circuit breaker is on here, and the other replica consumes but has no room:
 * one message is tried here every minute, which detects the application's recovery. */
void left_to_others(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    plan_plain(&p, 21);
    p.n_sidecars = 2;
    p.application.service_us = SECOND;
    p.queues[0].rules.concurrency = 1;
    p.queues[0].rules.prefetch = 30;
    plan_add(&p, 0, CHARACTER_GOOD, 50, 0, 0);
    plan_break(&p, FAULT_APP_500, 0, 90 * (int64_t)SECOND)->sidecar = 0;
    plan_break(&p, FAULT_APP_SLOW, 0, 3000 * (int64_t)SECOND)->sidecar = 1;
    plan_break(&p, FAULT_CHANNEL, SECOND / 2, 0)->sidecar = 0;
    plan_break(&p, FAULT_CHANNEL, SECOND / 2, 0)->sidecar = 1;
    p.stop_us = 3000 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu of 50 done, %zu of them here, all after %.0f s, at most 800 s",
             f.n_done[CHARACTER_GOOD], f.n_done_by[0], (double)f.last_good_us / SECOND);
    verdict(r, &f,
            f.n_done[CHARACTER_GOOD] == 50 && f.n_done_by[0] >= 10 && f.last_good_us <= 800 * (int64_t)SECOND,
            "a brake, and all redelivered", text);
}

/* The application keeps the row locked beyond the end of a drain, and one more return would end the message:
 * it is renewed, or stored whole where the queue drops its head. */
void drain_locked(struct report *r)
{
    char name[80], text[160];
    struct plan p;

    for (int renewable = 0; renewable < 2; renewable++) {
        struct figures f = {0};

        plan_plain(&p, 22);
        p.queues[0].limit = p.queues[0].rules.delivery_limit = 2;
        p.queues[0].max_length = renewable ? 0 : 1000;
        p.queues[0].rules.transaction = true;
        p.application.rates[DEED_LOCK_LONG] = 10000;
        plan_add(&p, 0, CHARACTER_GOOD, 5, 0, 0);
        for (int i = 1; i <= 2; i++)
            plan_break(&p, FAULT_KILL, i * (int64_t)SECOND, SECOND / 10)->param = 0;
        plan_break(&p, FAULT_DRAIN, 4 * (int64_t)SECOND, 0);
        p.stop_us = 100 * (int64_t)SECOND;
        measure(&p, &f);
        snprintf(name, sizeof(name), "a drain beside locked rows at limit 2%s",
                 renewable ? "" : ", no renewal");
        snprintf(text, sizeof(text), "%zu of 5 done, %zu stored, %zu lost", f.n_done[CHARACTER_GOOD],
                 f.n_stored, f.n_lost);
        verdict(r, &f, !f.n_lost, name, text);
    }
}

/* An operator's pause with ten consumer timeouts of the broker, a limit of 5 and no renewal: the messages rest in the
 * queue. */
void long_pause(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    plan_plain(&p, 26);
    p.queues[0].version = 310;
    p.queues[0].limit = p.queues[0].rules.delivery_limit = 5;
    p.queues[0].max_length = 1000;
    p.queues[0].rules.max_hold_ms = 30000;
    plan_add(&p, 0, CHARACTER_GOOD, 50, 5 * (int64_t)SECOND, 0);
    plan_break(&p, FAULT_PAUSE, SECOND, 600 * (int64_t)SECOND);
    for (int i = 1; i <= 10; i++)
        plan_break(&p, FAULT_CHANNEL, i * 50 * (int64_t)SECOND, 0)->sidecar = 0;
    p.stop_us = 900 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu of 50 done, %zu stored, %zu lost", f.n_done[CHARACTER_GOOD], f.n_stored,
             f.n_lost);
    verdict(r, &f, f.n_done[CHARACTER_GOOD] == 50 && !f.n_stored && !f.n_lost,
            "a long pause of an operator at limit 5, no renewal", text);
}

/* A database that refuses statements works again a second before the end of a drain, and one more return would end
 * the message: it is renewed, or stored whole where the queue drops its head. */
void drain_refused(struct report *r)
{
    char name[80], text[160];
    struct plan p;

    for (int renewable = 0; renewable < 2; renewable++) {
        struct figures f = {0};

        plan_plain(&p, 25);
        p.queues[0].limit = p.queues[0].rules.delivery_limit = 2;
        p.queues[0].max_length = renewable ? 0 : 1000;
        p.application.service_us = 10 * SECOND;
        plan_add(&p, 0, CHARACTER_GOOD, 5, 0, 0);
        for (int i = 1; i <= 2; i++)
            plan_break(&p, FAULT_KILL, i * (int64_t)SECOND, SECOND / 10)->param = 0;
        plan_break(&p, FAULT_DATABASE_FULL, 2 * (int64_t)SECOND, 40 * (int64_t)SECOND);
        plan_break(&p, FAULT_DRAIN, 15 * (int64_t)SECOND, 0);
        p.stop_us = 100 * (int64_t)SECOND;
        measure(&p, &f);
        snprintf(name, sizeof(name), "a drain, and a database that refused, at limit 2%s",
                 renewable ? "" : ", no renewal");
        snprintf(text, sizeof(text), "%zu of 5 done, %zu stored, %zu lost", f.n_done[CHARACTER_GOOD],
                 f.n_stored, f.n_lost);
        verdict(r, &f, !f.n_lost, name, text);
    }
}

/* Replica 1 is killed with a message in flight, and the channel of replica 0, which gets the message, is closed again
 * and again: at its last delivery the message does not wait for the end of replica 1's token, but is stored whole. */
void held_at_the_limit(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    plan_plain(&p, 27);
    p.n_sidecars = 2;
    p.queues[0].version = 310;
    p.queues[0].limit = p.queues[0].rules.delivery_limit = 3;
    p.queues[0].max_length = 1000;
    p.queues[0].rules.token_window_ms = p.queues[0].rules.max_window_ms = 300000;
    p.application.rates[DEED_HANG] = 10000;
    plan_add(&p, 0, CHARACTER_GOOD, 1, SECOND, 0);
    plan_break(&p, FAULT_KILL, 2 * (int64_t)SECOND, 250 * (int64_t)SECOND)->sidecar = 1;
    for (int i = 0; i < 3; i++)
        plan_break(&p, FAULT_CHANNEL, (5 + 50 * i) * (int64_t)SECOND, 0)->sidecar = 0;
    p.stop_us = 200 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu stored, %zu lost", f.n_stored, f.n_lost);
    verdict(r, &f, f.n_stored == 1 && !f.n_lost, "the last delivery of a message that another replica has",
            text);
}

/* A queue drops each message with its first counted return: nothing can protect the one that a killed sidecar had, but
 * it is the only one, and a drain returns none. */
void limit_of_0(struct report *r)
{
    static const int versions[] = {310, 400};
    enum { N = 30, N_KILLS = 5 };
    char name[80], text[160];
    struct plan p;

    for (size_t i = 0; i < sizeof(versions) / sizeof(*versions); i++) {
        struct figures f = {0};

        plan_plain(&p, 33);
        p.queues[0].version = versions[i];
        p.queues[0].limit = 0;
        p.application.service_us = SECOND;
        plan_add(&p, 0, CHARACTER_GOOD, N, 0, 0);
        for (int k = 0; k < N_KILLS; k++)
            plan_break(&p, FAULT_KILL, (4500 + 4000 * k) * 1000ll, 100000)->param = 0;
        plan_break(&p, FAULT_DRAIN, 30 * (int64_t)SECOND, SECOND);
        p.stop_us = 200 * (int64_t)SECOND;
        measure(&p, &f);
        snprintf(name, sizeof(name), "killed %d times at limit 0, RabbitMQ %d.%d", N_KILLS, versions[i] / 100,
                 versions[i] % 100);
        snprintf(text, sizeof(text), "%zu of %d done, %zu stored, %zu lost (at most %d)",
                 f.n_done[CHARACTER_GOOD], N, f.n_stored, f.n_lost, N_KILLS);
        verdict(r, &f, f.n_lost <= N_KILLS && !f.n_stored && f.n_done[CHARACTER_GOOD] + f.n_lost == N, name,
                text);
    }
}

/* The next attempt is far away, and the channel is closed every two seconds: near its limit of 3 the message is
 * renewed at each of its deliveries, until the queue pauses for that. The oracle checks the pause. */
void renewal_loop(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    plan_plain(&p, 28);
    p.queues[0].version = 310;
    p.queues[0].limit = p.queues[0].rules.delivery_limit = 3;
    p.queues[0].rules.backoff_ms = 200000;
    plan_add(&p, 0, CHARACTER_FLAKY, 1, 0, 0);
    p.messages[0].param = 1;
    for (int i = 1; i <= 15; i++)
        plan_break(&p, FAULT_CHANNEL, i * 2 * (int64_t)SECOND, 0)->sidecar = 0;
    p.stop_us = 900 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu done, %zu stored", f.n_done[CHARACTER_FLAKY], f.n_stored);
    verdict(r, &f, f.n_done[CHARACTER_FLAKY] == 1 && !f.n_stored, "a message that is renewed again and again",
            text);
}

/* Near its limit of 3 the message is to be renewed, and the broker refuses its copies, until an operator gives it up.
 * The oracle checks that no copy is published from then on. */
void given_up_near_the_limit(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    plan_plain(&p, 29);
    p.queues[0].version = 310;
    p.queues[0].limit = p.queues[0].rules.delivery_limit = 3;
    p.queues[0].rules.backoff_ms = 200000;
    p.nacks_copies = true;
    p.given_up_us = 20 * (int64_t)SECOND;
    plan_add(&p, 0, CHARACTER_FLAKY, 1, 0, 0);
    p.messages[0].param = 1;
    plan_break(&p, FAULT_CHANNEL, 2 * (int64_t)SECOND, 0)->sidecar = 0;
    p.stop_us = 40 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu dead after 20 s", f.n_dead[CHARACTER_FLAKY]);
    verdict(r, &f, f.n_dead[CHARACTER_FLAKY] == 1, "a message that is given up while its copies are refused",
            text);
}

/* A claim whose answer is lost is released during a drain, without being repeated: its completed row proves
 * nothing about this copy, which has another body. The oracle checks the ack. */
void other_body(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    plan_plain(&p, 23);
    p.queues[0].rules.transaction = true;
    int first = plan_add(&p, 0, CHARACTER_GOOD, 1, 0, 0);

    plan_add(&p, 0, CHARACTER_GOOD, 1, 5 * (int64_t)SECOND, 0);
    p.messages[1].twin_of = first;
    p.messages[1].other_body = true;
    plan_break(&p, FAULT_DATABASE_SLOW, 5 * (int64_t)SECOND - 1000, 2 * (int64_t)SECOND);
    plan_break(&p, FAULT_DRAIN, 5 * (int64_t)SECOND + 500000, 0);
    plan_break(&p, FAULT_DATABASE_CUT, 6 * (int64_t)SECOND, 0);
    p.stop_us = 60 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu done, nothing of it acked early", f.n_done[CHARACTER_GOOD]);
    verdict(r, &f, f.n_done[CHARACTER_GOOD] == 1, "another body, its claim unheard of, and a drain", text);
}

/* The application answers, but the completion arrives after the owner of another copy has taken the row over: that is
 * no completion. The oracle checks the ack. */
void late_completion(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[160];

    plan_plain(&p, 24);
    p.n_sidecars = 2;
    p.application.service_us = 5 * SECOND;
    int first = plan_add(&p, 0, CHARACTER_GOOD, 1, 0, 0);

    plan_add(&p, 0, CHARACTER_GOOD, 1, 1000, 0);
    p.messages[1].twin_of = first;
    /* The first owner's statements arrive only after the second has taken over. */
    plan_break(&p, FAULT_DATABASE_SLOW, SECOND, 34 * (int64_t)SECOND)->sidecar = 0;
    p.stop_us = 200 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%zu done after %.1f s, by two holders", f.n_done[CHARACTER_GOOD],
             (double)f.last_good_us / SECOND);
    verdict(r, &f, f.n_done[CHARACTER_GOOD] == 1 && f.out.counts.n_posts == 2,
            "a completion that comes too late", text);
}

/* A proxy before the application always accepts and then resets, sometimes before the request was sent. That proves
 * nothing about the application either: a crash is charged at the unproven pace in each case. */
void resets(struct report *r)
{
    static const uint16_t unsent[] = {0, 500, 5000, 9500};
    char name[100], text[120];
    struct plan p;

    for (size_t i = 0; i < sizeof(unsent) / sizeof(*unsent); i++) {
        struct figures f = {0};

        plan_plain(&p, 26);
        p.application.rates[DEED_RESET] = 10000 - unsent[i];
        p.application.rates[DEED_UNSENT] = unsent[i];
        plan_add(&p, 0, CHARACTER_GOOD, 12, 0, 0);
        p.stop_us = HOUR_S * (int64_t)SECOND;
        measure(&p, &f);
        snprintf(name, sizeof(name), "an hour of resets, %d %% of them before the request has left",
                 unsent[i] / 100);
        snprintf(text, sizeof(text), "%d of 12 charged, at most 4; %d charges of one; %zu dead", f.n_charged,
                 f.most_charged, f.n_dead[CHARACTER_GOOD]);
        verdict(r, &f, f.n_charged <= 4 && f.most_charged <= 4 && !f.n_dead[CHARACTER_GOOD], name, text);
    }
}

/* Each connect succeeds, but no request can be sent. */
void in_vain(struct report *r)
{
    struct figures f = {0};
    struct plan p;
    char text[120];

    plan_plain(&p, 27);
    p.application.rates[DEED_UNSENT] = 10000;
    plan_add(&p, 0, CHARACTER_GOOD, 50, 0, 0);
    p.stop_us = 600 * (int64_t)SECOND;
    measure(&p, &f);
    snprintf(text, sizeof(text), "%llu tries in 10 minutes, at most 660; %d charged",
             (unsigned long long)f.out.counts.n_posts, f.n_charged);
    verdict(r, &f, f.out.counts.n_posts <= 660 && !f.n_charged, "nothing can be sent, and connects succeed",
            text);
}

/* A circuit breaker of 1 is set by one bad message. The good ones beside it are sent nevertheless. */
void brake_of_1(struct report *r)
{
    static const enum character bad[] = {CHARACTER_400, CHARACTER_500, CHARACTER_KILLER, CHARACTER_HANG,
                                         CHARACTER_NO_ID};
    enum { N_FIRST = 30, N_LATER = 5, LATER_S = 100, GAP_S = 10, MOST_S = LATER_S + N_LATER * GAP_S };
    char name[80], text[160];
    struct plan p;

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct figures f = {0};

        plan_plain(&p, 34);
        p.queues[0].rules.brake = 1;
        plan_add(&p, 0, bad[i], 1, 0, 0);
        plan_add(&p, 0, CHARACTER_GOOD, N_FIRST, 1000, 0);
        plan_add(&p, 0, CHARACTER_GOOD, N_LATER, LATER_S * (int64_t)SECOND, GAP_S * (int64_t)SECOND);
        p.stop_us = HOUR_S * (int64_t)SECOND;
        measure(&p, &f);
        snprintf(name, sizeof(name), "a circuit breaker of 1, and a bad message (%s)",
                 character_name(bad[i]));
        snprintf(text, sizeof(text), "%zu of %d good ones done, the last after %.1f s, at most %d s",
                 f.n_done[CHARACTER_GOOD], N_FIRST + N_LATER, (double)f.last_good_us / SECOND, MOST_S);
        verdict(r, &f,
                f.n_done[CHARACTER_GOOD] == N_FIRST + N_LATER && f.last_good_us <= MOST_S * (int64_t)SECOND,
                name, text);
    }
}

/* A bad message takes the room that a good one needs. With a circuit breaker of 1 only the bad one can be tried, and it
 * is never charged: an operator must give it up. With one of 2 it dies, and the good one follows. */
void brake_without_room(struct report *r)
{
    char name[80], text[160];
    struct plan p;

    for (int brake = 1; brake <= 2; brake++) {
        struct figures f = {0};
        int64_t given_up_us = HOUR_S * (int64_t)SECOND;

        plan_plain(&p, 35);
        p.queues[0].rules.brake = brake;
        p.queues[0].rules.max_attempts = 3;
        p.queues[0].rules.max_bytes = p.queues[0].rules.max_message_bytes = 256 << 10;
        p.given_up_us = given_up_us;
        plan_add(&p, 0, CHARACTER_500, 1, 0, 0);
        plan_add(&p, 0, CHARACTER_GOOD, 1, 1000, 0);
        p.messages[0].bytes = p.messages[1].bytes = 250000;
        p.stop_us = 2 * given_up_us;
        measure(&p, &f);
        snprintf(name, sizeof(name), "no room beside a bad message, a circuit breaker of %d", brake);
        snprintf(text, sizeof(text), "%zu good one done, after %.0f s; given up after %d s",
                 f.n_done[CHARACTER_GOOD], (double)f.last_good_us / SECOND, HOUR_S);
        verdict(r, &f,
                f.n_done[CHARACTER_GOOD] == 1 && f.n_dead[CHARACTER_500] == 1 &&
                    (brake == 1 ? f.last_good_us >= given_up_us &&
                                      f.last_good_us <= given_up_us + 60 * (int64_t)SECOND
                                : f.last_good_us <= 60 * (int64_t)SECOND),
                name, text);
    }
}
