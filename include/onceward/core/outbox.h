#pragma once

#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/base/slice.h"
#include "onceward/core/reasons.h"
#include "onceward/core/stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The relay of the outbox: it sends messages that were published in the database to the broker. Facts in,
 * actions out, as with a queue (queue.h): no I/O, no clock, no library.
 *
 * One relay at a time holds the lease. It reads rows in order, batch after batch, and sends them with confirms.
 * It writes the position when all rows before it are done: confirmed, or dead-lettered. A row that was sent and
 * is not known to be confirmed is sent again, because a second copy is harmless and a lost message is not.
 *
 * Rows are sent in groups, usually as large as OUTBOX_OUT_MAX allows. A row to an exchange for which no row was
 * confirmed yet goes alone, so that a channel that the broker closes over it affects no other row. When the
 * broker closes the channel over a group, the group is halved until the refused row is alone. The same happens
 * when the broker closes the connection, as it does when it crashes over a message. That may have another
 * reason, so such a row is given up only after it was alone three times.
 *
 * A row that the broker nacks is sent again after a wait, which doubles while nothing is confirmed. All later
 * rows wait, too, since the relay does not know which of them reach the same queue. The row and all rows that
 * were in flight beside it go one by one, in order; those behind them go in groups that grow by one. The broker
 * may have accepted rows that were in flight behind the nacked one, and this cannot be undone. So a full queue
 * gets rows as fast as its consumers empty it, and few of them at once.
 *
 * An exchange that refuses every row (it does not exist, the user may not write to it, it is not in
 * outbox.exchanges) is stopped: at the first refusal if it has worked before, else at the third in a row. Rows
 * for a stopped exchange are parked in a table of their own, in order, so that the position advances and rows
 * for other exchanges continue. The first parked row is tried each second. Once it is confirmed, the others
 * follow in pages. While the last page is sent, new rows wait in memory instead of being parked. When all are
 * confirmed and deleted, the exchange is open. Parked rows outlive the relay: the next one lists them first.
 *
 *     open --refused--> stopped: new rows are parked --last page--> new rows wait --all confirmed--> open
 *                          ^                                             |
 *                          +--------------- there was another page ------+
 *
 * For a row to an exchange that is not in outbox.exchanges the relay first offers its lease: during a rollout
 * another replica may know the exchange already.
 *
 * An exchange in outbox.ordered gets one row per routing key at a time. Later rows of the key wait behind it,
 * so neither a nack nor a lost connection can let one overtake another. Such an exchange also stops at its
 * first refusal, and when it returns a row: a dead letter would be a gap that the publisher did not make. Rows
 * that no broker would accept are dead-lettered here, too, and their key continues after the commit.
 *
 * A message that the broker returns has no tag. So rows that a return could not tell apart are never in flight
 * together: the later one waits until the earlier one is confirmed.
 *
 * The relay polls at once while a batch has more rows, soon while rows arrive, and at growing intervals
 * otherwise. It then asks first whether any transaction has ended at all, which costs the database very
 * little. */

enum {
    OUTBOX_OUT_MAX = 256,           /* rows in flight */
    OUTBOX_HELD_MAX = 1024,         /* rows in memory, read ahead while confirms are awaited */
    OUTBOX_HELD_BYTES = 2 << 20,    /* bytes of these rows; a single row may exceed it */
    OUTBOX_LETTERS_MAX = 64,        /* dead letters written together, */
    OUTBOX_LETTERS_BYTES = 1 << 20, /* up to this size; a single one may exceed it */
    OUTBOX_EXCHANGES = 1024,        /* exchanges remembered: the most recently used, and the refused ones */
    OUTBOX_LEASE_MS = 15000,
    OUTBOX_PARKED_ROWS = 256, /* parked rows per read */
    OUTBOX_REFUSALS = 3,      /* consecutive refusals that stop an exchange that never worked */
    OUTBOX_TOPIC_REFUSALS =
        20, /* consecutive messages with a forbidden topic, which may be all of the exchange's */
    OUTBOX_STOPPED_MAX = 64,  /* stopped exchanges; each try of one costs the channel */
    OUTBOX_OFFER_MS = 6000,   /* how long the lease is offered to others: a standby asks every 4.5 s */
    OUTBOX_OFFERS_MS = 60000, /* between two offers */
    OUTBOX_SILENT_MS = 15000, /* silence of the broker while rows wait, after which another relay may do
                                 better */
    OUTBOX_POLL_GROWTH = 5,   /* growth of the poll interval while it finds nothing */
};

