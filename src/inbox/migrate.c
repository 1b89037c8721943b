/* Brings the schema up to date: see the top of sql/0001_schema.sql for the order.
 *
 * Everything runs in one transaction that begins with an advisory lock, so that several programs may migrate at once,
 * and a failure leaves nothing behind. The advisory lock covers one database, but roles belong to the whole server: a
 * conflict there, or with other DDL, is retried. The wait for a busy table's lock is short, because all other
 * sessions queue up behind the waiting one. */

#include "inbox/engine.h"
#include "inbox/session.h"
#include "inbox/sql.h"
#include "inbox/trust.h"

#include "onceward/base/failpoint.h"
#include "onceward/base/fault.h"
#include "onceward/inbox/inbox.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

/* "onceward" in ASCII: the key of the lock. */
#define LOCK_KEY "8029464473093894756"

enum { TRIES = 30, PAUSE_MS = 300, ADVISORY_WAIT_MS = 60000, TABLE_WAIT_MS = 2000 };

static int lock_schema(struct admin *a, struct fault *f)
{
    if (session_query(a, "SELECT pg_advisory_xact_lock(" LOCK_KEY ")", 0, NULL, NULL, f) == 0) {
        char wait[12];

        snprintf(wait, sizeof wait, "%d", TABLE_WAIT_MS);
        return session_query(a, "SELECT set_config('lock_timeout', $1, true)", 1, (const char *const[]){wait},
                             NULL, f);
    }
    if (strcmp(f->code, "55P03") == 0) {
        fault_set(f, "another migration of this database has been running for %d s: see pg_stat_activity",
                  ADVISORY_WAIT_MS / 1000);
        f->code[0] = '\0';
    }
    return -1;
}

/* Refuses a schema that belongs to another role: nothing of it may be run, or even read by a name that could be a
 * view. after: everything was created. */
static int refuse_strangers(struct admin *a, bool after, struct fault *f)
{
    PGresult *r;
    int n = 0, first = -1;

    if (trust_ask(a, true, &r, f))
        return -1;
    for (int i = PQntuples(r); i-- > 0;) {
        if (trust_refuses(r, i, after)) {
            first = i;
            n++;
        }
    }
    if (n) {
        fault_set(f, "%s: %s", field_text(r, first, TRUST_WHAT), field_text(r, first, TRUST_REMEDY));
        if (n > 1)
            fault_wrap(f, "%d faults, the first", n);
        f->code[0] = '\0';
    }
    PQclear(r);
    return n ? -1 : 0;
}

/* Creates the schema without the rights that default privileges may have granted to other roles. */
static const char make_schema[] =
    "CREATE SCHEMA onceward;\n"
    "DO $$ DECLARE who text; BEGIN\n"
    "FOR who IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END\n"
    "  FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) a\n"
    "  WHERE n.nspname = 'onceward' AND a.grantee <> n.nspowner\n"
    "LOOP EXECUTE 'REVOKE ALL ON SCHEMA onceward FROM ' || who; END LOOP; END $$";

/* Creates the schema here, so that no other role can create it between the check and the first file. */
static int own_schema(struct admin *a, struct fault *f)
{
    PGresult *r;

    if (session_query(a, "SELECT FROM pg_namespace WHERE nspname = 'onceward'", 0, NULL, &r, f))
        return -1;
    bool there = PQntuples(r) > 0;

    PQclear(r);
    return there ? refuse_strangers(a, false, f) : session_script(a, make_schema, f);
}

/* Reads the version; 0: no schema yet. */
static int read_version(struct admin *a, int *ret_version, int *ret_oldest, struct fault *f)
{
    PGresult *r;

    *ret_version = *ret_oldest = 0;
    if (session_query(a, "SELECT to_regclass('onceward.schema_version') IS NOT NULL", 0, NULL, &r, f))
        return -1;
    bool there = field_text(r, 0, 0)[0] == 't';

    PQclear(r);
    if (!there)
        return 0;
    if (session_query(
            a, "SELECT version, oldest_compatible FROM onceward.schema_version ORDER BY version DESC LIMIT 1",
            0, NULL, &r, f))
        return -1;
    if (PQntuples(r) == 1) {
        *ret_version = (int)field_int(r, 0, 0);
        *ret_oldest = (int)field_int(r, 0, 1);
    }
    PQclear(r);
    return 0;
}

static int was_run(struct admin *a, int version, bool *ret, struct fault *f)
{
    char number[12];
    PGresult *r;

    snprintf(number, sizeof number, "%d", version);
    if (session_query(a, "SELECT FROM onceward.schema_version WHERE version = $1::integer", 1,
                      (const char *const[]){number}, &r, f))
        return -1;
    *ret = PQntuples(r) > 0;
    PQclear(r);
    return 0;
}

static int run_files(struct admin *a, int from, struct fault *f)
{
    bool has_record = from > 0;

    for (size_t i = 0; i < n_sql_files; i++) { /* sorted by name, hence by number */
        int version = sql_file_version(&sql_files[i]);
        bool done = false;

        if (version == 0)
            continue;
        if (has_record && was_run(a, version, &done, f))
            return -1;
        if (!done && session_script(a, sql_files[i].text, f))
            return fault_wrap(f, "sql/%s", sql_files[i].name);
        has_record = true;
    }
    for (size_t i = 0; i < n_sql_files; i++)
        if (strncmp(sql_files[i].name, "functions/", 10) == 0 && session_script(a, sql_files[i].text, f))
            return fault_wrap(f, "sql/%s", sql_files[i].name);
    return 0;
}

