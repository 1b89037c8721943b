#pragma once

#include "onceward/base/slice.h"
#include "onceward/config/config.h"
#include "onceward/core/headers.h"
#include "onceward/core/outcome.h"

#include <poll.h>
#include <stdint.h>

struct fault;

/* The application, over HTTP/1.1, and the worker's only wait point. One thread. libcurl makes the connections and the
 * readiness probes; requests and answers are written and read here.
 *
 * Never sends a request twice by itself. Redirects are not followed, proxies from the environment are not used. */

struct forward;

/* q must outlive it. The Authorization file is read again at each new connection attempt after a change of its mtime, at most once a
 * second. -1: f says why. */
int forward_new(const struct config_queue *q, struct forward **ret, struct fault *f);

/* Aborts what is in flight without an answer, and frees. */
void forward_free(struct forward *w);

struct forward_request {
    uint64_t ref;                       /* comes back in the answer */
    const struct header_block *headers; /* copied */
    struct slice body;                  /* must stay until the answer */
    int64_t timeout_ms;                 /* from now, the whole exchange */
    int64_t send_by_ms; /* clock_ms() from which on it must not be sent any more, 0: none. What waits for a connection until
                           then is answered ANSWER_UNREACHABLE */
    bool fresh; /* not over a kept connection, which the application may close at this very moment; ends those that are idle */
};

/* Sends a POST. -1: it could not even be begun (f), nothing was sent. */
int forward_send(struct forward *w, const struct forward_request *r, struct fault *f);

/* How many requests are out. */
size_t forward_in_flight(const struct forward *w);

struct forward_answer {
    uint64_t ref;
    enum answer_kind kind;
    int status;             /* 0: none */
    int64_t retry_after_ms; /* -1: none or not well-formed */
    struct slice body;      /* valid until the next call; at most max_response_bytes, cut is then true */
    bool cut;
    char error[256]; /* in words: "answered 500", "connection refused by 127.0.0.1:8080", "closed before an answer"; the start of a
                        textual error body is added in quotes, control characters removed */
    char brief[128]; /* the same without anything that the application wrote: for the log */
    bool waited; /* unreachable: not refused by anybody, there was no connection in time */
    int64_t took_us;
};

/* Reads and writes what can be. 1: *a is an answer, call again; 0: none now. A huge answer is cut by ending the transfer: kind is then
 * ANSWER_STATUS all the same. */
int forward_step(struct forward *w, struct forward_answer *a);

/* Ends a request without an answer. No-op when it was answered already. */
void forward_abandon(struct forward *w, uint64_t ref);

/* The worker's wait point: waits for any of these, the requests in flight and the probe, at most timeout_ms (0: looks only; at most
 * INT_MAX). revents are filled as by poll(2). An fd of -1 is skipped. */
void forward_wait(struct forward *w, struct pollfd *fds, size_t n, int64_t timeout_ms);

/* Ends the present forward_wait, or the next one. Any thread; never blocks. */
void forward_wake(struct forward *w);

/* Starts a readiness probe: GET ready_url where configured (2xx is ready), else a TCP or Unix-socket connect to the forward URL.
 * A probe that is under way goes on. timeout: connect_timeout, for a GET another 2 s. */
void forward_probe(struct forward *w);

enum forward_probe_result { PROBE_NONE, PROBE_READY, PROBE_NOT_READY };

/* The result of the probe once, with the reason in f when not ready; PROBE_NONE: none asked or still under way. */
enum forward_probe_result forward_probe_result(struct forward *w, struct fault *f);

/* curl_global_init and the wish that OpenSSL is set up once. Before any thread. */
void forward_global_init(void);