struct outbox_rules {
    int64_t poll_ms;
    size_t max_message_bytes;
    char *const *exchanges;     /* allowed; borrowed */
    size_t n_exchanges;         /* 0: all */
    char *const *not_mandatory; /* exchanges that return messages although they deliver them; borrowed */
    size_t n_not_mandatory;
    char *const *ordered; /* exchanges that keep the order of each routing key; borrowed */
    size_t n_ordered;
};

/* Does outbox.exchanges permit rows to this exchange? An empty list permits all. */
bool outbox_allows(char *const *exchanges, size_t n, struct slice exchange);

/* Is the row an answer through RabbitMQ's direct reply-to? That is not a queue: the broker delivers such a message
 * and returns it nevertheless, and closes the connection over a malformed one. Any client can make up a malformed
 * reply address, to which a service would publish its answer. */
bool outbox_is_direct_reply(struct slice exchange, struct slice routing_key);
#define OUTBOX_DIRECT_REPLY                                                                                  \
    "it goes to a direct reply-to, which is no queue, and is not sent: let the client name one"

/* A row from the database. Borrowed. */
struct outbox_new {
    int64_t seq; /* ascending within its batch; for a parked row its number among these */
    int64_t age_ms;
    struct slice exchange, routing_key, message_id;
    struct slice content_header; /* property flags and list, as AMQP encodes them */
    struct slice body;
    size_t body_len;    /* also of a body that is too large to be read */
    const char *broken; /* why the row cannot be encoded; NULL: it can be */
    bool parked;
};

enum outbox_phase {
    OUTBOX_BEHIND, /* an earlier row of its routing key is not done */
    OUTBOX_WANTED, /* to be sent */
    OUTBOX_SENT,
    OUTBOX_LETTER_WANTED,
    OUTBOX_LETTER_SENT,
    OUTBOX_UNPARK_WANTED, /* a parked row, confirmed but not deleted yet */
    OUTBOX_UNPARK_SENT,
    OUTBOX_SETTLED, /* confirmed, parked, or its dead letter is committed */
};

/* The rows committed between two positions. */
struct outbox_batch {
    struct link in_order;
    uint64_t number;
    size_t n_rows; /* rows in memory */
    bool over;     /* read completely */
    char *text;    /* the database's name for the batch */
};

struct outbox_row {
    struct link in_order;     /* all rows in memory, or the parked ones */
    struct link in_phase;     /* wanted rows, sent ones, or dead letters */
    struct hash_link by_look; /* SENT: exchange, routing key, id and length, the only identification in a
                                 return */
    struct outbox_key *key;   /* of an ordered exchange, until the row is done; NULL: none */
    struct link in_key;
    enum outbox_phase phase;
    struct outbox_batch *batch;
    uint64_t number; /* from 1, in the order of reading */
    int64_t seq, came_ms, age_ms;
    uint64_t tag; /* SENT: tag on its channel */
    int n_closed; /* connections that the broker closed without another answer while only this row was in
                     flight */
    bool returned, was_sent, dead_lettered, mandatory;
    bool alone;   /* was in flight when another row was nacked: nothing else is sent beside it */
    bool parked;  /* read from the table of parked rows, hence not part of a batch */
    bool parking; /* a dead letter that will be parked instead */
    bool barred;  /* outbox.exchanges does not have the exchange */
    enum dead_reason reason;
    char detail[256];                                                     /* why it became a dead letter */
    struct slice exchange, routing_key, message_id, content_header, body; /* stored behind the struct */
    size_t body_len;                                                      /* see outbox_new */
    size_t n_bytes;
};

/* A routing key of an ordered exchange, with its rows in order. Parked rows have a key of their own. Only the
 * first row may be wanted or sent. */
struct outbox_key {
    struct hash_link by_name; /* exchange and routing key of the rows */
    struct list rows;
};

