/* The application of the faults: it writes down each POST as it comes ("P <ns> <id>") and again with its
 * answer
 * ("S <ns> <id> <status>"), by one write each, so that a kill -9 loses nothing of it.
 *
 * --mode record: that is all, 204. effect: it inserts a row, in a transaction of its own. token: it completes
 * the token and inserts the row in one transaction. --fail N --fail-status S: N of a thousand, at random, are
 * answered so, without an effect. --delay-ms. --bulk 1: many messages in a
 * request, as Onceward, daprd or Connect (a line each) send them; effect and token are one transaction for all.
 * --stamps-file: as in app.c, written at SIGTERM. A GET answers the messages done and the requests.
 *
 * A thread for each connection; HTTP/1.1 with keep-alive, Content-Length or chunks. The id stands in the body
 * ("mid", see loader.c), since not everybody sends one beside it; or in the data of a CloudEvent.
 */
#include "options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { POOL = 16, ID = 36, STAMPS = 1 << 22 };
enum mode { RECORD, EFFECT, TOKEN };

struct request {
    char *data;
    size_t len, capacity, head_len, whole_len; /* whole_len: of this one; what is behind it is the next */
    char *body;
    size_t body_len;
};

static enum mode mode;
static bool bulk;
static long fail_permille, fail_status, delay_ms;
static int record = -1;
static atomic_ulong n_done, n_posts, n_stamps;
static uint32_t *stamps;
static PGconn *pool[POOL];
static int n_pool;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_freed = PTHREAD_COND_INITIALIZER;

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Requests. */

/* Makes the body of chunks one piece, where it stands. Answers the length on the wire, 0 while it is not
 * whole. */
static size_t chunks_join(char *body, size_t len, size_t *joined)
{
    size_t at = 0;

    *joined = 0;
    for (;;) {
        char *line = memmem(body + at, len - at, "\r\n", 2);
        if (!line)
            return 0;
        size_t size = strtoul(body + at, NULL, 16), start = (size_t)(line - body) + 2;
        if (len < start + size + 2)
            return 0;
        if (!size)
            return start + 2;
        *joined += size;
        at = start + size + 2;
    }
}

static void chunks_move(char *body)
{
    char *to = body, *from = body, *line;

    while ((line = strstr(from, "\r\n"))) {
        size_t size = strtoul(from, NULL, 16);
        if (!size)
            return;
        memmove(to, line + 2, size);
        to += size;
        from = line + 2 + size + 2;
    }
}

/* Whether the request at the start of the data is whole. */
static bool request_whole(struct request *r)
{
    r->data[r->len] = 0;
    char *end = memmem(r->data, r->len, "\r\n\r\n", 4);
    if (!end)
        return false;
    r->head_len = (size_t)(end - r->data) + 4;
    r->body = end + 4;
    *end = 0;
    const char *length = strcasestr(r->data, "\r\nContent-Length:");
    bool chunked = strcasestr(r->data, "\r\nTransfer-Encoding: chunked");
    size_t here = r->len - r->head_len;
    if (chunked) {
        size_t wire = chunks_join(r->body, here, &r->body_len);
        r->whole_len = r->head_len + wire;
        if (wire)
            chunks_move(r->body);
        else
            *end = '\r';
        return wire;
    }
    r->body_len = length ? strtoul(length + 17, NULL, 10) : 0;
    r->whole_len = r->head_len + r->body_len;
    if (here < r->body_len)
        *end = '\r';
    return here >= r->body_len;
}

static bool request_read(struct request *r, int fd)
{
    while (!r->len || !request_whole(r)) {
        if (r->capacity - r->len < 65536) {
            r->capacity = 2 * r->capacity + 131072;
            r->data = realloc(r->data, r->capacity);
            if (!r->data)
                fail("recorder: no memory");
        }
        ssize_t n = recv(fd, r->data + r->len, r->capacity - r->len - 1, 0);
        if (n <= 0)
            return false;
        r->len += (size_t)n;
    }
    return true;
}

/* --- the body --- */

static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *p = c ? strchr(digits, c) : NULL;

    return p ? (int)(p - digits) : -1;
}

