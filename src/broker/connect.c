/* From a URL to a connection that is logged in. All functions here block and run on a helper thread, which owns its
 * data; the loop never waits for it. One deadline covers everything. Each address of the broker gets a share of the
 * remaining time, so that an address that swallows packets does not keep Onceward from trying the others. */

#include "broker/connect.h"

#include "broker/address.h"
#include "broker/tls.h"
#include "onceward/base/clock.h"
#include "onceward/base/job.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    FRAME_MAX = 131072,
    FRAME_LEAST = 4096, /* AMQP 0-9-1, section 4.2.3 */
    SHARE_MIN_MS = 200,
    SHORT_MAX = 255,
    UNSENT_MIN_MS = 10000,
};

static struct config_text secret_copy(const struct config_text *t)
{
    return (struct config_text){mem_copy_text(t->value), mem_copy_text(t->file)};
}

static void queues_deinit(struct queue_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free((char *)(uintptr_t)l->items[i].name);
    mem_clear(&l->items);
    l->n = 0;
}

static struct queue_list queues_copy(const struct broker_queue *queues, size_t n)
{
    struct queue_list l = {mem_zalloc(n + 1, sizeof(*queues)), n};

    for (size_t i = 0; i < n; i++) {
        l.items[i] = queues[i];
        l.items[i].name = mem_copy_text(queues[i].name);
    }
    return l;
}

static bool names_are_good(const char *vhost, const struct broker_queue *queues, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!*queues[i].name || strlen(queues[i].name) > SHORT_MAX)
            return false;
    return !vhost || strlen(vhost) <= SHORT_MAX;
}

/* Name of the connection, for the broker's operators. */
static char *connection_name(enum purpose purpose, const struct broker_queue *queues, size_t n,
                             const char *instance)
{
    char many[32], name[2 * SHORT_MAX];
    const char *what = purpose == TO_RELAY   ? "outbox"
                       : purpose == TO_RENEW ? "renewals"
                       : purpose == TO_ASK   ? "arguments"
                       : n == 0              ? "publisher"
                       : n == 1              ? queues[0].name
                                             : many;

    snprintf(many, sizeof(many), "%zu queues", n);
    int len =
        snprintf(name, sizeof(name), "onceward %s%s%s", what, instance ? " " : "", instance ? instance : "");
    return mem_copy(name, (size_t)len < SHORT_MAX ? (size_t)len : SHORT_MAX);
}

struct target *target_new(enum purpose purpose, const struct config_broker *c, const char *vhost,
                          const struct broker_queue *queues, size_t n_queues, const char *instance,
                          struct fault *f)
{
    assert((n_queues > 0) == (purpose == TO_CONSUME || purpose == TO_ASK));
    if (!names_are_good(vhost, queues, n_queues)) {
        fault_set(f, "the names of queue and virtual host have 1 to 255 bytes");
        return NULL;
    }
    struct target *t = mem_zalloc(1, sizeof(*t));
    *t = (struct target){
        .purpose = purpose,
        .url = secret_copy(&c->url),
        .user = secret_copy(&c->user),
        .password = secret_copy(&c->password),
        .tls = {mem_copy_text(c->tls.ca_file), mem_copy_text(c->tls.cert_file),
                mem_copy_text(c->tls.key_file), c->tls.verify},
        .heartbeat_ms = c->heartbeat_ms,
        .timeout_ms = c->connect_timeout_ms,
        .vhost = mem_copy_text(vhost),
        .queues = queues_copy(queues, n_queues),
        .name = connection_name(purpose, queues, n_queues, instance),
    };
    return t;
}

void target_free(struct target *t)
{
    config_text_clear(&t->url);
    config_text_clear(&t->user);
    config_text_clear(&t->password);
    free(t->tls.ca_file);
    free(t->tls.cert_file);
    free(t->tls.key_file);
    free(t->vhost);
    queues_deinit(&t->queues);
    free(t->name);
    free(t);
}

