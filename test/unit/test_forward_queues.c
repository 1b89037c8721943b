/* Several queues and applications on one adapter: sharing, and independence. */

#include "forward_rig.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Makes a copy of a queue with another URL. */
static struct config_queue queue_like(const struct config_queue *q, char *url)
{
    struct config_queue other = *q;

    other.forward.url = url;
    return other;
}

/* Adds a queue. Returns the number of its application. */
static size_t queue_add(struct rig *r, const struct config_queue *q)
{
    struct fault f = {0};
    size_t application = 999;

    if (forward_add(r->w, q, &application, &f) < 0)
        fail_msg("%s", f.text);
    return application;
}

static void send_to(struct rig *r, size_t queue, uint64_t ref, int64_t timeout_ms)
{
    struct forward_request q = {
        .queue = queue, .ref = ref, .headers = &r->headers, .body = SLICE("abc"), .timeout_ms = timeout_ms};

    forward_send(r->w, &q);
}

static struct answer post_to(struct rig *r, size_t queue)
{
    struct answer a;

    send_to(r, queue, 1, DEADLINE_MS);
    wait_answer(r, &a);
    assert_int_equal(a.queue, queue);
    return a;
}

/* Two queues; do they share an application? */
static const struct same_row {
    const char *name, *url_a, *socket_a, *url_b, *socket_b;
    struct config_tls tls_b; /* a has {verify} */
    bool same;
} same_rows[] = {
    {"paths", "http://a/x?1", NULL, "http://a/y", NULL, {.verify = true}, true},
    {"the scheme's port", "http://a/", NULL, "http://a:80/", NULL, {.verify = true}, true},
    {"case of the host", "http://a.b/", NULL, "http://A.B/", NULL, {.verify = true}, true},
    {"users", "http://u:p@a/", NULL, "http://a/", NULL, {.verify = true}, true},
    {"hosts", "http://a/", NULL, "http://b/", NULL, {.verify = true}, false},
    {"ports", "http://a:81/", NULL, "http://a:82/", NULL, {.verify = true}, false},
    {"schemes", "http://a:81/", NULL, "https://a:81/", NULL, {.verify = true}, false},
    {"a socket, whatever the host", "http://a/", "/s", "http://b/", "/s", {.verify = true}, true},
    {"sockets", "http://a/", "/s", "http://a/", "/t", {.verify = true}, false},
    {"a socket and none", "http://a/", "/s", "http://a/", NULL, {.verify = true}, false},
    {"a socket with TLS: the host is in the certificate",
     "https://a/",
     "/s",
     "https://b/",
     "/s",
     {.verify = true},
     false},
    {"TLS", "https://a/", NULL, "https://a:443/", NULL, {.verify = true}, true},
    {"verify", "https://a/", NULL, "https://a/", NULL, {.verify = false}, false},
    {"ca_file", "https://a/", NULL, "https://a/", NULL, {.verify = true, .ca_file = (char *)"x"}, false},
    {"cert_file", "https://a/", NULL, "https://a/", NULL, {.verify = true, .cert_file = (char *)"x"}, false},
    {"key_file", "https://a/", NULL, "https://a/", NULL, {.verify = true, .key_file = (char *)"x"}, false},
    {"TLS settings without TLS", "http://a/", NULL, "http://a/", NULL, {.verify = false}, true},
};

static void test_who_shares_an_application(void **state)
{
    for (size_t i = 0; i < sizeof(same_rows) / sizeof(same_rows[0]); i++) {
        const struct same_row *row = &same_rows[i];
        struct rig r;

        print_message("         %s\n", row->name);
        rig_init(&r);
        snprintf(r.url, sizeof(r.url), "%s", row->url_a);
        r.q.forward.unix_socket = (char *)row->socket_a;
        rig_forward(&r);
        struct config_queue b = queue_like(&r.q, (char *)row->url_b);
        b.forward.unix_socket = (char *)row->socket_b;
        b.forward.tls = row->tls_b;
        assert_int_equal(queue_add(&r, &b), row->same ? 0 : 1);
        assert_int_equal(queue_add(&r, &r.q), 0);
        assert_int_equal(queue_add(&r, &b), row->same ? 0 : 1);
        assert_null(strchr(forward_application_name(r.w, 0), '@'));
        rig_stop(&r);
    }
}