/* 0; 1: the roles are missing and may not be created; -1. */
static int make_roles(struct admin *a, struct fault *f)
{
    const struct sql_file *create = sql_file_find("roles_create.sql"),
                          *grant = sql_file_find("roles_grant.sql");

    assert(create && grant);
    if (session_script(a, "SAVEPOINT roles", f))
        return -1;
    if (session_script(a, create->text, f)) {
        if (strcmp(f->code, "42501") != 0)
            return fault_wrap(f, "sql/%s", create->name);
        return session_script(a, "ROLLBACK TO SAVEPOINT roles", f) ? -1 : 1;
    }
    if (session_script(a, grant->text, f))
        return fault_wrap(f, "sql/%s", grant->name);
    return 0;
}

enum attempt { ATTEMPT_DONE, ATTEMPT_NO_ROLES, ATTEMPT_NEWER, ATTEMPT_FAILED = -1 };

static enum attempt migrate_once(struct admin *a, int *ret_from, int *ret_to, struct fault *f)
{
    int oldest, roles;

    if (session_begin(a, 0, ADVISORY_WAIT_MS, f) || lock_schema(a, f) || own_schema(a, f) ||
        read_version(a, ret_from, &oldest, f))
        return ATTEMPT_FAILED;
    *ret_to = sql_newest();
    if (*ret_from > *ret_to) {
        if (oldest > *ret_to) {
            fault_set(f,
                      "the schema is at version %d, which needs a program that knows version %d; this one "
                      "knows %d: use a newer onceward",
                      *ret_from, oldest, *ret_to);
            f->code[0] = '\0';
            return ATTEMPT_FAILED;
        }
        *ret_to = *ret_from;
        session_rollback(a);
        return ATTEMPT_NEWER;
    }
    if (run_files(a, *ret_from, f))
        return ATTEMPT_FAILED;
    roles = make_roles(a, f);
    if (roles < 0 || refuse_strangers(a, true, f))
        return ATTEMPT_FAILED;
    FAILPOINT(MIGRATE_BEFORE);
    if (session_commit(a, f))
        return ATTEMPT_FAILED;
    FAILPOINT(MIGRATE_COMMITTED);
    return roles ? ATTEMPT_NO_ROLES : ATTEMPT_DONE;
}

/* Is the failure temporary? Conflicts with other sessions' locks and DDL, and with roles created from another
 * database at the same time. */
static bool passes(const struct fault *f)
{
    static const char *const codes[] = {"55P03", "40P01", "40001", "23505", "42710", "42P06"};

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(f->code, codes[i]) == 0)
            return true;
    return strcmp(f->code, "XX000") == 0 && strstr(f->text, "tuple concurrently");
}

/* Writes only SQL and SQL comments, so that an administrator can run it with psql. */
static void advise_roles(const struct admin *a, FILE *advice)
{
    fprintf(advice,
            "-- The roles onceward_sidecar and onceward_app do not exist, and %s may not create roles.\n"
            "-- The schema is ready nevertheless. An administrator may run this in %s:\n\n%s\n%s\n",
            PQuser(a->conn), a->where, sql_file_find("roles_create.sql")->text,
            sql_file_find("roles_grant.sql")->text);
}

/* Names a role without members, which is the most frequent reason for refused applications. */
static void advise_members(struct admin *a, FILE *advice)
{
    struct fault f = {0};
    PGresult *r;

    if (session_once(a, sql_query("migrate_members"), 0, NULL, &r, &f))
        return;
    for (int i = 0; i < PQntuples(r); i++) {
        const char *role = field_text(r, i, 0);

        fprintf(advice,
                "-- No login of %s has the role %s yet: CREATE ROLE name LOGIN PASSWORD '...' IN ROLE %s; "
                "or GRANT %s TO name;\n",
                strcmp(role, "onceward_app") == 0 ? "the application" : "a sidecar", role, role, role);
    }
    PQclear(r);
}

/* Reports settings that work but should be changed. */
static void advise_trust(struct admin *a, FILE *advice)
{
    struct fault f = {0};
    PGresult *r = NULL;

    if (session_begin(a, a->statement_timeout_ms, 0, &f) == 0 && trust_ask(a, true, &r, &f) == 0)
        for (int i = 0; i < PQntuples(r); i++)
            fprintf(advice, "-- Warning: %s: %s\n", field_text(r, i, TRUST_WHAT),
                    field_text(r, i, TRUST_REMEDY));
    PQclear(r);
    session_rollback(a);
}

int admin_schema_newest(void)
{
    return sql_newest();
}

int admin_migrate(struct admin *a, FILE *advice, int *ret_from, int *ret_to, struct fault *f)
{
    enum attempt answer = ATTEMPT_FAILED;
    int from = 0, to = 0;

    if (engine_refuses(a, f))
        return -1;
    for (int i = 0; i < TRIES; i++) {
        answer = migrate_once(a, &from, &to, f);
        if (answer != ATTEMPT_FAILED)
            break;
        session_rollback(a);
        if (PQstatus(a->conn) != CONNECTION_OK || !passes(f))
            break;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL);
    }
    if (answer == ATTEMPT_FAILED) {
        if (strcmp(f->code, "42501") == 0)
            fault_wrap(f, "as %s, who must own the schema or may create it (see --database)",
                       PQuser(a->conn));
        return -1;
    }
    if (answer == ATTEMPT_NEWER)
        fprintf(advice,
                "-- The schema is newer than this program, and compatible with it: nothing was changed.\n");
    else if (answer == ATTEMPT_NO_ROLES)
        advise_roles(a, advice);
    else
        advise_members(a, advice);
    if (answer != ATTEMPT_NEWER)
        advise_trust(a, advice);
    *ret_from = from;
    *ret_to = to;
    return 0;
}
