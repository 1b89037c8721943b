#pragma once

#include "onceward/core/batch_size.h"
#include "onceward/core/limiter.h"

#include <stdbool.h>
#include <stdint.h>

/* An application, shared by its queues: how many requests may be in flight, whether it is available, which message is
 * quarantined, and which message caused a crash. A value: no I/O, no clock.
 *
 * A *crash* is a reset, a close without an answer, garbage, 502 or 504. All requests in flight when a crash is
 * noticed belong to it. The application was *seen alive* if, since the latest crash, it answered any request (with a
 * status other than 502, 503, 504), its ready.url answered 2xx, or it refused connections and then accepted one. */

struct application_rules {
    int concurrency; /* sum of its queues' concurrency */
    bool has_ready_url;
    int64_t ready_interval_ms;
    int64_t window_ms; /* the longest token_window of its queues, which bounds every wait here */
    size_t batch_messages, batch_bytes; /* of the queue with the largest requests; 0: none has batches */
};

/* The state of the application when a request was sent, kept until the request ends. */
struct application_request {
    uint64_t number;    /* from 1; 0: not sent */
    uint64_t mark;      /* limiter_mark */
    uint64_t n_crashes; /* crashes before it was sent */
    uint64_t n_succeeded;
    bool alone; /* no other request was in flight when it was sent */
};

struct application {
    struct application_rules rules;
    struct limiter limiter;
    struct batch_size batch_size;
    int n_out;       /* requests in flight */
    int n_reserved;  /* claims in flight: each will take a slot */
    int n_abandoned; /* abandoned, but not yet removed from the connection */
    int n_accepted;  /* messages answered 202 that have not ended: each keeps its slot */
    uint64_t n_sent;
    uint64_t n_succeeded; /* requests that succeeded */
    uint64_t n_crashes;
    uint64_t crash_sent; /* requests up to this number belong to the latest crash or an earlier one */
    bool alive_before;   /* seen alive between the last two crashes */
    bool seen_alive;     /* since the latest crash */
    bool refused;        /* connections were refused since the latest crash */
    bool gone;           /* the port seems closed: probes are sent, and no requests */
    bool reached;        /* a connection succeeded at least once */
    int64_t back_ms;     /* time of its latest recovery */
    int n_in_vain;       /* consecutive times that no request could be sent although a probe had just
                            succeeded; only an answer resets it */
    int unproven_step;   /* unproven charges since it was seen alive, */
    int64_t unproven_ms; /* and the time of the latest */
    struct application_probe {
        bool sent;
        int64_t at_ms;      /* time of the next probe; INT64_MAX: none is needed */
        int n_failures;     /* consecutive failures */
        uint64_t n_crashes; /* crashes before the probe was sent */
        bool failing;       /* ready.url does not answer 2xx: no request is sent */
    } probe;
    struct application_place {
        uint64_t owner;    /* message in quarantine or waiting for it: queue and ref, made by the caller; 0:
                              none */
        bool taken;        /* the message is with the application now */
        int64_t until_ms;  /* from then on other messages may run beside it */
        int64_t since_ms;  /* slots have been kept free for it since then */
        int64_t credit_ms; /* time that slots may stay idle for quarantine: a tenth of all time */
        int64_t credit_at_ms;
        int64_t rested_ms; /* from then on, other messages have had the application for as long as it was kept
                              from them */
    } place;
};

void application_init(struct application *a, const struct application_rules *rules, int64_t now_ms);

/* May another request be prepared? Yes if the application is available, its limiter does not wait, and a slot is
 * free. A queue with nothing in flight (n_of_queue 0) needs no free slot. */
bool application_may_send(const struct application *a, int64_t now_ms, int n_of_queue);

/* Number of slots taken by requests and claims in flight, and by messages answered 202. */
int application_taken(const struct application *a);

/* Number of free slots. */
int application_room(const struct application *a, int64_t now_ms);

/* Reserve a slot for a claim that is sent; free the slot when the claim failed or is sent as a request. */
void application_reserve(struct application *a);
void application_unreserve(struct application *a);