/* Each queue sends its own requests over shared connections. */
static void test_queues_share_connections(void **state)
{
    static const struct step steps[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 0, END_KEEP, ALL, false}};
    struct config_header configured[] = {{(char *)"X-Queue", (char *)"two", false}};
    struct config_queue b;
    struct rig r;
    char url[64];

    rig_start(&r, NULL, steps, 1);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/two", r.s.port);
    b = queue_like(&r.q, url);
    b.forward.headers = configured;
    b.forward.n_headers = 1;
    b.forward.authorization.value = (char *)"Bearer two";
    b.forward.max_response_bytes = 5;
    r.q.forward.max_response_bytes = 8;
    assert_int_equal(queue_add(&r, &b), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(post_to(&r, 0).body.len, 5);
        assert_int_equal(strncmp(r.s.head, "POST /in?a=1 HTTP/1.1\r\n", 23), 0);
        assert_null(strstr(r.s.head, "two"));
        assert_int_equal(post_to(&r, 1).body.len, 5);
        assert_int_equal(strncmp(r.s.head, "POST /two HTTP/1.1\r\n", 20), 0);
        assert_non_null(strstr(r.s.head, "\r\nAuthorization: Bearer two\r\n"));
        assert_non_null(strstr(r.s.head, "\r\nX-Queue: two\r\n"));
    }
    assert_int_equal(r.s.n_connections, 1);
    b.forward.max_response_bytes = 4;
    assert_true(post_to(&r, 1).cut);
    assert_false(post_to(&r, 0).cut);
    rig_stop(&r);
}

/* Two queues may have the same ref in flight; one is abandoned, the other answered. */
static void test_a_ref_belongs_to_its_queue(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    struct rig r;
    struct answer a;

    rig_start(&r, NULL, steps, 1);
    assert_int_equal(queue_add(&r, &r.q), 0);
    send_to(&r, 0, 7, DEADLINE_MS);
    send_to(&r, 1, 7, DEADLINE_MS);
    assert_int_equal(forward_in_flight(r.w), 2);
    forward_abandon(r.w, 0, 7);
    assert_int_equal(forward_in_flight(r.w), 1);
    wait_answer(&r, &a);
    assert_int_equal(a.queue, 1);
    assert_int_equal(a.ref, 7);
    assert_false(step(&r, &a));
    rig_stop(&r);
}

/* Sends that many requests at once, and waits for all answers. Returns the number of new connections. */
static int round_of(struct rig *r, int n)
{
    int before = r->s.n_connections;
    struct answer a;

    for (int i = 0; i < n; i++)
        send_to(r, (size_t)i % 2, (uint64_t)i, DEADLINE_MS);
    for (int i = 0; i < n; i++) {
        wait_answer(r, &a);
        assert_int_equal(a.kind, ANSWER_STATUS);
    }
    return r->s.n_connections - before;
}

/* As many connections are kept as the queues may have requests in flight together: that many need no new ones, more
 * do. */
static void test_connections_kept(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    enum { KEPT = 2 + 3, OUT = 12 };
    struct rig r;
    struct answer a;

    rig_start(&r, NULL, steps, 1);
    adapter_free(&r);
    r.q.forward.concurrency = 2;
    rig_forward(&r);
    struct config_queue b = r.q;
    b.forward.concurrency = 3;
    queue_add(&r, &b);
    for (int rounds = 0; rounds < 4; rounds++) {
        int before = r.s.n_connections;

        round_of(&r, OUT);
        for (int64_t end_ms = clock_ms() + DEADLINE_MS; r.s.n_connections < before + OUT - KEPT;
             turn(&r, 10)) {
            assert_false(step(&r, &a)); /* made for a request that another connection has carried meanwhile */
            assert_true(clock_ms() < end_ms);
        }
    }
    for (int64_t end_ms = clock_ms() + DEADLINE_MS; round_of(&r, KEPT);)
        assert_true(clock_ms() < end_ms);
    rig_stop(&r);
}

