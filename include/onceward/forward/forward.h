#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/headers.h"
#include "onceward/core/outcome.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config_queue;
struct fault;
struct wait;

/* The applications of the process, over HTTP/1.1. One thread. libcurl makes the connections and the probes' GETs;
 * requests and answers are written and read here.
 *
 * An application is the listener behind one scheme, host and port, or one Unix socket. Queues that forward to it share
 * its connections. Each queue has its own path, headers, Authorization and bounds.
 *
 * wait_turn handles socket events; forward_step handles time. Neither calls back: answers and probe results are kept
 * until forward_step returns them. Nothing here blocks.
 *
 * A request is never sent twice: once the kernel took one byte of it, it never gets another connection. Redirects are
 * not followed, and proxies of the environment are not used. */
struct forward;

/* wait must outlive the result. -1: f says why. The caller owns *ret (forward_free). */
int forward_new(struct wait *wait, struct forward **ret, struct fault *f);

/* Ends requests in flight without an answer, and frees w. NULL is allowed. */
void forward_free(struct forward *w);

/* Adds a queue; the first is number 0, the next 1. *ret_application is the number of its application, from 0
 * in order of appearance. Queues with the same scheme, host and port (or Unix socket) and the same TLS
 * settings share an application. It keeps at most as many connections as the sum of its queues' concurrency;
 * it has their longest connect timeout and their first ready.url. q must outlive w. -1: f says what is wrong
 * with q, and nothing was added. */
int forward_add(struct forward *w, const struct config_queue *q, size_t *ret_application, struct fault *f);

/* Name of the application in messages: "127.0.0.1:8080", or the path of its Unix socket. */
const char *forward_application_name(const struct forward *w, size_t application);

struct forward_request {
    size_t queue; /* number of the queue */
    uint64_t ref; /* returned with the answer; unique among the queue's requests in flight */
    const struct header_block *headers; /* copied */
    struct slice body;                  /* must stay until the answer or forward_abandon */
    int64_t timeout_ms;                 /* from now, for the whole exchange */
    int64_t send_by_ms; /* clock_ms() from which on it must not be sent; 0: none. A request that still waits
                           for a connection then ends as ANSWER_UNREACHABLE */
    bool fresh;         /* use a new connection: the application may be closing a kept one. Closes
                           its idle connections */
};

/* Sends a POST. forward_step returns exactly one answer, unless the request is abandoned. A request that cannot be
 * begun is answered with ANSWER_UNREACHABLE. */
void forward_send(struct forward *w, const struct forward_request *r);

/* Ends a request without an answer, and closes its connection. Does nothing when the request was answered. */
void forward_abandon(struct forward *w, size_t queue, uint64_t ref);

/* Number of requests in flight, of all queues: sent, and neither answered by forward_step nor abandoned. */
size_t forward_in_flight(const struct forward *w);

/* Starts a probe of an application: GET ready.url if configured (2xx is ready), else a connect by TCP or Unix socket,
 * with https including the handshake. The probe uses a new connection, closed afterwards, and takes at most
 * connect_timeout, and 2 s more for a GET. forward_step returns its result once. A running probe continues. */
void forward_probe(struct forward *w, size_t application);

enum forward_probe_result {
    PROBE_READY,
    PROBE_NOT_READY,   /* ready.url answered another status, or not in HTTP, or closed */
    PROBE_SILENT,      /* no connection, or no answer of ready.url, in time */
    PROBE_UNREACHABLE, /* refused, no route, name not found, TLS failure */
};

struct forward_probed {
    size_t application;
    enum forward_probe_result result;
    int status;        /* of ready.url; 0: none */
    const char *error; /* why it is not ready, without the URL's query and user; empty: ready */
};

enum forward_event_kind { FORWARD_NOTHING, FORWARD_ANSWER, FORWARD_PROBE };

/* Slices and texts are valid until the next call of forward_step, forward_send or forward_abandon. */
struct forward_event {
    enum forward_event_kind kind;
    union {
        struct answer answer;
        struct forward_probed probe;
    };
};

/* Returns the next event's kind, also in *e; FORWARD_NOTHING: no more. To be called until then in each turn, and at
 * forward_due_ms. An answer that is in a socket when its time is over still counts. */
enum forward_event_kind forward_step(struct forward *w, struct forward_event *e);

/* clock_ms() at which forward_step must be called even without a socket event; in the past: it has an event
 * now. INT64_MAX: only socket events matter. */
int64_t forward_due_ms(const struct forward *w);

/* Calls curl_global_init, and has OpenSSL set up once. To be called before any thread exists. */
void forward_global_init(void);
