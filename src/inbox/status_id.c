/* The output of `onceward status --id`: everything that the database keeps of one message id. */

#include "inbox/connect.h"
#include "inbox/fleet.h"
#include "inbox/session.h"
#include "inbox/sql.h"

#include "onceward/base/buf.h"
#include "onceward/base/table.h"

#include <string.h>

enum {
    M_CONSUMER,
    M_KEPT,
    M_STATE,
    M_ATTEMPT,
    M_SINCE,
    M_ENDED,
    M_NEXT_MS,
    M_WINDOW_MS,
    M_OWNER,
    M_HOST,
    M_ERROR,
    M_LETTER
};

/* Adds "completed, compacted", "dead letter 17: attempts" or "failed". */
static void add_state(struct table *t, const PGresult *r, int row)
{
    const char *kept = field_text(r, row, M_KEPT), *state = field_text(r, row, M_STATE);
    struct buf text = {0};

    if (field_text(r, row, M_LETTER))
        buf_printf(&text, "dead letter %s: %s", field_text(r, row, M_LETTER), state);
    else
        buf_printf(&text, "%s%s", state, strcmp(kept, "history") ? "" : ", compacted");
    table_add(t, buf_slice(&text));
    buf_deinit(&text);
}

/* Adds "in 4 min", "due", "token ends in 12 s" or "token ended 3 min ago". */
static void add_next(struct table *t, const PGresult *r, int row)
{
    bool has_window = field_text(r, row, M_WINDOW_MS) != NULL;
    int column = has_window ? M_WINDOW_MS : M_NEXT_MS;
    int64_t ms = field_text(r, row, column) ? field_int(r, row, column) : 0;
    struct buf text = {0};

    if (!field_text(r, row, column)) {
        table_add_text(t, NULL);
        return;
    }
    if (ms > 0) {
        buf_add_text(&text, has_window ? "token ends in " : "in ");
        text_add_age(&text, ms);
    } else if (has_window) {
        buf_add_text(&text, "token ended ");
        text_add_age(&text, -ms);
        buf_add_text(&text, " ago");
    } else {
        buf_add_text(&text, "due");
    }
    table_add(t, buf_slice(&text));
    buf_deinit(&text);
}

static void print_text(const PGresult *r, const char *id, FILE *out)
{
    static const char *const heads[] = {"CONSUMER", "STATE", "ATTEMPT", "RECEIVED",
                                        "ENDED",    "NEXT",  "OWNER",   "LAST ERROR"};
    struct table t = {.n_columns = 8, .right = 1 << 2};
    struct buf name = {0};

    text_add_safe(&name, slice_of(id));
    if (PQntuples(r) == 0)
        fprintf(out,
                "No consumer has a row, an entry of the history or a dead letter for message id '%s'.\n"
                "Either it was never claimed, or its retention is over.\n",
                buf_text(&name));
    else
        fprintf(out, "Message id '%s':\n", buf_text(&name));
    buf_deinit(&name);
    if (PQntuples(r) == 0)
        return;
    for (size_t i = 0; i < t.n_columns; i++)
        table_add_text(&t, heads[i]);
    for (int i = 0; i < PQntuples(r); i++) {
        table_add_text(&t, field_text(r, i, M_CONSUMER));
        add_state(&t, r, i);
        table_add_text(&t, field_text(r, i, M_ATTEMPT));
        table_add_text(&t, field_text(r, i, M_SINCE));
        table_add_text(&t, field_text(r, i, M_ENDED));
        add_next(&t, r, i);
        fleet_table_name(&t, field_text(r, i, M_OWNER), field_text(r, i, M_HOST));
        table_add_text(&t, field_text(r, i, M_ERROR));
    }
    table_print(&t, out, text_width(out));
    table_deinit(&t);
}

static void print_json(const PGresult *r, const char *id, FILE *out)
{
    struct buf text = {0};

    buf_add_text(&text, "{\"message_id\":");
    buf_add_json(&text, slice_of(id));
    json_rows_add(&text, ",\"kept\":", r);
    buf_add_text(&text, "}\n");
    fwrite(text.data, 1, text.len, out);
    buf_deinit(&text);
}

int admin_status_id(struct admin *a, const char *id, bool json, FILE *out, struct fault *f)
{
    const char *const params[] = {id};
    PGresult *r = NULL;

    if (admin_check_schema(a, f) || session_once(a, sql_query("status_id"), 1, params, &r, f))
        return -1;
    if (json)
        print_json(r, id, out);
    else
        print_text(r, id, out);
    PQclear(r);
    return 0;
}
