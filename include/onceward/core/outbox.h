#pragma once

#include "onceward/base/hash.h"
#include "onceward/base/list.h"
#include "onceward/base/slice.h"
#include "onceward/core/reasons.h"
#include "onceward/core/stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The relay of the outbox: what was published in the database goes to the broker. Facts in, actions out, as
 * with a queue (queue.h): no I/O, no clock, no library.
 *
 * One relay at a time holds the lease. Rows are read in order, batch after batch, and sent with confirms; the
 * position is written when all before it are settled: confirmed, or in a dead letter. What was sent and is
 * not known to be confirmed is sent again: twice is harmless, never is not.
 *
 * Rows are sent in groups. Ordinarily a group is all that may be out; a row to an exchange that nothing was
 * confirmed for yet goes alone, so that a channel that the broker closes over it takes nobody along. When the
 * broker closes the channel over a group, it is halved until the row that it refuses is alone. So it is where
 * it closes the connection, as it does when it crashes over a message; but it may have another reason, so the
 * row is given up when it was alone three times.
 *
 * A row that it says nack to goes again after a wait that doubles while nothing is confirmed: all behind it
 * wait, too, since nobody knows which of them come to the same queue. It and those that were out with it go
 * one by one, in order, and those behind them in groups that grow by one: what was out behind it may have
 * been taken, and nobody can take it back. So a queue that is full gets them as fast as it is emptied, and
 * few of them at once.
 *
 * An exchange that refuses all that goes to it (it is missing, the user may not write, it is not in
 * outbox.exchanges) is stopped: at the first refusal where it has worked before, else at the third in a row.
 * Rows for a stopped exchange are parked in a table of their own, in order, so that the position moves and
 * rows for other exchanges go on. The first of them is tried each second. Once it is confirmed the parked rows
 * follow, in pages; with the last page new rows wait in memory instead of being parked, and when all are
 * confirmed and deleted the exchange is open. Parked rows outlive the relay: the next holder lists them first.
 *
 *     open --refused--> stopped: new rows are parked --last page--> new rows wait --all confirmed--> open
 *                          ^                                             |
 *                          +--------------- there was another page ------+
 *
 * A row for an exchange that is not in outbox.exchanges first makes the relay offer its lease: in a rollout
 * another replica may know the exchange already.
 *
 * A message that the broker returns has no tag. So no two rows are in flight together that a return could not
 * tell apart: the later one waits until the earlier one is confirmed.
 *
 * It polls at once while there is more of a batch, soon while rows come, and less and less while none does;
 * then it asks first whether any transaction has ended at all, which costs the database next to nothing. */

enum {
    OUTBOX_OUT_MAX = 256,           /* unconfirmed */
    OUTBOX_HELD_MAX = 1024,         /* rows in memory: what is read ahead while confirms are out */
    OUTBOX_HELD_BYTES = 2 << 20,    /* of them; one alone may exceed it */
    OUTBOX_LETTERS_MAX = 64,        /* written together, */
    OUTBOX_LETTERS_BYTES = 1 << 20, /* of so many bytes; one alone may exceed it */
    OUTBOX_EXCHANGES = 1024,        /* remembered: those that were used last, and those that are refused */
    OUTBOX_LEASE_MS = 15000,
    OUTBOX_PARKED_ROWS = 256, /* parked rows read at once */
    OUTBOX_REFUSALS = 3,      /* in a row that stop an exchange that has not worked before */
    OUTBOX_STOPPED_MAX = 64,  /* exchanges; each try of one costs the channel */
    OUTBOX_OFFER_MS = 6000,   /* the lease is left to others: a standby asks each 4.5 s */
    OUTBOX_OFFERS_MS = 60000, /* between two offers */
    OUTBOX_SILENT_MS = 15000, /* without a word of the broker while rows wait: somebody else may do better */
    OUTBOX_POLL_GROWTH = 5,   /* of the poll, while nothing comes */
};

struct outbox_rules {
    int64_t poll_ms;
    size_t max_message_bytes;
    char *const *exchanges;     /* allowed; borrowed */
    size_t n_exchanges;         /* 0: all */
    char *const *not_mandatory; /* exchanges that return what they deliver; borrowed */
    size_t n_not_mandatory;
};

/* Whether rows may go to the exchange, by the list of outbox.exchanges; an empty one allows all. */
bool outbox_allows(char *const *exchanges, size_t n, struct slice exchange);

/* Whether it is an answer by RabbitMQ's direct reply-to. That is no queue: the broker would hand it over and
 * return it all the same, and closes the connection over one that is malformed; any client can make one up
 * for a service that answers. */
