#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fault;

/* The place where a thread waits: for descriptors, for a time, and for somebody who wakes it.
 *
 * An epoll set whose entries stay from turn to turn. A descriptor costs a system call when it is added,
 * changed or removed; a turn costs one, however many are watched. Level-triggered: what a callback leaves
 * undone is told again in the next turn. One thread, but for wait_wake. */
struct wait;

/* Something happened on a descriptor: events are epoll's (EPOLLIN, EPOLLOUT, EPOLLRDHUP; EPOLLERR and
 * EPOLLHUP always come unasked). Called from wait_turn. May add, change and remove any watch, its own too,
 * and free the memory that holds its own. */
typedef void wait_ready(void *owner, uint32_t events);

/* A descriptor that is watched: part of whoever owns the descriptor, at an address that stays the same
 * meanwhile. {0}, and one that was removed, is not watched. Its fields are written by wait.c. */
struct watch {
    wait_ready *ready; /* NULL: not watched */
    void *owner;       /* comes back in ready */
    int fd;
    uint32_t events;
};

/* -1: f says why. The caller owns *ret (wait_free). */
int wait_new(struct wait **ret, struct fault *f);

/* Watches must not be used afterwards, nor need they be removed before. NULL is fine. */
void wait_free(struct wait *w);

/* Begins to watch fd. k is not watched yet. An fd is watched by one watch at a time: what still watches that
 * number is taken to speak of a descriptor that was closed meanwhile, and is not told anything more. -1: the
 * kernel refused (no memory, too many), f says why, and k is not watched. */
int wait_add(struct wait *w, struct watch *k, int fd, uint32_t events, wait_ready *ready, void *owner,
             struct fault *f);

/* Other events from now on; 0: only EPOLLERR and EPOLLHUP. No system call when they are the same as before.
 * No-op when k is not watched. */
void wait_change(struct wait *w, struct watch *k, uint32_t events);

/* Its callback is not called any more, not even for what the turn at hand has read already. Call it before
 * the descriptor is closed where that is in one's hands; where a library closed it before, call it then.
 * No-op when k is not watched. */
void wait_remove(struct wait *w, struct watch *k);

static inline bool watch_is_on(const struct watch *k)
{
    return k->ready != NULL;
}

/* Waits until something happens, until_ms (clock_ms(); in the past: does not wait, INT64_MAX: for ever) or a
 * wake, and then calls back what is ready, at most some dozens; the others come first in the next turn.
 * Returns how many were called. */
int wait_turn(struct wait *w, int64_t until_ms);

/* Ends the present wait_turn, or the next one. Any thread, and signal handlers; never blocks; errno is kept.
 */
void wait_wake(struct wait *w);
