/* Opens connections, and runs the few statements before a connection is handed to the pipeline.
 *
 * Runs in a helper thread or in a command, and owns nothing. Only libpq's blocking connect continues with the next host
 * when one does not answer within connect_timeout. */
#include "connect.h"

#include "inbox/sql.h"

#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/inbox/admin.h"
#include "onceward/inbox/inbox.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 28, TCP_TIMEOUT_MS = 20000 };

struct options {
    const char *keys[MAX_OPTIONS + 1], *values[MAX_OPTIONS + 1];
    int n;
};

static void option_add(struct options *o, const char *key, const char *value)
{
    o->keys[o->n] = key;
    o->values[o->n++] = value;
    o->keys[o->n] = o->values[o->n] = NULL;
}

/* Finds the option name that libpq reports as unknown. Empty: libpq reports something else, or the quoted text may be
 * part of a password that was not encoded. */
static struct slice unknown_name(const char *url, const char *words)
{
    static const char *const starts[] = {"invalid URI query parameter: \"", "invalid connection option \""};
    const char *query = strstr(url, "://") ? strchr(url, '?') : NULL;

    if (strcasestr(url, "pass") || (query && strchr(query, '@')))
        return (struct slice){0};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        const char *name = words + strlen(starts[i]);

        if (strncmp(words, starts[i], strlen(starts[i])) != 0)
            continue;
        size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
        return len <= 40 && name[len] == '"' ? (struct slice){name, len} : (struct slice){0};
    }
    return (struct slice){0};
}

/* Is each port of the list empty or a number? libpq and the log would quote any other text. */
static bool is_port_list(const char *list)
{
    for (size_t len; list; list = list[len] ? list + len + 1 : NULL) {
        len = strcspn(list, ",");
        if (strspn(list, "0123456789") < len || len > 5)
            return false;
    }
    return true;
}

/* Does the host or database contain the rest of a password that was not encoded? Messages quote both. */
static bool has_at_in_path(const char *url)
{
    const char *authority = strstr(url, "://"), *path = authority ? strchr(authority + 3, '/') : NULL;

    return path && memchr(path, '@', strcspn(path, "?"));
}

/* Parses the URL. 0: *ret is the caller's. libpq's own message is not repeated, because it may quote the password. */
static int url_parse(const char *url, PQconninfoOption **ret, struct fault *f)
{
    char *words = NULL;
    PQconninfoOption *parsed = PQconninfoParse(url, &words);
    bool host_is_bad = false, port_is_bad = false;

    if (!parsed) {
        struct slice name = words ? unknown_name(url, words) : (struct slice){0};

        if (name.len)
            fault_set(f, "libpq does not know the parameter \"%.*s\"", (int)name.len, name.data);
        else
            fault_set(
                f, "not a PostgreSQL URI or connection string that libpq reads, or it has a parameter that "
                   "libpq does not know");
        PQfreemem(words);
        return -1;
    }
    /* libpq takes the rest of a password with a raw '@' for a host, and quotes it in the error. */
    for (const PQconninfoOption *o = parsed; o->keyword; o++)
        if (strcmp(o->keyword, "host") == 0 && o->val && *o->val != '/' && strchr(o->val, '@'))
            host_is_bad = true;
        else if (strcmp(o->keyword, "port") == 0 && o->val)
            port_is_bad = !is_port_list(o->val);
    if (!host_is_bad && !port_is_bad && !has_at_in_path(url)) {
        *ret = parsed;
        return 0;
    }
    PQconninfoFree(parsed);
    if (host_is_bad)
        return fault_set(f, "more than one @: in a user name or password it is written %%40");
    return fault_set(f, "%s: in a user name or password / is written %%2F, ? %%3F, # %%23 and @ %%40",
                     port_is_bad ? "the port is no number" : "an @ behind a /");
}

static const char *setting(const PQconninfoOption *parsed, const char *keyword)
{
    for (const PQconninfoOption *o = parsed; o->keyword; o++)
        if (strcmp(o->keyword, keyword) == 0)
            return o->val && *o->val ? o->val : NULL;
    return NULL;
}