bool outbox_is_direct_reply(struct slice exchange, struct slice routing_key);
#define OUTBOX_DIRECT_REPLY                                                                                  \
    "it goes to a direct reply-to, which is no queue, and is not sent: let the client name one"

/* A row as it was read. Borrowed. */
struct outbox_new {
    int64_t seq; /* ascending within its batch; of a parked row its number among these */
    int64_t age_ms;
    struct slice exchange, routing_key, message_id;
    struct slice content_header; /* property flags and list, as AMQP encodes them */
    struct slice body;
    size_t body_len;    /* of a body that is too large to be read, too */
    const char *broken; /* why it cannot be encoded; NULL: it can */
    bool parked;
};

enum outbox_phase {
    OUTBOX_WANTED, /* to be sent */
    OUTBOX_SENT,
    OUTBOX_LETTER_WANTED,
    OUTBOX_LETTER_SENT,
    OUTBOX_UNPARK_WANTED, /* a parked row that is confirmed, and not deleted yet */
    OUTBOX_UNPARK_SENT,
    OUTBOX_SETTLED, /* confirmed, parked, or its letter is committed */
};

/* Rows that were committed between two positions. */
struct outbox_batch {
    struct link in_order;
    uint64_t number;
    size_t n_rows;   /* of it in memory */
    bool over;       /* all of it was read */
    int64_t settled; /* the highest seq up to which all is settled; -1: none */
    char *text;      /* what the database calls it */
};

struct outbox_row {
    struct link in_order;     /* of all that are held, or of the parked rows */
    struct link in_phase;     /* of those that are wanted, sent, or letters */
    struct hash_link by_look; /* SENT: exchange, routing key, id and length, all that a return shows */
    enum outbox_phase phase;
    struct outbox_batch *batch;
    uint64_t number; /* from 1, in the order of reading */
    int64_t seq, came_ms, age_ms;
    uint64_t tag; /* of its channel; SENT */
    int n_closed; /* connections that the broker closed while it was out alone, and gave no other answer */
    bool returned, was_sent, buried, mandatory;
    bool alone;   /* in flight beside a nack before: nothing is sent beside it */
    bool parked;  /* read from the table of the parked rows: no part of a batch */
    bool parking; /* a letter that is to be parked instead */
    bool barred;  /* its exchange is not in outbox.exchanges */
    enum dead_reason reason;
    char detail[256];                                                     /* why it is a letter, in words */
    struct slice exchange, routing_key, message_id, content_header, body; /* behind the struct */
    size_t body_len;                                                      /* see outbox_new */
    size_t n_bytes;
};

/* An exchange that a row was sent to. */
struct outbox_exchange {
    struct hash_link by_name;
    struct link in_use;       /* in the order of the latest use */
    struct slice name;        /* behind the struct */
    bool proven;              /* something was confirmed, on this connection */
    bool worked;              /* something was confirmed, ever */
    bool offered;             /* the lease was, over it */
    int n_refused;            /* in a row, for that reason */
    int64_t refused_until_ms; /* not asked again before; its rows are letters */
    enum dead_reason reason;
    char detail[160];
    struct outbox_stop {
        bool is;
        bool last;        /* the last page is being read, or sent: new rows wait in memory */
        bool empty;       /* nothing is parked but what is in memory */
        int64_t retry_ms; /* its first row goes again then; INT64_MAX: not while this sidecar has the lease */
        int64_t after;    /* the latest number that was read */
        size_t n_parked;  /* of its parked rows in memory */
        size_t n_parking; /* of its rows on their way into the table */
        int64_t told_ms;
        bool to_tell, ended;
    } stop;
};

struct outbox_counts {
    struct counter published, resent, nacked, letters, parked;
};

/* STALE: what it was about is forgotten, and its answer is of no use. */
enum outbox_ask { OUTBOX_IDLE, OUTBOX_ASKED, OUTBOX_STALE };

enum outbox_action_kind {
    OUTBOX_REGISTER, /* whose outbox is it: of this broker's virtual host? */
    OUTBOX_LEASE,    /* ask for the lease, or renew it */
    OUTBOX_GIVE_UP,  /* give it up */
    OUTBOX_RESTORE,  /* a dump was restored: all that is there is to be sent again */
    OUTBOX_LOOK,     /* has any transaction ended since `batch` was read? */
    OUTBOX_READ,  /* at most `n` rows: of `batch` (NULL: from the written position) behind `seq` (-1: of the
                     batch behind it) */
    OUTBOX_SEND,  /* `row`; outbox_sent follows at once */
    OUTBOX_BURY,  /* dead letters of all that are in outbox.burying */
    OUTBOX_WRITE, /* the position: of `batch` all up to `seq` (-1: all) is settled, and all before it */
    OUTBOX_PARKED_LIST, /* which exchanges have parked rows? */
    OUTBOX_PARKED_READ, /* at most `n` of those of `exchange` behind `seq` */
    OUTBOX_UNPARK,      /* delete all that are in outbox.unparking */
    OUTBOX_TURN,        /* let the next table have its turn, or empty those that had theirs */
    OUTBOX_TELL,        /* `told`, with `text` */
};

