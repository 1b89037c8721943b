/* The application's stand-in where nginx does not do: it answers 204 after a delay (--delay-ms), takes the
 * time from the publish to the POST (the monotonic nanoseconds that the loader writes at the start of a
 * body), or really commits (--commit DSN, --mode complete | textbook): its own row and the completion of the
 * token, or the inbox that a textbook consumer's application keeps, in one transaction, on a pool of
 * connections. --publish QUEUE: that transaction publishes there, through the outbox, a message with the id
 * of the request; --commits-file is written at SIGTERM: a line for each, its id and when COMMIT returned, in
 * monotonic nanoseconds.
 *
 * It can be a bad one: --bad N of 100,000 requests are answered --answer (503, 429, 500, 502, or 0: a reset);
 * --capacity N at once are taken, and the others told 503 at once. --obeys 1: a path or a message id that
 * has "answers-NNN" in it is always answered NNN, and one that has "kills-" ends the process.
 *
 * One thread, epoll, HTTP/1.1 with keep-alive and Content-Length, as its callers send it. --count-file is
 * mapped and holds the number of good answers and of bad ones, over all processes that have it. --stamps-file
 * is written at SIGTERM: a uint32 of microseconds for each POST.
 */
#include "options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libpq-fe.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum kind { LISTENER, TIMER, SIGNALS, CLIENT, DATABASE };

/* An HTTP connection, with at most one request at a time. */
struct client {
    enum kind kind;
    int fd;
    char *data;
    size_t len, capacity;
    size_t request_len; /* of the request being answered */
    bool busy, gone, took_place;
    int answer; /* a status; 0: a reset */
    char token[1024], id[128];
    uint64_t due_ns;
    struct client *next; /* in one of the queues below */
};

struct database {
    enum kind kind;
    PGconn *connection;
    struct client *client;
    bool failed;
    struct database *next;
};

struct queue {
    struct client *first, **last;
};

enum { DONE = 204, FAILED = 500, OVERLOADED = 503, RESET = 0 };

static int epoll, timer;
static uint64_t delay_ns;
static struct queue delayed, uncommitted, gone;
static struct database *idle_databases;
static uint64_t nowhere[2], *n_answers = nowhere; /* good ones, bad ones */
static uint64_t dice = 1;
static long n_bad_of_100000, bad_answer, capacity, n_taken;
static uint32_t *stamps;
static size_t n_stamps, stamps_capacity;
static bool takes_stamps, textbook, commits, obeys, publishes;
static FILE *commits_file;

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void watch(int fd, uint32_t events, void *what)
{
    struct epoll_event e = {.events = events, .data.ptr = what};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e))
        fail("app: epoll_ctl: %s", strerror(errno));
}

static void queue_put(struct queue *q, struct client *c)
{
    c->next = NULL;
    if (!q->first)
        q->last = &q->first;
    *q->last = c;
    q->last = &c->next;
}

static struct client *queue_take(struct queue *q)
{
    struct client *c = q->first;

    q->first = c->next;
    return c;
}

/* Clients. */

static void client_close(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->gone = true;
    if (!c->busy)
        queue_put(&gone, c);
}

/* After the events of one wait, since one of them may still be of a client that went. */
static void clients_free(void)
{
    while (gone.first) {
        struct client *c = queue_take(&gone);
        free(c->data);
        free(c);
    }
}

static void client_take(struct client *c);

/* As the kernel of a process that dies with unread data. */
static void client_reset(struct client *c)
{
    struct linger now = {.l_onoff = 1};

    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    client_close(c);
}

static bool client_send(struct client *c)
{
    char text[64];
    int len = c->answer == DONE
                  ? snprintf(text, sizeof text, "HTTP/1.1 204 No Content\r\n\r\n")
                  : snprintf(text, sizeof text, "HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n", c->answer);

    return send(c->fd, text, (size_t)len, MSG_NOSIGNAL) == len;
}