/* Is one of these comma-separated hosts neither a socket nor this machine? An empty one means the socket. */
static bool is_remote(const char *hosts)
{
    char host[256];

    for (; hosts; hosts = strchr(hosts, ',') ? strchr(hosts, ',') + 1 : NULL) {
        size_t len = strcspn(hosts, ",");

        if (!len || *hosts == '/' || *hosts == '@')
            continue;
        snprintf(host, sizeof(host), "%.*s", len < sizeof(host) ? (int)len : 0, hosts);
        if (!config_host_is_local(host))
            return true;
    }
    return false;
}

/* 1: the URL leads to another machine without a setting of sslmode. */
int admin_check_url(const char *url, struct fault *f)
{
    PQconninfoOption *parsed;
    int answer;

    if (url_parse(url, &parsed, f))
        return -1;
    answer = !setting(parsed, "sslmode") && !setting(parsed, "service") && !getenv("PGSSLMODE") &&
             (is_remote(setting(parsed, "host")) || is_remote(setting(parsed, "hostaddr")));
    PQconninfoFree(parsed);
    return answer;
}

/* Joins the URL's server settings and ours, of which the last one counts. -1: not a connection string. */
static int settings_make(const struct config_database *c, const char *url, struct buf *ret, struct fault *f)
{
    PQconninfoOption *parsed;

    if (url_parse(url, &parsed, f))
        return fault_wrap(f, "database.url");
    for (const PQconninfoOption *o = parsed; o->keyword; o++)
        if (strcmp(o->keyword, "options") == 0 && o->val)
            buf_printf(ret, "%s ", o->val);
    PQconninfoFree(parsed);
    /* Without row_security a policy that hides rows is an error. A hidden row would be processed again. */
    buf_printf(ret,
               "-c default_transaction_isolation=read\\ committed -c jit=off -c row_security=off "
               "-c statement_timeout=%" PRId64,
               c->statement_timeout_ms);
    return 0;
}

