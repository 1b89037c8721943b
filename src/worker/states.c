/* The delivery machine's table. Rows by state, in the order of a message's way; what is absent is impossible.
 */
#include "states.h"

#include <stdint.h>

/* A cell holds the next state + 1, so that an absent one is 0. */
#define GO(event, next) [DELIVERY_EV_##event] = DELIVERY_##next + 1

/* Answers that every batch can have: the database was silent, or the token is not ours any more. */
#define ROW_COMMON(again) GO(COMPLETED, TO_ACK), GO(AGAIN, TO_CLAIM), GO(REPEAT, again)

static const uint8_t table[N_DELIVERY_STATES][N_DELIVERY_EVENTS] = {
    [DELIVERY_TO_CLAIM] = {GO(GIVE_BACK, TO_RELEASE) /* the row may hold its claim */, GO(ALONE, SUSPECT),
                           GO(SENT, CLAIMING), GO(LOOK, TO_LOOK), GO(FOLLOW, FOLLOWING), GO(GIVE_UP, TO_BURY),
                           GO(RETURN, TO_RETURN), GO(TAG_LOST, GONE), GO(TIMER, TO_CLAIM),
                           GO(NOT_NOW, PARKED), GO(WAS_DEAD, TO_REJECT)},
    [DELIVERY_CLAIMING] = {GO(RETURN, TO_RETURN), ROW_COMMON(TO_CLAIM), GO(CLAIMED, CLAIMED),
                           GO(NOT_NOW, PARKED), GO(GIVE_UP, TO_BURY), GO(WAS_DEAD, TO_REJECT),
                           GO(UNWRITABLE, TO_BURY)},
    [DELIVERY_CLAIMED] = {GO(RETURN, TO_RETURN), GO(SENT, FORWARDING), GO(STALE, TO_CLAIM),
                          GO(GIVE_BACK, TO_RELEASE), GO(GIVE_UP, TO_BURY), GO(FAIL, TO_FAIL)},
    [DELIVERY_FORWARDING] = {GO(SETTLE, TO_SETTLE), GO(CHECK, TO_CHECK), GO(FAIL, TO_FAIL),
                             GO(GIVE_BACK, TO_RELEASE), GO(GIVE_UP, TO_BURY), GO(TIMER, TO_REVOKE),
                             GO(RETURN, TO_RETURN) /* stopped: the token is left to expire */},
    [DELIVERY_TO_REVOKE] = {GO(SENT, REVOKING), GO(SETTLE, TO_SETTLE), GO(CHECK, TO_CHECK), GO(FAIL, TO_FAIL),
                            GO(GIVE_BACK, TO_RELEASE), GO(GIVE_UP, TO_BURY), GO(TIMER, TO_REVOKE),
                            GO(RETURN, TO_RETURN) /* stopped: the token is left to expire */},
    [DELIVERY_REVOKING] = {GO(RETURN, TO_RETURN), ROW_COMMON(FORWARDING), GO(LOCKED, FORWARDING),
                           GO(EXTENDED, FORWARDING), GO(DONE, PARKED), GO(UNWRITABLE, TO_RELEASE)},
    [DELIVERY_TO_CHECK] = {GO(RETURN, TO_RETURN), GO(SENT, CHECKING), GO(GIVE_BACK, TO_RELEASE),
                           GO(TIMER, TO_CHECK)},
    [DELIVERY_CHECKING] = {GO(RETURN, TO_RETURN), ROW_COMMON(TO_CHECK), GO(CLAIMED, WATCHING),
                           GO(FAIL, TO_FAIL), GO(GIVE_BACK, TO_RELEASE), GO(GIVE_UP, TO_BURY)},
    [DELIVERY_WATCHING] = {GO(RETURN, TO_RETURN), GO(TIMER, TO_CHECK), GO(GIVE_BACK, TO_RELEASE)},
    [DELIVERY_TO_SETTLE] = {GO(RETURN, TO_RETURN), GO(SENT, SETTLING), GO(TIMER, TO_SETTLE)},
    [DELIVERY_SETTLING] = {GO(RETURN, TO_RETURN), ROW_COMMON(TO_SETTLE), GO(LOCKED, TO_SETTLE),
                           GO(UNWRITABLE, TO_SETTLE)},
    [DELIVERY_TO_FAIL] = {GO(RETURN, TO_RETURN), GO(SENT, FAILING), GO(GIVE_BACK, TO_RELEASE),
                          GO(TIMER, TO_FAIL)},
    [DELIVERY_FAILING] = {GO(RETURN, TO_RETURN), ROW_COMMON(TO_FAIL), GO(LOCKED, TO_FAIL),
                          GO(EXTENDED, WATCHING), GO(DONE, PARKED), GO(UNWRITABLE, TO_FAIL)},
    [DELIVERY_TO_RELEASE] = {GO(RETURN, TO_RETURN), GO(SENT, RELEASING), GO(TIMER, TO_RELEASE)},
    [DELIVERY_RELEASING] = {ROW_COMMON(TO_RELEASE), GO(LOCKED, TO_RELEASE), GO(DONE, PARKED),
                            GO(ALONE, SUSPECT), GO(RETURN, TO_RETURN), GO(UNWRITABLE, TO_RELEASE)},
    [DELIVERY_TO_BURY] = {GO(SENT, BURYING), GO(GIVE_BACK, TO_RELEASE), GO(TIMER, TO_BURY),
                          GO(TAG_LOST, GONE) /* without a row of its own only: nothing is held */,
                          GO(RETURN, TO_RETURN) /* the same */,
                          GO(NOT_NOW, PARKED) /* the same: before it goes round again */},
    [DELIVERY_BURYING] = {GO(RETURN, TO_RETURN), ROW_COMMON(TO_BURY), GO(LOCKED, TO_BURY),
                          GO(DONE, TO_REJECT), GO(WAS_DEAD, TO_REJECT), GO(UNWRITABLE, PARKED)},
    [DELIVERY_PARKED] = {GO(GIVE_BACK, TO_RELEASE), GO(TIMER, TO_CLAIM), GO(LOOK, TO_LOOK),
                         GO(ALONE, SUSPECT), GO(FOLLOW, FOLLOWING), GO(GIVE_UP, TO_BURY), GO(NOT_NOW, PARKED),
                         GO(RETURN, TO_RETURN), GO(TAG_LOST, GONE), GO(WAS_DEAD, TO_REJECT)},
    [DELIVERY_TO_LOOK] = {GO(SENT, LOOKING), GO(RETURN, TO_RETURN), GO(TAG_LOST, GONE), GO(TIMER, TO_LOOK),
                          GO(GIVE_UP, TO_BURY)},
    [DELIVERY_LOOKING] = {GO(RETURN, TO_RETURN), ROW_COMMON(TO_CLAIM), GO(DUE, TO_CLAIM),
                          GO(CLAIMED, TO_CLAIM), GO(NOT_NOW, PARKED), GO(GIVE_UP, TO_BURY),
                          GO(WAS_DEAD, TO_CLAIM), GO(UNWRITABLE, TO_CLAIM)},
    [DELIVERY_SUSPECT] = {GO(GIVE_BACK, TO_RELEASE), GO(TIMER, SUSPECT), GO(SENT, CLAIMING),
                          GO(RETURN, TO_RETURN), GO(TAG_LOST, GONE)},
    [DELIVERY_FOLLOWING] = {GO(COMPLETED, TO_ACK), GO(LEADER_LEFT, TO_CLAIM), GO(RETURN, TO_RETURN),
                            GO(TAG_LOST, GONE), GO(GIVE_UP, TO_BURY)},
    [DELIVERY_TO_ACK] = {GO(SENT, GONE), GO(TAG_LOST, GONE)},
    [DELIVERY_TO_REJECT] = {GO(SENT, GONE), GO(TAG_LOST, GONE)},
    [DELIVERY_TO_RETURN] = {GO(SENT, GONE), GO(TAG_LOST, GONE)},
};

