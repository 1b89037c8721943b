#pragma once

#include "onceward/core/outbox.h"

/* Between the files of the outbox: outbox.c has the lease, the reading and the position; outbox_rows.c what
 * becomes of a row at the broker. Calls go from outbox.c to outbox_rows.c only. */

/* Takes a row into memory: it is to be sent, or a letter already. */
void rows_add(struct outbox *o, int64_t now_ms, const struct outbox_new *new);

/* Forgets all rows, whatever they wait for. */
void rows_forget(struct outbox *o);

/* A new connection: nothing was confirmed on it for any exchange. */
void rows_unprove(struct outbox *o);

/* At the end. */
void rows_forget_exchanges(struct outbox *o);

/* The broker closed the connection, with one of AMQP's codes: it may be over a row that is out. */
void rows_suspect(struct outbox *o, int64_t now_ms, int code, const char *why);

/* What was sent is unknown: it is sent again. */
void rows_unsent(struct outbox *o);

/* The first row that may be sent now, or NULL. */
struct outbox_row *rows_next(struct outbox *o, int64_t now_ms);

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
