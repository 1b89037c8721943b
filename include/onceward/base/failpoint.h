#pragma once

/* Failpoints: places where a test can end, stop or slow the program. See failpoint.def for the list.
 *
 * Failpoints exist only in a build with -DONCEWARD_FAILPOINTS. In other builds FAILPOINT expands to nothing,
 * and the names are not in the program. ONCEWARD_FAILPOINT="name:action[:n]" selects a point and an action:
 *
 *   kill       SIGKILL to itself when the point is reached for the n-th time (1: the first)
 *   stop       SIGSTOP to itself then
 *   delay=MS   waits there, from the n-th time on
 *
 * Commas separate several items. An item "name=MS" sets one of the list's times. */

enum failpoint {
#define OUTCOME(id, sentence)
#define TIME(id, name, ms, what)
#define FAILPOINT(id, name, where, transaction, response) FAILPOINT_##id,
#include "onceward/base/failpoint.def"
#undef FAILPOINT
#undef TIME
    N_FAILPOINTS
};

enum failpoint_time {
#define FAILPOINT(id, name, where, transaction, response)
#define TIME(id, name, ms, what) TIME_##id,
#include "onceward/base/failpoint.def"
#undef TIME
    N_TIMES
};

/* Times that no test has changed. */
enum failpoint_time_default {
#define TIME(id, name, ms, what) TIME_##id##_MS = (ms),
#include "onceward/base/failpoint.def"
#undef TIME
#undef FAILPOINT
#undef OUTCOME
};

/* The points of one call follow each other in the list. */
enum failpoint_step { FAILPOINT_STEP_BEFORE, FAILPOINT_STEP_SENT, FAILPOINT_STEP_ANSWERED };

#ifdef ONCEWARD_FAILPOINTS
/* Reads the environment. Prints an error and exits with 2 when the value is malformed. To be called before there are
 * threads. */
void failpoint_init(void);
void failpoint_reached(enum failpoint p);
int failpoint_time_ms(enum failpoint_time t);

#define FAILPOINT_INIT()       failpoint_init()
#define FAILPOINT_AT(p)        failpoint_reached(p)
#define FAILPOINT_IF(when, id) ((when) ? failpoint_reached(FAILPOINT_##id) : (void)0)
#define FAILPOINT_MS(id)       failpoint_time_ms(TIME_##id)
#else
#define FAILPOINT_INIT()       ((void)0)
#define FAILPOINT_AT(p)        ((void)sizeof(p))
#define FAILPOINT_IF(when, id) ((void)sizeof(when))
#define FAILPOINT_MS(id)       ((int)TIME_##id##_MS)
#endif

#define FAILPOINT(id) FAILPOINT_AT(FAILPOINT_##id)
