#pragma once

#include <stdbool.h>

/* The life of a delivery as a table: a state and an event to the next state. No I/O, no clock, no memory.
 *
 * The worker turns what the broker, the database, the application and its timers say into events, asks delivery_next, moves the
 * delivery to the list of the new state and does that state's entry action. A pair that is not in the table is a bug: it is answered
 * as such, never guessed. */

/* STATE(id, name, meaning) */
#define DELIVERY_STATES(STATE)                                                                               \
    STATE(TO_CLAIM, "to_claim", "waits for a free slot")                                                     \
    STATE(CLAIMING, "claiming", "its claim is at the database")                                              \
    STATE(CLAIMED, "claimed", "has a token, is about to be forwarded")                                       \
    STATE(FORWARDING, "forwarding", "the request is out")                                                    \
    STATE(TO_REVOKE, "to_revoke", "its window ended, the request is still out: to be asked of the database")  \
    STATE(REVOKING, "revoking", "the database decides whether its window has ended")                         \
    STATE(TO_CHECK, "to_check", "answered in transaction completion: the row is to be read")                 \
    STATE(CHECKING, "checking", "the row is being read")                                                     \
    STATE(WATCHING, "watching", "the row was not completed yet, it is read again at its timer")              \
    STATE(TO_SETTLE, "to_settle", "answered in response completion: to be completed by the sidecar")         \
    STATE(SETTLING, "settling", "its completion is at the database")                                         \
    STATE(TO_FAIL, "to_fail", "the attempt failed: to be written")                                           \
    STATE(FAILING, "failing", "its failure is at the database")                                              \
    STATE(TO_RELEASE, "to_release", "the attempt is to be given back")                                       \
    STATE(RELEASING, "releasing", "giving back is at the database")                                          \
    STATE(TO_BURY, "to_bury", "given up: the letter is to be written")                                       \
    STATE(BURYING, "burying", "its letter is at the database")                                               \
    STATE(PARKED, "parked", "waits for its timer: not due, held elsewhere, or locked")                       \
    STATE(TO_LOOK, "to_look", "a copy without a claim whose row is to be read")                              \
    STATE(LOOKING, "looking", "its row is being read")                                                       \
    STATE(SUSPECT, "suspect", "was with the application when that died: goes alone")                         \
    STATE(FOLLOWING, "following", "another copy of its message is on the way here; shares its end")          \
    STATE(TO_ACK, "to_ack", "its row is completed: to be acked")                                             \
    STATE(TO_REJECT, "to_reject", "dead: to be rejected")                                                    \
    STATE(TO_RETURN, "to_return", "not its fault: to be given back to the broker")                           \
    STATE(GONE, "gone", "over here")

enum delivery_state {
#define STATE(id, name, meaning) DELIVERY_##id,
    DELIVERY_STATES(STATE)
#undef STATE
        N_DELIVERY_STATES
};

/* EVENT(id, name) */
#define DELIVERY_EVENTS(EVENT)                                                                               \
    EVENT(SENT, "sent")                   /* the batch, the request or the frame is on its way */            \
    EVENT(CLAIMED, "claimed")             /* row: processing with this token */                              \
    EVENT(COMPLETED, "completed")         /* row: committed as completed */                                  \
    EVENT(NOT_NOW, "not_now")             /* row: held elsewhere, not due, or locked; a timer is set */      \
    EVENT(DUE, "due")                     /* row: may be claimed */                                          \
    EVENT(AGAIN, "again")                 /* row: the token is not the row's any more, or the row is gone */ \
    EVENT(REPEAT, "repeat")               /* the database did not answer: the same once more */              \
    EVENT(LOCKED, "locked")               /* row: an application is committing */                            \
    EVENT(EXTENDED, "extended")           /* row: the token lives longer */                                  \
    EVENT(DONE, "done")                   /* row: what was asked is committed */                             \
    EVENT(GIVE_UP, "give_up")             /* attempts used up, too old, mismatch, permanent, invalid */      \
    EVENT(WAS_DEAD, "was_dead")           /* row: dead before */                                             \
    EVENT(UNWRITABLE, "unwritable")       /* the database refuses the data of this item */                   \
    EVENT(SETTLE, "settle")               /* answer: done, the sidecar completes */                          \
    EVENT(CHECK, "check")                 /* answer: done or accepted, the row must say so */                \
    EVENT(FAIL, "fail")                   /* answer or timer: charged */                                     \
    EVENT(GIVE_BACK, "give_back")         /* not the message's fault */                                      \
    EVENT(STALE, "stale")                 /* too little of the window is left to send: claim again */        \
    EVENT(TIMER, "timer")                 /* its timer */                                                    \
    EVENT(LOOK, "look")                   /* no slot for long: see whether it was completed before */        \
    EVENT(ALONE, "alone")                 /* released, and to go alone */                                    \
    EVENT(RETURN, "return")               /* to be given back to the broker */                               \
    EVENT(FOLLOW, "follow")               /* a copy is on the way here */                                    \
    EVENT(LEADER_LEFT, "leader_left")     /* that copy is gone without an end for this one */                \
    EVENT(TAG_LOST, "tag_lost")           /* its channel is gone: the broker delivers it again */

enum delivery_event {
#define EVENT(id, name) DELIVERY_EV_##id,
    DELIVERY_EVENTS(EVENT)
#undef EVENT
        N_DELIVERY_EVENTS
};

/* The next state; or -1: this pair is impossible. */
int delivery_next(enum delivery_state state, enum delivery_event event);

const char *delivery_state_name(enum delivery_state s);
const char *delivery_event_name(enum delivery_event e);

/* Is its request with the application (it takes a slot)? */
bool delivery_is_out(enum delivery_state s);

/* Does it only wait here, without any right or work in flight? It may then be given back at any time. */
bool delivery_is_idle(enum delivery_state s);

/* Is a batch with it at the database? */
bool delivery_is_at_database(enum delivery_state s);
