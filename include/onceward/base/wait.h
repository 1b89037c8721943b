#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fault;

/* The place where a thread waits: for descriptors, for a time, and for a wake-up by another thread.
 *
 * An epoll set that keeps its entries from turn to turn. A descriptor costs one system call when it is added, changed
 * or removed; a turn costs one call for all of them. Level-triggered: the next turn reports what a callback leaves
 * undone. All functions belong to one thread, except wait_wake. */
struct wait;

/* An event on a descriptor, called from wait_turn: EPOLLIN, EPOLLOUT or EPOLLRDHUP as requested; EPOLLERR and
 * EPOLLHUP always. The callback may add, change and remove any watch, including its own, and may free the
 * memory that holds its own. */
typedef void wait_ready(void *owner, uint32_t events);

/* A watched descriptor. The watch is a member of the descriptor's owner, at an address that stays the same
 * while it is active. {0} and a removed one are inactive. Only wait.c writes its fields. */
struct watch {
    wait_ready *ready; /* NULL: not watched */
    void *owner;       /* passed to ready */
    int fd;
    uint32_t events;
};

/* -1: f says why. The caller owns *ret (wait_free). */
int wait_new(struct wait **ret, struct fault *f);

/* Frees w. No watch may be used afterwards; watches need not be removed before. NULL is allowed. */
void wait_free(struct wait *w);

/* Starts to watch fd by k, which must be inactive. A descriptor has one watch: an older watch of the same number must
 * be of a descriptor that was closed, so it gets no more events. -1: the kernel refused (no memory, too many), f says
 * why, and k is inactive. */
int wait_add(struct wait *w, struct watch *k, int fd, uint32_t events, wait_ready *ready, void *owner,
             struct fault *f);

/* Changes the requested events; 0: only EPOLLERR and EPOLLHUP. Costs no system call when nothing changes, and does
 * nothing when k is inactive. */
void wait_change(struct wait *w, struct watch *k, uint32_t events);

/* Stops the callbacks, including events that the current turn has read already. Before the descriptor is closed;
 * where a library closes the descriptor, right afterwards. Does nothing when k is inactive. */
void wait_remove(struct wait *w, struct watch *k);

static inline bool watch_is_on(const struct watch *k)
{
    return k->ready != NULL;
}

/* Waits for an event, a wake, or until_ms (clock_ms(); in the past: does not wait; INT64_MAX: no limit), and
 * then calls some dozens of ready callbacks at most; the others come first in the next turn. Returns the
 * number of callbacks called. */
int wait_turn(struct wait *w, int64_t until_ms);

/* Ends the current wait_turn, or the next one. For any thread and for signal handlers; never blocks; keeps
 * errno. */
void wait_wake(struct wait *w);
