#pragma once

#include "inbox_sim.h"
#include "plan.h"

#include <stdbool.h>
#include <stdint.h>

/* What really is: of each message, of each copy of it at the broker, and of each request. The sidecars see
 * none of this. */

struct sidecar;
struct channel;
struct truth;

/* Of messages that cannot be told apart: letters without a row. */
struct letter_counts {
    int n_written, n_rejected; /* rejected: by the broker's count, for such a letter */
};

/* A request, from the moment when the core said it. */
struct post {
    struct post *next; /* of its message, newest first */
    struct truth *truth;
    struct sidecar *sidecar;
    uint32_t life; /* of the sidecar */
    int queue;
    uint64_t ref;
    uint8_t token[16];
    int attempt;
    int64_t sent_us, told_us;
    uint32_t n_losses; /* of the sidecar's database connection, when it was sent */
    bool alone;        /* nothing else was out at that application from its start to its end */
    bool open;         /* the sidecar waits for the answer */
    bool answered;     /* the sidecar was told how it ended: */
    enum answer_kind kind;
    int status;
    int64_t retry_after_ms;
    bool lost_database; /* the sidecar had lost the database meanwhile */
    bool accepted;      /* answered 202, and neither completed nor over */
    enum deed deed;
    uint32_t epoch; /* of the application */
    bool at_application, has_tx, hung;
    uint64_t tx;
    size_t step;     /* of its program */
    bool travelling; /* its answer is on its way */
    int64_t service_us;
};

/* A message: what is known by its queue and id. */
struct truth {
    int number, queue;
    int key;               /* of an ordered queue; -1: none */
    uint64_t published_as; /* the place of its first copy in its queue; 0: not published yet */
    char id[24];
    size_t id_len;
    enum character character;
    int64_t param, bytes;
    struct inbox_row_sim row;
    struct post *posts;
    int n_posts, n_effects, n_charges, n_bombs, n_fails;
    int n_blamed; /* charges for a crash */
    int n_kills;  /* how often it ended the application */
    /* Unless it has no id: then struct oracle has them. */
    struct letter_counts letters;
    int n_renewals;
    int n_copies, n_open_copies;
    bool other_body;          /* one of its copies has another body than the first */
    int64_t second;           /* of the statements about it, */
    int n_items;              /* and how many there were in it */
    bool row_lost;            /* a crash of the database took its claim, or a clock's jump its window */
    bool stored;              /* a letter of one of its copies is committed */
    bool jumped;              /* a jump of the database's clock ended a window early */
    int64_t published_us;     /* its first copy */
    int64_t done_us;          /* completed, or dead */
    int64_t at_work_until_us; /* the application may be at work after an attempt without an answer */
};

enum copy_state { COPY_READY, COPY_UNACKED, COPY_ACKED, COPY_REJECTED, COPY_DROPPED };

/* A message at the broker. */
struct copy {
    struct copy *next, *prev; /* in its queue, while it is ready */
    struct truth *truth;
    uint64_t number, position;
    enum copy_state state;
    bool redelivered, returned;
    bool renewed;           /* a copy of it was published to its queue */
    bool too_often;         /* its row has said so */
    bool counted;           /* its row has counted that, since its latest delivery */
    uint64_t number_of_old; /* the copy that it was made from; 0: none */
    uint8_t body;           /* 0: as the first copy's */
    int delivery_count;
    int64_t deaths, n_rejected, bytes;
    struct channel *channel; /* that has it */
    uint64_t tag;
    uint32_t consumer;
    int64_t delivered_us; /* the latest time */
    int holder;           /* the sidecar that has, or had it */
    bool arrived;         /* the sidecar was told of it, */
    bool skipped;         /* without its body */
    bool said;            /* the sidecar has said what becomes of it; on its way to the broker */
    int n_arrived;        /* how often a sidecar was told of it, */
    int n_letters;        /* and wrote a letter of it without a row */
    int64_t letter_us;    /* its holder was told that a letter of it is committed (no row) */
    bool is_rowless;      /* the same, of the latest delivery */
    bool is_dead;         /* its holder was told that it is dead, with a letter */
};
