#pragma once

#include "onceward/base/failpoint.h"

#include <stdbool.h>

/* Next step for a delivery: an operation that is wanted or sent, or a wait before it. terms/operations.def lists the
 * operations and their properties. */

enum operation {
#define OPERATION(id, name, link, idle, failpoint) OP_##id,
#include "onceward/core/terms/operations.def"
    N_OPERATIONS
};

enum operation_link { LINK_NOBODY, LINK_DATABASE, LINK_APPLICATION, LINK_BROKER, LINK_PUBLISHER };

enum phase {
    PHASE_WANTED, /* may be sent, unless the delivery waits */
    PHASE_SENT,   /* not answered yet */
    PHASE_ENDED,  /* the delivery has ended: queue_reap frees it */
};

/* Why a wanted operation is not sent yet. All waits but FOLLOWING and ORDER end at the delivery's timer. */
enum wait_reason {
    WAIT_NONE,
    WAIT_DUE,      /* the next attempt is not due */
    WAIT_HELD,     /* another claim owner's token is valid */
    WAIT_LOCKED,   /* a transaction of the application locks the row */
    WAIT_WATCHING, /* answered; the row is read again later */
    WAIT_AGAIN,    /* the database did not answer, or refused */
    WAIT_FOLLOWING, /* another delivery of the same message is in progress here, and decides its end. No timer */
    WAIT_SURPLUS,  /* the leader has the maximum of followers already */
    WAIT_ROOM,     /* the body did not fit and was skipped */
    WAIT_CIRCLING, /* dead, and returned by the queue's own dead-letter exchange */
    WAIT_RENEWAL,  /* renewed too often */
    WAIT_ORDER,    /* an earlier message of the key has not ended. No timer */
    WAIT_ON_HOLD,  /* the row is held until an operator decides */
    WAIT_BRAKE,    /* failed while the circuit breaker is on; tried again in turn */
    N_WAITS
};

struct operation_info {
    const char *name;
    enum operation_link link;
    bool idle;
    enum failpoint failpoint;
};

extern const struct operation_info operation_infos[N_OPERATIONS];