/* Discards notices, which libpq would print otherwise. */
static void notice_ignore(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

/* The remaining elements of a URL's lists. Not owned. */
struct hosts {
    char *host, *hostaddr, *port;
};

/* The settings of a connection attempt. Not owned. */
struct login {
    const struct config_database *config;
    const char *url, *password;
    enum connection_use use;
};

/* hosts: used in place of the URL's; NULL: the URL's. */
static PGconn *conn_try(const struct login *l, const char *settings, const struct hosts *hosts)
{
    struct options o = {.n = 0};
    struct buf timeout = {0}, tcp_timeout = {0};

    buf_printf(&timeout, "%" PRId64, (l->config->connect_timeout_ms + 999) / 1000);
    buf_printf(&tcp_timeout, "%d", TCP_TIMEOUT_MS);
    /* libpq takes options before the URL as defaults; options behind it override the URL. */
    option_add(&o, "connect_timeout", buf_text(&timeout));
    option_add(&o, "application_name", "onceward");
    option_add(&o, "target_session_attrs", "read-write");
    option_add(&o, "gssencmode", "disable"); /* saves a round trip */
    option_add(&o, "keepalives", "1");
    option_add(&o, "keepalives_idle", "10");
    option_add(&o, "keepalives_interval", "5");
    option_add(&o, "keepalives_count", "3");
    option_add(&o, "tcp_user_timeout", buf_text(&tcp_timeout));
    option_add(&o, "dbname", l->url);
    if (hosts) {
        option_add(&o, "host", hosts->host);
        option_add(&o, "hostaddr", hosts->hostaddr);
        option_add(&o, "port", hosts->port);
    }
    if (l->use == CONNECTION_READS)
        option_add(&o, "target_session_attrs", "any");
    if (l->password)
        option_add(&o, "password", l->password);
    option_add(&o, "client_encoding", "UTF8");
    option_add(&o, "options", settings ? settings : "");
    PGconn *conn = PQconnectdbParams(o.keys, o.values, 1);
    buf_deinit(&timeout);
    buf_deinit(&tcp_timeout);
    if (conn)
        PQsetNoticeReceiver(conn, notice_ignore, NULL);
    return conn;
}

/* Does the list begin with this element? A missing list matches every element. */
static bool list_begins(const char *list, const char *element)
{
    size_t len = list ? strcspn(list, ",") : 0;

    return len == strlen(element) && strncmp(list, element, len) == 0;
}

/* Removes the first element. False: it is the only one. */
static bool list_shift(char **list)
{
    char *comma = *list ? strchr(*list, ',') : NULL;

    if (comma)
        *list = comma + 1;
    return comma;
}

/* Drops the hosts up to the failed one. False: it was the last. */
static bool hosts_shift(struct hosts *h, const PGconn *failed)
{
    bool found = false;

    while (!found) {
        bool here = list_begins(h->host, PQhost(failed)) || list_begins(h->hostaddr, PQhost(failed));

        found = here && (list_begins(h->port, PQport(failed)) || !h->port);
        bool more = list_shift(&h->host);
        more |= list_shift(&h->hostaddr);
        list_shift(&h->port);
        if (!more)
            return false;
    }
    return true;
}

/* Did the server itself answer? Its messages have the form "SEVERITY:  text", in its own language. */
static bool is_said_by_server(const PGconn *conn)
{
    return strstr(PQerrorMessage(conn), ":  ") != NULL;
}

static bool is_sqlstate(const char *text)
{
    return strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && text[5] == ':';
}

/* Shortens a verbose message: "FATAL:  28P01: text" and a line that ends in ".c:338" become "FATAL:  text". */
static void add_refusal(struct buf *said, const char *text, char code[8])
{
    for (const char *line = text, *end; *line; line = end) {
        size_t len = strcspn(line, "\n");
        const char *at = memmem(line, len, ":  ", 3), *place = memmem(line, len, ".c:", 3);

        end = line + len + (line[len] == '\n');
        if (place && strspn(place + 3, "0123456789") == (size_t)(line + len - place - 3))
            continue;
        if (at && is_sqlstate(at + 3)) {
            memcpy(code, at + 3, 5);
            code[5] = '\0';
            buf_add_slice(said, (struct slice){line, (size_t)(at + 3 - line)});
            line = at + 3 + 7;
        }
        buf_add_slice(said, (struct slice){line, (size_t)(end - line)});
    }
}

static bool is_refused_by_pooler(const PGconn *conn)
{
    return strstr(PQerrorMessage(conn), "unsupported startup parameter");
}

/* Opens a connection, and adds failures to `said`. libpq continues with the next host when one cannot be reached, but
 * not when one closes the connection during the login, as a mesh or balancer does when its server is down; this
 * function does so. libpq reports the SQLSTATE of a refused login only in verbose messages, and those only from a
 * second try on the same object. */
static PGconn *conn_open(const struct login *l, const char *settings, struct buf *said, char code[8])
{
    PGconn *conn = conn_try(l, settings, NULL);
    PQconninfoOption *used = conn && PQstatus(conn) != CONNECTION_OK ? PQconninfo(conn) : NULL;
    struct hosts hosts = {0};

    for (const PQconninfoOption *o = used; o && o->keyword; o++) {
        if (strcmp(o->keyword, "host") == 0)
            hosts.host = o->val;
        else if (strcmp(o->keyword, "hostaddr") == 0)
            hosts.hostaddr = o->val;
        else if (strcmp(o->keyword, "port") == 0)
            hosts.port = o->val;
    }
    while (conn && PQstatus(conn) != CONNECTION_OK) {
        if (is_said_by_server(conn) && !is_refused_by_pooler(conn)) {
            PQsetErrorVerbosity(conn, PQERRORS_VERBOSE);
            PQreset(conn);
            PQsetErrorVerbosity(conn, PQERRORS_DEFAULT);
            if (PQstatus(conn) == CONNECTION_OK)
                break;
        }
        add_refusal(said, PQerrorMessage(conn), code);
        if (!used || is_refused_by_pooler(conn) || !hosts_shift(&hosts, conn))
            break;
        PQfinish(conn);
        conn = conn_try(l, settings, &hosts);
    }
    PQconninfoFree(used);
    return conn;
}

static int open_as(const struct login *l, struct connection *ret, struct fault *f)
{
    struct buf settings = {0}, said = {0};
    char code[sizeof(f->code)] = "";
    int result = settings_make(l->config, l->url, &settings, f);

    if (result == 0) {
        PGconn *conn = conn_open(l, buf_text(&settings), &said, code);
        bool pinned = true;

        /* PgBouncer refuses settings, so the connection is tried again without them. */
        if (conn && PQstatus(conn) != CONNECTION_OK && is_refused_by_pooler(conn)) {
            PQfinish(conn);
            buf_reset(&said);
            conn = conn_open(l, NULL, &said, code);
            pinned = false;
        }
        if (conn && PQstatus(conn) == CONNECTION_OK) {
            *ret = (struct connection){conn, pinned};
        } else {
            result =
                fault_set(f, "cannot connect to the database: %s", conn ? buf_text(&said) : "out of memory");
            memcpy(f->code, code, sizeof(code));
            PQfinish(conn);
        }
    }
    buf_deinit(&settings);
    buf_deinit(&said);
    return result;
}

/* Looks for a writable host if the first one that answered is read-only and the URL has more, and keeps the first if
 * there is none. libpq 15 has "prefer-standby", but no option that prefers a primary. */
static void prefer_writable(const struct login *l, struct connection *c)
{
    PQconninfoOption *used = PQconninfo(c->conn);
    struct login writes = *l;
    struct connection other;
    bool several = false;
    struct fault f = {0};

    for (const PQconninfoOption *o = used; o && o->keyword; o++)
        if ((strcmp(o->keyword, "host") == 0 || strcmp(o->keyword, "hostaddr") == 0) && o->val)
            several |= strchr(o->val, ',') != NULL;
    PQconninfoFree(used);
    writes.use = CONNECTION_WRITES;
    if (several && connection_is_read_only(c->conn, l->config->statement_timeout_ms, &f) == 1 &&
        open_as(&writes, &other, &f) == 0) {
        PQfinish(c->conn);
        *c = other;
    }
}

int connection_open(const struct config_database *c, enum connection_use use, struct connection *ret,
                    struct fault *f)
{
    char *url = NULL, *password = NULL;
    int result = config_text_read(&c->url, &url, f);

    if (result == 0)
        result = config_text_read(&c->password, &password, f);
    if (result == 0 && !url)
        result = fault_set(f, "database.url is not set");
    if (result == 0) {
        struct login login = {c, url, password, use};

        result = open_as(&login, ret, f);
        if (result == 0 && use == CONNECTION_READS)
            prefer_writable(&login, ret);
    }
    mem_free_secret(url);
    mem_free_secret(password);
    return result;
}

/* Waits until a result can be read without blocking. */
static int result_wait(PGconn *conn, int64_t deadline_ms, struct fault *f)
{
    for (;;) {
        int unsent = PQflush(conn);

        if (unsent < 0)
            return fault_set(f, "%s", PQerrorMessage(conn));
        if (!PQisBusy(conn))
            return 0;
        struct pollfd fd = {PQsocket(conn), (short)(POLLIN | (unsent ? POLLOUT : 0)), 0};
        int64_t left = deadline_ms - clock_ms();

        if (left <= 0)
            return fault_set(f, "no answer from the database in time");
        poll(&fd, 1, left > 1000 ? 1000 : (int)left);
        if (fd.revents & ~POLLOUT && !PQconsumeInput(conn))
            return fault_set(f, "%s", PQerrorMessage(conn));
    }
}

static int result_check(PGconn *conn, const PGresult *result, struct fault *f)
{
    ExecStatusType status = PQresultStatus(result);

    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK)
        return 0;
    const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

    fault_set(f, "%s", primary ? primary : PQerrorMessage(conn));
    if (code)
        memcpy(f->code, code, strlen(code) < sizeof(f->code) ? strlen(code) + 1 : 0);
    return -1;
}

