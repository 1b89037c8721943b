#pragma once

#include "onceward/core/queue.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A plan of a run: servers, applications, messages and faults, with their times. It is made from a seed (plan_make)
 * or by a measured scenario; the shrinker takes parts of it away. A plan and its seed give the same run every time.
 * Times are microseconds since its start. */

enum { SIDECARS_MAX = 3, QUEUES_MAX = 2 };

/* Character of a message. */
enum character {
    CHARACTER_GOOD,
    CHARACTER_400,          /* always answered 400: permanent */
    CHARACTER_500,          /* always answered 500 */
    CHARACTER_503,          /* always answered 503 */
    CHARACTER_429,          /* always answered 429, with a Retry-After of `param` ms */
    CHARACTER_KILLER,       /* ends the application each time */
    CHARACTER_FLAKY,        /* fails `param` times, then is good */
    CHARACTER_HANG,         /* is never answered */
    CHARACTER_SIDECAR_BOMB, /* ends the sidecar that takes it, `param` times */
    CHARACTER_NO_ID,        /* has no usable message id */
    CHARACTER_INVALID,      /* the database refuses its letter's or row's data */
    CHARACTER_POISON_200,   /* answered 200 and never completed */
    N_CHARACTERS
};

/* Deed of the application with one request. */
enum deed {
    DEED_OK,
    DEED_500,
    DEED_503,
    DEED_429,
    DEED_409,
    DEED_400,
    DEED_502,
    DEED_RESET,        /* the connection breaks before anything was done */
    DEED_COMMIT_RESET, /* the work is done, then the connection breaks */
    DEED_COMMIT_504,   /* the work is done, but the proxy gave up */
    DEED_COMMIT_500,   /* the work is done, the answer says otherwise */
    DEED_ROLLBACK,     /* complete, then a rollback and 500 */
    DEED_HANG,         /* no answer, and nothing is done */
    DEED_HANG_LATE,    /* no answer in time; the work is tried with the old token much later */
    DEED_EARLY,        /* 200 before the commit */
    DEED_EARLY_NEVER,  /* 200, and no commit */
    DEED_202,          /* accepted, and done later within the window */
    DEED_202_NEVER,
    DEED_TWICE,         /* the transaction runs twice */
    DEED_LOCK_LONG,     /* holds the row's lock for longer than the window, then commits */
    DEED_LOCK_ROLLBACK, /* the same, and rolls back */
    DEED_EXTEND,        /* asks for more time, and uses it */
    DEED_CRASH,         /* the application crashes, with all requests in flight */
    DEED_COMMIT_CRASH,
    DEED_UNSENT, /* the connection breaks before the request was sent */
    /* For requests with several messages: */
    DEED_SOME_FAIL,      /* some are named as failed, with any status */
    DEED_SOME_FORGOTTEN, /* some are not completed */
    DEED_SOME_CRASH,     /* the work is done for some, then the application crashes */
    DEED_NO_ECHO,        /* the work is done, but the answer has no field Onceward-Batch */
    DEED_UNKNOWN_NAME,   /* the same, and a failure is named that matches none */
    DEED_404,
    DEED_413,
    N_DEEDS
};

struct plan_message {
    int64_t at_us;
    int number; /* the same in a reduced plan */
    int queue;
    enum character character;
    int twin_of;     /* number of the message that this is another copy of; -1: none */
    bool other_body; /* of a twin: a different body, */
    bool other_key;  /* and another key */
    int64_t bytes, param;
};

enum fault_kind {
    FAULT_KILL,        /* kills the sidecar; restarted after for_us; its state file stays unless param */
    FAULT_KILL_AT,     /* the same, after its param-th action from then on */
    FAULT_FREEZE,      /* the sidecar does nothing for for_us */
    FAULT_DRAIN,       /* the sidecar drains and is restarted */
    FAULT_BROKER_CUT,  /* the sidecar's connection breaks; the two sides notice at different times */
    FAULT_BROKER_SLOW, /* the sidecar's connection is suspended for for_us */
    FAULT_CHANNEL,     /* the broker closes the channel */
    FAULT_BROKER_DOWN, /* no connection for for_us */
    FAULT_DATABASE_CUT,
    FAULT_DATABASE_SLOW,
    FAULT_DATABASE_CRASH, /* all connections break; unflushed claims are lost; restarted after for_us */
    FAULT_DATABASE_FULL,  /* writes are refused for for_us: 53100 */
    FAULT_DATABASE_RETRY, /* statements run into a timeout for for_us: 57014 */
    FAULT_CLOCK,          /* the database's clock jumps by param ms */
    FAULT_APP_CRASH,      /* the application crashes, and is restarted after for_us */
    FAULT_APP_DOWN,       /* the application is away for for_us: refused, or 502 from its proxy */
    FAULT_APP_503,        /* all answers are 503 for for_us */
    FAULT_APP_500,        /* the same with 500, or with the status param from 300 on */
    FAULT_APP_SLOW,       /* every request takes 20 times as long */
    FAULT_APP_HANG,       /* connections are accepted, but nothing is answered */
    FAULT_PAUSE,          /* the operator's pause, for for_us */
    FAULT_REDRIVE,        /* an operator redrives all letters */
    N_FAULTS
};

