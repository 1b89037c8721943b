/* The same rules, servers and arrivals for all tests of a queue's core. */
#pragma once

#include "cmocka_all.h"
#include "onceward/core/message.h"
#include "onceward/core/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BED_WINDOW_MS = 30000 };

static inline struct queue_rules bed_rules(void)
{
    static const int permanent[] = {400, 410, 413, 415, 422};

    return (struct queue_rules){.token_window_ms = BED_WINDOW_MS,
                                .max_window_ms = 1200000,
                                .commit_grace_ms = 1000,
                                .max_hold_ms = 1500000,
                                .pause_hold_ms = 30000,
                                .concurrency = 16,
                                .prefetch = 128,
                                .max_parked = 1000,
                                .max_bytes = 64 << 20,
                                .max_message_bytes = 64 << 20,
                                .max_attempts = 8,
                                .backoff_ms = 1000,
                                .max_backoff_ms = 300000,
                                .permanent_status = permanent,
                                .n_permanent_status = 5,
                                .brake = 20,
                                .revive = 3,
                                .delivery_limit = LIMIT_UNKNOWN,
                                .stuck_ms = 60000,
                                .stuck_again_ms = 600000,
                                .stats_interval_ms = 10000};
}

/* Rules with short windows: a claim that is never answered ends soon. */
static inline struct queue_rules bed_short_rules(int prefetch)
{
    struct queue_rules r = bed_rules();

    r.transaction = true;
    r.token_window_ms = r.max_window_ms = 2000;
    r.max_hold_ms = 600000;
    r.concurrency = 4;
    r.prefetch = prefetch;
    r.max_parked = prefetch + 1;
    r.max_message_bytes = 1000;
    return r;
}

/* Rules of requests with up to so many messages. */
static inline struct queue_rules bed_batch_rules(int max_messages)
{
    struct queue_rules r = bed_rules();

    r.max_attempts = 2;
    r.batch.max_messages = max_messages;
    r.batch.max_bytes = 1 << 20;
    r.batch.consumer = SLICE("c");
    r.batch.queue = SLICE("q");
    return r;
}

static inline void bed_application_is_up(struct application *a, int64_t now)
{
    application_probe_sent(a);
    application_probed(a, now, true, false, 1);
}

/* Starts an application that is up, a database that is reached, and the partitions of a consumer. */
static inline void bed_start(struct application *a, struct database *d, struct queue *q, int n_partitions,
                             const struct queue_rules *rules, int64_t now)
{
    const struct application_rules application = {.concurrency = rules->concurrency,
                                                  .ready_interval_ms = 1000,
                                                  .window_ms = rules->token_window_ms,
                                                  .batch_messages = (size_t)rules->batch.max_messages,
                                                  .batch_bytes = rules->batch.max_bytes};

    application_init(a, &application, now);
    bed_application_is_up(a, now);
    database_init(d, now);
    database_linked(d);
    for (int i = 0; i < n_partitions; i++)
        queue_init(&q[i], rules, a, d, (uint64_t)i + 1, 42, now);
    for (int i = 1; i < n_partitions; i++)
        queue_join_share(&q[i], &q[0]);
}

/* A message whose body was skipped. */
static inline struct arrival *bed_skipped(const struct queue *q, const char *id, uint64_t tag)
{
    struct arrival *a = arrival_new(slice_of(id));

    a->copy.tag = (struct broker_tag){.generation = q->generation, .number = tag};
    a->copy.consumer = q->consumer.number;
    return a;
}

static inline struct arrival *bed_arrival(const struct queue *q, const char *id)
{
    static uint64_t tag;
    struct arrival *a = bed_skipped(q, id, ++tag);

    a->message = message_new();
    a->copy.body_len = a->copy.n_bytes = 10;
    return a;
}

/* Asserts that the application has nothing left of a queue that has ended. */
static inline void bed_is_empty(const struct application *a)
{
    assert_int_equal(a->n_out, 0);
    assert_int_equal(a->n_reserved, 0);
    assert_int_equal(a->n_accepted, 0);
}