/* An exchange that a row was sent to. */
struct outbox_exchange {
    struct hash_link by_name;
    struct link in_use;       /* in the order of use */
    struct slice name;        /* stored behind the struct */
    bool proven;              /* a row was confirmed on this connection */
    bool worked;              /* a row was confirmed at any time */
    bool offered;             /* the lease was offered because of this exchange */
    bool ordered;             /* see outbox_rules */
    bool forbids;             /* the latest refusal was that this user may not write to the exchange */
    int n_topics;             /* consecutive refusals of a topic */
    int n_refused;            /* consecutive refusals, for the reason below */
    int64_t refused_until_ms; /* until then its rows become dead letters without a try */
    enum dead_reason reason;
    char detail[160];
    struct outbox_stop {
        bool is;
        bool last;        /* the last page is being read or sent: new rows wait in memory */
        bool empty;       /* all parked rows are in memory */
        int64_t retry_ms; /* time of the next try of its first row; INT64_MAX: not while this sidecar has the
                             lease */
        int64_t after;    /* the latest number read */
        size_t n_parked;  /* its parked rows in memory */
        size_t n_parking; /* rows on their way into the table */
        int64_t told_ms;
        bool to_tell, ended;
    } stop;
};

struct outbox_counts {
    struct counter published, resent, nacked, letters, parked;
};

/* STALE: the state that the question was about is gone, so the answer is ignored. */
enum outbox_ask { OUTBOX_IDLE, OUTBOX_ASKED, OUTBOX_STALE };

enum outbox_action_kind {
    OUTBOX_REGISTER, /* ask whether the outbox belongs to this broker's virtual host */
    OUTBOX_LEASE,    /* get or renew the lease */
    OUTBOX_GIVE_UP,  /* give up the lease */
    OUTBOX_RESTORE,  /* a dump was restored: prepare to send every row again */
    OUTBOX_LOOK,     /* look up whether any transaction has ended since `batch` was read */
    OUTBOX_READ, /* read at most `n` rows: of `batch` (NULL: from the written position) behind `seq` (-1: of
                     the next batch) */
    OUTBOX_SEND, /* send `row`; outbox_sent follows at once */
    OUTBOX_DEAD_LETTERS, /* write dead letters for all rows in outbox.dead_lettering */
    OUTBOX_WRITE, /* write the position: in `batch` all rows up to `seq` (-1: all) are done, and all earlier
                     batches */
    OUTBOX_PARKED_LIST, /* list the exchanges that have parked rows */
    OUTBOX_PARKED_READ, /* read at most `n` parked rows of `exchange` behind `seq` */
    OUTBOX_UNPARK,      /* delete all rows in outbox.unparking */
    OUTBOX_TURN,        /* start the next table's turn, or empty tables whose turn has ended */
    OUTBOX_TELL,        /* log `told`, with `text` */
};

enum outbox_told {
    OUTBOX_TOLD_HELD,     /* this sidecar is now the relay */
    OUTBOX_TOLD_LEFT,     /* this sidecar is no longer the relay, with the reason */
    OUTBOX_TOLD_REFUSED,  /* the outbox belongs to another virtual host */
    OUTBOX_TOLD_RESTORED, /* every row is sent again */
    OUTBOX_TOLD_NACKED,   /* the broker nacked this message */
    OUTBOX_TOLD_CLOSED,   /* the broker closed the channel for a reason other than a message */
    OUTBOX_TOLD_STOPPED,  /* `exchange` refuses every row, with the broker's reason */
    OUTBOX_TOLD_OPEN,     /* `exchange` accepts messages again, and all parked rows were sent */
    N_OUTBOX_TOLD
};

struct outbox_action {
    enum outbox_action_kind kind;
    struct outbox_row *row;
    const struct outbox_batch *batch;
    const struct outbox_exchange *exchange;
    int64_t seq;
    int n;
    enum outbox_told told;
    const char *text;
};

/* RESTART: the rows in memory are no longer valid: get the lease, and begin at the position. */
enum outbox_answer { OUTBOX_DONE, OUTBOX_AGAIN, OUTBOX_LOST, OUTBOX_RESTART };

