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

/* A connection to the application. It carries one exchange, or is idle. Its functions return how the exchange ended,
 * and the caller acts on that. */
struct connection {
    struct wait *wait;
    struct watch watch;
    struct application *application; /* opaque here */
    struct link link;                /* in its application's busy or idle */
    struct connector *tls;           /* NULL: plain */
    struct exchange *x;              /* NULL: idle */
    int fd;
    int64_t idle_ms; /* time at which the connection became idle */
    bool was_used;   /* has carried an exchange to its end */
};

/* Takes fd, or tls with its socket, also on failure. ready is called with the connection for each event. NULL: f says
 * why. */
struct connection *connection_new(struct wait *wait, struct application *application, int fd,
                                  struct connector *tls, wait_ready *ready, struct fault *f);

/* Closes the connection, which must be in no list and carry nothing. */
void connection_free(struct connection *c);

/* For a used, idle connection: was it closed, did it send bytes unasked, or has it been idle for too long? */
bool connection_is_stale(struct connection *c);

/* Time at which an idle connection becomes too old to be used. */
int64_t connection_stale_ms(const struct connection *c);

/* Gives an exchange to an idle connection and sends as much as the socket takes. head is copied to x->request when it
 * is needed longer than this call. ENDING_STALE: nothing was sent, x needs another connection. */
enum ending connection_carry(struct connection *c, struct exchange *x, struct slice head);

/* Handles epoll's events for a connection that carries an exchange. */
enum ending connection_turn(struct connection *c, uint32_t events);

/* Makes the connection idle after an exchange that left it clean. */
void connection_rest(struct connection *c);