static int query(PGconn *conn, int64_t timeout_ms, const char *sql, int n_params, const char *const *params,
                 bool binary, PGresult **ret_result, struct fault *f)
{
    int64_t deadline_ms = clock_ms() + timeout_ms;
    PGresult *kept = NULL;

    if (PQsetnonblocking(conn, 1) ||
        !PQsendQueryParams(conn, sql, n_params, NULL, params, NULL, NULL, binary))
        return fault_set(f, "%s", PQerrorMessage(conn));
    for (;;) {
        if (result_wait(conn, deadline_ms, f)) {
            PQclear(kept);
            return -1;
        }
        PGresult *result = PQgetResult(conn);

        if (!result)
            break;
        PQclear(kept);
        kept = result;
    }
    if (!kept)
        return fault_set(f, "the database gave no answer: %s", PQerrorMessage(conn));
    if (result_check(conn, kept, f)) {
        PQclear(kept);
        return -1;
    }
    *ret_result = kept;
    return 0;
}

int connection_query(PGconn *conn, int64_t timeout_ms, const char *sql, int n_params,
                     const char *const *params, PGresult **ret_result, struct fault *f)
{
    return query(conn, timeout_ms, sql, n_params, params, false, ret_result, f);
}

int connection_query_binary(PGconn *conn, int64_t timeout_ms, const char *sql, int n_params,
                            const char *const *params, PGresult **ret_result, struct fault *f)
{
    return query(conn, timeout_ms, sql, n_params, params, true, ret_result, f);
}

