#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The circuit breaker of a queue (configuration key `brake`). When that many different messages in a row fail
 * or would be given up, for any reason, and none succeeds in between, the messages are not the cause. Then
 * nothing is charged or given up until one succeeds, and attempts are free. A value; no clock, no I/O. */

enum { BRAKE_IDS = 64, BRAKE_TEXTS = 6, BRAKE_LEAST = 5 };

struct brake_text {
    char text[256];
    int n;
};

struct brake {
    int threshold; /* 0: never */
    int n;         /* different failures in a row; beyond BRAKE_IDS some may count twice */
    int sum;       /* of their weights: compared with the threshold */
    bool requests; /* some were requests with several messages */
    bool on;
    int64_t since_ms;
    struct brake_member {
        uint64_t id, content;             /* as in brake_failure */
        bool ended;                       /* the delivery has ended, and the message may be delivered again */
    } members[BRAKE_IDS];                 /* the first of them */
    struct brake_text texts[BRAKE_TEXTS]; /* their errors */
    bool no_ids;                          /* none of them had a usable message id */
    int64_t second_ms;                    /* attempts in the present second */
    int n_tries;
    int64_t tried_ms; /* the last attempt; since_ms before the first */
};

struct brake_failure {
    uint64_t id;      /* a hash of the message's identity; without a message id, of the delivery's */
    uint64_t content; /* without a message id: a hash of its content; 0: it has one */
    bool again;       /* without a message id: it was delivered before */
    bool no_id;       /* without a usable message id */
    int weight;       /* of a request that failed as a whole; 0: a message, which weighs 1 */
    const char *text; /* the error */
};

void brake_init(struct brake *b, int threshold);

/* Threshold: the configured one, or `prefetch` if that is smaller, since more messages cannot arrive while these are
 * held. At least BRAKE_LEAST: two or three messages may well be faulty themselves. */
int brake_threshold(int configured, int prefetch);

/* Counts a message that failed or would be given up, or a request with several messages that failed as a whole. True:
 * this call has switched the circuit breaker on. */
bool brake_failed(struct brake *b, int64_t now_ms, const struct brake_failure *f);

/* The delivery with that identity has ended. */
void brake_ended(struct brake *b, uint64_t id);

/* Switches the circuit breaker on without a count, after an answer that everything fails. text: the reason.
 * True: as for brake_failed. */
bool brake_force(struct brake *b, int64_t now_ms, const char *text);

/* A message succeeded. True: this call has switched the circuit breaker off. */
bool brake_succeeded(struct brake *b);

/* Could the n_open messages with an open outcome still switch the circuit breaker on? Then giving up a message waits
 * for them. */
bool brake_may_set(const struct brake *b, size_t n_open);

/* May another attempt start in this second, of `most` per second, while the circuit breaker is on? Counts the
 * attempt. */
bool brake_try(struct brake *b, int64_t now_ms, int most);

/* Time at which brake_try may next return true. */
int64_t brake_deadline(const struct brake *b, int64_t now_ms, int most);

/* "20 different messages in a row failed; commonest, 19 times: answered 400", into ret; with batches "… requests or
 * messages …". */
void brake_tell(const struct brake *b, char *ret, size_t size);