static void client_answer(struct client *c, int answer)
{
    c->busy = false;
    c->answer = answer;
    n_taken -= c->took_place;
    c->took_place = false;
    if (c->gone) {
        client_close(c);
        return;
    }
    n_answers[answer != DONE] += *c->data == 'P';
    if (answer == RESET) {
        client_reset(c);
        return;
    }
    if (!client_send(c)) {
        client_close(c);
        return;
    }
    memmove(c->data, c->data + c->request_len, c->len - c->request_len);
    c->len -= c->request_len;
    if (c->len)
        client_take(c);
}

static void timer_set(void)
{
    uint64_t due = delayed.first->due_ns;
    struct itimerspec t = {.it_value = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)}};

    timerfd_settime(timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static void header_copy(const char *head, const char *name, char *value, size_t size)
{
    const char *p = strcasestr(head, name);
    size_t len = 0;

    if (p) {
        p += strlen(name);
        len = strcspn(p, "\r");
    }
    snprintf(value, size, "%.*s", (int)len, p ? p : "");
}

static void stamp_take(const char *body, size_t len)
{
    static const char start[] = "{\"t\":\"";

    if (len < 30 || memcmp(body, start, sizeof start - 1))
        return;
    uint64_t sent = strtoull(body + sizeof start - 1, NULL, 10);
    if (n_stamps == stamps_capacity) {
        stamps_capacity = stamps_capacity ? 2 * stamps_capacity : 65536;
        stamps = realloc(stamps, stamps_capacity * sizeof *stamps);
        if (!stamps)
            fail("app: no memory");
    }
    stamps[n_stamps++] = (uint32_t)((now_ns() - sent) / 1000);
}

static void database_begin(struct database *d, struct client *c)
{
    const char *by[] = {textbook ? c->id : c->token}, *id[] = {c->id};

    d->client = c;
    d->failed = false;
    PQsendQueryPrepared(d->connection, "begin", 0, NULL, NULL, NULL, 0);
    PQsendQueryPrepared(d->connection, "first", 1, by, NULL, NULL, 0);
    PQsendQueryPrepared(d->connection, "effect", 1, id, NULL, NULL, 0);
    if (publishes)
        PQsendQueryPrepared(d->connection, "publish", 1, id, NULL, NULL, 0);
    PQsendQueryPrepared(d->connection, "commit", 0, NULL, NULL, NULL, 0);
    PQpipelineSync(d->connection);
}

/* Deed that the request itself asks for, in its path or in its message id. */
static int obeyed(const char *head)
{
    size_t line_len = strcspn(head, "\r");
    const char *id = strcasestr(head, "\r\nIdempotency-Key: "), *p;
    char asked[1024];

    snprintf(asked, sizeof asked, "%.*s %.*s", (int)line_len, head, id ? (int)strcspn(id + 2, "\r") : 0,
             id ? id + 2 : "");
    if (strstr(asked, "kills-"))
        _exit(3);
    p = strstr(asked, "answers-");
    return p ? atoi(p + 8) : DONE;
}

static int answer_choose(const char *head)
{
    if (*head == 'G')
        return DONE;
    if (obeys) {
        int answer = obeyed(head);
        if (answer != DONE)
            return answer;
    }
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (long)((dice >> 33) % 100000) < n_bad_of_100000 ? (int)bad_answer : DONE;
}

/* A request that is taken is answered after the delay, or after its commit; one that is to be answered badly
 * does not commit. */
static void client_begin(struct client *c)
{
    if (*c->data == 'G' || (capacity && n_taken >= capacity)) {
        client_answer(c, *c->data == 'G' ? DONE : OVERLOADED);
        return;
    }
    n_taken++;
    c->took_place = true;
    if (commits && c->answer == DONE) {
        header_copy(c->data, "\r\nOnceward-Token: ", c->token, sizeof c->token);
        header_copy(c->data, "\r\nIdempotency-Key: ", c->id, sizeof c->id);
        struct database *d = idle_databases;
        if (d) {
            idle_databases = d->next;
            database_begin(d, c);
        } else {
            queue_put(&uncommitted, c);
        }
    } else if (delay_ns) {
        c->due_ns = now_ns() + delay_ns;
        bool first = !delayed.first;
        queue_put(&delayed, c);
        if (first)
            timer_set();
    } else {
        client_answer(c, c->answer);
    }
}

/* A whole request is in the buffer when its head and its body are. */
static void client_take(struct client *c)
{
    c->data[c->len] = 0;
    char *end = memmem(c->data, c->len, "\r\n\r\n", 4);
    if (!end || c->busy)
        return;
    *end = 0;
    const char *length = strcasestr(c->data, "\r\nContent-Length:");
    size_t body_len = length ? strtoul(length + 17, NULL, 10) : 0;
    size_t head_len = (size_t)(end - c->data) + 4;
    if (c->len < head_len + body_len) {
        *end = '\r';
        return;
    }
    c->request_len = head_len + body_len;
    c->busy = true;
    c->answer = answer_choose(c->data);
    if (takes_stamps)
        stamp_take(c->data + head_len, body_len);
    client_begin(c);
}

static void client_read(struct client *c)
{
    if (c->gone)
        return;
    if (c->capacity - c->len < 4096) {
        c->capacity = 2 * c->capacity + 16384;
        c->data = realloc(c->data, c->capacity);
        if (!c->data)
            fail("app: no memory");
    }
    ssize_t n = recv(c->fd, c->data + c->len, c->capacity - c->len - 1, 0);
    if (n <= 0) {
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        client_close(c);
        return;
    }
    c->len += (size_t)n;
    client_take(c);
}

static void clients_accept(int listener)
{
    int fd, on = 1;

    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct client *c = calloc(1, sizeof *c);
        if (!c)
            fail("app: no memory");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        c->kind = CLIENT;
        c->fd = fd;
        watch(fd, EPOLLIN, c);
    }
}