int connection_is_read_only(PGconn *conn, int64_t timeout_ms, struct fault *f)
{
    PGresult *result;

    if (connection_query(conn, timeout_ms, "SHOW transaction_read_only", 0, NULL, &result, f))
        return fault_wrap(f, "asking whether the session is read-only");
    bool is = strcmp(PQgetvalue(result, 0, 0), "on") == 0;

    PQclear(result);
    return is;
}

int connection_check_isolation(PGconn *conn, int64_t timeout_ms, struct fault *f)
{
    PGresult *result;

    if (connection_query(conn, timeout_ms, "SHOW transaction_isolation", 0, NULL, &result, f))
        return fault_wrap(f, "reading the transaction isolation");
    const char *isolation = PQgetvalue(result, 0, 0);
    bool good = strcmp(isolation, "read committed") == 0;

    if (!good)
        fault_set(f,
                  "transactions of this role are \"%s\" by default, and the pooler does not allow a change: "
                  "ALTER ROLE %s SET default_transaction_isolation = 'read committed'",
                  isolation, PQuser(conn));
    PQclear(result);
    return good ? 0 : 1;
}

/* Maps the fault of a failed check: no schema, no permission, or another reason. */
static int schema_fault(PGconn *conn, struct fault *f, const char *reading)
{
    char code[sizeof(f->code)];
    int result = 1;

    memcpy(code, f->code, sizeof(code));
    if (strcmp(code, "3F000") == 0 || strcmp(code, "42883") == 0 || strcmp(code, "42P01") == 0) {
        result = CONNECTION_UNMIGRATED;
        fault_set(
            f, "database \"%s\" has no schema \"onceward\" that this program can use: run `onceward migrate`",
            PQdb(conn));
    } else if (strcmp(code, "42501") == 0)
        fault_set(f, "role \"%s\" may not use the schema \"onceward\": GRANT onceward_sidecar TO %s",
                  PQuser(conn), PQuser(conn));
    else
        return fault_wrap(f, "%s", reading);
    memcpy(f->code, code, sizeof(code));
    return result;
}

/* Detects a table of another shape under the same version, which was changed by hand or half restored: claims would
 * fail, or break promises. Additional columns are harmless if they have a default or allow NULL. */
static int check_columns(PGconn *conn, int64_t timeout_ms, struct fault *f)
{
    const char *sql = sql_query("check_columns");
    PGresult *result;

    if (connection_query(conn, timeout_ms, sql, 0, NULL, &result, f))
        return schema_fault(conn, f, "reading the schema's columns");
    bool fits = PQgetisnull(result, 0, 0);

    if (!fits)
        fault_set(f,
                  "the tables of schema \"onceward\" were changed by hand, or by a program that was never "
                  "released: "
                  "%.400s",
                  PQgetvalue(result, 0, 0));
    PQclear(result);
    return fits ? 0 : 1;
}

int connection_check_schema(PGconn *conn, int64_t timeout_ms, struct fault *f)
{
    PGresult *result;

    if (connection_query(conn, timeout_ms, "SELECT version, oldest_compatible FROM onceward.sidecar_schema()",
                         0, NULL, &result, f))
        return schema_fault(conn, f, "reading the schema's version");
    bool there = PQntuples(result) == 1 && !PQgetisnull(result, 0, 0) && !PQgetisnull(result, 0, 1);
    long version = there ? strtol(PQgetvalue(result, 0, 0), NULL, 10) : 0;
    long oldest = there ? strtol(PQgetvalue(result, 0, 1), NULL, 10) : 0;

    PQclear(result);
    if (version < sql_newest()) {
        fault_set(f, "the schema has version %ld, this program needs %d: run `onceward migrate`", version,
                  sql_newest());
        return CONNECTION_UNMIGRATED;
    }
    if (oldest > sql_newest()) {
        fault_set(f,
                  "the schema has version %ld and serves programs from version %ld on, this one has %d: "
                  "update onceward",
                  version, oldest, sql_newest());
        return 1;
    }
    /* The functions of a newer schema know the columns of their tables. */
    return version == sql_newest() ? check_columns(conn, timeout_ms, f) : 0;
}