/* The start of a text in base64, ended by 0. */
static void base64_start(const char *text, const char *end, char *out, size_t size)
{
    uint32_t bits = 0;
    int n = 0;
    size_t len = 0;

    for (; text < end && len + 1 < size && base64_value(*text) >= 0; text++) {
        bits = bits << 6 | (uint32_t)base64_value(*text);
        n += 6;
        if (n >= 8)
            out[len++] = (char)(bits >> (n -= 8));
    }
    out[len] = 0;
}

static const char *after(const char *text, size_t len, const char *what)
{
    const char *found = memmem(text, len, what, strlen(what));

    return found ? found + strlen(what) : NULL;
}

/* The id, and when it was published. */
static uint64_t body_read(const char *body, size_t len, char *id)
{
    char plain[256];
    const char *data = after(body, len, "\"data_base64\":\"");

    if (data) {
        base64_start(data, body + len, plain, sizeof plain);
        body = plain;
        len = strlen(plain);
    }
    const char *mid = after(body, len, "\"mid\":\""), *t = after(body, len, "\"t\":\"");
    if (!mid) { /* data that is a string */
        mid = after(body, len, "\\\"mid\\\":\\\"");
        t = after(body, len, "\\\"t\\\":\\\"");
    }
    id[0] = 0;
    if (mid && mid + ID <= body + len) {
        memcpy(id, mid, ID); /* snprintf would read all of what follows */
        id[ID] = 0;
    }
    return t ? strtoull(t, NULL, 10) : 0;
}

static void record_line(char what, const char *id, int status)
{
    char line[128];
    unsigned long long now = clock_ns(CLOCK_REALTIME);
    int len = what == 'P' ? snprintf(line, sizeof line, "P %llu %s\n", now, id)
                          : snprintf(line, sizeof line, "S %llu %s %d\n", now, id, status);

    if (record >= 0 && write(record, line, (size_t)len) != len)
        fail("recorder: %s", strerror(errno));
}

/* Databases. */

static bool execute(PGconn *db, const char *sql, const char *value, ExecStatusType good)
{
    PGresult *r = PQexecParams(db, sql, value ? 1 : 0, NULL, &value, NULL, NULL, 0);
    bool is_good = PQresultStatus(r) == good;

    if (!is_good)
        fprintf(stderr, "recorder: %s", PQerrorMessage(db));
    PQclear(r);
    return is_good;
}

static PGconn *database_borrow(void)
{
    pthread_mutex_lock(&pool_lock);
    while (!n_pool)
        pthread_cond_wait(&pool_freed, &pool_lock);
    PGconn *db = pool[--n_pool];
    pthread_mutex_unlock(&pool_lock);
    return db;
}

static void database_return(PGconn *db)
{
    pthread_mutex_lock(&pool_lock);
    pool[n_pool++] = db;
    pthread_cond_signal(&pool_freed);
    pthread_mutex_unlock(&pool_lock);
}

static bool effect_commit(const char *id, const char *token)
{
    static const char insert[] = "INSERT INTO public.effect (message_id) VALUES ($1)";

    PGconn *db = database_borrow();
    bool good = mode == EFFECT ? execute(db, insert, id, PGRES_COMMAND_OK)
                               : execute(db, "BEGIN", NULL, PGRES_COMMAND_OK) &&
                                     execute(db, "SELECT onceward.complete($1)", token, PGRES_TUPLES_OK) &&
                                     execute(db, insert, id, PGRES_COMMAND_OK) &&
                                     execute(db, "COMMIT", NULL, PGRES_COMMAND_OK);
    if (!good && mode == TOKEN)
        execute(db, "ROLLBACK", NULL, PGRES_COMMAND_OK);
    database_return(db);
    return good;
}

/* Answers. */