void attempt_free(struct attempt *a)
{
    if (!a)
        return;
    wire_deinit(&a->wire);
    queues_deinit(&a->queues);
    free(a->found);
    free(a->version);
    free(a->user);
    free(a->cluster);
    free(a);
}

void attempt_drop(void *attempt)
{
    attempt_free(attempt);
}

/* Reads an override of a part of the URL. */
static int override_read(const struct config_text *t, char **part, struct fault *f)
{
    char *text = NULL;

    if (config_text_read(t, &text, f))
        return -1;
    if (text) {
        mem_free_secret(*part);
        *part = text;
    }
    return 0;
}

static int target_address(const struct target *t, struct address *a, struct fault *f)
{
    char *url = NULL;

    if (config_text_read(&t->url, &url, f))
        return -1;
    if (!url)
        return fault_set(f, "the broker's URL is not set");
    int r = address_parse(url, a, f);
    mem_free_secret(url);
    if (r)
        return -1;
    if (override_read(&t->user, &a->user, f) || override_read(&t->password, &a->password, f)) {
        address_deinit(a);
        return -1;
    }
    if (t->vhost) {
        free(a->vhost);
        a->vhost = mem_copy_text(t->vhost);
    }
    return 0;
}

static struct timeval timeval_of(int64_t ms)
{
    if (ms < 1)
        ms = 1;
    return (struct timeval){.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};
}

/* Connects a non-blocking socket. -1: errno, which the library's own function does not return. */
static int socket_connect(const struct addrinfo *to, int64_t timeout_ms)
{
    int one = 1, error = 0;
    socklen_t len = sizeof(error);
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, to->ai_protocol);

    if (fd < 0)
        return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0)
        return fd;
    if (errno != EINPROGRESS)
        goto failed;
    int64_t deadline = clock_ms() + timeout_ms;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int64_t left = deadline - clock_ms();
        int r = left > 0 ? poll(&p, 1, (int)left) : 0;
        if (r > 0)
            break;
        if (r < 0 && errno == EINTR)
            continue;
        if (r == 0)
            errno = ETIMEDOUT;
        goto failed;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0)
        return fd;
    errno = error ? error : EIO;
failed:
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Opens one address. tls NULL: plain. */
static int address_open(amqp_connection_state_t connection, struct tls *tls, const struct addrinfo *to,
                        int port, int64_t timeout_ms, struct fault *f)
{
    char host[NI_MAXHOST];
    int fd = -1;

    if (getnameinfo(to->ai_addr, to->ai_addrlen, host, sizeof(host), NULL, 0, NI_NUMERICHOST))
        return fault_set(f, "an address of the broker cannot be written in numbers");
    if (tls) {
        struct timeval timeout = timeval_of(timeout_ms);
        tls->error[0] = '\0';
        errno = 0;
        int status = amqp_socket_open_noblock(tls->socket, host, port, &timeout);
        if (status == AMQP_STATUS_OK)
            return 0;
        const char *why = status == AMQP_STATUS_TIMEOUT ? "no answer in time" : tls_error(tls);
        if (!why && status == AMQP_STATUS_SOCKET_ERROR && errno)
            why = strerror(errno);
        return fault_set(f, "connecting to %s port %d with TLS: %s", host, port,
                         why ? why : amqp_error_string2(status));
    }
    fd = socket_connect(to, timeout_ms);
    if (fd < 0)
        return fault_set(f, "connecting to %s port %d: %s", host, port, strerror(errno));
    amqp_socket_t *s = amqp_tcp_socket_new(connection);
    if (!s) {
        close(fd);
        return fault_set(f, "no socket could be made");
    }
    amqp_tcp_socket_set_sockfd(s, fd);
    return 0;
}

