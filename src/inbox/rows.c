/* Rows of the inbox for archives: page by page in the order of the key, without an open transaction between
 * pages. */

#include "inbox/session.h"
#include "inbox/sql.h"

#include <stdio.h>
#include <string.h>

enum { PAGE = 200 };

/* Asks without a timeout, since matches may be few and far apart. */
static int ask(struct admin *a, const char *const *params, PGresult **ret, struct fault *f)
{
    PGresult *r = NULL;

    if (session_begin(a, 0, 0, f) ||
        session_script(a, "SET LOCAL enable_seqscan = off; SET LOCAL jit = off", f) ||
        session_query(a, sql_query("rows_page"), 5, params, &r, f)) {
        session_rollback(a);
        return -1;
    }
    if (session_commit(a, f)) {
        PQclear(r);
        return -1;
    }
    *ret = r;
    return 0;
}

int admin_rows_each(struct admin *a, const struct row_filter *filter,
                    int (*each)(void *ctx, const char *consumer, const char *message_id, const char *json),
                    void *ctx, struct fault *f)
{
    const char *params[] = {filter->after_consumer, filter->after_id, filter->consumer, filter->since,
                            filter->until};
    PGresult *page = NULL;
    int answer = 0, n = PAGE;

    while (!answer && n == PAGE) {
        PGresult *r;

        answer = ask(a, params, &r, f);
        PQclear(page); /* params point into the page */
        page = answer ? NULL : r;
        n = page ? PQntuples(page) : 0;
        for (int i = 0; i < n && !answer; i++) {
            params[0] = field_text(page, i, 0);
            params[1] = field_text(page, i, 1);
            answer = each(ctx, params[0], params[1], field_text(page, i, 2));
        }
    }
    PQclear(page);
    return answer;
}

int admin_compacted_to(struct admin *a, const char *consumer, char ret[MESSAGE_TIME_SIZE], struct fault *f)
{
    PGresult *r;

    if (session_once(
            a,
            "SELECT " TIME_TEXT("max(c.compacted_to)") " FROM onceward.consumer c"
                                                       " WHERE $1::text IS NULL OR c.consumer = $1::text",
            1, &consumer, &r, f))
        return -1;
    snprintf(ret, MESSAGE_TIME_SIZE, "%s", field_text(r, 0, 0) ? field_text(r, 0, 0) : "");
    PQclear(r);
    return 0;
}
