/* The wait against pipes, threads and signals. */

#include "cmocka_all.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { LONG_MS = 20000 };

/* A pipe with a watched read end, and the record and action of its callback. */
struct end {
    struct watch watch;
    struct wait *wait;
    int fds[2];
    int n_called;
    uint32_t events;
    void (*then)(struct end *e);
};

static void ready(void *owner, uint32_t events)
{
    struct end *e = owner;

    e->n_called++;
    e->events = events;
    if (e->then)
        e->then(e);
}

static struct wait *wait_made(void)
{
    struct wait *w = NULL;
    struct fault f = {0};

    assert_int_equal(wait_new(&w, &f), 0);
    return w;
}

static void watch_begin(struct end *e, int fd, uint32_t events)
{
    struct fault f = {0};

    if (wait_add(e->wait, &e->watch, fd, events, ready, e, &f) < 0)
        fail_msg("%s", f.text);
}

static void end_open(struct end *e, struct wait *w)
{
    memset(e, 0, sizeof(*e));
    e->wait = w;
    assert_int_equal(pipe2(e->fds, O_CLOEXEC | O_NONBLOCK), 0);
    watch_begin(e, e->fds[0], EPOLLIN);
}

static void end_close(struct end *e)
{
    wait_remove(e->wait, &e->watch);
    close(e->fds[0]);
    close(e->fds[1]);
}

static void end_write(struct end *e)
{
    assert_int_equal(write(e->fds[1], "x", 1), 1);
}

static void test_ready_is_told_until_it_is_read(void **state)
{
    struct wait *w = wait_made();
    struct end e;
    char byte;

    end_open(&e, w);
    assert_int_equal(wait_turn(w, 0), 0);
    end_write(&e);
    assert_int_equal(wait_turn(w, INT64_MAX), 1);
    assert_int_equal(wait_turn(w, INT64_MAX), 1); /* level-triggered */
    assert_int_equal(e.n_called, 2);
    assert_int_equal(e.events, EPOLLIN);
    assert_int_equal(read(e.fds[0], &byte, 1), 1);
    assert_int_equal(wait_turn(w, 0), 0);
    close(e.fds[1]);
    e.fds[1] = -1;
    assert_int_equal(wait_turn(w, INT64_MAX), 1);
    assert_int_equal(e.events, EPOLLHUP);
    end_close(&e);
    wait_free(w);
}

static void test_events_change(void **state)
{
    struct wait *w = wait_made();
    struct end e;

    end_open(&e, w);
    end_write(&e);
    wait_change(w, &e.watch, 0);
    assert_int_equal(wait_turn(w, 0), 0);
    wait_change(w, &e.watch, EPOLLIN);
    assert_int_equal(wait_turn(w, 0), 1);
    wait_remove(w, &e.watch);
    wait_remove(w, &e.watch);
    assert_false(watch_is_on(&e.watch));
    assert_int_equal(wait_turn(w, 0), 0);
    watch_begin(&e, e.fds[1], EPOLLOUT);
    assert_int_equal(wait_turn(w, 0), 1);
    assert_int_equal(e.events, EPOLLOUT);
    end_close(&e);
    wait_free(w);
}

static void test_time(void **state)
{
    struct wait *w = wait_made();
    int64_t start_ms = clock_ms();

    while (clock_ms() < start_ms + 60) {
        wait_turn(w, start_ms + 60);
        assert_true(clock_ms() >= start_ms + 60); /* never early: the next turn finds it due */
    }
    assert_int_equal(wait_turn(w, start_ms), 0);
    wait_free(w);
}

/* Two pipes that are ready in one turn: the first one called ends the other. */
static struct end *pair[2];

static void other_goes(struct end *e)
{
    struct end **other = &pair[e == pair[0]];

    end_close(*other);
    free(*other);
    *other = NULL;
    e->then = NULL;
}

static void pair_open(struct wait *w, void (*then)(struct end *e))
{
    for (int i = 0; i < 2; i++) {
        pair[i] = calloc(1, sizeof(*pair[i]));
        end_open(pair[i], w);
        pair[i]->then = then;
        end_write(pair[i]);
    }
}

static void pair_close(void)
{
    for (int i = 0; i < 2; i++)
        if (pair[i])
            end_close(pair[i]);
    for (int i = 0; i < 2; i++)
        free(pair[i]);
}

static void test_what_was_removed_is_not_called(void **state)
{
    struct wait *w = wait_made();

    pair_open(w, other_goes);
    assert_int_equal(wait_turn(w, 0), 1); /* the other's memory is freed */
    assert_int_equal(wait_turn(w, 0), 1);
    assert_true(!pair[0] != !pair[1]);
    pair_close();
    wait_free(w);
}

