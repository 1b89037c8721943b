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

/* The applications of the process, over HTTP/1.1. One thread. libcurl makes the connections and the GETs of
 * the probes; requests and answers are written and read here.
 *
 * An application is what listens behind one scheme, host and port, or one Unix socket. Queues that forward to
 * it share its connections. A queue brings its path, its headers, its Authorization, its bounds.
 *
 * What happens on the sockets is done in wait_turn, what time asks for in forward_step; neither calls anybody
 * back: answers and results of probes lie here until forward_step hands them out. Nothing here blocks.
 *
 * Never sends a request twice by itself: once the kernel took one byte of it, it has seen its only
 * connection. Redirects are not followed, proxies of the environment are not used. */
struct forward;

/* wait must outlive it. -1: f says why. The caller owns *ret (forward_free). */
int forward_new(struct wait *wait, struct forward **ret, struct fault *f);

/* Ends what is out without an answer, and frees. NULL is fine. */
void forward_free(struct forward *w);

/* Adds a queue: the first is number 0, the next 1. *ret_application is the number of its application, from 0
 * in the order in which they appear: that of an earlier queue with the same scheme, host and port (or Unix
 * socket) and the same TLS settings. An application keeps at most as many connections as its queues have
 * concurrency together; it has the longest of their connect timeouts, and the first ready.url among them. q
 * must outlive w. -1: f says what is wrong with it, and nothing was added. */
int forward_add(struct forward *w, const struct config_queue *q, size_t *ret_application, struct fault *f);

/* How messages call the application: "127.0.0.1:8080", or the path of its Unix socket. */
const char *forward_application_name(const struct forward *w, size_t application);

struct forward_request {
    size_t queue; /* its number */
    uint64_t ref; /* comes back in the answer; unique among those that the queue has out */
    const struct header_block *headers; /* copied */
    struct slice body;                  /* must stay until the answer, or forward_abandon */
    int64_t timeout_ms;                 /* from now, the whole exchange */
    int64_t send_by_ms; /* clock_ms() from which on it must not be sent any more, 0: none. What waits for a
                           connection until then is ANSWER_UNREACHABLE */
    bool fresh; /* not over a kept connection, which the application may close at this very moment; ends those
                   of the application that are idle */
};

/* Sends a POST. Whatever comes of it is told by forward_step once, but for forward_abandon: also that it
 * could not even be begun, as ANSWER_UNREACHABLE. */
void forward_send(struct forward *w, const struct forward_request *r);

/* Ends a request without an answer, and closes its connection. No-op when it was answered already. */
void forward_abandon(struct forward *w, size_t queue, uint64_t ref);

/* How many requests are out, of all queues: sent, and not answered by forward_step or abandoned. */
size_t forward_in_flight(const struct forward *w);

/* Starts a probe of an application: GET ready.url where configured (2xx is ready), else a connect to it: TCP,
 * Unix socket, with https up to the end of the handshake. Always over a new connection, closed afterwards.
 * One that is under way goes on. At most connect_timeout, for a GET another 2 s. Its result is told by
 * forward_step once. */
void forward_probe(struct forward *w, size_t application);

struct forward_answer {
    size_t queue;
    uint64_t ref;
    enum answer_kind kind; /* never ANSWER_ABANDONED */
    int status;            /* 0: none */
    bool refused; /* unreachable, since no connection could be made: refused, no route, name not found, TLS
                     failure. False: there was none in time, or it broke before anything was sent */
    bool kept;    /* its connection stays open for the next */
    bool reused;  /* it went over a connection that had carried others */
    bool cut;     /* the body is longer than the queue's max_response, or broke off; its status holds */
    int64_t retry_after_ms; /* at most an hour; -1: none or not well-formed */
    int64_t batch;          /* the field Onceward-Batch; -1: none, or no number */
    struct slice body;      /* at most max_response */
    int64_t took_us;
    const char *error; /* in words: "answered 500", "connection refused by 127.0.0.1:8080", "connection closed
                          by 127.0.0.1:8080 before an answer"; where the queue's error_body wants it, the
                          first 256 bytes of a textual error body are added in quotes, control characters
                          removed. Empty for 2xx */
    const char *brief; /* the same without anything that the application wrote: for the log */
};

enum forward_probe_result {
    PROBE_READY,
    PROBE_NOT_READY,   /* something listens: ready.url answered another status, or not in HTTP, or closed */
    PROBE_SILENT,      /* no connection, or no answer of ready.url, in time */
    PROBE_UNREACHABLE, /* refused, no route, name not found, TLS failure */
};

struct forward_probed {
    size_t application;
    enum forward_probe_result result;
    int status;        /* of ready.url; 0: none */
    const char *error; /* why it is not ready, in words, without query and user of the URL; empty: ready */
};

enum forward_event_kind { FORWARD_NOTHING, FORWARD_ANSWER, FORWARD_PROBE };

/* Slices and texts are valid until the next call of forward_step, forward_send or forward_abandon. */
struct forward_event {
    enum forward_event_kind kind;
    union {
        struct forward_answer answer;
        struct forward_probed probe;
    };
};

/* One thing that has come, and its kind (also in *e); FORWARD_NOTHING: none now. Call it until then in each
 * turn, and by forward_due_ms. An answer that lies in a socket when its time is over is an answer. */
enum forward_event_kind forward_step(struct forward *w, struct forward_event *e);

/* clock_ms() at which forward_step wants to be called, whether something happens on a socket or not; in the
 * past: it has something to tell. INT64_MAX: when something happens. */
int64_t forward_due_ms(const struct forward *w);

/* curl_global_init and the wish that OpenSSL is set up once. Before any thread. */
void forward_global_init(void);
