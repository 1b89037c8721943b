#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/failpoint.h"
#include "onceward/core/database.h"
#include "onceward/core/operation.h"
#include "onceward/inbox/inbox.h"
#include "sidecar/side_connection.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The connection to the database: operations of all queues as batches, and large dead letters on a connection of
 * their own. */

struct broker_link;
struct delivery;
struct sidecar_queue;
struct sidecar;

enum { BATCH_MAX = 256, LETTERS_MAX = 64, LETTERS_BYTES = 4 << 20, STORED_BYTES = 512 << 10 };

/* A batch of one kind, collected in this turn. */
struct batch {
    struct inbox_item items[BATCH_MAX];
    enum failpoint failpoint;
    size_t n;
};

struct letters {
    struct inbox_letter items[LETTERS_MAX];
    size_t properties_at[LETTERS_MAX], headers_at[LETTERS_MAX];
    struct buf properties, headers;
    size_t bytes;
};

/* Messages to be stored with the claims of a batch. */
struct stored {
    struct inbox_message items[BATCH_MAX];
    size_t bytes;
};

/* The connection to the database, and everything that is sent on it. */
struct sidecar_database {
    struct inbox *inbox; /* NULL: not connected */
    struct dial dial;
    struct watch watch;
    struct database core;
    bool closed;     /* permanently */
    bool registered; /* all queues are registered */
    bool readable, said_unprepared, asked_figures, asked_try, has_figures;
    struct inbox_figures figures;
    int64_t told_bytes;     /* size of the dead letters in the latest report */
    int64_t relay_asked_ms; /* latest question whether a sidecar relays the outbox */
    int64_t unrelayed_told_ms;
    int64_t claim_sent_us[2];
    struct batch batches[N_INBOX_OPS];
    struct letters letters;
    struct stored stored[2]; /* indexed by whether the claims are asynchronous */
    size_t housekeeps;       /* queue with a call in flight; SIZE_MAX: none */
    bool expires_history;    /* set: the call belongs to the walk through the history */
    int64_t house_pause_ms;  /* no call of housekeeping before then */
    uint64_t asked_lock;     /* queue and ref, as in an item; 0: none */
};

/* Dead letters above LETTER_LARGE_BYTES, on a connection of their own: see letters.c. */
struct sidecar_letters {
    struct side_connection side;
    bool wanted;        /* a dead letter waits for the connection */
    struct batch batch; /* a single dead letter */
    struct letters large;
};

/* --- database.c --- */

void database_step(struct sidecar *s);
void database_answered(struct sidecar *s, const struct inbox_row *r);
void database_dial(struct sidecar *s, struct dial *d);                   /* begins a connection */
void database_ask(struct sidecar *s);                                    /* asks the questions that are due */
void database_broker_is(struct sidecar *s, const struct broker_link *k); /* the link's cluster is known */
void database_close(struct sidecar *s);
void database_deinit(struct sidecar *s);

/* --- batches.c --- */

bool batches_can(const struct sidecar *s, const struct sidecar_queue *sq, enum operation op);
void batches_add(struct sidecar *s, struct sidecar_queue *sq, struct delivery *d, bool new_token);
void batches_send(struct sidecar *s);

/* Reads an item's ref: returns the queue, and the ref and operation of the delivery. */
struct sidecar_queue *batches_ref_read(struct sidecar *s, uint64_t item, uint64_t *ret_ref,
                                       enum operation *ret_op);

/* --- letters.c --- */

void letters_step(struct sidecar *s);
bool letters_can(const struct sidecar *s, const struct sidecar_queue *sq); /* may a dead letter be added? */
void letters_send(struct sidecar *s);
int64_t letters_due_ms(const struct sidecar *s);
void letters_close(struct sidecar *s);
