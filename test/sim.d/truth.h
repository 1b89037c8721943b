#pragma once

#include "inbox_sim.h"
#include "plan.h"

#include <stdbool.h>
#include <stdint.h>

/* The true state of each message, each of its copies at the broker, and each request, which the sidecars do not see. */

struct sidecar;
struct channel;
struct truth;

/* Letters without a row, of messages with the same content. */
struct letter_counts {
    int n_written, n_rejected; /* rejected: counted by the broker, for such a letter */
};

/* Part of a message in a request, from the core's action on. Of a request with several messages one part, the
 * *carrier*, stands for all: the application handles it, and its sidecar waits for it. */
struct post {
    struct post *carrier;  /* itself, if the request has one message */
    struct post **members; /* of a carrier: all parts, in the order of their messages' numbers; of an ordered
                              queue in that of the request */
    size_t n_members;
    bool enveloped;    /* a batch, perhaps of one message */
    int named;         /* status under which the answer names it; 0: not named */
    int64_t named_s;   /* and its retry_after; -1: none */
    bool forgotten;    /* the application does no work for it */
    bool whole;        /* the request failed as a whole, or its answer says nothing */
    struct post *next; /* of its message, newest first */
    struct truth *truth;
    struct sidecar *sidecar;
    uint32_t life; /* the sidecar's start */
    int queue;
    uint64_t ref;
    uint8_t token[16];
    const struct truth *before; /* the previous message of its key, which its token names; NULL: none */
    int attempt;
    int64_t sent_us, told_us;
    int64_t window_us;  /* left when the request was sent */
    uint64_t n_crashes; /* crashes of the application before the request was sent */
    uint32_t n_losses;  /* losses of the sidecar's database connection before the request was sent */
    bool alone;         /* no other request was in flight at that application during all its time */
    bool open;          /* the sidecar waits for the answer */
    bool answered;      /* the core got its end as a fact: */
    enum answer_kind kind;
    int status;
    int64_t retry_after_ms;
    bool lost_database; /* the sidecar had lost the database meanwhile */
    bool accepted;      /* answered 202, and neither completed nor ended */
    enum deed deed;
    uint32_t epoch; /* of the application */
    bool at_application, has_tx, hung;
    uint64_t tx;
    size_t step;     /* of its program */
    bool travelling; /* its answer is in transit */
    int64_t service_us;
};

/* A message, identified by its queue and id. */
struct truth {
    int number, queue;
    int key;               /* of its first copy, in an ordered queue; -1: none */
    uint64_t published_as; /* number of its first copy in its queue; 0: not published yet */
    int64_t placed_us;     /* when the broker dropped its first copy, and the next one took over; 0: never */
    char id[24];
    size_t id_len;
    enum character character;
    int64_t param, bytes;
    struct inbox_row_sim row;
    struct post *posts;
    int n_posts, n_effects, n_charges, n_bombs, n_fails;
    int n_blamed; /* charges for a crash */
    int n_kills;  /* number of application crashes by it */
    /* Not used without an id: then struct oracle has them. */
    struct letter_counts letters;
    int n_renewals;
    int n_copies, n_open_copies;
    bool other_body;      /* some copy has another body than the first */
    int64_t second;       /* latest second with statements about it, */
    int n_items;          /* and their number in it */
    bool row_lost;        /* a crash of the database lost its claim, or a clock's jump its window */
    bool stored;          /* a letter of one of its copies is committed */
    bool given_up;        /* by the operator */
    int n_retries;        /* of the operator, while it was held */
    bool jumped;          /* a jump of the database's clock ended a window early */
    int64_t published_us; /* its first copy */
    int64_t done_us;      /* completed, or dead */
    int64_t due_us;       /* its next attempt, as that sidecar knows; 0: it knows nothing */
    uint64_t due_ref;     /* of that delivery */
    struct free_ends {
        uint64_t ref;          /* a delivery of that sidecar: */
        int n_not_now, n_free; /* its answers of "not now", and all its ends that were not charged */
        uint8_t latest[16];    /* the token of the latest of them */
    } free[SIDECARS_MAX];
    bool is_too_old; /* at its latest claim, with this token: */
    uint8_t too_old[16];
    int64_t at_work_until_us; /* the application may be at work after an attempt without an answer */
};

enum copy_state { COPY_READY, COPY_UNACKED, COPY_ACKED, COPY_REJECTED, COPY_DROPPED };

/* A message's copy at the broker. */
struct copy {
    struct copy *next, *prev; /* in its queue, while ready */
    struct truth *truth;
    uint64_t number, position;
    enum copy_state state;
    bool redelivered, returned;
    bool renewed;           /* a copy of it was published to its queue */
    bool too_often;         /* its row answered so */
    bool counted;           /* its row has counted that since the latest delivery */
    uint64_t number_of_old; /* the copy that it was published from; 0: none */
    uint8_t body;           /* 0: the first copy's */
    int key;                /* -1: none */
    int delivery_count;
    int64_t deaths, n_rejected, bytes;
    struct channel *channel; /* the channel that has it */
    uint64_t tag;
    uint32_t consumer;
    int64_t delivered_us; /* the latest time */
    int64_t cut_us;       /* when the connection that had it was cut; 0: it was not */
    int holder;           /* the sidecar that has or had it */
    bool arrived;         /* its sidecar got it, */
    bool skipped;         /* without its body */
    bool said;            /* the sidecar has acked, rejected or requeued it; in transit to the broker */
    int n_arrived;        /* how often a sidecar got it, */
    int n_letters;        /* and letters of it without a row */
    int64_t letter_us;    /* its sidecar knows that a letter of it is committed (no row) */
    bool is_rowless;      /* the same, for the latest delivery */
    bool was_dead;        /* at its latest arrival */
    bool is_dead;         /* its sidecar knows that it is dead, with a letter */
    int n_stops;          /* holders that could have stopped its ordered queue near the delivery limit */
    bool is_risked;       /* an operator has let that queue continue */
};