int delivery_next(enum delivery_state state, enum delivery_event event)
{
    if ((unsigned)state >= N_DELIVERY_STATES || (unsigned)event >= N_DELIVERY_EVENTS)
        return -1;
    return table[state][event] - 1;
}

const char *delivery_state_name(enum delivery_state s)
{
    static const char *const names[] = {
#define STATE(id, name, meaning) name,
        DELIVERY_STATES(STATE)
#undef STATE
    };

    return names[s];
}

const char *delivery_event_name(enum delivery_event e)
{
    static const char *const names[] = {
#define EVENT(id, name) name,
        DELIVERY_EVENTS(EVENT)
#undef EVENT
    };

    return names[e];
}

bool delivery_is_out(enum delivery_state s)
{
    return s == DELIVERY_FORWARDING || s == DELIVERY_TO_REVOKE || s == DELIVERY_REVOKING;
}

bool delivery_is_idle(enum delivery_state s)
{
    return s == DELIVERY_TO_CLAIM || s == DELIVERY_PARKED || s == DELIVERY_TO_LOOK || s == DELIVERY_SUSPECT ||
           s == DELIVERY_FOLLOWING;
}

bool delivery_is_at_database(enum delivery_state s)
{
    switch (s) {
    case DELIVERY_CLAIMING:
    case DELIVERY_REVOKING:
    case DELIVERY_CHECKING:
    case DELIVERY_SETTLING:
    case DELIVERY_FAILING:
    case DELIVERY_RELEASING:
    case DELIVERY_BURYING:
    case DELIVERY_LOOKING:
        return true;
    default:
        return false;
    }
}
