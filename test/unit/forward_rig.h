#pragma once

/* Shared by the tests of the forward adapter: a scripted server, a queue that leads to it, the adapter on its own
 * wait, and the turns of a loop. */

#include "cmocka_all.h"
#include "http_script.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/wait.h"
#include "onceward/config/config.h"
#include "onceward/forward/forward.h"

#include <signal.h>

enum { DEADLINE_MS = 10000 };

static char dir[] = "/tmp/test_forward.XXXXXX"; /* for sockets, certificates and secrets */
static const char ok[] = "HTTP/1.1 204 No Content\r\n\r\n";

/* A server, its configuration, the adapter, and the headers of its requests. */
struct rig {
    struct server s;
    struct config_queue q;
    char url[128];
    struct wait *wait;
    struct forward *w;
    struct header_block headers;
    char *body;
    size_t body_len;
};

static inline void header_add(struct header_block *b, const char *line)
{
    buf_add(&b->text, line, strlen(line) + 1);
    b->n++;
}

static inline void adapter_free(struct rig *r)
{
    forward_free(r->w);
    wait_free(r->wait);
    r->w = NULL;
    r->wait = NULL;
}

/* Makes another adapter for the rig's queue. */
static inline int adapter_make(struct rig *r, struct fault *f)
{
    size_t application;
    int failed =
        wait_new(&r->wait, f) || forward_new(r->wait, &r->w, f) || forward_add(r->w, &r->q, &application, f);

    if (failed)
        adapter_free(r);
    else
        assert_int_equal(application, 0);
    return failed ? -1 : 0;
}

static inline void rig_forward(struct rig *r)
{
    struct fault f = {0};

    if (adapter_make(r, &f) < 0)
        fail_msg("%s", f.text);
}

/* Initializes everything but the server and the adapter. */
static inline void rig_init(struct rig *r)
{
    memset(r, 0, sizeof(*r));
    r->q.forward.url = r->url;
    r->q.forward.tls.verify = true;
    r->q.forward.connect_timeout_ms = 20000;
    r->q.forward.max_response_bytes = 65536;
    r->q.forward.concurrency = 16;
    r->q.forward.error_body = true;
    header_add(&r->headers, "Idempotency-Key: \"m-1\"");
    header_add(&r->headers, "Content-Type: application/json");
}

static inline void rig_start(struct rig *r, const char *path, const struct step *steps, size_t n_steps)
{
    rig_init(r);
    server_start(&r->s, path, steps, n_steps);
    snprintf(r->url, sizeof(r->url), "http://127.0.0.1:%d/in?a=1", path ? 80 : r->s.port);
    r->q.forward.unix_socket = (char *)path;
    rig_forward(r);
}

static inline void rig_stop(struct rig *r)
{
    adapter_free(r);
    if (r->s.fd)
        server_stop(&r->s);
    header_block_deinit(&r->headers);
    free(r->body);
}

static inline void send_one(struct rig *r, uint64_t ref, size_t body_len, int64_t timeout_ms)
{
    struct forward_request q = {
        .ref = ref, .headers = &r->headers, .body = {NULL, body_len}, .timeout_ms = timeout_ms};

    if (!r->body || r->body_len != body_len) {
        free(r->body);
        r->body = malloc(body_len + 1);
        r->body_len = body_len;
        for (size_t i = 0; i < body_len; i++)
            r->body[i] = body_byte(i);
    }
    q.body.data = body_len ? r->body : NULL;
    forward_send(r->w, &q);
}

/* Takes a turn of the loop, of at most that time. */
static inline void turn(struct rig *r, int64_t most_ms)
{
    int64_t until_ms = clock_ms() + most_ms, due_ms = forward_due_ms(r->w);

    wait_turn(r->wait, due_ms < until_ms ? due_ms : until_ms);
}

/* Takes an available answer. */
static inline bool step(struct rig *r, struct answer *a)
{
    struct forward_event e;

    if (!forward_step(r->w, &e))
        return false;
    assert_int_equal(e.kind, FORWARD_ANSWER);
    *a = e.answer;
    return true;
}

static inline void wait_answer(struct rig *r, struct answer *a)
{
    int64_t deadline = clock_ms() + DEADLINE_MS;

    while (!step(r, a)) {
        turn(r, 100);
        if (clock_ms() > deadline)
            fail_msg("no answer");
    }
}

static inline struct answer post_for(struct rig *r, size_t body_len, int64_t timeout_ms)
{
    static uint64_t ref = 1000;
    struct answer a;

    send_one(r, ++ref, body_len, timeout_ms);
    wait_answer(r, &a);
    assert_int_equal(a.ref, ref);
    assert_int_equal(forward_in_flight(r->w), 0);
    return a;
}

static inline struct answer post(struct rig *r, size_t body_len)
{
    return post_for(r, body_len, DEADLINE_MS);
}

#define assert_error(a, part)                                                                                \
    do {                                                                                                     \
        if (!strstr((a).error, part))                                                                        \
            fail_msg("\"%s\" is not in \"%s\" (kind %d, status %d)", part, (a).error, (a).kind, (a).status); \
    } while (0)

#define wait_until(condition)                                                                                \
    for (int64_t wait_end = clock_ms() + DEADLINE_MS; !(condition); usleep(1000))                            \
        if (clock_ms() > wait_end)                                                                           \
    fail_msg("not in time: " #condition)

static inline int port_bound(int *fd, int backlog)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);

    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*fd, (struct sockaddr *)&in, sizeof(in)), 0);
    getsockname(*fd, (struct sockaddr *)&in, &len);
    if (backlog >= 0)
        assert_int_equal(listen(*fd, backlog), 0);
    return ntohs(in.sin_port);
}

static inline char *in_dir(const char *name)
{
    char *path = malloc(128);

    snprintf(path, 128, "%s/%s", dir, name);
    return path;
}

/* Makes a certificate for 127.0.0.1, and its key. */
static inline void certificate_make(const char *cert, const char *key)
{
    char command[512];
    FILE *h;

    snprintf(command, sizeof(command),
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout %s -out %s "
             "-days 2 -subj /CN=test "
             "-addext subjectAltName=IP:127.0.0.1 >/dev/null 2>&1",
             key, cert);
    h = popen(command, "r");
    assert_int_equal(pclose(h), 0);
}

static inline SSL_CTX *tls_server(bool wants_certificate)
{
    SSL_CTX *c = SSL_CTX_new(TLS_server_method());
    char *cert = in_dir("cert.pem"), *key = in_dir("key.pem");

    assert_int_equal(SSL_CTX_use_certificate_file(c, cert, SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_CTX_load_verify_locations(c, cert, NULL), 1);
    assert_int_equal(SSL_CTX_set_session_id_context(c, (const unsigned char *)"test", 4), 1);
    if (wants_certificate)
        SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    free(cert);
    free(key);
    return c;
}

static inline int set_up(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("all_proxy", "http://127.0.0.1:1", 1);
    forward_global_init();
    return mkdtemp(dir) ? 0 : -1;
}

static inline int tear_down(void **state)
{
    static const char *const files[] = {"token", "cert.pem", "key.pem"};
    (void)state;

    for (size_t i = 0; i < 3; i++) {
        char *path = in_dir(files[i]);

        unlink(path);
        free(path);
    }
    return rmdir(dir);
}
