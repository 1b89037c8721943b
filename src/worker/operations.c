/* Which kinds of statements work, and the pause when one does not. */
#include "worker.h"

#include <stdio.h>
#include <string.h>

enum {
    ERRORS_LAST_MS = 2000, /* whatever they are: the queue pauses when no statement works for so long */
    FORGET_TRIES_MS = 60000,
};

/* Errors of the database that will not pass within a moment: nothing new is begun until a statement works
 * again. */
bool sqlstate_is_lasting(const char *sqlstate)
{
    static const char *const classes[] = {"23", "42", "53", "58", "XX", "25", "28", "3D", "3F"};

    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
        if (!strncmp(sqlstate, classes[i], 2))
            return true;
    return false;
}

/* A statement of that kind works again. A claim shows that all may, but for those whose deliveries wait here
 * until theirs does; and only one that was made after the pause's wait, not one that was on its way before.
 * The waits go on to grow until what failed works itself, since a claim says little about a letter. */
void worker_op_works(struct worker *w, enum inbox_op op)
{
    w->tried_ops &= ~(1u << op);
    if (!w->tried_ops)
        w->n_database_tries = 0;
    w->failing_ops &= ~(1u << op);
    if (op == INBOX_CLAIM && (!(w->pauses & 1u << PAUSE_DATABASE) || w->now_ms >= w->database_try_ms))
        w->failing_ops &= OPS_OF_HELD;
    if (!w->failing_ops)
        pause_clear(w, PAUSE_DATABASE);
}

void report_database_error(struct worker *w, const char *sqlstate, struct slice reason)
{
    struct log_line l;

    if (!worker_may_say(w, EVENT_DATABASE_ERROR))
        return;
    log_begin(&l, EVENT_DATABASE_ERROR, w->q->name);
    log_text(&l, "sqlstate", sqlstate);
    log_slice(&l, "reason", reason);
    log_end(&l);
}

/* It was not the data's fault. When it lasts, the queue pauses. */
void worker_op_fails(struct worker *w, const struct inbox_row *row)
{
    char text[256];

    if (!w->failing_ops)
        w->errors_since_ms = w->now_ms;
    if (w->now_ms - w->failed_at_ms >= FORGET_TRIES_MS)
        w->tried_ops = w->n_database_tries = 0;
    w->failed_at_ms = w->now_ms;
    w->failing_ops |= 1u << row->op;
    w->tried_ops |= 1u << row->op;
    if (sqlstate_is_lasting(row->sqlstate) || w->now_ms - w->errors_since_ms >= ERRORS_LAST_MS) {
        snprintf(text, sizeof(text), "%s %.*s", row->sqlstate,
                 (int)(row->detail.len < 200 ? row->detail.len : 200),
                 row->detail.len ? row->detail.data : "");
        pause_set(w, PAUSE_DATABASE, text);
    }
}
