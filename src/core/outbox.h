#pragma once

#include "onceward/core/outbox.h"

/* Shared by the files of the outbox. outbox.c has the lease, the reading and the position; outbox_rows.c the rows at
 * the broker; outbox_exchanges.c the exchanges; outbox_keys.c the ordered keys; outbox_parked.c the rows of stopped
 * exchanges. Calls go from outbox.c to the others, and from outbox_rows.c to outbox_exchanges.c and outbox_keys.c. */

/* Takes an answer to a question. True: the answer still matters. */
static inline bool outbox_take_answer(enum outbox_ask *ask)
{
    bool matters = *ask == OUTBOX_ASKED;

    *ask = OUTBOX_IDLE;
    return matters;
}

/* --- outbox_exchanges.c --- */

/* Finds an exchange. NULL: unknown. */
struct outbox_exchange *exchange_find(struct outbox *o, struct slice name);

/* Finds or adds an exchange, and makes it the most recently used. */
struct outbox_exchange *exchange_of(struct outbox *o, int64_t now_ms, struct slice name);

/* After a new connection nothing is confirmed on it for any exchange. */
void exchanges_unprove(struct outbox *o);

/* The lease or the rows in memory are gone: the parked rows must be listed again. */
void exchanges_unstop(struct outbox *o);

/* For the end of the relay. */
void exchanges_free(struct outbox *o);

/* The consequence of a refusal that every row of the exchange would get. */
enum exchange_verdict { EXCHANGE_LETTER, EXCHANGE_STOPS, EXCHANGE_STAYS, EXCHANGE_OFFERS };
enum exchange_verdict exchange_refuses(struct outbox *o, int64_t now_ms, struct outbox_exchange *e,
                                       enum dead_reason reason, const char *why);

/* Parks the rows of the exchange from now on. */
void exchange_stop(struct outbox *o, int64_t now_ms, struct outbox_exchange *e);

/* Opens the exchange if it has no parked rows left. */
void exchange_settle(struct outbox *o, struct outbox_exchange *e);

/* --- outbox_keys.c --- */

bool is_ordered(const struct outbox *o, struct slice exchange);

/* Adds a row of an ordered exchange behind the others of its routing key. True: the row is the first. */
bool key_enter(struct outbox *o, struct outbox_row *row);

/* Removes the row from its key, if it has one. Returns the new first row if `row` was the first; NULL: none. */
struct outbox_row *key_leave(struct outbox *o, struct outbox_row *row);

/* --- outbox_parked.c --- */

/* Next question about parked rows. False: none. */
bool parked_next(struct outbox *o, int64_t now_ms, struct outbox_action *a);

/* Time at which the next question is due. */
int64_t parked_due_ms(const struct outbox *o, int64_t now_ms);

/* --- outbox_rows.c --- */

/* Adds a row: to be sent, or as a letter at once. */
void rows_add(struct outbox *o, int64_t now_ms, const struct outbox_new *new);

/* Drops all rows in every phase. */
void rows_forget(struct outbox *o);

/* The broker closed the connection with an AMQP code, possibly because of a row in flight. */
void rows_suspect(struct outbox *o, int64_t now_ms, int code, const char *why);

/* Rows in flight have an unknown outcome: they are sent again. */
void rows_unsent(struct outbox *o);

/* First row that may be sent now. NULL: none. */
struct outbox_row *rows_next(struct outbox *o, int64_t now_ms);

/* Marks waiting rows of a stopped exchange to be parked. */
void rows_park(struct outbox *o, struct outbox_exchange *e);

/* Moves confirmed parked rows to `unparking`, moves them back, or deletes them. */
void rows_unpark(struct outbox *o);
void rows_unpark_again(struct outbox *o);
void rows_unparked(struct outbox *o);

/* Moves the first letters to `dead_lettering`, to be written now. */
void rows_dead_letter(struct outbox *o);

/* Completes the rows in `dead_lettering` whose letter is committed. */
void rows_end_dead_lettered(struct outbox *o);

/* Moves the rows in `dead_lettering` whose letter is not committed back, to be written again. */
void rows_dead_letter_again(struct outbox *o);

/* Drops the first batch. */
void rows_drop_batch(struct outbox *o);

/* Counts the completed rows at the front for the position, and frees them. */
void rows_reap(struct outbox *o);