/* Surplus kept connections are closed, and then no wake-up is due any more. */
static void test_idle_connections_end(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    struct rig r;
    struct answer a;

    rig_start(&r, NULL, steps, 1);
    assert_int_equal(post_to(&r, 0).status, 204);
    assert_false(step(&r, &a));
    assert_true(forward_due_ms(r.w) > clock_ms() && forward_due_ms(r.w) <= clock_ms() + 4000);
    for (int64_t end_ms = clock_ms() + DEADLINE_MS; r.s.n_open; turn(&r, 100)) {
        assert_false(step(&r, &a));
        assert_true(clock_ms() < end_ms);
    }
    assert_true(forward_due_ms(r.w) == INT64_MAX);
    assert_int_equal(post_to(&r, 0).status, 204);
    rig_stop(&r);
}

static void test_fresh(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    struct rig r;
    struct answer a;

    rig_start(&r, NULL, steps, 1);
    queue_add(&r, &r.q);
    for (int i = 1; i <= 3; i++) {
        struct forward_request q = {.queue = 1,
                                    .ref = 1,
                                    .headers = &r.headers,
                                    .body = SLICE("abc"),
                                    .timeout_ms = DEADLINE_MS,
                                    .fresh = true};

        assert_int_equal(post_to(&r, 0).status, 204);
        assert_int_equal(r.s.n_connections, i);
        forward_send(r.w, &q);
        wait_answer(&r, &a);
        assert_int_equal(a.status, 204);
        assert_int_equal(r.s.n_connections, i + 1);
        wait_until(r.s.n_open == 1); /* the previous one is closed */
    }
    rig_stop(&r);
}

/* An application that accepts no connections: its backlog is full. */
struct hole {
    int fd, clients[8];
    char url[64];
};

static void hole_open(struct hole *h)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    in.sin_port = htons((uint16_t)port_bound(&h->fd, 0));
    for (int i = 0; i < 8; i++) {
        h->clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        connect(h->clients[i], (struct sockaddr *)&in, sizeof(in));
    }
    snprintf(h->url, sizeof(h->url), "http://127.0.0.1:%d/", ntohs(in.sin_port));
}

static void hole_close(struct hole *h)
{
    for (int i = 0; i < 8; i++)
        close(h->clients[i]);
    close(h->fd);
}

static void test_one_that_is_gone_delays_nobody(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    struct rig r;
    struct hole h;
    struct config_queue b, c;
    struct answer a;
    char url[64];
    int fd, n_of_a = 0;

    rig_start(&r, NULL, steps, 1);
    hole_open(&h);
    b = queue_like(&r.q, h.url);
    b.forward.connect_timeout_ms = DEADLINE_MS;
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/", port_bound(&fd, -1)); /* refuses */
    c = queue_like(&r.q, url);
    assert_int_equal(queue_add(&r, &b), 1);
    assert_int_equal(queue_add(&r, &c), 2);
    for (uint64_t ref = 1; ref <= 4; ref++)
        send_to(&r, 1, ref, DEADLINE_MS);
    for (uint64_t ref = 1; ref <= 200; ref++) {
        send_to(&r, 0, ref, DEADLINE_MS);
        send_to(&r, 2, ref, DEADLINE_MS);
        for (int i = 0; i < 2; i++) {
            wait_answer(&r, &a);
            assert_int_not_equal(a.queue, 1);
            assert_int_equal(a.kind, a.queue ? ANSWER_UNREACHABLE : ANSWER_STATUS);
            n_of_a += a.queue == 0;
        }
    }
    assert_int_equal(n_of_a, 200);
    assert_int_equal(forward_in_flight(r.w), 4);
    for (uint64_t ref = 1; ref <= 4; ref++)
        forward_abandon(r.w, 1, ref);
    assert_int_equal(forward_in_flight(r.w), 0);
    close(fd);
    hole_close(&h);
    rig_stop(&r);
}

