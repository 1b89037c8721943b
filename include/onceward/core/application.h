#pragma once

#include "onceward/core/limiter.h"

#include <stdbool.h>
#include <stdint.h>

/* An application as its queues share it: how many requests may be in flight, whether it is available, which message is
 * quarantined, and which message caused a crash. A value: no I/O, no clock.
 *
 * A *crash* is a reset, a close without an answer, garbage, 502 or 504. All requests that were out when it
 * was noticed belong to the same crash. *Seen alive*: since the latest crash it answered somebody (any status
 * but 502, 503, 504), its ready.url said 2xx, or it refused connections and then accepted one. */

struct application_rules {
    int concurrency; /* the sum of its queues' */
    bool has_ready_url;
    int64_t ready_interval_ms;
    int64_t window_ms; /* the longest token_window of its queues: nobody is waited for longer */
};

/* A request's memory of the application, from application_sent to its end. */
struct application_request {
    uint64_t number;    /* of its requests, from 1; 0: it was not sent */
    uint64_t mark;      /* limiter_mark */
    uint64_t n_crashes; /* before it was sent */
    bool alone;         /* nothing else was out when it went */
};

struct application {
    struct application_rules rules;
    struct limiter limiter;
    int n_out;       /* requests that are out */
    int n_reserved;  /* claims on their way to be sent: each will take a slot */
    int n_abandoned; /* given up, and not yet taken from the wire */
    int n_accepted;  /* messages answered 202 and not ended: each keeps its slot */
    uint64_t n_sent;
    uint64_t n_crashes;
    uint64_t crash_sent; /* requests up to this number belong to the latest crash, or are older */
    bool alive_before;   /* it was seen alive before the latest crash, since the one before that */
    bool seen_alive;     /* since the latest crash */
    bool refused;        /* connections, since the latest crash */
    bool gone;           /* nobody listens, as far as is known: probed, nothing is sent */
    bool reached;        /* it was reached once */
    int64_t back_ms;     /* when it was last found to be there, having been away */
    int n_in_vain;       /* times in a row that nothing could be sent, though a probe had just succeeded:
                            only an answer ends that */
    int unproven_step;   /* charges since it was seen alive that nothing proves, */
    int64_t unproven_ms; /* and the latest of them */
    struct application_probe {
        bool sent;
        int64_t at_ms;      /* of the next one; INT64_MAX: none is wanted */
        int n_failures;     /* in a row */
        uint64_t n_crashes; /* when it was sent */
        bool failing;       /* ready.url does not answer 2xx: nothing is sent */
    } probe;
    struct application_place {
        uint64_t holder;   /* who goes alone, or waits to: queue and ref, made by the caller; 0: nobody */
        bool taken;        /* it is alone now */
        int64_t until_ms;  /* from then on others may join it */
        int64_t since_ms;  /* it has been kept free for it */
        int64_t credit_ms; /* time that slots may be kept idle for this: a tenth of all time */
        int64_t credit_at_ms;
        int64_t rested_ms; /* since it was left, others have had it for as long as it was kept from them */
    } place;
};

void application_init(struct application *a, const struct application_rules *rules, int64_t now_ms);

/* May another request be prepared: is it there, does its limiter not wait, and has it a slot left? A queue
 * that has nothing under way (n_of_queue 0) may always send one. */
bool application_may_send(const struct application *a, int64_t now_ms, int n_of_queue);

/* Slots taken: requests in flight, claims on their way, messages answered 202. */
int application_taken(const struct application *a);

/* How many more slots there are, in all. */
int application_room(const struct application *a, int64_t now_ms);

/* A claim is sent that will take a slot; and has come to nothing, or is sent as a request. */
void application_reserve(struct application *a);
void application_unreserve(struct application *a);

/* A request goes out. Alone: by the holder of the place. */
void application_sent(struct application *a, bool alone, struct application_request *ret);

/* It is no longer out: answered, or abandoned. To be followed by one of the next four when it was answered.
 */
