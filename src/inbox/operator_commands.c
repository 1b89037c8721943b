/* Operator commands: one database call each. The functions lever_* of sql/ document their effect. */

#include "inbox/session.h"
#include "inbox/sql.h"

#include "onceward/base/buf.h"

#include <inttypes.h>
#include <string.h>

/* Adds a literal of text[]. */
static void add_array(struct buf *out, const char *const *texts, size_t n)
{
    buf_add_char(out, '{');
    for (size_t i = 0; i < n; i++) {
        buf_add_text(out, i ? ",\"" : "\"");
        for (const char *at = texts[i]; *at; at++) {
            if (*at == '"' || *at == '\\')
                buf_add_char(out, '\\');
            buf_add_char(out, *at);
        }
        buf_add_char(out, '"');
    }
    buf_add_char(out, '}');
}

static int number_once(struct admin *a, const char *sql, int n, const char *const *params, int64_t *ret,
                       struct fault *f)
{
    PGresult *r;

    if (session_once(a, sql, n, params, &r, f))
        return -1;
    *ret = field_int(r, 0, 0);
    PQclear(r);
    return 0;
}

int admin_find_consumer(struct admin *a, const char *consumer, const char *queue, int *ret_n_replicas,
                        struct fault *f)
{
    const char *sql = sql_query("lever_find");
    const char *const params[] = {consumer, queue};
    PGresult *r;
    int known;

    if (admin_check_schema(a, f) || session_once(a, sql, 2, params, &r, f))
        return -1;
    known = field_text(r, 0, 0)[0] == 't';
    *ret_n_replicas = (int)field_int(r, 0, 1);
    PQclear(r);
    return known;
}

int admin_knows_consumer(struct admin *a, const char *consumer, struct fault *f)
{
    const char *const params[] = {consumer};
    PGresult *r;
    int known;

    if (session_once(a, sql_query("consumer_known"), 1, params, &r, f))
        return -1;
    known = field_text(r, 0, 0)[0] == 't';
    PQclear(r);
    return known;
}

int admin_pause(struct admin *a, const char *consumer, bool paused, const char *reason, const char *by,
                bool *ret_changed, struct fault *f)
{
    const char *const params[] = {consumer, paused ? "true" : "false", reason, by};
    int64_t changed;

    if (number_once(a, "SELECT onceward.lever_pause($1, $2::boolean, $3, $4)::int", 4, params, &changed, f))
        return -1;
    *ret_changed = changed != 0;
    return 0;
}

int admin_retry(struct admin *a, const char *consumer, const char *const *ids, size_t n, const char *by,
                int64_t *ret_n, struct fault *f)
{
    struct buf array = {0};

    add_array(&array, ids, n);
    const char *const params[] = {consumer, n ? buf_text(&array) : NULL, by};
    int failed = number_once(a, "SELECT onceward.lever_retry($1, $2::text[], $3)", 3, params, ret_n, f);

    buf_deinit(&array);
    return failed;
}

int admin_give_up(struct admin *a, const char *consumer, const char *const *ids, size_t n, const char *by,
                  void (*tell)(void *ctx, const char *id, const char *answer), void *ctx, struct fault *f)
{
    struct buf array = {0};
    PGresult *r = NULL;

    add_array(&array, ids, n);
    const char *const params[] = {consumer, buf_text(&array), by};
    int failed =
        session_once(a, "SELECT * FROM onceward.lever_give_up($1, $2::text[], $3)", 3, params, &r, f);

    for (int i = 0; !failed && i < PQntuples(r); i++)
        tell(ctx, field_text(r, i, 0), field_text(r, i, 1));
    PQclear(r);
    buf_deinit(&array);
    return failed;
}

int admin_give_up_held(struct admin *a, const char *consumer, const char *by, struct fault *f)
{
    const char *const params[] = {consumer, by};

    return session_once(a, "SELECT onceward.lever_give_up_held($1, $2)", 2, params, NULL, f);
}
