#pragma once

#include "forward/reply.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/forward/forward.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <sys/stat.h>

/* Inside the forward folder: the adapter, its exchanges and connections, the probe, and what they share. */

enum {
    RETRY_AFTER_MAX_MS = 60 * 60 * 1000,
    REQUEST_KEEP_MAX = 8192,    /* a larger buffer is given back when the exchange is over */
    BODY_KEEP_MAX = 4096,       /* the same for what was answered */
    TLS_RECORD_SAFE = 8 * 1024, /* a request of this size is one TLS record */
    IDLE_MAX_MS = 3000,         /* below the 5 s after which common servers close an idle connection */
    RECEIVE_SIZE = 16 * 1024,
    EVENTS_MAX = 64,
    LINGER_MS = 1000, /* for the rest of a request, or of a text, when the answer is known */
    CONNECT_AGAIN_MS = 20,
};

/* Where a URL leads, and how it is called in messages. */
struct target {
    char *url;
    const char *unix_socket; /* NULL: TCP; the configuration's */
    char *name;              /* "127.0.0.1:8080", or the socket's path */
    char *host;              /* the Host field */
    char *path;              /* with the query */
    bool tls;
};

/* How an exchange came to its end. */
enum ending {
    ENDING_NONE,    /* it goes on */
    ENDING_REPLY,   /* its reply did: whole, bad or too long */
    ENDING_CUT,     /* this side had enough of the reply */
    ENDING_CLOSED,  /* the other side closed */
    ENDING_SEND,    /* writing failed: error */
    ENDING_RECEIVE, /* reading failed: error */
    ENDING_CONNECT, /* no connection could be made: error */
    ENDING_TIME,    /* its time was over */
};

/* One POST and what came back of it so far. It is out from forward_send to its answer: in by_ref and in the
 * list out; until a connection takes it, it is also in waiting, and when it has ended, in ended. */
struct exchange {
    struct forward *w;
    struct link link;  /* in out or idle */
    struct link queue; /* in waiting or ended */
    struct hash_link by_ref;
    struct connection *c; /* that carries it; NULL: none yet, or no more */
    uint64_t ref;
    int64_t start_us, end_us, deadline_ms, send_by_ms;

    struct buf request; /* the head; empty when it left at once */
    size_t head_len;
    struct slice body;
    size_t sent; /* bytes of head and body that the kernel, or TLS, took */

    struct reply reply;
    struct buf answer; /* the body of the reply, up to its bound */
    enum ending ending;
    bool offered;     /* a connection began to send it */
    bool early;       /* an error came before the request was sent whole: the rest is not sent */
    bool cut;         /* ended by this side, or broken off behind the head of an error: the status holds */
    bool reset;       /* error says: connection reset */
    bool certificate; /* error says: the server refuses the certificate of this side */
    char error[CURL_ERROR_SIZE];
};

/* A libcurl handle that makes connections: name resolution, connect, TLS, the Unix socket. Once the
 * connection is there, a plain one is taken from it, and it is free again; one with TLS stays with its
 * connection. */
struct connector {
    struct forward *w;
    struct link link; /* in connecting or idle_connectors; with TLS in neither once connected */
    CURL *easy;
    int taken; /* the socket that libcurl must not close; -1: none */
    char error[CURL_ERROR_SIZE];
};

/* A connection to the application. Carries one exchange, or is idle. */
struct connection {
    struct forward *w;
    struct link link; /* in connections or, without an exchange, in idle_connections; closed: in graveyard */
    struct connector *tls; /* NULL: plain */
    struct exchange *x;    /* NULL: idle */
    int fd;                /* -1: closed */
    uint32_t events;       /* what epoll watches it for */
    int64_t idle_us;       /* since when */
    bool was_used;         /* it carried an exchange to its end */
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
    struct target target;

    /* exchanges */
    struct list out, idle;
    struct list waiting; /* out, and without a connection; never more than connectors are connecting, unless
                            connect_at_ms is set */
    struct list ended;   /* out, and to be answered */
    struct hash by_ref;
    int64_t next_deadline_ms; /* no exchange that is out is due earlier */
    bool undrained;           /* forward_step has not answered 0 since it last looked */