void application_returned(struct application *a);

/* It was answered with a status that is none of 429, 502, 503, 504. */
void application_answered(struct application *a, int64_t now_ms, const struct application_request *r);

/* 429 or 503: the queue's limiter takes these. 429 is a sign of life. */
void application_refused_politely(struct application *a, const struct application_request *r, int status);

/* Nothing was sent. refused: no connection could be made (refused, no route, TLS failure, not resolvable): if
 * one can be made later, somebody came back. One that was slow to connect, or broke before it took the
 * request, says nothing of that: behind a proxy that always accepts, each connect succeeds. */
void application_unreachable(struct application *a, int64_t now_ms, bool refused);

/* Whose fault a crash is. */
enum crash {
    CRASH_CHARGED, /* the message's own: it was alone, and the application had been seen alive since the crash
                      before */
    CRASH_UNPROVEN,    /* it was alone, but the application may have been down all the time: see
                          unproven_may_charge */
    CRASH_QUARANTINED, /* among others: from now on it goes alone */
    CRASH_NOT_ITS_OWN, /* given back */
};

/* A request ended in a crash. retry_after_ms: of a 502 or 504, -1: none. */
enum crash application_crashed(struct application *a, int64_t now_ms, const struct application_request *r,
                               int64_t retry_after_ms, uint64_t random);

/* May a lone crash of an application that was not seen alive be charged? Once in max_backoff_ms, then twice
 * that, four times …; since_ms: since the latest such charge, -1: there was none; step: how many there were.
 */
bool unproven_may_charge(int64_t since_ms, int step, int64_t max_backoff_ms);

/* The same of all messages that go alone there, until it is seen alive: true counts as such a charge. */
bool application_charges_unproven(struct application *a, int64_t now_ms, int64_t max_backoff_ms);

/* --- probes: a connect, or ready.url --- */

/* Once a turn. more: a message of any of its queues waits for a slot; hangs: the oldest request of any of
 * them is older than half its window. See limiter_busy. */
void application_time(struct application *a, int64_t now_ms, bool more, bool hangs);

/* Is a probe to be sent now? Then application_probed follows. */
bool application_wants_probe(const struct application *a, int64_t now_ms);
void application_probe_sent(struct application *a);
void application_probed(struct application *a, int64_t now_ms, bool ready, bool refused, uint64_t random);

/* --- going alone --- */

/* Until when others go first, since the application is just back, and has crashed before. For who may not be
 * charged with a crash, since the brake is on: else it would be the first each time, and nobody else ever
 * have his turn. */
int64_t application_others_first_ms(const struct application *a);

/* Wants the place for `holder` (never 0). Answers whether it may claim now: nothing is out, reserved or
 * accepted there. While somebody waits or is alone, application_may_send is false for everybody else. beside:
 * there is no credit left to keep others waiting, or it has waited for a window: if it goes, it goes beside
 * them, and is not charged for what comes of it. patient: it would wait for later instead; so it may keep
 * others waiting for half of the time. Where there is a ready.url nobody takes the place between a crash and
 * the next 2xx: what would crash then could not be told from what is down. */
enum place { PLACE_WAIT, PLACE_TAKEN, PLACE_BESIDE };
enum place application_take_place(struct application *a, int64_t now_ms, uint64_t holder, bool patient);

/* One that has a slot reserved, and turns out to have to go alone: true: nobody else is there, and the place
 * is its. */
bool application_find_place(struct application *a, int64_t now_ms, uint64_t holder);

/* The holder, where it is alone, is joined by others from at_ms on: a long job does not keep them waiting to
 * its end. Whoever was joined is not charged for a crash. */
void application_share_place(struct application *a, uint64_t holder, int64_t at_ms);
void application_leave_place(struct application *a, int64_t now_ms, uint64_t holder);

/* When it may next decide otherwise without a new fact; INT64_MAX: never. */
int64_t application_deadline(const struct application *a, int64_t now_ms);
