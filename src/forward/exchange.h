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
struct forward_answer;
struct forward_request;
struct route;
struct target;

enum { TLS_RECORD_SAFE = 8 * 1024 }; /* a request of this size is one TLS record */

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
    ENDING_STALE,   /* the kept connection was closed before it took a byte: it goes over another one */
};

/* One POST and what came back of it so far. It is out from forward_send to its answer: in by_ref and in the
 * list out; until a connection takes it, it is also in its application's waiting, and when it has ended, in
 * ended. */
struct exchange {
    struct route *route; /* its queue's; opaque here */
    const struct config_queue *q;
    const struct target *target;
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
    bool reused;      /* that connection had carried others */
    bool early;       /* an error came before the request was sent whole: the rest is not sent */
    bool cut;         /* ended by this side, or broken off behind the head of an error: the status holds */
    bool reset;       /* error says: connection reset */
    bool certificate; /* error says: the server refuses the certificate of this side */
    char error[CURL_ERROR_SIZE];
};

/* The texts of an answer. */
struct exchange_words {
    char error[320], brief[128];
};

/* One that is at rest. The caller owns it (exchange_free). */
struct exchange *exchange_new(void);
void exchange_free(struct exchange *x);

/* From rest to a request of head_len bytes before its body, to be sent from now on. */
void exchange_begin(struct exchange *x, const struct forward_request *r, const struct config_queue *q,
                    const struct target *target, size_t head_len);

/* To rest: gives large memory back. */
void exchange_reset(struct exchange *x);

bool exchange_is_sent(const struct exchange *x);

/* When its time is over: for one that waits for a connection, the time at which it may not be sent any more.
 */
int64_t exchange_due_ms(const struct exchange *x);

/* It ends in within_ms at the latest. */
void exchange_hurry(struct exchange *x, int64_t within_ms);

/* Is it certain that the application saw no byte of the request? */
bool exchange_is_unsent(const struct exchange *x);

/* Is its connection as good as new, now that it has ended: both sides said all, and want to go on? */
bool exchange_leaves_clean(const struct exchange *x);

/* Takes what came. ENDING_NONE: more is needed. *used: of the bytes; fewer than len only at the end. */
enum ending exchange_receive(struct exchange *x, const char *data, size_t len, size_t *used);

/* Fills *a, but for the queue, for an exchange that has ended. Its texts are in *words, its body in x. */
void exchange_answer(struct exchange *x, struct forward_answer *a, struct exchange_words *words);
