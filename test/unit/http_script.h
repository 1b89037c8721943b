#pragma once

/* The application in the tests of the forward adapter: a server on real sockets that reads requests as bytes and
 * answers with given bytes, one thread per connection. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { HEAD_MAX = 64 * 1024, CONNECTIONS_MAX = 256 };

enum ending {
    END_KEEP,  /* answers, and reads the next request */
    END_CLOSE, /* answers and closes */
    END_RESET, /* answers and resets */
    END_HANG,  /* answers and then stays silent */
};

/* Action of the server for the n-th request of a connection; the last row repeats. */
struct step {
    const char *answer; /* NULL: none */
    size_t len;         /* 0: strlen(answer) */
    enum ending ending;
    size_t read_body; /* answers after this many bytes of the body; SIZE_MAX: all */
    bool echo_key;    /* a 200 whose body is the Idempotency-Key */
};

#define ALL SIZE_MAX

struct server {
    int fd, port;
    char path[108];
    SSL_CTX *tls;
    const struct step *steps;
    size_t n_steps;
    pthread_t acceptor, threads[CONNECTIONS_MAX];
    int fds[CONNECTIONS_MAX];
    atomic_int n_connections, n_open, n_heads, n_requests;
    atomic_bool stopping;
    pthread_mutex_t lock;
    char head[HEAD_MAX]; /* of the latest request, under lock */
    atomic_size_t n_body;
    atomic_bool body_is_wrong;
};

struct connection {
    struct server *s;
    int fd;
    SSL *ssl;
    char key[128]; /* Idempotency-Key of the latest request */
};

static ssize_t connection_read(struct connection *c, void *to, size_t len)
{
    return c->ssl ? SSL_read(c->ssl, to, (int)len) : recv(c->fd, to, len, 0);
}

static void connection_write(struct connection *c, const char *data, size_t len)
{
    while (len) {
        ssize_t n = c->ssl ? SSL_write(c->ssl, data, (int)len) : send(c->fd, data, len, MSG_NOSIGNAL);

        if (n <= 0)
            return;
        data += n;
        len -= (size_t)n;
    }
}

/* Byte at an offset of every body, so that a shifted or doubled one is noticed. */
static char body_byte(size_t at)
{
    return (char)('a' + at % 23);
}

/* Reads one head and at most `limit` bytes of its body. False: the connection ended first. */
static bool request_read(struct connection *c, size_t limit)
{
    char *head = calloc(1, HEAD_MAX), *end = NULL, chunk[16384];
    size_t len = 0, body = 0, whole;
    ssize_t n = 1;

    while (!end && len < HEAD_MAX - 1 && (n = connection_read(c, head + len, 1)) > 0) {
        len++;
        if (len >= 4 && memcmp(head + len - 4, "\r\n\r\n", 4) == 0)
            end = head + len;
    }
    if (!end) {
        free(head);
        return false;
    }
    const char *field = strstr(head, "\r\nContent-Length: ");
    whole = field ? strtoul(field + 18, NULL, 10) : 0;
    c->key[0] = '\0';
    if ((field = strstr(head, "\r\nIdempotency-Key: ")))
        sscanf(field + 19, "%127[^\r]", c->key);
    pthread_mutex_lock(&c->s->lock);
    memcpy(c->s->head, head, len + 1);
    pthread_mutex_unlock(&c->s->lock);
    free(head);
    c->s->n_heads++;
    while (body < whole && body < limit) {
        n = connection_read(c, chunk, whole - body < sizeof(chunk) ? whole - body : sizeof(chunk));
        if (n <= 0)
            return false;
        for (ssize_t i = 0; i < n; i++)
            if (chunk[i] != body_byte(body + (size_t)i))
                c->s->body_is_wrong = true;
        body += (size_t)n;
    }
    c->s->n_body += body;
    if (body == whole)
        c->s->n_requests++;
    return true;
}

static void key_echo(struct connection *c)
{
    char text[512];

    snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(c->key), c->key);
    connection_write(c, text, strlen(text));
}

