/* See wait.h. Events carry numbers, not addresses: a descriptor and the generation of its slot, which changes with
 * each watch. So an event that was read before its watch was removed is ignored, even when the same turn has put
 * another watch on the same number. */

#include "onceward/base/wait.h"

#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    EVENTS_MAX = 64,     /* per turn */
    REFUSED_WAIT_MS = 20 /* between tries, when the kernel has no memory for waiting */
};

struct slot {
    struct watch *watch; /* NULL: the descriptor is not watched */
    uint32_t generation;
};

struct wait {
    int epoll, wakeup;
    struct slot *slots; /* indexed by descriptor */
    size_t n_slots;
    struct watch wakes;
};

static uint64_t event_name(const struct wait *w, int fd)
{
    return (uint64_t)w->slots[fd].generation << 32 | (uint32_t)fd;
}

static struct watch *watch_of(const struct wait *w, uint64_t name)
{
    const struct slot *s = &w->slots[(uint32_t)name];

    return s->generation == name >> 32 ? s->watch : NULL;
}

static void woken(void *owner, uint32_t events)
{
    struct wait *w = owner;
    uint64_t count;

    (void)events;
    if (read(w->wakeup, &count, sizeof(count)) < 0)
        return; /* already read */
}

int wait_new(struct wait **ret, struct fault *f)
{
    struct wait *w = mem_zalloc(1, sizeof(*w));

    w->wakeup = -1;
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (w->epoll >= 0)
        w->wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wakeup < 0) {
        fault_set(f, "no descriptor to wait with: %s", strerror(errno));
        wait_free(w);
        return -1;
    }
    if (wait_add(w, &w->wakes, w->wakeup, EPOLLIN, woken, w, f) < 0) {
        wait_free(w);
        return -1;
    }
    *ret = w;
    return 0;
}

void wait_free(struct wait *w)
{
    if (!w)
        return;
    if (w->wakeup >= 0)
        close(w->wakeup);
    if (w->epoll >= 0)
        close(w->epoll);
    free(w->slots);
    free(w);
}

static struct slot *slot_for(struct wait *w, int fd)
{
    if ((size_t)fd >= w->n_slots) {
        size_t n = ((size_t)fd + 1) * 2;

        w->slots = mem_realloc(w->slots, n * sizeof(*w->slots));
        memset(w->slots + w->n_slots, 0, (n - w->n_slots) * sizeof(*w->slots));
        w->n_slots = n;
    }
    return &w->slots[fd];
}

int wait_add(struct wait *w, struct watch *k, int fd, uint32_t events, wait_ready *ready, void *owner,
             struct fault *f)
{
    struct epoll_event e = {.events = events};
    struct slot *s;
    int r;

    assert(fd >= 0 && ready && !watch_is_on(k));
    s = slot_for(w, fd);
    if (s->watch)
        s->watch->ready = NULL;
    s->watch = NULL;
    s->generation++;
    e.data.u64 = event_name(w, fd);
    r = epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e);
    if (r < 0 && errno == EEXIST) /* the old watch's descriptor is still open */
        r = epoll_ctl(w->epoll, EPOLL_CTL_MOD, fd, &e);
    if (r < 0)
        return fault_set(f, "a descriptor cannot be watched: %s", strerror(errno));
    *k = (struct watch){.ready = ready, .owner = owner, .fd = fd, .events = events};
    s->watch = k;
    return 0;
}

/* A change takes no memory. It fails only for a descriptor that a library has closed, and that library is about to
 * report the end to the descriptor's owner. */
void wait_change(struct wait *w, struct watch *k, uint32_t events)
{
    struct epoll_event e = {.events = events};

    if (!watch_is_on(k) || k->events == events)
        return;
    k->events = events;
    e.data.u64 = event_name(w, k->fd);
    epoll_ctl(w->epoll, EPOLL_CTL_MOD, k->fd, &e);
}

void wait_remove(struct wait *w, struct watch *k)
{
    struct slot *s;

    if (!watch_is_on(k))
        return;
    s = &w->slots[k->fd];
    assert(s->watch == k);
    epoll_ctl(w->epoll, EPOLL_CTL_DEL, k->fd, NULL);
    s->watch = NULL;
    s->generation++;
    k->ready = NULL;
}

static int milliseconds_until(int64_t until_ms)
{
    int64_t left_ms;

    if (until_ms == INT64_MAX)
        return -1;
    left_ms = until_ms - clock_ms();
    return left_ms < 0 ? 0 : left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

int wait_turn(struct wait *w, int64_t until_ms)
{
    struct epoll_event events[EVENTS_MAX];
    int timeout_ms = until_ms <= 0 ? 0 : milliseconds_until(until_ms);
    int n = epoll_wait(w->epoll, events, EVENTS_MAX, timeout_ms), n_called = 0;

    if (n < 0 && errno != EINTR) /* out of memory: a short sleep avoids a busy loop */
        usleep(REFUSED_WAIT_MS * 1000);
    for (int i = 0; i < n; i++) {
        struct watch *k = watch_of(w, events[i].data.u64);

        if (!k)
            continue;
        n_called += k != &w->wakes;
        k->ready(k->owner, events[i].events);
    }
    return n_called;
}

void wait_wake(struct wait *w)
{
    int was = errno;
    uint64_t one = 1;

    if (write(w->wakeup, &one, sizeof(one)) < 0)
        errno = EAGAIN; /* counter full: the thread is awake already */
    errno = was;
}