struct outbox {
    struct outbox_rules rules;
    struct list rows;        /* all rows but the parked ones, in the order of reading */
    struct list parked_rows; /* the parked rows in memory */
    struct list wanted, sent, letters, dead_lettering; /* sent: in the order of their tags */
    struct list unparks, unparking;
    struct list batches;
    size_t n_bytes;
    uint64_t next_number, next_batch;
    struct outbox_lease {
        int64_t number; /* 0: not held */
        int64_t until_ms, at_ms, asked_ms, not_before_ms;
        enum outbox_ask ask, registering, restoring;
        bool registered, restored; /* restored: a dump was restored, and every row must be sent again first */
    } lease;
    struct outbox_reading {
        struct outbox_batch *batch; /* the latest; NULL: none, so begin at the position */
        int64_t after;              /* latest seq of it that was read; -1: none */
        int64_t at_ms, wait_ms;     /* the next poll, and the interval after it */
        enum outbox_ask ask;
        bool hinted;               /* a hint came while a poll was in flight */
        bool idle;                 /* the latest poll found nothing: a lookup precedes the next one */
        size_t n;                  /* rows of the present answer */
        int64_t not_before_ms;     /* no poll before then, not even after a hint */
        int64_t asked_ms, took_us; /* time of the latest poll; smoothed duration */
    } reading;
    struct outbox_writing {
        enum outbox_ask ask;
        uint64_t batch; /* the latest position to be written; -1: all of the batch */
        int64_t seq;
        bool dirty;
        size_t n; /* rows done since the last write */
        int64_t at_ms;
    } writing;
    struct outbox_turning {
        enum outbox_ask ask;
        int64_t at_ms;
        uint64_t seen; /* next_number at that time */
    } turning;
    enum outbox_ask letter;
    int64_t letter_at_ms;
    struct outbox_parked {
        enum outbox_ask list, read, delete;
        bool known;                      /* the exchanges with parked rows were listed */
        struct outbox_exchange *reading; /* READ: the exchange */
        size_t n;                        /* rows of the present answer */
        size_t n_bytes;                  /* size of the parked rows in memory */
        int64_t at_ms;                   /* time of the next try after a failed statement */
        int n_stopped;                   /* stopped exchanges */
        char text[400];                  /* the latest stop, in words */
    } parked;
    int64_t offered_ms;    /* last offer of the lease; 0: never */
    bool offering, paused; /* paused: offering, because an operator has paused the outbox */
    struct outbox_link {
        bool database, broker, open, blocked; /* open: the channel is open */
        int64_t quiet_since_ms;               /* time since which rows have waited without a confirm or nack;
                                                 0: not now */
        int64_t not_before_ms; /* next row after a nack, or after a close of the channel over something other
                                  than a row */
        int64_t nack_wait_ms;  /* latest wait, if nothing was confirmed since; 0 after a confirm */
        int64_t told_nack_ms, told_close_ms; /* 0: never */
        bool alone;                          /* the row in flight goes to an unproven exchange */
        size_t group, group_left;            /* rows that may be in flight together, and the part of them that
                                                may still be sent */
        uint64_t group_until;                /* small groups end at this number */
        bool grows;                          /* after a nack, each following group is larger by one */
    } link;
    struct list exchanges; /* least recently used first */
    struct hash exchanges_by_name;
    struct hash sent_by_look, keys;
    bool draining;
    struct outbox_counts counts;
    struct histogram lag_us; /* from publish to confirm */
    int64_t lag_ms;          /* latest value */
    bool to_tell[N_OUTBOX_TOLD];
    char why[256], nacked[512], closed[256];
    const char *error; /* the broker's latest error since its last confirm, one of these two; NULL: none */
};

void outbox_init(struct outbox *o, const struct outbox_rules *rules, int64_t now_ms);
void outbox_deinit(struct outbox *o);

/* --- facts --- */

/* The database is connected or lost. After a loss the rows in memory are dropped and read again later; questions in
 * flight get no answer. why: reason of the loss. */
void outbox_database(struct outbox *o, int64_t now_ms, bool is_there, const char *why);