/* Each application has a probe, all at once, with its own result. */
static void test_probes_at_once(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    enum forward_probe_result results[3];
    struct rig r;
    struct hole h;
    struct config_queue b, c;
    char url[64];
    int fd, n = 0;
    bool told[3] = {false};

    rig_start(&r, NULL, steps, 1);
    hole_open(&h);
    b = queue_like(&r.q, h.url);
    b.forward.connect_timeout_ms = 400;
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/", port_bound(&fd, -1));
    c = queue_like(&r.q, url);
    queue_add(&r, &b);
    queue_add(&r, &c);
    for (size_t i = 0; i < 3; i++)
        forward_probe(r.w, i);
    for (int64_t end_ms = clock_ms() + DEADLINE_MS; n < 3; turn(&r, 100)) {
        struct forward_event e;

        assert_true(clock_ms() < end_ms);
        while (forward_step(r.w, &e)) {
            assert_int_equal(e.kind, FORWARD_PROBE);
            assert_false(told[e.probe.application]);
            told[e.probe.application] = true;
            results[e.probe.application] = e.probe.result;
            n++;
            if (e.probe.application != 1)
                assert_false(told[1]); /* the silent one delays no other */
        }
    }
    assert_int_equal(results[0], PROBE_READY);
    assert_int_equal(results[1], PROBE_SILENT);
    assert_int_equal(results[2], PROBE_UNREACHABLE);
    close(fd);
    hole_close(&h);
    rig_stop(&r);
}

/* A probe that cannot be started has exactly one result, too. */
static void test_a_probe_that_cannot_be_made(void **state)
{
    struct rig r;
    struct forward_event e;

    rig_init(&r);
    snprintf(r.url, sizeof(r.url), "http://a/");
    r.q.ready_url = (char *)"ftp://u:secret@a/";
    rig_forward(&r);
    for (int i = 0; i < 2; i++) {
        forward_probe(r.w, 0);
        forward_probe(r.w, 0);
        assert_true(forward_due_ms(r.w) <= clock_ms());
        assert_int_equal(forward_step(r.w, &e), FORWARD_PROBE);
        assert_int_equal(e.probe.result, PROBE_UNREACHABLE);
        assert_non_null(strstr(e.probe.error, "http"));
        assert_null(strstr(e.probe.error, "secret"));
        assert_int_equal(forward_step(r.w, &e), FORWARD_NOTHING);
    }
    rig_stop(&r);
}

/* A server that one queue trusts need not be trusted by another: the second queue's connection must not serve the
 * first. */
static void test_tls_settings_apart(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    char *cert = in_dir("cert.pem"), *key = in_dir("key.pem");
    struct rig r;
    struct config_queue b, c;
    struct answer a;

    certificate_make(cert, key);
    rig_init(&r);
    r.s.tls = tls_server(false);
    server_start(&r.s, NULL, steps, 1);
    snprintf(r.url, sizeof(r.url), "https://127.0.0.1:%d/", r.s.port);
    r.q.forward.connect_timeout_ms = DEADLINE_MS;
    rig_forward(&r); /* trusts the system's authorities, hence not this one */
    b = c = r.q;
    b.forward.tls.verify = false;
    c.forward.tls.ca_file = cert;
    assert_int_equal(queue_add(&r, &b), 1);
    assert_int_equal(queue_add(&r, &c), 2);
    assert_int_equal(queue_add(&r, &c), 2);
    assert_int_equal(post_to(&r, 1).status, 204);
    assert_int_equal(post_to(&r, 2).status, 204);
    a = post_to(&r, 0);
    assert_int_equal(a.kind, ANSWER_UNREACHABLE);
    assert_error(a, "certificate");
    assert_int_equal(post_to(&r, 3).status, 204);
    assert_int_equal(r.s.n_heads, 3);
    assert_int_equal(r.s.n_connections, 3); /* including the failed one */
    rig_stop(&r);
    free(cert);
    free(key);
}