static void answer(int fd, int status, const char *body, size_t len)
{
    char head[256];
    int n =
        status == 204
            ? snprintf(head, sizeof head, "HTTP/1.1 204 No Content\r\n\r\n")
            : snprintf(head, sizeof head,
                       "HTTP/1.1 %d Said\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                       status, len);

    if (send(fd, head, (size_t)n, MSG_NOSIGNAL | (len ? MSG_MORE : 0)) == n && len)
        (void)!send(fd, body, len, MSG_NOSIGNAL);
}

static void stamp_take(uint64_t sent)
{
    unsigned long i = n_stamps++;

    if (stamps && sent && i < STAMPS)
        stamps[i] = (uint32_t)((clock_ns(CLOCK_MONOTONIC) - sent) / 1000);
}

/* Many messages. */

/* Adds a value without special characters to an array of PostgreSQL. */
static size_t array_add(char *array, size_t len, const char *value, size_t value_len)
{
    array[len] = len ? ',' : '{';
    memcpy(array + len + 1, value, value_len);
    return len + 1 + value_len;
}

/* Messages begin with `mark`; those of Onceward with their token. Both arrays are as large as the body. Answers
 * the number of messages. */
static size_t batch_read(const struct request *r, const char *mark, char *ids, char *tokens)
{
    const char *end = r->body + r->body_len, *at = after(r->body, r->body_len, mark), *next;
    size_t n = 0, ids_len = 0, tokens_len = 0;
    char id[ID + 1];

    for (; at; at = next, n++) {
        next = after(at, (size_t)(end - at), mark);
        stamp_take(body_read(at, (size_t)((next ? next : end) - at), id));
        tokens_len = array_add(tokens, tokens_len, at, strcspn(at, "\""));
        if (!*id) /* a body in base64, behind the entry's own id */
            snprintf(id, sizeof id, "%.*s", (int)strcspn(at, "\""), at);
        ids_len = array_add(ids, ids_len, id, strlen(id));
    }
    memcpy(ids + ids_len, "}", 2);
    memcpy(tokens + tokens_len, "}", 2);
    return n;
}

static bool batch_commit(const char *ids, const char *tokens)
{
    static const char insert[] = "INSERT INTO public.effect (message_id) SELECT * FROM unnest($1::text[])";

    if (mode == RECORD)
        return true;
    PGconn *db = database_borrow();
    bool good = mode == EFFECT
                    ? execute(db, insert, ids, PGRES_COMMAND_OK)
                    : execute(db, "BEGIN", NULL, PGRES_COMMAND_OK) &&
                          execute(db, "SELECT onceward.complete_all($1)", tokens, PGRES_TUPLES_OK) &&
                          execute(db, insert, ids, PGRES_COMMAND_OK) &&
                          execute(db, "COMMIT", NULL, PGRES_COMMAND_OK);
    if (!good && mode == TOKEN)
        execute(db, "ROLLBACK", NULL, PGRES_COMMAND_OK);
    database_return(db);
    return good;
}

/* daprd wants a status for each entry. */
static void entries_answer(int fd, const struct request *r, const char *key)
{
    const char *end = r->body + r->body_len, *at = r->body;
    size_t size = r->body_len + 64, len = 0;
    char *text = malloc(size);

    if (!text)
        fail("recorder: no memory");
    len += (size_t)snprintf(text, size, "{\"statuses\":[");
    while ((at = after(at, (size_t)(end - at), key)))
        len += (size_t)snprintf(text + len, size - len, "%s{\"entryId\":\"%.*s\",\"status\":\"SUCCESS\"}",
                                text[len - 1] == '}' ? "," : "", (int)strcspn(at, "\""), at);
    len += (size_t)snprintf(text + len, size - len, "]}");
    answer(fd, 200, text, len);
    free(text);
}

static void count_answer(int fd, size_t n)
{
    char head[128];
    int len =
        snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nOnceward-Batch: %zu\r\nContent-Length: 0\r\n\r\n", n);

    (void)!send(fd, head, (size_t)len, MSG_NOSIGNAL);
}

static void batch_answer(int fd, const struct request *r)
{
    static const char line[] = "{\"t\":", entry[] = "\"entryId\":\"", member[] = "{\"token\":\"";
    bool is_onceward = strcasestr(r->data, "\r\nOnceward-Batch: ") != NULL;
    const char *mark = is_onceward ? member : after(r->body, r->body_len, entry) ? entry : line;
    char *ids = malloc(r->body_len + 64), *tokens = malloc(r->body_len + 64);

    if (!ids || !tokens)
        fail("recorder: no memory");
    size_t n = batch_read(r, mark, ids, tokens);
    if (batch_commit(ids, tokens)) {
        n_done += n;
        if (is_onceward)
            count_answer(fd, n);
        else
            entries_answer(fd, r, entry);
    } else {
        answer(fd, 500, NULL, 0);
    }
    free(ids);
    free(tokens);
}

static int message_do(const struct request *r, const char *id)
{
    if (delay_ms)
        usleep((useconds_t)delay_ms * 1000);
    if (fail_permille && random() % 1000 < fail_permille)
        return (int)fail_status;
    if (mode == RECORD)
        return 204;
    const char *token = strcasestr(r->data, "\r\nOnceward-Token: ");
    char copy[1024] = "";
    if (token)
        snprintf(copy, sizeof copy, "%.*s", (int)strcspn(token + 18, "\r"), token + 18);
    return effect_commit(id, copy) ? 204 : 500;
}

static void request_answer(int fd, const struct request *r)
{
    char id[ID + 1], text[64];

    if (strncmp(r->data, "POST ", 5)) {
        int n = snprintf(text, sizeof text, "%lu %lu", (unsigned long)n_done, (unsigned long)n_posts);
        bool counts = !strncmp(r->data, "GET /count ", 11);
        answer(fd, counts ? 200 : 404, text, counts ? (size_t)n : 0);
        return;
    }
    n_posts++;
    if (bulk) {
        batch_answer(fd, r);
        return;
    }
    stamp_take(body_read(r->body, r->body_len, id));
    record_line('P', id, 0);
    int status = message_do(r, id);
    record_line('S', id, status);
    if (status < 300)
        n_done++;
    answer(fd, status, NULL, 0);
}

static void *client_run(void *argument)
{
    int fd = (int)(intptr_t)argument;
    struct request r = {0};

    while (request_read(&r, fd)) {
        request_answer(fd, &r);
        r.len -= r.whole_len;
        memmove(r.data, r.data + r.whole_len, r.len);
    }
    close(fd);
    free(r.data);
    return NULL;
}

/* The whole. */

static void *clients_accept(void *argument)
{
    int listener = (int)(intptr_t)argument, on = 1, fd;
    pthread_attr_t small;

    pthread_attr_init(&small);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&small, 256 << 10);
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno == EINTR ||
           errno == ECONNABORTED) {
        pthread_t thread;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (fd >= 0 && pthread_create(&thread, &small, client_run, (void *)(intptr_t)fd))
            close(fd);
    }
    fail("recorder: accept: %s", strerror(errno));
}

