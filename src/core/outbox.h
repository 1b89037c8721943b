#pragma once

#include "onceward/core/outbox.h"

/* Between the files of the outbox: outbox.c has the lease, the reading and the position; outbox_rows.c what
 * becomes of a row at the broker; outbox_exchanges.c
 * what is known of an exchange; outbox_parked.c the rows of those that are stopped. Calls go from outbox.c to the others, and from outbox_rows.c to outbox_exchanges.c. */

/* --- outbox_exchanges.c --- */

/* NULL: nothing is known of it. */
struct outbox_exchange *exchange_find(struct outbox *o, struct slice name);

/* Marks it as used last; makes it. */
struct outbox_exchange *exchange_of(struct outbox *o, int64_t now_ms, struct slice name);

/* A new connection: nothing was confirmed on it for any exchange. */
void exchanges_unprove(struct outbox *o);

/* The lease is gone, or what was read: nothing is known of what is parked. */
void exchanges_unstop(struct outbox *o);

/* At the end. */
void exchanges_free(struct outbox *o);

/* The consequence of a refusal that every row of the exchange would get. */
enum exchange_verdict { EXCHANGE_LETTER, EXCHANGE_STOPS, EXCHANGE_STAYS, EXCHANGE_OFFERS };
enum exchange_verdict exchange_refuses(struct outbox *o, int64_t now_ms, struct outbox_exchange *e,
                                       enum dead_reason reason, const char *why);

/* Its rows are parked from now on. */
void exchange_stop(struct outbox *o, int64_t now_ms, struct outbox_exchange *e);

/* Opens the exchange if nothing of it is parked any more. */
void exchange_settle(struct outbox *o, struct outbox_exchange *e);

/* --- outbox_parked.c --- */

/* The next question about parked rows, or false. */
bool parked_next(struct outbox *o, int64_t now_ms, struct outbox_action *a);

/* When it is due at the latest. */
int64_t parked_due_ms(const struct outbox *o, int64_t now_ms);

/* --- outbox_rows.c --- */

/* Takes a row into memory: it is to be sent, or a letter already. */
void rows_add(struct outbox *o, int64_t now_ms, const struct outbox_new *new);

/* Forgets all rows, whatever they wait for. */
void rows_forget(struct outbox *o);

/* The broker closed the connection, with one of AMQP's codes: it may be over a row that is out. */
void rows_suspect(struct outbox *o, int64_t now_ms, int code, const char *why);

/* What was sent is unknown: it is sent again. */
void rows_unsent(struct outbox *o);

/* The first row that may be sent now, or NULL. */
struct outbox_row *rows_next(struct outbox *o, int64_t now_ms);

/* Rows of a stopped exchange that wait in memory are to be parked. */
void rows_park(struct outbox *o, struct outbox_exchange *e);

/* Confirmed parked rows move to `unparking`, and back, or are deleted. */
void rows_unpark(struct outbox *o);
void rows_unpark_again(struct outbox *o);
void rows_unparked(struct outbox *o);

/* The first letters are to be written now: they move to `burying`. */
void rows_bury(struct outbox *o);

/* Those in `burying` whose letter is committed are settled. */
void rows_settle_buried(struct outbox *o);

/* Those in `burying` whose letter is not committed are to be written again. */
void rows_unbury(struct outbox *o);

/* The first batch is of no use any more. */
void rows_drop_batch(struct outbox *o);

/* What stands settled at the front is counted for the position, and freed. */
void rows_reap(struct outbox *o);
