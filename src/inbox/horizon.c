/* The horizon: a time before which every row with an earlier time is committed. A walk in the order of time ends there:
 * beyond it, a transaction that is still open could commit a row behind the walk's position.
 *
 * Writers of such times take a lock before they read the clock and keep it until they commit (onceward.time_mark); the
 * horizon waits for the present lock owners. The horizon is recorded first, and later writers get no earlier time, even
 * if the clock is set back (onceward.horizon).
 *
 * A read-only login cannot record it, so its horizon is the clock's time. A standby shows no locks. Its horizon lies so
 * far before the last replayed transaction that no older one can be open. */

#include "inbox/session.h"
#include "inbox/sql.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HORIZON_MS = 60000, LOOK_MS = 20 };

/* 1: some of the earlier lock owners are still there. */
static int are_there(struct admin *a, const char *all, const char *holders, struct fault *f)
{
    const char *const params[] = {all, holders};
    PGresult *r;
    int answer;

    if (session_once(a, sql_query("horizon_waits"), 2, params, &r, f))
        return -1;
    answer = field_text(r, 0, 0)[0] == 't';
    PQclear(r);
    return answer;
}

static int wait_for(struct admin *a, const char *all, const char *holders, struct fault *f)
{
    int64_t until_ms = clock_ms() + HORIZON_MS;
    int answer;

    while ((answer = are_there(a, all, holders, f)) > 0) {
        if (clock_ms() > until_ms)
            return fault_set(
                f,
                "a transaction that claims, dead-letters or stores messages has been open for %d s, and "
                "cannot be skipped: see pg_stat_activity, and run this again",
                HORIZON_MS / 1000);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
    }
    return answer;
}

/* Sets the horizon to the clock's time, or to a time after the present horizon if the clock was set back since. */
#define MOVE                                                                                                 \
    "UPDATE onceward.horizon h SET passed = greatest(clock_timestamp(), h.passed + interval '1 us')"         \
    " RETURNING " TIME_TEXT("h.passed")

static int move(struct admin *a, char ret[MESSAGE_TIME_SIZE], struct fault *f)
{
    PGresult *r;

    *ret = '\0';
    if (session_once(a,
                     "SELECT has_table_privilege('onceward.horizon', 'UPDATE') AND NOT pg_is_in_recovery()"
                     " AND current_setting('transaction_read_only') = 'off'",
                     0, NULL, &r, f))
        return -1;
    bool may = field_text(r, 0, 0)[0] == 't';

    PQclear(r);
    if (!may)
        return 0;
    if (session_once(a, MOVE, 0, NULL, &r, f))
        return -1;
    snprintf(ret, MESSAGE_TIME_SIZE, "%s", PQntuples(r) ? field_text(r, 0, 0) : "");
    PQclear(r);
    return 0;
}

static int horizon(struct admin *a, const char *all, char ret[MESSAGE_TIME_SIZE], struct fault *f)
{
    char moved[MESSAGE_TIME_SIZE];
    char *holders;
    PGresult *r;
    int answer;

    if (move(a, moved, f) || session_once(a, sql_query("horizon"), 1, &all, &r, f))
        return -1;
    snprintf(ret, MESSAGE_TIME_SIZE, "%s", *moved ? moved : field_text(r, 0, 0));
    holders = mem_copy(field_text(r, 0, 1), (size_t)PQgetlength(r, 0, 1));
    PQclear(r);
    answer = wait_for(a, all, holders, f);
    free(holders);
    return answer;
}

int admin_messages_horizon(struct admin *a, char ret[MESSAGE_TIME_SIZE], struct fault *f)
{
    return horizon(a, "false", ret, f);
}

int admin_horizon(struct admin *a, char ret[MESSAGE_TIME_SIZE], struct fault *f)
{
    return horizon(a, "true", ret, f);
}
