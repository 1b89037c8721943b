#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/forward/forward.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <sys/stat.h>

/* Inside the forward folder: one exchange, the probe, and what they share. */

enum {
    RESPONSE_HEADERS_MAX = 64 * 1024, /* of all answers to one request, interim ones included */
    RETRY_AFTER_MAX_MS = 60 * 60 * 1000,
    BUF_KEEP_MAX = 4096,        /* a larger buffer is given back when the exchange is over */
    SMALL_BODY_MAX = 64 * 1024, /* below, the body leaves together with the header fields */
    TLS_RECORD_SAFE = 8 * 1024, /* a request of this size is one TLS record with its fields of ours */
};

/* Where a URL leads, and how it is called in messages. */
struct target {
    char *url;
    const char *unix_socket; /* NULL: TCP; the configuration's */
    char *name;              /* "127.0.0.1:8080", or the socket's path */
    bool tls;
};

/* One POST and what came back of it so far. Belongs to the list of those that are out, or to that of the idle
 * ones. */
struct exchange {
    CURL *easy;
    struct forward *w;
    struct link link;
    struct hash_link by_ref;
    uint64_t ref;
    int64_t start_us, deadline_ms, send_by_ms;

    struct buf lines; /* the request's own header lines */
    struct curl_slist *nodes;
    size_t n_nodes; /* how many there is room for */
    size_t body_len;
    int fd, local_port; /* the connection: the socket that was opened for this request, and the port it uses;
                           -1 and 0: none */

    struct buf body;
    size_t header_bytes;
    int status;             /* of the answer being read, interim or final; 0: none yet */
    int64_t retry_after_ms; /* of the same */
    bool begun;             /* the request was handed to a connection */
    bool stale;             /* it was not: libcurl had chosen a connection that was closed */
    bool final;             /* the header of the final answer is whole */
    bool empty;             /* it said Content-Length: 0 */
    bool early;             /* it is an error that came before the request was sent: the rest is not sent */
    bool cut;               /* ended by this side, status holds */
    char error[CURL_ERROR_SIZE];
};

struct probe {
    CURL *easy; /* NULL: none was asked for yet */
    struct target target;
    struct curl_slist *headers;
    bool get, running, begun;
    size_t n_bytes;
    enum forward_probe_result result;
    struct fault fault;
    char error[CURL_ERROR_SIZE];
};

struct forward {
    const struct config_queue *q;
    CURLM *multi;
    struct target target;
    struct list out, idle;
    size_t n_large; /* of those that are out, how many have a body that is sent piece by piece */
    struct hash by_ref;
    bool looks_at_kept; /* libcurl does not do so before each request */
    bool undrained;     /* forward_step has not answered 0 since it last let libcurl run */

    struct curl_slist *fixed; /* the end of every request's header list */
    struct buf fixed_lines;
    struct slice *replaced; /* names of configured fields, which take the place of the message's */
    size_t n_replaced;
    bool type_is_fixed; /* Content-Type is among them */

    struct buf authorization; /* the whole line; empty: none */
    struct stat authorization_stat;
    int64_t authorization_looked_ms;

    struct buf answered; /* the body of the last answer */
    struct curl_waitfd *waits;
    size_t n_waits;
    struct probe probe;
};

/* target.c */
int target_init(struct target *t, const char *url, const char *unix_socket, struct fault *f);
void target_deinit(struct target *t);
bool target_same_host(const char *url_a, const char *url_b);

/* What every transfer has in common. -1: libcurl refused an option. */
int transfer_setup(CURL *easy, const struct target *t, const struct config_forward *c, char *error,
                   struct fault *f);

/* Why a transfer ended without an answer, in words. */
void transfer_text(char *out, size_t size, const struct target *t, CURL *easy, CURLcode code, bool begun,
                   const char *error);

/* request.c */
int request_init(struct forward *w, struct fault *f);
void request_deinit(struct forward *w);
void request_refresh(struct forward *w);
struct curl_slist *request_lines(struct exchange *x, const struct header_block *b);

/* exchange.c */
struct exchange *exchange_new(struct forward *w, struct fault *f);
void exchange_free(struct exchange *x);
int exchange_begin(struct exchange *x, const struct forward_request *r, struct fault *f);
void exchange_answer(struct exchange *x, CURLcode code, struct forward_answer *a);
void exchange_reset(struct exchange *x);
bool exchange_is_large(const struct exchange *x);

/* probe.c */
void probe_deinit(struct forward *w);
void probe_done(struct forward *w, CURLcode code);
