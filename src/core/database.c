/* Whether the database works: see database.h. */
#include "onceward/core/database.h"

#include "onceward/core/backoff.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { DOUBT_MS = 1000 }; /* between two tries of a doubtful database that works */

void database_init(struct database *b, int64_t now_ms)
{
    *b = (struct database){.down_since_ms = now_ms ? now_ms : 1, .try_at_ms = INT64_MAX};
    snprintf(b->reason, sizeof(b->reason), "not connected yet");
}

void database_linked(struct database *b)
{
    b->linked = true;
    b->refuses = b->doubtful = b->trying = false;
    b->epoch++;
    b->down_since_ms = b->up_since_ms = 0;
    b->try_at_ms = 0;
    b->n_tries = 0;
}

static void database_down(struct database *b, int64_t now_ms, const char *reason)
{
    if (!b->down_since_ms)
        b->down_since_ms = now_ms ? now_ms : 1;
    snprintf(b->reason, sizeof(b->reason), "%s", reason);
}

void database_lost(struct database *b, int64_t now_ms, const char *reason)
{
    b->linked = b->refuses = b->doubtful = b->trying = false;
    b->epoch++;
    b->try_at_ms = INT64_MAX;
    database_down(b, now_ms, reason);
}

void database_unlinked(struct database *b, const char *reason)
{
    database_linked(b);
    b->linked = false;
    snprintf(b->reason, sizeof(b->reason), "%s", reason);
}

/* Codes of PostgreSQL's appendix A about the server or the session, never about an item. Any other error may be one
 * item's fault: a broken page (XX001), an unreadable file (58030), too little memory (53200), a permission that a
 * user's trigger lacks (42501). A test statement, sent at once, decides. Not so for a full disk, which has room for a
 * test row now and then. */
static bool is_lasting(const char *sqlstate)
{
    static const char *const lasting[] = {"08", "25", "28", "3D", "53100", "57P"};

    for (size_t i = 0; sqlstate && i < sizeof(lasting) / sizeof(lasting[0]); i++)
        if (!strncmp(sqlstate, lasting[i], strlen(lasting[i])))
            return true;
    return false;
}

/* A refusal soon after a successful test continues the backoff: a full disk has room for one row now and then. */
static void database_refuse(struct database *b, int64_t now_ms, const char *reason)
{
    int64_t wait_ms = DATABASE_TRY_FIRST_MS;

    if (!b->up_since_ms || now_ms - b->up_since_ms > DATABASE_TRY_LAST_MS)
        b->n_tries = 0;
    for (int i = 0; i < b->n_tries && wait_ms < DATABASE_TRY_LAST_MS; i++)
        wait_ms *= 2;
    assert(b->linked);
    b->refuses = true;
    b->doubtful = false;
    b->try_at_ms = now_ms + (wait_ms < DATABASE_TRY_LAST_MS ? wait_ms : DATABASE_TRY_LAST_MS);
    database_down(b, now_ms, reason);
}

void database_refused(struct database *b, int64_t now_ms, const char *sqlstate, const char *reason, bool own)
{
    if (!b->linked || b->refuses)
        return;
    if (!own && is_lasting(sqlstate))
        database_refuse(b, now_ms, reason);
    else if (now_ms >= b->try_at_ms)
        b->doubtful = true;
}

bool database_is_up(const struct database *b)
{
    return b->linked && !b->refuses;
}

bool database_wants_try(const struct database *b, int64_t now_ms)
{
    return b->linked && !b->trying && (b->doubtful || (b->refuses && now_ms >= b->try_at_ms));
}

void database_try_sent(struct database *b)
{
    assert(b->linked && !b->trying);
    b->trying = true;
}

void database_tried(struct database *b, int64_t now_ms, bool works, const char *reason, uint64_t random)
{
    bool doubted = b->doubtful;

    if (!b->trying)
        return;
    assert(b->linked); /* a loss ends the try */
    b->trying = b->doubtful = false;
    if (works) {
        if (!b->refuses) {
            b->try_at_ms = now_ms + DOUBT_MS;
            return;
        }
        b->refuses = false;
        b->down_since_ms = 0;
        b->try_at_ms = 0;
        b->up_since_ms = now_ms ? now_ms : 1;
        b->n_tries++;
        return;
    }
    if (doubted) {
        database_refuse(b, now_ms, reason);
        return;
    }
    b->try_at_ms = now_ms + backoff_ms(DATABASE_TRY_FIRST_MS, DATABASE_TRY_LAST_MS, ++b->n_tries + 1, random);
    database_down(b, now_ms, reason);
}

void database_hurry(struct database *b, int64_t now_ms, int64_t within_ms)
{
    if (b->linked && b->refuses && !b->trying && b->try_at_ms > now_ms + within_ms)
        b->try_at_ms = now_ms + within_ms;
}

int64_t database_deadline(const struct database *b)
{
    return !b->linked || b->trying ? INT64_MAX : b->doubtful ? 0 : b->refuses ? b->try_at_ms : INT64_MAX;
}