struct plan_fault {
    enum fault_kind kind;
    int64_t at_us, for_us;
    int sidecar, queue; /* -1: all */
    int64_t param;
};

struct plan_queue {
    bool quorum;
    int version;        /* the broker's: 310, 400 or 430 */
    int limit;          /* the queue's true delivery limit, or LIMIT_NONE */
    int max_length;     /* drop-head; 0: none */
    bool readable;      /* its arguments can be read */
    bool moved_back;    /* a dead-letter exchange leads rejected messages back */
    bool single_active; /* x-single-active-consumer */
    int n_keys;         /* of an ordered queue: messages have that many keys, in turns */
    bool auto_delete;   /* the broker deletes it when its last consumer is cancelled */
    struct queue_rules rules;
    int max_backoff_ms;
};

struct plan_application {
    int64_t service_us;
    int capacity;       /* maximum of requests at once, above which it answers 503; 0: none */
    int64_t restart_us; /* after a crash */
    bool proxy;         /* a proxy always accepts, and answers 502 while the application is away */
    bool ready_url;
    uint16_t rates[N_DEEDS]; /* in 10,000 requests */
    bool retry_after;        /* some answers of "not now" have one */
    bool names_failures;     /* names the bad message of a batch; otherwise all fail */
    size_t most_messages;    /* of a request, above which it does `too_many`; 0: none */
    enum deed too_many;
};

struct plan {
    uint64_t seed;
    int n_sidecars, n_queues;
    struct plan_queue queues[QUEUES_MAX];
    struct plan_application application;
    struct plan_message *messages; /* by time. Owned */
    size_t n_messages;
    struct plan_fault *faults; /* Owned */
    size_t n_faults;
    int64_t quiet_us;  /* no faults from then on: rates are 0, all parties are up */
    int64_t stop_us;   /* not 0: the run ends there, or when all is done */
    int64_t settle_us; /* time after that by which everything must be done */
    int64_t stats_interval_ms;
    int64_t broker_us;          /* transmission time of a frame to or from the broker, beyond a local wire */
    int64_t commit_us;          /* time of a commit of the database, beyond that of its statement */
    bool own_rows;              /* state files are kept: a sidecar takes over its own rows */
    bool jitter;                /* random transmission times; else always the same */
    bool no_checks_of_progress; /* a measured scenario has its own checks */
    bool nobody_waits;          /* no message is left to an operator, not even in a run of many bad ones */
    bool nacks_copies;          /* the broker refuses the copies of renewals */
    int64_t given_up_us; /* not 0: then an operator gives up every unfinished message that is not good */
};

/* Makes a different plan for each seed. */
void plan_make(struct plan *p, uint64_t seed);
/* Makes a plan with the defaults of the configuration, one sidecar, one queue, no fault, no message. */
void plan_plain(struct plan *p, uint64_t seed);
void plan_copy(struct plan *to, const struct plan *from);
void plan_deinit(struct plan *p);

/* Adds n messages of one kind, from at_us on, gap_us apart. Returns the number of the first. */
int plan_add(struct plan *p, int queue, enum character c, size_t n, int64_t at_us, int64_t gap_us);
/* Lets the queue's requests have up to max_messages, with the default prefetch of that. */
void plan_batch(struct queue_rules *r, int max_messages);
struct plan_fault *plan_break(struct plan *p, enum fault_kind kind, int64_t at_us, int64_t for_us);

/* Writes "5" or "none". */
void plan_limit_text(int limit, char ret[16]);

/* x-delivery-limit of the queue, if it can be read. */
int plan_read_limit(const struct plan_queue *p);
/* Limit as known to a sidecar, or LIMIT_UNKNOWN. */
int plan_known_limit(const struct plan_queue *p);

void plan_sort(struct plan *p);
void plan_print(const struct plan *p);

const char *character_name(enum character c);
const char *deed_name(enum deed d);
const char *fault_name(enum fault_kind k);