/* Does the outbox belong to this virtual host? DONE: yes; LOST: no, with the reason; AGAIN: ask again. */
void outbox_registered(struct outbox *o, int64_t now_ms, enum outbox_answer answer, const char *why);

/* Answer about the lease. DONE: this sidecar has it as `number` for for_ms from the time of the question; restored: a
 * dump was restored. LOST: another sidecar has it. AGAIN: unknown, also after a failed statement. */
void outbox_leased(struct outbox *o, int64_t now_ms, enum outbox_answer answer, int64_t number,
                   int64_t for_ms, bool restored);
/* An operator has paused the outbox: no row is sent, and the lease is given up once nothing is in flight. To be
 * called before outbox_leased. */
void outbox_pause(struct outbox *o, const char *why);

/* RESTART: there is more to do. */
void outbox_restored(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* Answer to OUTBOX_READ: its batch and whether that is complete, then each row, then the end. No batch: RESTART. */
void outbox_batch_came(struct outbox *o, int64_t now_ms, struct slice text, bool over);
void outbox_row_came(struct outbox *o, int64_t now_ms, const struct outbox_new *row);
void outbox_read_ends(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* The answer to OUTBOX_LOOK. DONE: no transaction has ended, so there is nothing to read. RESTART: one may have. */
void outbox_looked(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

void outbox_written(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* Answer for row `at` of outbox.dead_lettering; then the end. */
void outbox_dead_lettered(struct outbox *o, int64_t now_ms, size_t at, enum outbox_answer answer);
void outbox_dead_letters_end(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* Answer to OUTBOX_PARKED_LIST: each exchange, then the end. */
void outbox_parked_exchange(struct outbox *o, int64_t now_ms, struct slice exchange);
void outbox_parked_listed(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* Answer to OUTBOX_PARKED_READ: its rows by outbox_parked_came, then the end. over: no more rows. */
void outbox_parked_came(struct outbox *o, int64_t now_ms, const struct outbox_new *row);
void outbox_parked_read_ends(struct outbox *o, int64_t now_ms, enum outbox_answer answer, bool over);

void outbox_unparked(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* more: another call is due at once. */
void outbox_turned(struct outbox *o, int64_t now_ms, enum outbox_answer answer, bool more);

/* This sidecar's application has answered a request, and may have published something. */
void outbox_hint(struct outbox *o, int64_t now_ms);

/* The connection to the broker, with an open channel. */
void outbox_linked(struct outbox *o, int64_t now_ms);
/* code, why: those of AMQP if the broker closed the connection, else 0. */
void outbox_unlinked(struct outbox *o, int64_t now_ms, int code, const char *why);
void outbox_channel_open(struct outbox *o, int64_t now_ms);
void outbox_channel_lost(struct outbox *o, int64_t now_ms, int code, const char *why);
void outbox_blocked(struct outbox *o, bool blocked);
void outbox_sent(struct outbox *o, int64_t now_ms, struct outbox_row *row, uint64_t tag);
void outbox_confirmed(struct outbox *o, int64_t now_ms, uint64_t tag, bool multiple, bool refused);
void outbox_returned(struct outbox *o, struct slice exchange, struct slice routing_key,
                     struct slice message_id, uint64_t body_len);

/* The broker cannot accept the row, for this reason. */
void outbox_unfit(struct outbox *o, struct outbox_row *row, enum dead_reason reason, const char *why);

/* Drains: stops reading, waits for rows in flight, and gives up the lease. now: does not wait. */
void outbox_drain(struct outbox *o, int64_t now_ms, bool now);

/* --- actions --- */

/* Next action; false: none now. A question to the database is in flight until its answer is passed in. can_send: may
 * a row be sent now? */
bool outbox_next(struct outbox *o, int64_t now_ms, bool can_send, struct outbox_action *ret);

/* Time at which outbox_next may have an action without a new fact. */
int64_t outbox_due_ms(const struct outbox *o, int64_t now_ms);

/* Is the drain complete? */
bool outbox_is_drained(const struct outbox *o);

bool outbox_holds(const struct outbox *o, int64_t now_ms);

/* Is nothing in memory, in flight or to be written? Then a lost connection to the database repeats no message. */
bool outbox_is_idle(const struct outbox *o);