static int listen_on(int port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096))
        fail("recorder: port %d: %s", port, strerror(errno));
    return fd;
}

static void databases_open(const char *dsn)
{
    for (; n_pool < POOL; n_pool++) {
        pool[n_pool] = PQconnectdb(dsn);
        if (PQstatus(pool[n_pool]) != CONNECTION_OK)
            fail("recorder: %s", PQerrorMessage(pool[n_pool]));
    }
}

int main(int argc, char **argv)
{
    const char *dsn = option(argc, argv, "commit", NULL), *path = option(argc, argv, "record", NULL);
    const char *stamps_path = option(argc, argv, "stamps-file", NULL),
               *name = option(argc, argv, "mode", "record");
    sigset_t signals;
    pthread_t thread;
    int number;

    mode = !strcmp(name, "token") ? TOKEN : !strcmp(name, "effect") ? EFFECT : RECORD;
    bulk = option_number(argc, argv, "bulk", 0);
    fail_permille = option_number(argc, argv, "fail", 0);
    fail_status = option_number(argc, argv, "fail-status", 503);
    delay_ms = option_number(argc, argv, "delay-ms", 0);
    if (path && (record = open(path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0644)) < 0)
        fail("recorder: %s: %s", path, strerror(errno));
    if (stamps_path)
        stamps = calloc(STAMPS, sizeof *stamps);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (dsn && mode != RECORD)
        databases_open(dsn);
    int listener = listen_on((int)option_number(argc, argv, "port", 0));
    if (pthread_create(&thread, NULL, clients_accept, (void *)(intptr_t)listener))
        fail("recorder: no thread");
    sigwait(&signals, &number);
    FILE *f = stamps_path ? fopen(stamps_path, "wb") : NULL;
    if (f) {
        fwrite(stamps, sizeof *stamps, n_stamps < STAMPS ? n_stamps : STAMPS, f);
        fclose(f);
    }
    _exit(0);
}
