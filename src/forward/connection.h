#pragma once

#include "forward/exchange.h"
#include "onceward/base/list.h"
#include "onceward/base/slice.h"
#include "onceward/base/wait.h"

#include <stdbool.h>
#include <stdint.h>

struct application;
struct connector;
struct fault;

/* A connection to the application. Carries one exchange, or is idle. What its functions answer is how the
 * exchange ended; the caller acts on it. */
struct connection {
    struct wait *wait;
    struct watch watch;
    struct application *application; /* opaque here */
    struct link link;                /* in its application's busy or idle */
    struct connector *tls;           /* NULL: plain */
    struct exchange *x;              /* NULL: idle */
    int fd;
    int64_t idle_ms; /* since when */
    bool was_used;   /* it carried an exchange to its end */
};

/* Owns fd, or tls with it, afterwards, also when it fails. ready is called with it when something happens.
 * NULL: f says why. */
struct connection *connection_new(struct wait *wait, struct application *application, int fd,
                                  struct connector *tls, wait_ready *ready, struct fault *f);

/* Closes it. It is in no list, and carries nothing. */
void connection_free(struct connection *c);

/* An idle one that was used: was it closed, did it say something unasked, or has it been idle for too long?
 */
bool connection_is_stale(struct connection *c);

/* When an idle one becomes too old to be used. */
int64_t connection_stale_ms(const struct connection *c);

/* An idle one gets an exchange, and sends what it can. head: its head; it is copied to x->request when it
 * is needed longer than this call. ENDING_STALE: nothing was sent, x needs another one. */
enum ending connection_carry(struct connection *c, struct exchange *x, struct slice head);

/* Something happened on one that carries an exchange: epoll's events. */
enum ending connection_turn(struct connection *c, uint32_t events);

/* Its exchange is over, and left it clean: it is idle from now on. */
void connection_rest(struct connection *c);