/* From here on every system call except the wait ends the process. */
static void only_the_wait(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef SYS_epoll_wait
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_wait, 3, 0),
#else
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait, 3, 0),
#endif
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(errno == EINVAL || errno == ENOSYS ? 0
                                                 : 9); /* a kernel without filters: the test shows nothing */
}

/* 64 queues at 8 applications, each with a kept connection: a turn without events is one wait. */
static void test_idle_queues_cost_nothing(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    enum { QUEUES = 64, APPLICATIONS = 8, TURNS = 100 };
    struct server servers[APPLICATIONS];
    char urls[QUEUES][64];
    struct config_queue queues[QUEUES];
    struct rig r;
    struct forward_event e;
    int status;

    rig_start(&r, NULL, steps, 1);
    memset(servers, 0, sizeof(servers));
    for (int i = 0; i < APPLICATIONS; i++)
        server_start(&servers[i], NULL, steps, 1);
    for (int i = 0; i < QUEUES; i++) {
        snprintf(urls[i], sizeof(urls[i]), "http://127.0.0.1:%d/%d", servers[i % APPLICATIONS].port, i);
        queues[i] = queue_like(&r.q, urls[i]);
        assert_int_equal(queue_add(&r, &queues[i]), 1 + i % APPLICATIONS);
        post_to(&r, 1 + (size_t)i);
    }
    for (int i = 0; i < APPLICATIONS; i++)
        assert_int_equal(servers[i].n_connections, 1);
    assert_int_equal(forward_step(r.w, &e), FORWARD_NOTHING);
    pid_t child = fork();
    if (child == 0) {
        only_the_wait();
        for (int i = 0; i < TURNS; i++)
            if (forward_step(r.w, &e) || wait_turn(r.wait, 0))
                syscall(SYS_exit_group, 1);
        syscall(SYS_exit_group, 0); /* not _exit, in which the sanitizers inspect their stacks */
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("a turn makes other system calls than the wait (status %x)", status);
    adapter_free(&r);
    for (int i = 0; i < APPLICATIONS; i++)
        server_stop(&servers[i]);
    rig_stop(&r);
}

/* A failed addition adds nothing: the numbers continue. */
static void test_a_queue_that_cannot_be_added(void **state)
{
    struct rig r;
    struct config_queue bad;
    struct fault f = {0};
    size_t application = 77;

    rig_init(&r);
    snprintf(r.url, sizeof(r.url), "http://a/");
    rig_forward(&r);
    bad = queue_like(&r.q, (char *)"http://secret:secret@/?secret");
    assert_int_equal(forward_add(r.w, &bad, &application, &f), -1);
    assert_null(strstr(f.text, "secret"));
    bad = queue_like(&r.q, (char *)"http://b/");
    bad.forward.authorization.file = (char *)"/nonexistent/token";
    assert_int_equal(forward_add(r.w, &bad, &application, &f), -1);
    assert_int_equal(application, 77);
    assert_int_equal(queue_add(&r, &r.q), 0);
    bad.forward.authorization.file = NULL;
    assert_int_equal(queue_add(&r, &bad), 1);
    assert_string_equal(forward_application_name(r.w, 1), "b:80");
    rig_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_shares_an_application),
        cmocka_unit_test(test_queues_share_connections),
        cmocka_unit_test(test_a_ref_belongs_to_its_queue),
        cmocka_unit_test(test_connections_kept),
        cmocka_unit_test(test_idle_connections_end),
        cmocka_unit_test(test_fresh),
        cmocka_unit_test(test_one_that_is_gone_delays_nobody),
        cmocka_unit_test(test_probes_at_once),
        cmocka_unit_test(test_a_probe_that_cannot_be_made),
        cmocka_unit_test(test_tls_settings_apart),
        cmocka_unit_test(test_idle_queues_cost_nothing),
        cmocka_unit_test(test_a_queue_that_cannot_be_added),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
