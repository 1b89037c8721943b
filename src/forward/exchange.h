#pragma once

#include "forward/reply.h"
#include "onceward/base/buf.h"
#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/base/slice.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

struct config_queue;
struct connection;
struct answer;
struct forward_request;
struct route;
struct target;

enum { TLS_RECORD_SAFE = 8 * 1024 }; /* a request up to this size is one TLS record */

/* How an exchange ended. */
enum ending {
    ENDING_NONE,    /* in progress */
    ENDING_REPLY,   /* the reply ended: whole, bad or too long */
    ENDING_CUT,     /* this side stopped reading the reply */
    ENDING_CLOSED,  /* the other side closed */
    ENDING_SEND,    /* writing failed: see error */
    ENDING_RECEIVE, /* reading failed: see error */
    ENDING_CONNECT, /* no connection could be made: see error */
    ENDING_TIME,    /* its time was over */
    ENDING_STALE,   /* the kept connection was closed before it took a byte: the exchange needs another one */
};

/* A POST and the part of its answer received so far. From forward_send to its answer it is in flight: in by_ref and
 * in the list `out`. Until it has a connection it is also in its application's `waiting`, and after its end in
 * `ended`. */
struct exchange {
    struct route *route; /* the queue's route; opaque here */
    const struct config_queue *q;
    const struct target *target;
    struct link link;  /* in out or idle */
    struct link queue; /* in waiting or ended */
    struct hash_link by_ref;
    struct connection *c; /* its connection; NULL: none yet, or no longer */
    uint64_t ref;
    int64_t start_us, end_us, deadline_ms, send_by_ms;

    struct buf request; /* the head; empty when it was sent at once */
    size_t head_len;
    struct slice body;
    size_t sent; /* number of bytes of head and body that the kernel or TLS took */

    struct reply reply;
    struct buf answer; /* the reply's body, up to its bound */
    enum ending ending;
    bool offered;     /* a connection began to send it */
    bool reused;      /* the connection had carried other exchanges */
    bool early;       /* an error came before the whole request was sent, so the rest is not sent */
    bool cut;         /* ended by this side, or broken off behind an error's head: the status counts */
    bool reset;       /* error is a connection reset */
    bool certificate; /* error is the server's refusal of our certificate */
    char error[CURL_ERROR_SIZE];
};

/* The texts of an answer. */
struct exchange_words {
    char error[320], brief[128];
};

/* An unused exchange. The caller owns it (exchange_free). */
struct exchange *exchange_new(void);
void exchange_free(struct exchange *x);

/* Starts a request with a head of head_len bytes. */
void exchange_begin(struct exchange *x, const struct forward_request *r, const struct config_queue *q,
                    const struct target *target, size_t head_len);

/* Makes the exchange unused again, and frees large buffers. */
void exchange_reset(struct exchange *x);

bool exchange_is_sent(const struct exchange *x);

/* Time at which the exchange ends. While it waits for a connection: the time after which it must not be sent. */
int64_t exchange_due_ms(const struct exchange *x);

/* Shortens the time of the exchange to at most within_ms from now. */
void exchange_hurry(struct exchange *x, int64_t within_ms);

/* Did the application certainly see no byte of the request? */
bool exchange_is_unsent(const struct exchange *x);

/* Can the connection be used again: did both sides send everything, and does neither want to close it? */
bool exchange_leaves_clean(const struct exchange *x);

/* Takes received bytes. ENDING_NONE: more are needed. *used is less than len only at the end. */
enum ending exchange_receive(struct exchange *x, const char *data, size_t len, size_t *used);

/* Fills *a, except for the queue, for an ended exchange. Its texts are in *words, its body in x. */
void exchange_answer(struct exchange *x, struct answer *a, struct exchange_words *words);
