#pragma once

#include "onceward/base/failpoint.h"

#include <stdbool.h>

/* What is done about a delivery: an operation that is wanted or sent, or a wait before it. The operations and
 * their properties stand in terms/operations.def. */

enum operation {
#define OPERATION(id, name, link, idle, failpoint) OP_##id,
#include "onceward/core/terms/operations.def"
    N_OPERATIONS
};

enum operation_link { LINK_NOBODY, LINK_DATABASE, LINK_APPLICATION, LINK_BROKER, LINK_PUBLISHER };

enum phase {
    PHASE_WANTED, /* to be sent, unless a wait is before it */
    PHASE_SENT,   /* its answer is awaited */
};

/* Why a wanted operation is not sent yet. All but FOLLOWING and ORDER end at the delivery's timer. */
enum wait_reason {
    WAIT_NONE,
    WAIT_DUE,       /* its next attempt is not due */
    WAIT_HELD,      /* another holder's token lives */
    WAIT_LOCKED,    /* an application holds the lock of its row */
    WAIT_WATCHING,  /* answered; the row is read again */
    WAIT_AGAIN,     /* the database did not answer, or refused */
    WAIT_FOLLOWING, /* a delivery of the same message is on its way here; it shares its end. No timer */
    WAIT_SURPLUS,   /* as many follow that delivery as may */
    WAIT_ROOM,      /* its body did not fit and was skipped */
    WAIT_CIRCLING,  /* dead, and brought back by the queue's own dead-letter exchange */
    WAIT_RENEWAL,   /* renewed too often */
    WAIT_ORDER,     /* an earlier message of its key has not ended. No timer */
    WAIT_BRAKE,     /* it failed while everything fails; tried again in turn */
    N_WAITS
};

struct operation_info {
    const char *name;
    enum operation_link link;
    bool idle;
    enum failpoint failpoint;
};

/* The row of an operation. */
const struct operation_info *operation_info(enum operation op);
