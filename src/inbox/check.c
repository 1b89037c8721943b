/* The database part of `check --connect`. Reads only. */

#include "inbox/connect.h"
#include "inbox/engine.h"
#include "inbox/registration.h"
#include "inbox/session.h"
#include "inbox/sql.h"
#include "inbox/trust.h"

#include "onceward/base/buf.h"
#include "onceward/core/identity.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { OLDEST_SERVER = 140000 };

struct check {
    struct admin *a;
    void (*tell)(void *ctx, enum finding kind, const char *text);
    void *ctx;
};

static void note(const struct check *k, enum finding kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void note(const struct check *k, enum finding kind, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    k->tell(k->ctx, kind, text);
}

#define say(k, ok, ...) note(k, (ok) ? FINDING_OK : FINDING_FAILED, __VA_ARGS__)

static int check_server(const struct check *k, struct fault *f)
{
    int version = PQserverVersion(k->a->conn);
    const char *user = PQuser(k->a->conn);
    PGresult *r;

    say(k, version >= OLDEST_SERVER, "connected as %s, PostgreSQL %d.%d%s%s", user, version / 10000,
        version % 10000, k->a->pinned ? "" : ", through a pooler",
        version >= OLDEST_SERVER ? "" : ": 14 is the oldest that is supported");
    if (session_once(k->a,
                     "SELECT current_setting('server_encoding'), pg_is_in_recovery(),"
                     " current_setting('transaction_read_only')",
                     0, NULL, &r, f))
        return -1;
    if (strcmp(field_text(r, 0, 0), "UTF8") != 0)
        say(k, false, "the database's encoding is %s; it must be UTF8", field_text(r, 0, 0));
    const char *why = field_text(r, 0, 1)[0] == 't'            ? "the server is a standby"
                      : strcmp(field_text(r, 0, 2), "on") == 0 ? "default_transaction_read_only is on"
                                                               : NULL;
    if (why)
        say(k, false, "read-only: %s, so the sidecar cannot run with it; status, dead list and dead show can",
            why);
    PQclear(r);
    return 0;
}

/* 1: the server is not PostgreSQL, so its other answers mean nothing. */
static int check_engine(const struct check *k, struct fault *f)
{
    int answer = engine_refuses(k->a, f);

    if (answer > 0)
        say(k, false, "%s", f->text);
    return answer;
}

static int check_isolation(const struct check *k, struct fault *f)
{
    int answer = connection_check_isolation(k->a->conn, k->a->statement_timeout_ms, f);

    PQsetnonblocking(k->a->conn, 0);
    if (answer < 0)
        return -1;
    say(k, answer == 0, "%s", answer ? f->text : "transactions are READ COMMITTED");
    return 0;
}

/* 1: the schema has more than one owner. Runs before any of its functions is called. */
static int check_trust(const struct check *k, struct fault *f)
{
    bool refused = false;
    PGresult *r;

    if (session_begin(k->a, k->a->statement_timeout_ms, 0, f) || trust_ask(k->a, false, &r, f)) {
        session_rollback(k->a);
        return -1;
    }
    for (int i = 0; i < PQntuples(r); i++) {
        bool refuses = trust_refuses(r, i, true);

        note(k, refuses ? FINDING_FAILED : FINDING_WARNING, "%s: %s", field_text(r, i, TRUST_WHAT),
             field_text(r, i, TRUST_REMEDY));
        refused |= refuses;
    }
    PQclear(r);
    return session_commit(k->a, f) ? -1 : refused;
}

/* Reports the owner of the schema, if it has only one. */
static int check_owner(const struct check *k, struct fault *f)
{
    PGresult *r;

    if (session_once(k->a, "SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'onceward'", 0, NULL,
                     &r, f))
        return -1;
    if (PQntuples(r))
        say(k, true, "schema onceward and all in it belong to %s, and no other role may add to it",
            field_text(r, 0, 0));
    PQclear(r);
    return 0;
}

/* 1: without the schema nothing else can be checked. */
static int check_schema(const struct check *k, struct fault *f)
{
    int answer = connection_check_schema(k->a->conn, k->a->statement_timeout_ms, f);

    PQsetnonblocking(k->a->conn, 0);
    if (answer < 0)
        return -1;
    if (answer)
        say(k, false, "%s", f->text);
    else
        say(k, true, "schema onceward fits this program (version %d)", sql_newest());
    return answer;
}

/* Checks the rights that `run` and the commands need, by the schema's own list of functions. */
static int check_privileges(const struct check *k, struct fault *f)
{
    const char *sql = sql_query("check_privileges");
    const char *user = PQuser(k->a->conn), *missing;
    PGresult *r;

    if (session_once(k->a, sql, 0, NULL, &r, f))
        return -1;
    missing = field_text(r, 0, 0);
    if (missing)
        say(k, false, "role %s lacks %s: GRANT onceward_sidecar TO %s", user, missing, user);
    else
        say(k, true, "role %s may do all that the sidecar does", user);
    PQclear(r);
    return 0;
}

/* Does the file hold a function of another name, with other arguments? */
static bool is_overload(const char *name)
{
    return strcmp(name, "complete_result") == 0 || strcmp(name, "publish_bytes") == 0;
}

/* Checks that every function of the schema exists: a half-restored dump lacks some. */
static int check_functions(const struct check *k, struct fault *f)
{
    for (size_t i = 0; i < n_sql_files; i++) {
        char name[80];
        const char *const params[] = {name};
        PGresult *r;

        if (sscanf(sql_files[i].name, "functions/%79[a-z_].sql", name) != 1 || is_overload(name))
            continue;
        if (session_once(k->a,
                         "SELECT FROM pg_proc WHERE pronamespace = 'onceward'::regnamespace AND proname = $1",
                         1, params, &r, f))
            return -1;
        if (PQntuples(r) == 0)
            say(k, false, "the function onceward.%s is missing: run `onceward migrate`", name);
        PQclear(r);
    }
    return 0;
}

enum { C_VHOST, C_QUEUE, C_FORMER, C_SAME_FORM, C_CONFIRMED, C_ORDER_KEY, C_RUNS };

/* Warns that the queue belongs to another consumer, whose completed messages would be processed again. */
static void say_former(const struct check *k, const struct config_queue *q, const char *vhost,
                       const char *former)
{
    struct fault f = {0};

    registration_refuse_taken(&(struct registration){.consumer = q->consumer,
                                                     .queue = q->pattern ? q->pattern : q->queue,
                                                     .vhost = vhost,
                                                     .former = former},
                              &f);
    say(k, false, "queues.%s: %s", q->name, f.text);
}

/* Warns that takes_over confirms another order.key than the recorded one: the new replica waits for running ones. */
static void say_running(const struct check *k, const struct config_queue *q)
{
    note(k, FINDING_WARNING,
         "queues.%s: takes_over confirms another order.key, and a replica still runs with the recorded "
         "one: this "
         "one is refused until all of those have drained, or have been silent for 15 seconds",
         q->name);
}

static void say_registration(const struct check *k, const struct config_queue *q, const char *vhost,
                             const PGresult *r)
{
    const char *other_vhost = field_text(r, 0, C_VHOST), *other_queue = field_text(r, 0, C_QUEUE);
    const char *queue = q->pattern ? q->pattern : q->queue;
    bool is_same = other_queue && (!vhost || strcmp(other_vhost, vhost) == 0),
         is_own = is_same && strcmp(other_queue, queue) == 0;
    char *order_key = identity_sources_text(q->order.key.items, q->order.key.n);
    bool is_other_order = (is_own || (is_same && field_text(r, 0, C_SAME_FORM)[0] == 't')) &&
                          strcmp(order_key, field_text(r, 0, C_ORDER_KEY)) != 0;
    struct fault f = {0};

    if (is_other_order && field_text(r, 0, C_CONFIRMED)[0] == 't' && field_text(r, 0, C_RUNS)[0] == 't')
        say_running(k, q);
    if (is_other_order && field_text(r, 0, C_CONFIRMED)[0] != 't') {
        registration_refuse_mode(
            &(struct registration){.consumer = q->consumer, .queue = queue, .other_queue = other_queue},
            order_key, field_text(r, 0, C_ORDER_KEY), false, &f);
        say(k, false, "queues.%s: %s", q->name, f.text);
    } else if (is_own) {
        say(k, true, "consumer %s belongs to queue %s", q->consumer, queue);
    } else if (is_same && field_text(r, 0, C_SAME_FORM)[0] == 't' && q->order.key.n &&
               !(q->takes_over && field_text(r, 0, C_CONFIRMED)[0] == 't')) {
        registration_refuse_order(
            &(struct registration){.consumer = q->consumer, .queue = queue, .other_queue = other_queue}, &f);
        say(k, false, "queues.%s: %s", q->name, f.text);
    } else if (is_same && field_text(r, 0, C_SAME_FORM)[0] == 't') {
        say(k, true,
            "consumer %s reads %s: %s extends it; partitions outside of it are read until they are empty",
            q->consumer, other_queue, queue);
    } else if (other_queue && (!q->takes_over || strcmp(other_queue, q->takes_over) != 0)) {
        registration_refuse(&(struct registration){.consumer = q->consumer,
                                                   .queue = queue,
                                                   .vhost = vhost,
                                                   .other_queue = other_queue,
                                                   .other_vhost = other_vhost},
                            &f);
        say(k, false, "queues.%s: %s", q->name, f.text);
    } else if (field_text(r, 0, C_FORMER)) {
        say_former(k, q, vhost, field_text(r, 0, C_FORMER));
    } else if (other_queue) {
        say(k, true, "consumer %s is taken over from queue %s in vhost %s at the next run", q->consumer,
            other_queue, other_vhost);
    } else {
        say(k, true, "consumer %s is new: the first run records it", q->consumer);
    }
    free(order_key);
}

/* Does the queue use the former consumer name that takes_over names, as it has no record of its own? */
static bool uses_former(const struct config_queue *q, const PGresult *r)
{
    const char *former = field_text(r, 0, C_FORMER);

    return !field_text(r, 0, C_QUEUE) && former && q->takes_over && strcmp(former, q->takes_over) == 0;
}

/* Checks the registration without the broker's name, which only a running sidecar knows. */
static int check_consumer(const struct check *k, const struct config_queue *q, const char *vhost,
                          struct fault *f)
{
    const char *sql = sql_query("check_consumer");
    const char *const params[] = {q->consumer, vhost, q->pattern ? q->pattern : q->queue, q->takes_over};
    PGresult *r;

    if (session_once(k->a, sql, 4, params, &r, f))
        return -1;
    bool is_former = uses_former(q, r);

    if (!is_former)
        say_registration(k, q, vhost, r);
    PQclear(r);
    if (!is_former)
        return 0;
    struct config_queue renamed = *q;

    renamed.consumer = q->takes_over; /* `run` compares the record of this name, too */
    say(k, true, "queue %s continues under the consumer name %s, which takes_over names",
        q->pattern ? q->pattern : q->queue, q->takes_over);
    return check_consumer(k, &renamed, vhost, f);
}

/* Compares the virtual host with the one of the outbox's first use. The broker's name is only known to a running
 * sidecar. vhost: NULL if it could not be read. */
static void say_outbox(const struct check *k, const PGresult *r, const char *vhost)
{
    const char *broker = field_text(r, 0, 2), *recorded = field_text(r, 0, 3);

    if (vhost && recorded && strcmp(vhost, recorded) != 0)
        say(k, false,
            "the outbox belongs to virtual host %s of the broker %s, and this sidecar would send to %s: "
            "SELECT onceward.outbox_forget_broker() lets it move",
            recorded, broker, vhost);
}

/* Reports messages of the outbox without a relay. Another sidecar may relay, so its absence alone is no finding. */
static int check_relay(const struct check *k, bool has_outbox, const char *vhost, struct fault *f)
{
    PGresult *r;

    if (session_once(k->a,
                     "SELECT waiting, holder IS NULL, broker, vhost FROM onceward.sidecar_outbox_gauge()", 0,
                     NULL, &r, f))
        return -1;
    if (has_outbox)
        say_outbox(k, r, vhost);
    else if (field_int(r, 0, 0) > 0 && field_text(r, 0, 1)[0] == 't')
        note(k, FINDING_WARNING,
             "%" PRId64 " published messages wait in the outbox, and no sidecar relays them: add "
             "\"outbox\": {} to the configuration of one",
             field_int(r, 0, 0));
    PQclear(r);
    return 0;
}

int admin_check(struct admin *a, const struct config *c, const char *const *vhosts,
                void (*tell)(void *ctx, enum finding kind, const char *text), void *ctx, struct fault *f)
{
    const struct check k = {a, tell, ctx};
    int schema, engine = check_engine(&k, f);

    if (engine)
        return engine < 0 ? -1 : 0;
    if (check_server(&k, f) || check_isolation(&k, f))
        return -1;
    schema = check_trust(&k, f);
    if (!schema)
        schema = check_schema(&k, f);
    if (schema)
        return schema < 0 ? -1 : 0;
    if (check_owner(&k, f))
        return -1;
    if (check_functions(&k, f) || check_privileges(&k, f))
        return -1;
    for (size_t i = 0; i < c->n_queues; i++) {
        if (c->queues[i].partition)
            continue;
        int answer = check_consumer(&k, &c->queues[i], vhosts[i], f);

        if (answer && strcmp(f->code, "42501") == 0)
            return 0; /* reported above */
        if (answer)
            return -1;
    }
    return check_relay(&k, c->outbox.is_there, vhosts[c->n_queues], f) && strcmp(f->code, "42501") != 0 ? -1
                                                                                                        : 0;
}