static int host_open(amqp_connection_state_t connection, struct tls *tls, const struct address *a,
                     int64_t deadline_ms, struct fault *f)
{
    const struct addrinfo hint = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct addrinfo *all = NULL;
    char port[16];
    int n = 0, r;

    snprintf(port, sizeof(port), "%d", a->port);
    r = getaddrinfo(a->host, port, &hint, &all);
    if (r)
        return fault_set(f, "resolving the broker's name %s: %s", a->host,
                         r == EAI_SYSTEM ? strerror(errno) : gai_strerror(r));
    for (struct addrinfo *i = all; i; i = i->ai_next)
        n++;
    r = -1;
    fault_set(f, "the broker's name %s has no address", a->host);
    for (struct addrinfo *i = all; i && r; i = i->ai_next, n--) {
        int64_t share = (deadline_ms - clock_ms()) / n;
        r = address_open(connection, tls, i, a->port, share > SHARE_MIN_MS ? share : SHARE_MIN_MS, f);
    }
    freeaddrinfo(all);
    return r;
}

/* Sets how long the other side's kernel may leave sent bytes unacknowledged. */
static void set_user_timeout(int fd, int64_t heartbeat_ms, int64_t timeout_ms)
{
    int64_t ms = heartbeat_ms ? 2 * heartbeat_ms : timeout_ms;
    unsigned value = (unsigned)(ms > UNSENT_MIN_MS ? ms : UNSENT_MIN_MS);

    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, sizeof(value));
}

static amqp_table_entry_t flag_entry(const char *name)
{
    return (amqp_table_entry_t){.key = amqp_cstring_bytes(name),
                                .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1}};
}

static amqp_table_entry_t text_entry(const char *name, const char *value)
{
    return (amqp_table_entry_t){
        .key = amqp_cstring_bytes(name),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(value)}};
}

static int login(amqp_connection_state_t connection, const struct target *t, const struct address *a,
                 int64_t deadline_ms, struct fault *f)
{
    amqp_table_entry_t flags[] = {flag_entry("consumer_cancel_notify"), flag_entry("connection.blocked"),
                                  flag_entry("basic.nack"), flag_entry("publisher_confirms")};
    amqp_table_entry_t entries[] = {
        {.key = amqp_cstring_bytes("capabilities"),
         .value = {.kind = AMQP_FIELD_KIND_TABLE, .value.table = {sizeof(flags) / sizeof(flags[0]), flags}}},
        text_entry("product", "onceward"),
        text_entry("version", ONCEWARD_VERSION),
        text_entry("connection_name", t->name),
    };
    amqp_table_t properties = {sizeof(entries) / sizeof(entries[0]), entries};
    struct timeval left = timeval_of(deadline_ms - clock_ms());
    /* A command sends no heartbeats between two messages that it publishes. */
    int64_t heartbeat_s = t->purpose == TO_PUBLISH ? 0 : (t->heartbeat_ms + 999) / 1000;

    amqp_set_handshake_timeout(connection, &left);
    amqp_rpc_reply_t reply = amqp_login_with_properties(
        connection, a->vhost, 0, FRAME_MAX, heartbeat_s > UINT16_MAX ? UINT16_MAX : (int)heartbeat_s,
        &properties, AMQP_SASL_METHOD_PLAIN, a->user, a->password);
    if (fault_set_reply(f, "logging in to the broker", reply) == 0) {
        int frame_max = amqp_get_frame_max(connection);

        if (frame_max < FRAME_LEAST)
            return fault_set(f, "logging in to the broker: it allows frames of %d bytes, AMQP at least %d",
                             frame_max, FRAME_LEAST);
        return 0;
    }
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD)
        amqp_send_method(connection, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &(amqp_connection_close_ok_t){0});
    return -1;
}