/* Records a request that is sent. alone: by the quarantined message. */
void application_sent(struct application *a, bool alone, struct application_request *ret);

/* Records a request that is no longer in flight: answered or abandoned. If it was answered, one of the next four
 * follows. */
void application_returned(struct application *a);

/* The answer had a status other than 429, 502, 503, 504. */
void application_answered(struct application *a, int64_t now_ms, const struct application_request *r);

/* The answer was 429 or 503, which counts for the queue's limiter. 429 shows that the application is alive. */
void application_refused_politely(struct application *a, const struct application_request *r, int status);

/* No byte was sent. refused: the connection failed (refused, no route, TLS failure, name not found), so a later
 * success shows that the application is back. A slow or early broken connection does not prove that: behind a proxy
 * that always accepts, every connect succeeds. */
void application_unreachable(struct application *a, int64_t now_ms, bool refused);

/* The message that a crash is charged to. */
enum crash {
    CRASH_CHARGED,  /* this message: it was alone, and the application seen alive since the previous crash */
    CRASH_UNPROVEN, /* this message: alone, but the application may have been down: unproven_may_charge */
    CRASH_QUARANTINED, /* several messages were in flight: this one is quarantined from now on */
    CRASH_NOT_ITS_OWN, /* not this message: its attempt is not charged */
};

/* A request ended in a crash. retry_after_ms: from a 502 or 504, -1: none. */
enum crash application_crashed(struct application *a, int64_t now_ms, const struct application_request *r,
                               int64_t retry_after_ms, uint64_t random);

/* May a crash of a lone message be charged if the application was not seen alive? Once in max_backoff_ms, then in
 * twice that, four times … since_ms: since the latest such charge, -1: none. step: number of such charges. */
bool unproven_may_charge(int64_t since_ms, int step, int64_t max_backoff_ms);

/* The same for all quarantined messages of the application together, until it is seen alive. True counts as such a
 * charge. */
bool application_charges_unproven(struct application *a, int64_t now_ms, int64_t max_backoff_ms);

/* --- probes: a connect, or ready.url --- */

/* For each turn. more: a message of any queue waits for a slot. hangs: the oldest request of any queue is older than
 * half its window. See limiter_busy. */
void application_time(struct application *a, int64_t now_ms, bool more, bool hangs);

/* Must a probe be sent now? Then application_probed follows. */
bool application_wants_probe(const struct application *a, int64_t now_ms);
void application_probe_sent(struct application *a);
void application_probed(struct application *a, int64_t now_ms, bool ready, bool refused, uint64_t random);

/* --- quarantine --- */

/* Time until which other messages go first after the application's return from a crash. For a message that cannot be
 * charged because the circuit breaker is on: otherwise it would be first each time, and no other message would get a
 * turn. */
int64_t application_others_first_ms(const struct application *a);

/* Asks for quarantine of the message `owner` (never 0): may it be claimed now, with nothing in flight, reserved or
 * accepted? While a message is in quarantine or waits for it, application_may_send is false for all others.
 * PLACE_BESIDE: the idle time is used up, or the message has waited for a window; it may go beside the others, and is
 * not charged for a crash. patient: the message could wait until later, so it may keep the others waiting for half of
 * the time only. With a ready.url, no message enters quarantine between a crash and the next 2xx, because its crash
 * could not be told from an outage. */
enum place { PLACE_WAIT, PLACE_TAKEN, PLACE_BESIDE };
enum place application_take_place(struct application *a, int64_t now_ms, uint64_t owner, bool patient);

/* For a message that turns out to need quarantine when it has a slot already. True: it is alone there, and in
 * quarantine. */
bool application_find_place(struct application *a, int64_t now_ms, uint64_t owner);

/* application_share_place: if the quarantined message still runs at at_ms, others may run beside it, so that a long
 * job does not keep them waiting. It is then not charged for a crash. */
void application_share_place(struct application *a, uint64_t owner, int64_t at_ms);
void application_leave_place(struct application *a, int64_t now_ms, uint64_t owner);

/* Time at which an answer may change without a new fact; INT64_MAX: never. */
int64_t application_deadline(const struct application *a, int64_t now_ms);
