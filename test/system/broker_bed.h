#pragma once

#include "../unit/cmocka_all.h"

#include "broker/address.h"
#include "broker/library.h"
#include "onceward/base/fault.h"
#include "onceward/broker/broker.h"
#include "onceward/core/message.h"

#include <pthread.h>
#include <stdatomic.h>

/* The bed of the tests of the broker's adapter: a plain blocking connection of the library that creates
 * queues and publishes, the adapter with one queue, and a relay that can cut, swallow or stop a connection.
 * ONCEWARD_TEST_AMQP is the broker's URL (guest's, virtual host /); ONCEWARD_TEST_FILTER a pattern of tests. */

enum { WAIT_MS = 20000, MIB = 1 << 20, Q = 7 /* the number of the only queue */ };

extern const char *url;
extern struct address at;
extern struct fault f;

/* 0; 77: no broker is configured; 1: it does not answer. */
int bed_open(void);

/* The exit status for tests that ended with r. */
int bed_close(int r);

/* --- the test's own connection --- */

/* A new durable queue; type: classic, quorum, stream. */
void queue_make(const char *queue, const char *type);
void queue_delete(const char *queue);
int queue_depth(const char *queue);
void depth_becomes(const char *queue, int n);
void publish(const char *queue, const void *body, size_t len, const amqp_basic_properties_t *p);

/* Publishes 0 to n - 1; the first function requires an empty queue without consumers. */
void publish_numbers(const char *queue, int n);
void publish_numbers_more(const char *queue, int n);

/* Starts or ends an exclusive consumer of the queue, on a channel of its own. */
void exclusive_consume(const char *queue);
void exclusive_cancel(void);

amqp_connection_state_t bed_connection(void);

/* Bytes without a repeating pattern; the caller frees them. */
char *pattern(size_t len);

/* --- the adapter --- */

struct config_broker settings_of(const char *to);

/* NULL: f says why. */
struct broker *dial_many(const struct config_broker *c, const struct broker_queue *queues, size_t n);
struct broker *dial(const struct config_broker *c, const char *queue);

/* As broker_room_fn: the context is the struct broker_room of every queue. */
struct broker_room same_room(void *context, uint32_t queue, bool redelivered);
extern struct broker_room a_mib;

/* The next event other than NOTHING; it must come. */
struct broker_event next_in(struct broker *b, struct broker_room room);
struct broker_event next(struct broker *b, size_t room);
struct broker_event next_is(struct broker *b, enum broker_event_kind kind);

/* True if no event comes for a while. */
bool is_quiet(struct broker *b);

/* Connects and waits for the open channel. */
struct broker *ready_at(const char *to, const char *queue);
struct broker *ready(const char *queue);
void consume(struct broker *b, uint32_t consumer, int prefetch);
void finish(struct broker *b);

/* Ticks and reads until the connection is lost. Returns how long that took. */
int64_t lost_after(struct broker *b);

int number_of(const struct message *m);

/* Takes a delivery and checks its number. */
struct broker_tag take(struct broker *b, int number);

double cpu_us(void);

/* --- a relay between adapter and broker --- */

struct relay {
    pthread_t thread;
    int listener;
    char url[128];
    atomic_int delay_ms; /* each way */
    atomic_int mode; /* 0: relay; 1: cut; 2: swallow everything; 3: do not read from the adapter; 4: end */
};

void relay_start(struct relay *r);
void relay_stop(struct relay *r);
