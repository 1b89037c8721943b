/* Checks that the schema belongs to one owner: before a migration runs anything in it, after the migration, and by
 * `check
 * --connect`.
 *
 * The program recognises its own functions by the REVOKE that ends each function's file. */

#include "inbox/trust.h"
#include "inbox/sql.h"

#include "onceward/base/buf.h"

#include <assert.h>
#include <string.h>

/* Extracts "onceward.complete(text)" from "REVOKE ALL ON FUNCTION onceward.complete(text) FROM PUBLIC;". */
static struct slice signature_of(const struct sql_file *file)
{
    static const char head[] = "\nREVOKE ALL ON FUNCTION ";
    const char *start = strstr(file->text, head);
    const char *end = start ? strstr(start, ")") : NULL;

    assert(end); /* the build guarantees that every file of sql/functions has one */
    start += sizeof head - 1;
    return (struct slice){(char *)start, (size_t)(end + 1 - start)};
}

static void add_signatures(struct buf *out)
{
    buf_add_char(out, '[');
    for (size_t i = 0; i < n_sql_files; i++) {
        if (strncmp(sql_files[i].name, "functions/", 10) != 0)
            continue;
        if (out->len > 1)
            buf_add_char(out, ',');
        buf_add_json(out, signature_of(&sql_files[i]));
    }
    buf_add_char(out, ']');
}

int trust_ask(struct admin *a, bool mine, PGresult **ret, struct fault *f)
{
    struct buf signatures = {0};
    int answer;

    add_signatures(&signatures);
    answer = session_query(a, sql_query("schema_trust"), 2,
                           (const char *const[]){mine ? "true" : "false", buf_text(&signatures)}, ret, f);
    buf_deinit(&signatures);
    return answer;
}

bool trust_refuses(const PGresult *r, int row, bool after)
{
    const char *kind = field_text(r, row, TRUST_KIND);

    return strcmp(kind, "warning") != 0 && (after || strcmp(kind, "trigger") != 0);
}
