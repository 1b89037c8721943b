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

/* An application: the exchanges that wait for a connection to it, its connections, and those under
 * construction.
 *
 * A waiting exchange gets the first connection that becomes available, whichever exchange asked for it. After
 * application_connect at least as many connectors are at work as exchanges wait, unless connect_at_ms is set. */
struct application {
    size_t number;
    struct target target;
    struct probe_question question; /* the target of probes and connects */
    struct probe probe;
    size_t max_connections; /* sum of its queues' concurrency */
    struct wait *wait;
    struct multi *multi;
    wait_ready *ready; /* called for an event on a connection */

    struct list waiting;    /* exchanges without a connection, linked by their `queue` */
    struct list busy, idle; /* connections with and without an exchange; idle ends with the one used last */
    struct list connecting, spare; /* connectors */
    char refusal[100];     /* the application's refusal of our certificate, until it answers; or empty */
    int64_t connect_at_ms; /* when waiting exchanges get connectors again; INT64_MAX: they have them */
};

/* Creates the application of q, which must outlive it, and takes *target on success. ready is called with a
 * struct connection. -1: f says why. */
int application_new(const struct config_queue *q, struct target *target, struct multi *m, wait_ready *ready,
                    struct application **ret, struct fault *f);

/* Closes all connections, and detaches their exchanges. */
void application_free(struct application *a);

/* Would q, whose URL leads to *t, reach the same listener in the same way? */
bool application_is_for(const struct application *a, const struct config_queue *q, const struct target *t);

/* Adds another queue, or the first, to the application. */
void application_join(struct application *a, const struct config_queue *q);

/* Takes a usable idle connection, which is busy from now on: the caller gives it an exchange. NULL: none is idle. */
struct connection *application_take(struct application *a);

/* Ends the connection's exchange, which is in busy: a clean connection becomes idle, another one is closed. */
void application_release(struct application *a, struct connection *c, bool is_clean);

/* Close idle connections: one with an event, all, or those too old. The last returns the time at which the next one
 * grows too old; INT64_MAX: none. */
void application_close_idle(struct application *a, struct connection *c);
void application_close_all_idle(struct application *a);
int64_t application_close_old(struct application *a, int64_t now_ms);

/* Starts to make connections for waiting exchanges, unless connect_at_ms is set. -1: f says why no more can
 * be made. */
int application_connect(struct application *a, struct fault *f);

/* Handles the end of a connector. 0: one more connection is idle, or the next try is at connect_at_ms. -1: no
 * connection; error (CURL_ERROR_SIZE bytes) says why. */
int application_connected(struct application *a, struct connector *k, CURLcode code, char *error);