/* Runs a step. False: the connection has ended. */
static bool step_run(struct connection *c, const struct step *p)
{
    if (!request_read(c, p->read_body))
        return false;
    if (p->echo_key)
        key_echo(c);
    else if (p->answer)
        connection_write(c, p->answer, p->len ? p->len : strlen(p->answer));
    if (p->ending == END_HANG) {
        struct pollfd gone = {c->fd, POLLRDHUP, 0};

        poll(&gone, 1, 20000);
    } else if (p->ending == END_RESET) {
        struct linger now = {1, 0};

        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    } else if (p->ending == END_CLOSE && c->ssl) {
        SSL_shutdown(c->ssl);
    }
    return p->ending == END_KEEP;
}

struct connection_start {
    struct server *s;
    int at;
};

static void *connection_main(void *p)
{
    struct connection_start start = *(struct connection_start *)p;
    struct server *s = start.s;
    struct connection c = {s, s->fds[start.at], NULL, ""};
    size_t i = 0;
    bool on = true;

    free(p);
    if (s->tls) {
        c.ssl = SSL_new(s->tls);
        SSL_set_fd(c.ssl, c.fd);
        on = SSL_accept(c.ssl) == 1;
        if (!on) { /* a reset must not overtake the alert */
            char rest[4096];

            shutdown(c.fd, SHUT_WR);
            while (recv(c.fd, rest, sizeof(rest), 0) > 0)
                ;
        }
    }
    while (on)
        on = step_run(&c, &s->steps[i < s->n_steps - 1 ? i++ : i]);
    if (c.ssl)
        SSL_free(c.ssl);
    pthread_mutex_lock(&s->lock);
    close(c.fd);
    s->fds[start.at] = -1;
    pthread_mutex_unlock(&s->lock);
    s->n_open--;
    return NULL;
}

static void *server_main(void *p)
{
    struct server *s = p;

    for (;;) {
        int fd = accept(s->fd, NULL, NULL), at = s->n_connections;

        if (fd < 0 || s->stopping || at == CONNECTIONS_MAX) {
            if (fd >= 0)
                close(fd);
            return NULL;
        }
        struct connection_start *start = malloc(sizeof(*start));
        *start = (struct connection_start){s, at};
        s->fds[at] = fd;
        s->n_open++;
        s->n_connections++;
        pthread_create(&s->threads[at], NULL, connection_main, start);
    }
}

/* Starts the server. path: listens on that Unix socket; NULL: on a free port of 127.0.0.1. */
static void server_start(struct server *s, const char *path, const struct step *steps, size_t n_steps)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(in);
    SSL_CTX *tls = s->tls;
    int r;

    memset(s, 0, sizeof(*s));
    s->tls = tls;
    pthread_mutex_init(&s->lock, NULL);
    s->steps = steps;
    s->n_steps = n_steps;
    s->fd = socket(path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (path) {
        snprintf(s->path, sizeof(s->path), "%s", path);
        snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
        r = bind(s->fd, (struct sockaddr *)&un, sizeof(un));
    } else {
        r = bind(s->fd, (struct sockaddr *)&in, sizeof(in));
        getsockname(s->fd, (struct sockaddr *)&in, &len);
        s->port = ntohs(in.sin_port);
    }
    if (r < 0 || listen(s->fd, 256) < 0 || pthread_create(&s->acceptor, NULL, server_main, s) != 0) {
        perror("scripted server");
        abort();
    }
}

/* Ends every remaining connection, and waits for the threads. */
static void server_stop(struct server *s)
{
    s->stopping = true;
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->acceptor, NULL);
    close(s->fd);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_connections; i++)
        if (s->fds[i] >= 0)
            shutdown(s->fds[i], SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_connections; i++)
        pthread_join(s->threads[i], NULL);
    if (s->path[0])
        unlink(s->path);
    if (s->tls)
        SSL_CTX_free(s->tls);
    s->tls = NULL;
}