    /* connections */
    CURLM *multi;
    int64_t multi_due_ms;  /* when libcurl wants to be called */
    int64_t connect_at_ms; /* when those that wait get connectors again; INT64_MAX: they have them */
    struct list connecting, idle_connectors;
    struct list connections, idle_connections, graveyard;
    int epoll, wakeup;
    char received[RECEIVE_SIZE];

    /* requests */
    struct buf prefix, suffix; /* of every head */
    struct buf scratch;        /* the head being written */
    struct slice *replaced;    /* names of configured fields, which take the place of the message's */
    size_t n_replaced;
    struct buf authorization; /* the whole line; empty: none */
    struct stat authorization_stat;
    int64_t authorization_looked_ms;

    struct buf answered; /* the body of the last answer */
    struct pollfd *waits;
    size_t n_waits;
    struct probe probe;
};

/* target.c */
int target_init(struct target *t, const char *url, const char *unix_socket, struct fault *f);
void target_deinit(struct target *t);
bool target_same_host(const char *url_a, const char *url_b);

/* What every handle of libcurl has in common. -1: libcurl refused an option. */
int transfer_setup(CURL *easy, const struct target *t, const struct config_forward *c, char *error,
                   struct fault *f);

/* Why no connection was made, in words. */
void connect_text(char *out, size_t size, const struct target *t, CURL *easy, CURLcode code,
                  const char *error);

/* request.c */
int request_init(struct forward *w, struct fault *f);
void request_deinit(struct forward *w);
void request_refresh(struct forward *w);

/* The head of a request into out, which is reset first. */
void request_write(struct forward *w, struct buf *out, const struct header_block *b, size_t body_len);

/* exchange.c */
struct exchange *exchange_new(struct forward *w);
void exchange_free(struct exchange *x);
void exchange_begin(struct exchange *x, const struct forward_request *r);
bool exchange_is_sent(const struct exchange *x);

/* When its time is over: for one that waits for a connection, the time at which it may not be sent any more. */
int64_t exchange_due_ms(const struct exchange *x);

/* Is it certain that the application saw no byte of the request? */
bool exchange_is_unsent(const struct exchange *x);

/* Takes what came. ENDING_NONE: more is needed. *used: of the bytes; fewer than len only at the end. */
enum ending exchange_receive(struct exchange *x, const char *data, size_t len, size_t *used);

/* Fills *a for an exchange that has ended. */
void exchange_answer(struct exchange *x, struct forward_answer *a);
void exchange_reset(struct exchange *x);

/* connection.c */

/* Hands the exchange to an idle connection, or begins to make one for it. -1: neither (f). */
int connection_find(struct forward *w, struct exchange *x, struct fault *f);

/* The exchange needs its connection, or its place in the queue for one, no more. */
void connection_drop(struct exchange *x);

/* A connection without an exchange, in no list: to the first that waits for one, or among the idle ones. */
void connection_offer(struct connection *c);

/* Something happened on it. */
void connection_turn(struct connection *c, uint32_t events);

/* What epoll watches an idle one for. */
uint32_t connection_events_idle(const struct connection *c);

/* Its exchange has none afterwards. It stays in the graveyard until the events at hand were gone through. */
void connection_end(struct connection *c);
void connections_end_idle(struct forward *w);
void graveyard_empty(struct forward *w);

/* connector.c */
int connections_init(struct forward *w, struct fault *f);
void connections_deinit(struct forward *w);

/* Begins to make a connection. -1: f says why not. */
int connector_start(struct forward *w, struct fault *f);

/* With the connection that it made, where that is still its own. */
void connector_free(struct connector *k);

/* libcurl is done with it. */
void connector_done(struct forward *w, struct connector *k, CURLcode code);

/* connect_at_ms has come. */
void connections_try_again(struct forward *w);

/* forward.c */

/* The exchange is over. Its connection is free or closed afterwards. */
void forward_end(struct exchange *x, enum ending ending);

/* It ends in `within_ms` at the latest. */
void forward_hurry(struct exchange *x, int64_t within_ms);

/* probe.c */
void probe_deinit(struct forward *w);
void probe_done(struct forward *w, CURLcode code);