static void delayed_answer(void)
{
    uint64_t n, now = now_ns();

    (void)!read(timer, &n, sizeof n);
    while (delayed.first && delayed.first->due_ns <= now) {
        struct client *c = queue_take(&delayed);
        client_answer(c, c->answer);
    }
    if (delayed.first)
        timer_set();
}

/* Databases. */

static void database_next(struct database *d)
{
    struct client *c = d->client;

    d->client = NULL;
    if (commits_file && !d->failed)
        fprintf(commits_file, "%s %" PRIu64 "\n", c->id, now_ns());
    client_answer(c, d->failed ? FAILED : DONE);
    if (d->failed) { /* the transaction is still open */
        PQsendQueryParams(d->connection, "ROLLBACK", 0, NULL, NULL, NULL, NULL, 0);
        PQpipelineSync(d->connection);
        d->failed = false;
        return;
    }
    if (uncommitted.first) {
        database_begin(d, queue_take(&uncommitted));
    } else {
        d->next = idle_databases;
        idle_databases = d;
    }
}

static void database_read(struct database *d)
{
    if (!PQconsumeInput(d->connection))
        fail("app: %s", PQerrorMessage(d->connection));
    for (bool ended = false; !PQisBusy(d->connection);) {
        PGresult *r = PQgetResult(d->connection);
        if (!r) { /* the end of one statement's results; twice: of all */
            if (ended)
                return;
            ended = true;
            continue;
        }
        ended = false;
        ExecStatusType status = PQresultStatus(r);
        if (status == PGRES_FATAL_ERROR) {
            d->failed = true;
            fprintf(stderr, "app: %s", PQresultErrorMessage(r));
        }
        PQclear(r);
        if (status == PGRES_PIPELINE_SYNC) {
            if (d->client) {
                database_next(d);
            } else { /* after a rollback */
                d->next = idle_databases;
                idle_databases = d;
                if (uncommitted.first) {
                    idle_databases = d->next;
                    database_begin(d, queue_take(&uncommitted));
                }
            }
            return;
        }
    }
}

