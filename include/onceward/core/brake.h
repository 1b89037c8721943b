#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The circuit breaker of a queue (configuration key `brake`): when that many different messages in a row fail
 * or would die, for whatever reason, and none succeeds between, it is not the messages. Then nothing is
 * charged and nothing dies until one succeeds, and trying costs nothing. A value; no clock, no I/O. */

enum { BRAKE_IDS = 64, BRAKE_TEXTS = 6, BRAKE_LEAST = 5 };

struct brake_text {
    char text[256];
    int n;
};

struct brake {
    int threshold; /* 0: never */
    int n;         /* different messages in a row; of those beyond BRAKE_IDS some may count twice */
    bool on;
    int64_t since_ms;
    uint64_t ids[BRAKE_IDS];              /* the hashes of the first of them */
    struct brake_text texts[BRAKE_TEXTS]; /* what was said to them */
    bool no_ids;                          /* all of them had no usable message id */
    int64_t second_ms;                    /* the tries of the present second */
    int n_tries;
    int64_t tried_ms; /* the last try; since_ms before the first */
};

void brake_init(struct brake *b, int threshold);

/* The configured one, or as many as `prefetch` lets come where that is less: what would be held for others
 * that cannot come would be held in vain. Not below BRAKE_LEAST: two or three may well be at fault. */
int brake_threshold(int configured, int prefetch);

/* A message failed, or would die: `id` is a hash that tells it from others. true: the brake is on since this
 * call. */
bool brake_failed(struct brake *b, int64_t now_ms, uint64_t id, const char *text, bool no_id);

/* One succeeded. true: the brake was on, and is off. */
bool brake_succeeded(struct brake *b);

/* Could it still be set by n_open messages whose end is not known yet? Then a death waits for them. */
bool brake_may_set(const struct brake *b, size_t n_open);

/* While it is on: may one more be tried in this second, of `most` a second? Counts it. */
bool brake_try(struct brake *b, int64_t now_ms, int most);

/* When brake_try may answer true again. */
int64_t brake_deadline(const struct brake *b, int64_t now_ms, int most);

/* "20 different messages in a row failed; commonest, 19 times: answered 400", into ret. */
void brake_tell(const struct brake *b, char *ret, size_t size);
