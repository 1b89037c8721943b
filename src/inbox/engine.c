/* Servers that are not PostgreSQL, refused by name. Some of them would accept the schema: an advisory lock that
 * always succeeds, or a row lock that never blocks, breaks the promises silently. */

#include "inbox/engine.h"

#include "inbox/session.h"

#include <string.h>

static const struct {
    const char *name;
    const char *version; /* a part of version(); NULL: the host or the catalog identifies it */
    const char *host;    /* a part of the host's name; NULL: none */
    const char *why;
} engines[] = {
    {"CockroachDB", "CockroachDB", NULL,
     "its advisory locks always succeed, and it has no pg_current_snapshot, by which the outbox knows what is "
     "committed"},
    {"YugabyteDB", "-YB-", NULL,
     "its advisory locks can be off without an error, and pg_current_snapshot does not tell what is committed "
     "on other nodes"},
    {"Aurora DSQL", NULL, ".dsql.", "it has no PL/pgSQL, no sequences and no row locks"},
};

enum { N_ENGINES = sizeof(engines) / sizeof(*engines) };

/* DSQL reports itself as PostgreSQL. Under a custom host name, its table of jobs identifies it. */
static const char catalog_sql[] =
    "SELECT EXISTS (SELECT 1 FROM pg_language WHERE lanname = 'plpgsql'),"
    " EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = 'sys' AND c.relname = 'jobs')";

static int refuse(const char *name, const char *why, struct fault *f)
{
    fault_set(f, "%s is not supported: %s. Use PostgreSQL", name, why);
    return 1;
}

static int judge_version(const struct admin *a, const char *version, struct fault *f)
{
    const char *host = PQhost(a->conn) ? PQhost(a->conn) : "";

    for (size_t i = 0; i < N_ENGINES; i++)
        if ((engines[i].version && strstr(version, engines[i].version)) ||
            (engines[i].host && strstr(host, engines[i].host)))
            return refuse(engines[i].name, engines[i].why, f);
    return 0;
}

int engine_refuses(struct admin *a, struct fault *f)
{
    PGresult *r;

    if (session_query(a, "SELECT version()", 0, NULL, &r, f))
        return -1;
    int refused = PQntuples(r) ? judge_version(a, field_text(r, 0, 0), f) : 0;

    PQclear(r);
    if (refused)
        return refused;
    if (session_query(a, catalog_sql, 0, NULL, &r, f))
        return -1;
    bool has_language = field_text(r, 0, 0)[0] == 't', has_jobs = field_text(r, 0, 1)[0] == 't';

    PQclear(r);
    if (has_language)
        return 0;
    return has_jobs ? refuse(engines[N_ENGINES - 1].name, engines[N_ENGINES - 1].why, f)
                    : refuse("A server without PL/pgSQL", "the functions of the inbox are written in it", f);
}