static void databases_open(const char *dsn, long n, const char *target)
{
    char publish[256];
    const char *const statements[][2] = {
        {"begin", "BEGIN"},
        {"effect", "INSERT INTO public.effect (message_id) VALUES ($1)"},
        {"commit", "COMMIT"},
        {"publish", publish},
    };

    snprintf(publish, sizeof publish, "SELECT onceward.publish('', '%s', '{\"n\": 1}'::jsonb, $1)",
             target ? target : "");
    publishes = target;

    for (long i = 0; i < n; i++) {
        struct database *d = calloc(1, sizeof *d);
        d->kind = DATABASE;
        d->connection = PQconnectdb(dsn);
        if (PQstatus(d->connection) != CONNECTION_OK)
            fail("app: %s", PQerrorMessage(d->connection));
        for (size_t s = 0; s < (target ? 4 : 3); s++)
            PQclear(PQprepare(d->connection, statements[s][0], statements[s][1], 0, NULL));
        PGresult *r = PQprepare(
            d->connection, "first",
            textbook ? "INSERT INTO inbox (message_id, status, completed_at) VALUES ($1, 'completed', now()) "
                       "ON CONFLICT (message_id) DO NOTHING"
                     : "SELECT onceward.complete($1)",
            0, NULL);
        if (PQresultStatus(r) != PGRES_COMMAND_OK)
            fail("app: %s", PQresultErrorMessage(r));
        PQclear(r);
        PQsetnonblocking(d->connection, 1);
        PQenterPipelineMode(d->connection);
        d->next = idle_databases;
        idle_databases = d;
        watch(PQsocket(d->connection), EPOLLIN, d);
    }
}

/* The whole. */

static int listen_on(int port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096))
        fail("app: port %d: %s", port, strerror(errno));
    return fd;
}

static void stamps_write(const char *path)
{
    FILE *f = path ? fopen(path, "wb") : NULL;

    if (f) {
        fwrite(stamps, sizeof *stamps, n_stamps, f);
        fclose(f);
    }
}

int main(int argc, char **argv)
{
    static const enum kind is_listener = LISTENER, is_timer = TIMER, is_signals = SIGNALS;
    const char *dsn = option(argc, argv, "commit", NULL), *path = option(argc, argv, "count-file", NULL);
    const char *stamps_path = option(argc, argv, "stamps-file", NULL);
    sigset_t signals;

    takes_stamps = stamps_path;
    commits = dsn;
    textbook = !strcmp(option(argc, argv, "mode", "complete"), "textbook");
    delay_ns = (uint64_t)option_number(argc, argv, "delay-ms", 0) * 1000000u;
    n_bad_of_100000 = option_number(argc, argv, "bad", 0);
    bad_answer = option_number(argc, argv, "answer", OVERLOADED);
    capacity = option_number(argc, argv, "capacity", 0);
    obeys = option_number(argc, argv, "obeys", 0);
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (fd >= 0 && !ftruncate(fd, sizeof nowhere))
        n_answers = mmap(NULL, sizeof nowhere, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (dsn)
        databases_open(dsn, option_number(argc, argv, "pool", 16), option(argc, argv, "publish", NULL));
    if (option(argc, argv, "commits-file", NULL))
        commits_file = fopen(option(argc, argv, "commits-file", NULL), "w");
    int listener = listen_on((int)option_number(argc, argv, "port", 0));
    watch(listener, EPOLLIN, (void *)&is_listener);
    watch(timer, EPOLLIN, (void *)&is_timer);
    watch(signalfd(-1, &signals, SFD_CLOEXEC), EPOLLIN, (void *)&is_signals);
    for (;;) {
        struct epoll_event events[256];
        int n = epoll_wait(epoll, events, 256, -1);

        for (int i = 0; i < n; i++) {
            switch (*(enum kind *)events[i].data.ptr) {
            case LISTENER:
                clients_accept(listener);
                break;
            case TIMER:
                delayed_answer();
                break;
            case SIGNALS:
                stamps_write(stamps_path);
                if (commits_file)
                    fclose(commits_file);
                return 0;
            case CLIENT:
                client_read(events[i].data.ptr);
                break;
            case DATABASE:
                database_read(events[i].data.ptr);
                break;
            }
        }
        clients_free();
    }
}