enum outbox_told {
    OUTBOX_TOLD_HELD,     /* this sidecar relays now */
    OUTBOX_TOLD_LEFT,     /* not any more, and why */
    OUTBOX_TOLD_REFUSED,  /* the outbox is another virtual host's */
    OUTBOX_TOLD_RESTORED, /* all is sent again */
    OUTBOX_TOLD_NACKED,   /* the broker says no to a message, and which */
    OUTBOX_TOLD_CLOSED,   /* it closed the channel over no message, and its words */
    OUTBOX_TOLD_STOPPED,  /* `exchange` refuses everything, and in which words */
    OUTBOX_TOLD_OPEN,     /* `exchange` takes messages again, and all that were parked are through */
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

/* ANEW: what was read is of no use any more: ask for the lease, and begin at the position. */
enum outbox_answer { OUTBOX_DONE, OUTBOX_AGAIN, OUTBOX_LOST, OUTBOX_ANEW };

struct outbox {
    struct outbox_rules rules;
    struct list rows;                           /* all but the parked, in the order of reading */
    struct list parked_rows;                    /* parked rows that were read */
    struct list wanted, sent, letters, burying; /* sent: in the order of their tags */
    struct list unparks, unparking;
    struct list batches;
    size_t n_bytes;
    uint64_t next_number, next_batch;
    struct outbox_lease {
        int64_t number; /* 0: not held */
        int64_t until_ms, at_ms, asked_ms, not_before_ms;
        enum outbox_ask ask, registering, restoring;
        bool registered, restored; /* restored: a dump was, and all is to be sent again first */
    } lease;
    struct outbox_reading {
        struct outbox_batch *batch; /* the latest; NULL: none, begin at the position */
        int64_t after;              /* the latest seq of it; -1: none */
        int64_t at_ms, wait_ms;     /* the next poll, and how long after it the one behind */
        enum outbox_ask ask;
        bool hinted;               /* while one was out */
        bool idle;                 /* the latest one found nothing: a look comes before the next */
        size_t n;                  /* rows of the answer that is being told */
        int64_t not_before_ms;     /* after one that found something, so that not all time goes into them */
        int64_t asked_ms, took_us; /* the latest; and how long one takes, smoothed */
    } reading;
    struct outbox_writing {
        enum outbox_ask ask;
        uint64_t batch; /* the latest that is to be written, and up to where; -1: all of it */
        int64_t seq;
        bool dirty;
        size_t n; /* settled since */
        int64_t at_ms;
    } writing;
    struct outbox_turning {
        enum outbox_ask ask;
        int64_t at_ms;
        uint64_t seen; /* next_number then */
    } turning;
    enum outbox_ask letter;
    int64_t letter_at_ms;
    struct outbox_parked {
        enum outbox_ask list, read, delete;
        bool known;                      /* the exchanges that have parked rows were listed */
        struct outbox_exchange *reading; /* READ: of it */
        size_t n;                        /* rows of the answer that is being told */
        size_t n_bytes;                  /* of parked rows in memory */
        int64_t at_ms;                   /* not before, after a statement that failed */
        int n_stopped;                   /* exchanges */
        char text[400];                  /* about the latest stop, for people */
    } parked;
    int64_t offered_ms; /* the lease, the last time; 0: never */
    bool offering;
    struct outbox_link {
        bool database, broker, open, blocked; /* open: the channel */
        int64_t quiet_since_ms;               /* neither confirm nor nack, and rows wait, since; 0: not so */
        int64_t not_before_ms; /* after a nack, or a channel that was closed for nobody's fault */
        int64_t nack_wait_ms;  /* the latest, while nothing was confirmed since; 0: something was */
        int64_t told_nack_ms, told_close_ms; /* 0: never */
        bool alone;                          /* what is out is to an exchange that is not proven */
        size_t group, group_left;            /* so many may be out, and of those may still be sent */
        uint64_t group_until;                /* up to that number it is a small one */
        bool grows; /* and then larger by one each time, since the broker said nack */
    } link;
    struct list exchanges; /* the least recently used first */
    struct hash exchanges_by_name;
    struct hash sent_by_look;
    bool draining;
    struct outbox_counts counts;
    struct histogram lag_us; /* from publish to the confirm */
    int64_t lag_ms;          /* of the latest */
    bool to_tell[N_OUTBOX_TOLD];
    char why[256], nacked[512], closed[256];
    const char *error; /* what the broker said since it confirmed anything: one of these two; NULL: nothing */
};

void outbox_init(struct outbox *o, const struct outbox_rules *rules, int64_t now_ms);
void outbox_deinit(struct outbox *o);

/* --- facts --- */

/* The database is there, or gone: then what was read is forgotten, and read again later; nothing that was
 * asked is answered. */
void outbox_database(struct outbox *o, int64_t now_ms, bool is_there);

/* Is the outbox that of this virtual host? DONE: yes; LOST: no, and why; AGAIN: ask again. */
void outbox_registered(struct outbox *o, int64_t now_ms, enum outbox_answer answer, const char *why);

/* An answer about the lease. DONE: number is ours for for_ms from when it was asked for; restored: a dump
 * was. LOST: another one has it. AGAIN: nobody knows; also where the statement failed. */
void outbox_leased(struct outbox *o, int64_t now_ms, enum outbox_answer answer, int64_t number,
                   int64_t for_ms, bool restored);
/* ANEW: there is more to be done. */
void outbox_restored(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* The answer to OUTBOX_READ: its batch and whether that is over, then each row, then the end. Without a
 * batch: ANEW. */
void outbox_batch_came(struct outbox *o, int64_t now_ms, struct slice text, bool over);
void outbox_row_came(struct outbox *o, int64_t now_ms, const struct outbox_new *row);
void outbox_read_ends(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* The answer to OUTBOX_LOOK. DONE: none has, so there is nothing to be read. ANEW: one may have. */
void outbox_looked(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

void outbox_written(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* Of row `at` of outbox.burying; then the end. */
void outbox_buried(struct outbox *o, int64_t now_ms, size_t at, enum outbox_answer answer);
void outbox_bury_ends(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* The answer to OUTBOX_PARKED_LIST: each exchange, then the end. */
void outbox_parked_exchange(struct outbox *o, int64_t now_ms, struct slice exchange);
void outbox_parked_listed(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* The answer to OUTBOX_PARKED_READ: its rows by outbox_parked_came, then the end. over: there are no more. */
void outbox_parked_came(struct outbox *o, int64_t now_ms, const struct outbox_new *row);
void outbox_parked_read_ends(struct outbox *o, int64_t now_ms, enum outbox_answer answer, bool over);

void outbox_unparked(struct outbox *o, int64_t now_ms, enum outbox_answer answer);

/* more: there is something to do at once. */
void outbox_turned(struct outbox *o, int64_t now_ms, enum outbox_answer answer, bool more);

/* An application of this sidecar has answered: something may have been published. */
void outbox_hint(struct outbox *o, int64_t now_ms);

/* The broker. A link begins with an open channel. */
void outbox_linked(struct outbox *o, int64_t now_ms);
/* code, why: of AMQP, where the broker closed the connection; else 0. */
void outbox_unlinked(struct outbox *o, int64_t now_ms, int code, const char *why);
void outbox_channel_open(struct outbox *o, int64_t now_ms);
void outbox_channel_lost(struct outbox *o, int64_t now_ms, int code, const char *why);
void outbox_blocked(struct outbox *o, bool blocked);
void outbox_sent(struct outbox *o, int64_t now_ms, struct outbox_row *row, uint64_t tag);
void outbox_confirmed(struct outbox *o, int64_t now_ms, uint64_t tag, bool multiple, bool refused);
void outbox_returned(struct outbox *o, struct slice exchange, struct slice routing_key,
                     struct slice message_id, uint64_t body_len);

/* The broker cannot take it as it is: see DEAD_… */
void outbox_unfit(struct outbox *o, struct outbox_row *row, enum dead_reason reason, const char *why);

/* Nothing new is read; what is out is waited for, and the lease is given up. now: not waited for. */
void outbox_drain(struct outbox *o, int64_t now_ms, bool now);

/* --- actions --- */

/* The next action, or false: none now. What is asked of the database is out until its answer is told.
 * can_send: may a row be sent now? */
bool outbox_next(struct outbox *o, int64_t now_ms, bool can_send, struct outbox_action *ret);

/* When to ask again, though no fact has come. */
int64_t outbox_due_ms(const struct outbox *o, int64_t now_ms);

/* Has a drain nothing more to do? */
bool outbox_is_drained(const struct outbox *o);

bool outbox_holds(const struct outbox *o, int64_t now_ms);

/* Rows in memory that are not settled. */
size_t outbox_n_waiting(const struct outbox *o);
