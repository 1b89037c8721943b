#pragma once

#include "forward/connection.h"
#include "forward/connector.h"
#include "forward/multi.h"
#include "forward/probe.h"
#include "forward/target.h"
#include "onceward/base/list.h"
#include "onceward/base/wait.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config_queue;
struct fault;

/* An application: the exchanges that wait for a connection to it, its connections, and those that are being
 * made.
 *
 * An exchange that waits gets the first connection that is there, whoever asked for it. After
 * application_connect there are at least as many connectors at work as exchanges waiting, unless
 * connect_at_ms is set. */
struct application {
    size_t number;
    struct target target;
    struct probe_question question; /* how it is probed, and connected to */
    struct probe probe;
    size_t max_connections; /* the concurrency of its queues together */
    struct wait *wait;
    struct multi *multi;
    wait_ready *ready; /* something happened on a connection */

    struct list waiting;    /* exchanges without a connection, by their `queue` */
    struct list busy, idle; /* connections with and without an exchange; idle: the one used last is last */
    struct list connecting, spare; /* connectors */
    char refusal[100]; /* what it said of this side's certificate, and has answered nothing since; or empty */
    int64_t connect_at_ms; /* when those that wait get connectors again; INT64_MAX: they have them */
};

/* For q, which must outlive it. *target becomes its own when it succeeds. ready is called with a struct
 * connection. -1: f says why. */
int application_new(const struct config_queue *q, struct target *target, struct multi *m, wait_ready *ready,
                    struct application **ret, struct fault *f);

/* Closes all connections; exchanges that had one have none. */
void application_free(struct application *a);

/* Would q, whose URL leads to *t, reach the same listener in the same way? */
bool application_is_for(const struct application *a, const struct config_queue *q, const struct target *t);

/* q sends to it, too, or is the first to. */
void application_join(struct application *a, const struct config_queue *q);

/* Takes an idle connection that can be used; it is in no list afterwards. NULL: there is none. */
struct connection *application_take(struct application *a);

/* A connection that was taken carries x. */
void application_carries(struct application *a, struct connection *c);

/* A connection's exchange is over: it is idle where that left it clean, else closed. It is in busy, and x has
 * none afterwards. */
void application_release(struct application *a, struct connection *c, bool is_clean);

/* Closes idle connections: one on which something happened, all of them, or those that are too old. The last
 * answers when the next one will be: INT64_MAX: none. */
void application_close_idle(struct application *a, struct connection *c);
void application_close_all_idle(struct application *a);
int64_t application_close_old(struct application *a, int64_t now_ms);

/* Begins to make connections for what waits, where connect_at_ms is not set. -1: f says why no more can be
 * made. */
int application_connect(struct application *a, struct fault *f);

/* A connector has ended. 0: there is one more idle connection, or it is tried again at connect_at_ms. -1: no
 * connection, error (CURL_ERROR_SIZE bytes) says why. */
int application_connected(struct application *a, struct connector *k, CURLcode code, char *error);