/* The other pipe's descriptor is closed, and its number reused, before its event is handled. */
static bool is_removed_before;

static void other_is_replaced(struct end *e)
{
    struct end *other = pair[e == pair[0]];
    int fd = other->fds[0];

    if (is_removed_before)
        wait_remove(other->wait, &other->watch);
    close(fd);
    close(other->fds[1]);
    assert_int_equal(pipe2(other->fds, O_CLOEXEC | O_NONBLOCK), 0);
    assert_true(other->fds[0] == fd || other->fds[1] == fd);
    memset(&other->watch, 0, sizeof(other->watch)); /* like that of another owner */
    watch_begin(other, fd, EPOLLIN);
    e->then = other->then = NULL;
}

static void test_an_event_of_before_is_not_told_to_the_next(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct wait *w = wait_made();

        is_removed_before = i;
        pair_open(w, other_is_replaced);
        assert_int_equal(wait_turn(w, 0), 1);
        assert_int_equal(pair[0]->n_called + pair[1]->n_called, 1);
        pair_close();
        wait_free(w);
    }
}

/* A library closed the descriptor without the watch's knowledge, and the number was watched again. */
static void test_a_number_that_was_closed_elsewhere(void **state)
{
    struct wait *w = wait_made();
    struct end old, e;
    int fd;

    end_open(&old, w);
    fd = old.fds[0];
    close(old.fds[0]);
    close(old.fds[1]);
    end_open(&e, w);
    assert_int_equal(e.fds[0], fd);
    assert_false(watch_is_on(&old.watch));
    wait_remove(w, &old.watch); /* does not affect the new one */
    end_write(&e);
    assert_int_equal(wait_turn(w, 0), 1);
    assert_int_equal(e.n_called, 1);
    assert_int_equal(old.n_called, 0);
    end_close(&e);

    end_open(&old, w);
    close(old.fds[0]);
    wait_change(w, &old.watch, 0);
    assert_int_equal(wait_turn(w, 0), 0);
    wait_remove(w, &old.watch);
    close(old.fds[1]);
    wait_free(w);
}

static void test_what_cannot_be_watched(void **state)
{
    struct wait *w = wait_made();
    struct watch k = {0};
    struct fault f = {0};
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

    assert_int_equal(wait_add(w, &k, fd, EPOLLIN, ready, NULL, &f), -1);
    assert_true(fault_is_set(&f));
    assert_false(watch_is_on(&k));
    close(fd);
    wait_free(w);
}

static void test_many(void **state)
{
    enum { N = 200 };
    struct wait *w = wait_made();
    struct end *ends = calloc(N, sizeof(*ends));

    for (int i = 0; i < N; i++) {
        end_open(&ends[i], w);
        end_write(&ends[i]);
    }
    for (int turns = 0, n = 0; n < N; turns++) { /* no pipe is starved by earlier ones */
        assert_true(turns < N);
        wait_turn(w, 0);
        n = 0;
        for (int i = 0; i < N; i++)
            n += ends[i].n_called > 0;
    }
    for (int i = 0; i < N; i++)
        end_close(&ends[i]);
    free(ends);
    wait_free(w);
}

static void *wake_later(void *w)
{
    usleep(30000);
    wait_wake(w);
    return NULL;
}

static struct wait *signalled;

static void on_signal(int number)
{
    wait_wake(signalled);
}

static void test_wake(void **state)
{
    struct wait *w = wait_made();
    int64_t start_ms = clock_ms();
    pthread_t t;

    pthread_create(&t, NULL, wake_later, w);
    assert_int_equal(wait_turn(w, start_ms + LONG_MS), 0);
    assert_true(clock_ms() < start_ms + LONG_MS);
    pthread_join(t, NULL);
    /* before the wait, and any number of times */
    errno = E2BIG;
    for (int i = 0; i < 3; i++)
        wait_wake(w);
    assert_int_equal(errno, E2BIG);
    wait_turn(w, start_ms + LONG_MS);
    assert_true(clock_ms() < start_ms + LONG_MS);
    /* all of them at once */
    start_ms = clock_ms();
    wait_turn(w, start_ms + 30);
    assert_true(clock_ms() >= start_ms + 30);

    signalled = w;
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    wait_turn(w, start_ms + LONG_MS);
    assert_true(clock_ms() < start_ms + LONG_MS);
    wait_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ready_is_told_until_it_is_read),
        cmocka_unit_test(test_events_change),
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_what_was_removed_is_not_called),
        cmocka_unit_test(test_an_event_of_before_is_not_told_to_the_next),
        cmocka_unit_test(test_a_number_that_was_closed_elsewhere),
        cmocka_unit_test(test_what_cannot_be_watched),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_wake),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