static int confirms_open(amqp_connection_state_t connection, int64_t deadline_ms, struct fault *f)
{
    struct timeval left = timeval_of(deadline_ms - clock_ms());

    amqp_set_rpc_timeout(connection, &left);
    if (!amqp_channel_open(connection, 1)) {
        if (fault_set_reply(f, "opening a channel", amqp_get_rpc_reply(connection)) == 0)
            fault_set(f, "opening a channel failed");
        return -1;
    }
    if (!amqp_confirm_select(connection, 1)) {
        if (fault_set_reply(f, "asking for publisher confirms", amqp_get_rpc_reply(connection)) == 0)
            fault_set(f, "asking for publisher confirms failed");
        return -1;
    }
    return 0;
}

static char *server_property(amqp_connection_state_t connection, struct slice name)
{
    const amqp_table_t *properties = amqp_get_server_properties(connection);

    for (int i = 0; i < properties->num_entries; i++) {
        const amqp_table_entry_t *e = &properties->entries[i];
        if (slice_equal((struct slice){e->key.bytes, e->key.len}, name) &&
            e->value.kind == AMQP_FIELD_KIND_UTF8)
            return mem_copy(e->value.value.bytes.bytes, e->value.value.bytes.len);
    }
    return mem_copy("unknown", 7);
}

static int attempt_make(struct attempt *a, struct target *t, const struct address *to, struct fault *f)
{
    int64_t deadline_ms = clock_ms() + t->timeout_ms;
    amqp_connection_state_t connection = amqp_new_connection();
    struct tls tls;

    if (!connection)
        return fault_set(f, "no connection could be made");
    if (to->tls && tls_start(&tls, connection, to->host, &t->tls, f))
        goto failed;
    if (host_open(connection, to->tls ? &tls : NULL, to, deadline_ms, f))
        goto failed;
    struct ssl_st *ssl = to->tls ? tls_finish(&tls) : NULL;
    set_user_timeout(amqp_get_sockfd(connection), t->heartbeat_ms, t->timeout_ms);
    if (login(connection, t, to, deadline_ms, f))
        goto failed;
    if (t->purpose != TO_CONSUME && confirms_open(connection, deadline_ms, f))
        goto failed;
    if (t->purpose == TO_ASK) {
        a->found = mem_zalloc(t->queues.n, sizeof(*a->found));
        if (t->ask(connection, &t->queues, deadline_ms, a->found, f)) {
            mem_clear(&a->found);
            goto failed;
        }
        amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
    }
    a->version = server_property(connection, SLICE("version"));
    a->cluster = server_property(connection, SLICE("cluster_name"));
    a->user = mem_copy_text(to->user);
    a->queues = t->queues;
    t->queues = (struct queue_list){0};
    wire_init(&a->wire, connection, ssl);
    return 0;
failed:
    amqp_destroy_connection(connection);
    return -1;
}

void *attempt_run(void *arg)
{
    struct target *t = arg;
    struct attempt *a = mem_zalloc(1, sizeof(*a));
    struct address to;

    a->wire.fd = -1;
    if (target_address(t, &to, &a->fault) == 0) {
        if (strlen(to.vhost) > SHORT_MAX)
            fault_set(&a->fault, "the virtual host has more than 255 bytes");
        else
            attempt_make(a, t, &to, &a->fault);
        address_deinit(&to);
    }
    target_free(t);
    return a;
}

struct attempt *attempt_wait(struct target *t, int64_t deadline_ms, struct fault *f)
{
    struct job *job = job_start(attempt_run, attempt_drop, t);
    void *result;

    if (!job) {
        fault_set(f, "no thread could be started to connect to the broker: %s", strerror(errno));
        target_free(t);
        return NULL;
    }
    for (;;) {
        struct pollfd p = {.fd = job_fd(job), .events = POLLIN};
        int64_t left = deadline_ms - clock_ms();
        if (left > 0)
            poll(&p, 1, (int)left);
        if (job_take(job, &result))
            break;
        if (left <= 0) {
            job_abandon(job);
            fault_set(f, "connecting to the broker took too long");
            return NULL;
        }
    }
    struct attempt *a = result;
    if (a->wire.connection)
        return a;
    *f = a->fault;
    attempt_free(a);
    return NULL;
}
