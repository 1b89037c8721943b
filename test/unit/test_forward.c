/* The forward adapter against a scripted server on real sockets: one queue, one application. */

#include "forward_rig.h"

#include <limits.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* A table of answers. */
static const struct answer_row {
    const char *name, *answer;
    enum ending ending;
    enum answer_kind kind;
    int status;
    int64_t retry_after_ms;
    const char *body, *error;
    bool cut;
} answer_rows[] = {
    {"no content", "HTTP/1.1 204 No Content\r\n\r\n", END_KEEP, ANSWER_STATUS, 204, -1, "", "", false},
    {"body", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", END_KEEP, ANSWER_STATUS, 200, -1, "hello",
     "", false},
    {"chunked",
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nRetry-After: "
     "5\r\n\r\n",
     END_KEEP, ANSWER_STATUS, 200, -1, "abcde", "", false},
    {"HTTP/1.0 to the end", "HTTP/1.0 200 OK\r\n\r\nuntil the end", END_CLOSE, ANSWER_STATUS, 200, -1,
     "until the end", "", false},
    {"100, 103, then final",
     "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nRetry-After: 9\r\nLink: <a>\r\n\r\n"
     "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
     END_KEEP, ANSWER_STATUS, 201, -1, "", "", false},
    {"500 with text", "HTTP/1.1 500 Oh\r\nContent-Length: 12\r\n\r\n a\tb\x01\n\xc3\xa9 \x1b[0", END_KEEP,
     ANSWER_STATUS, 500, -1, NULL, "answered 500: \"a b \xc3\xa9 [0\"", false},
    {"500 with binary", "HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\n\xff\xfe\x80z", END_KEEP, ANSWER_STATUS,
     500, -1, NULL, "answered 500", false},
    {"302 is not followed", "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
     END_KEEP, ANSWER_STATUS, 302, -1, "", "answered 302", false},
    {"401 is not answered",
     "HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n", END_KEEP,
     ANSWER_STATUS, 401, -1, "", "answered 401", false},
    {"417 is not answered by a second request", "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n", END_KEEP,
     ANSWER_STATUS, 417, -1, "", "answered 417", false},
    {"Retry-After", "HTTP/1.1 429 Slow\r\nretry-after:  7 \r\nContent-Length: 0\r\n\r\n", END_KEEP,
     ANSWER_STATUS, 429, 7000, "", "answered 429", false},
    {"Retry-After, capped", "HTTP/1.1 503 No\r\nRetry-After: 86400\r\nContent-Length: 0\r\n\r\n", END_KEEP,
     ANSWER_STATUS, 503, 3600000, "", "answered 503", false},
    {"Retry-After, nonsense", "HTTP/1.1 503 No\r\nRetry-After: soon\r\nContent-Length: 0\r\n\r\n", END_KEEP,
     ANSWER_STATUS, 503, -1, "", "answered 503", false},
    {"101 was not asked for", "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", END_HANG,
     ANSWER_STATUS, 101, -1, "", "answered 101", true},
    {"closed at once", NULL, END_CLOSE, ANSWER_DIED, 0, -1, "", "connection closed by 127.0.0.1:", false},
    {"reset at once", NULL, END_RESET, ANSWER_DIED, 0, -1, "", "connection reset by 127.0.0.1:", false},
    {"closed in the status line", "HTTP/1.1 20", END_CLOSE, ANSWER_DIED, 0, -1, "", "127.0.0.1:", false},
    {"closed in the headers", "HTTP/1.1 200 OK\r\nContent-", END_CLOSE, ANSWER_DIED, 0, -1, "",
     "127.0.0.1:", false},
    {"error, closed in the headers", "HTTP/1.1 500 OK\r\nContent-", END_CLOSE, ANSWER_DIED, 0, -1, "",
     "127.0.0.1:", false},
    {"reset in the headers", "HTTP/1.1 200 OK\r\nContent-Le", END_RESET, ANSWER_DIED, 0, -1, "",
     "127.0.0.1:", false},
    {"closed after an interim answer", "HTTP/1.1 100 Continue\r\n\r\n", END_CLOSE, ANSWER_DIED, 0, -1, "",
     "127.0.0.1:", false},
    {"closed in the body", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", END_CLOSE, ANSWER_DIED, 0,
     -1, "", "in the middle of its answer", false},
    {"closed in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n30\r\nabc", END_CLOSE,
     ANSWER_DIED, 0, -1, "", "127.0.0.1:", false},
    {"reset in the body", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", END_RESET, ANSWER_DIED, 0, -1,
     "", "127.0.0.1:", false},
    {"error, closed in the body", "HTTP/1.1 500 No\r\nContent-Length: 50\r\n\r\nhello", END_CLOSE,
     ANSWER_STATUS, 500, -1, "hello", "answered 500: \"hello\"", true},
    {"garbage", "SSH-2.0-OpenSSH_9.2p1 Debian\r\n", END_CLOSE, ANSWER_DIED, 0, -1, "", "not HTTP", false},
    {"garbage, binary", "\x15\x03\x03\x02\x02\x16\r\n\r\nxxxxxxxxxxxxxxxxxxx", END_CLOSE, ANSWER_DIED, 0, -1,
     "", "127.0.0.1:", false},
};

static void test_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(answer_rows) / sizeof(answer_rows[0]); i++) {
        const struct answer_row *row = &answer_rows[i];
        struct step steps[] = {{row->answer, 0, row->ending, ALL, false}};
        struct rig r;
        struct answer a;

        print_message("         %s\n", row->name);
        rig_start(&r, NULL, steps, 1);
        a = post(&r, 256);
        assert_int_equal(a.kind, row->kind);
        assert_int_equal(a.status, row->status);
        assert_int_equal(a.retry_after_ms, row->retry_after_ms);
        assert_int_equal(a.cut, row->cut);
        assert_true(a.took_us > 0);
        if (row->body) {
            assert_int_equal(a.body.len, strlen(row->body));
            assert_memory_equal(a.body.len ? a.body.data : "", row->body, a.body.len);
        }
        if (row->kind == ANSWER_STATUS)
            assert_string_equal(a.error, row->error);
        else
            assert_error(a, row->error);
        assert_int_equal(r.s.n_requests, 1);
        rig_stop(&r);
    }
}

static void test_request_on_the_wire(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    struct config_header configured[] = {{(char *)"X-Tenant", (char *)"7", false},
                                         {(char *)"X-Empty", (char *)"", false},
                                         {(char *)"Amqp-Type", (char *)"mine", false}};
    struct rig r;
    char expected[1024];
    (void)state;

    rig_start(&r, NULL, steps, 1);
    adapter_free(&r);
    r.q.forward.headers = configured;
    r.q.forward.n_headers = 3;
    r.q.forward.authorization.value = (char *)"Bearer abc";
    rig_forward(&r);
    header_add(&r.headers, "Amqp-Routing-Key: ");
    header_add(&r.headers, "Amqp-Type: theirs");
    for (size_t i = 0; i < 3; i++) {
        static const size_t sizes[] = {0, 5, 1 << 20};

        assert_int_equal(post(&r, sizes[i]).status, 204);
        snprintf(expected, sizeof(expected),
                 "POST /in?a=1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: onceward/" ONCEWARD_VERSION
                 "\r\n"
                 "Idempotency-Key: \"m-1\"\r\nContent-Type: "
                 "application/json\r\nAmqp-Routing-Key: \r\nAuthorization: Bearer abc\r\n"
                 "X-Tenant: 7\r\nX-Empty:\r\nAmqp-Type: mine\r\nContent-Length: %zu\r\n\r\n",
                 r.s.port, sizes[i]);
        assert_string_equal(r.s.head, expected);
    }
    assert_int_equal(r.s.n_body, 5 + (1 << 20));
    assert_false(r.s.body_is_wrong);
    assert_int_equal(r.s.n_connections, 1);

    /* without any lines no field is added */
    header_block_deinit(&r.headers);
    assert_int_equal(post(&r, 3).status, 204);
    assert_null(strstr(r.s.head, "Content-Type"));
    assert_null(strstr(r.s.head, "Accept"));
    assert_null(strstr(r.s.head, "Expect"));
    rig_stop(&r);
}

/* The server reads a whole request on a kept connection, which then dies. Was the request sent again? */
static void test_never_sent_twice(void **state)
{
    static const size_t sizes[] = {0, 1, 256, 65535, 65536, 1 << 20};
    static const enum ending endings[] = {END_CLOSE, END_RESET};
    (void)state;

    for (size_t i = 0; i < 6 * 2 * 2; i++) {
        bool head_only = i >= 12; /* dies before the body was read */
        struct step steps[] = {{ok, 0, END_KEEP, ALL, false},
                               {NULL, 0, endings[i % 2], head_only ? 0 : ALL, false},
                               {ok, 0, END_KEEP, ALL, false}};
        size_t size = sizes[i / 2 % 6];
        struct rig r;
        struct answer a;

        rig_start(&r, NULL, steps, 3);
        assert_int_equal(post(&r, size).status, 204);
        a = post(&r, size);
        assert_int_equal(a.kind, ANSWER_DIED);
        assert_error(a, "127.0.0.1:");
        assert_int_equal(step(&r, &a), 0);
        assert_int_equal(r.s.n_connections, 1);
        assert_int_equal(r.s.n_heads, 2);
        /* and the handle can be used again */
        assert_int_equal(post(&r, size).status, 204);
        assert_int_equal(r.s.n_heads, 3);
        assert_int_equal(r.s.n_connections, 2);
        rig_stop(&r);
    }
}

/* A connection that the server closed while it was idle is not used again, and no request is lost. */
static void test_stale_connection(void **state)
{
    static const struct step steps[] = {{ok, 0, END_CLOSE, ALL, false}};
    struct rig r;
    (void)state;

    rig_start(&r, NULL, steps, 1);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(post(&r, 10).status, 204);
        wait_until(r.s.n_open == 0);
    }
    assert_int_equal(r.s.n_requests, 20);
    rig_stop(&r);
}

static void test_early_answer(void **state)
{
    static const char *const answers[] = {
        "HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\n\r\ntoo large",
        "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 9\r\n\r\ntoo large",
        "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 413 Too Large\r\nConnection: close\r\n\r\ntoo large",
    };
    static const enum ending endings[] = {END_HANG, END_CLOSE};
    enum { TURNS = 400 }; /* whether the connection or its silence ends first is a race */
    char path[64], *body = NULL;
    size_t body_len = 0;
    (void)state;

    snprintf(path, sizeof(path), "%s/early.sock", dir);
    for (size_t k = 0; k < TURNS; k++) {
        size_t i = k % 8;
        bool tcp = k < TURNS / 2;
        struct step steps[] = {{ok, 0, END_KEEP, ALL, false},
                               {answers[i / 2], 0, endings[i % 2], k & 8 ? 1000 : 300000, false}};
        struct rig r;
        struct answer a;

        rig_start(&r, tcp ? NULL : path, steps, 2);
        if (!tcp)
            r.s.steps++, r.s.n_steps--; /* a large body needs a larger buffer than a Unix socket has */
        else
            assert_int_equal(post(&r, 1).status, 204);
        free(r.body);
        r.body = body;
        r.body_len = body_len;
        a = post(&r, 16 << 20);
        body = r.body;
        body_len = r.body_len;
        r.body = NULL;
        if (a.kind != ANSWER_STATUS)
            fail_msg("turn %zu: kind %d: %s", k, a.kind, a.error);
        assert_int_equal(a.status, 413);
        assert_true(a.took_us < 5000000);
        if (i / 2 != 2)
            assert_string_equal(a.error, "answered 413: \"too large\"");
        assert_int_equal(r.s.n_heads, tcp ? 2 : 1);
        assert_int_equal(r.s.n_requests, tcp ? 1 : 0);
        rig_stop(&r);
    }
    free(body);
}

/* Bytes behind an answer are not the next request's answer. The reader reads 16 KiB at a time. */
static void test_unasked(void **state)
{
    enum { PIECE = 16384 };
    static const char unasked[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    char *text = malloc(2 * PIECE), path[64];
    (void)state;

    snprintf(path, sizeof(path), "%s/unasked.sock", dir);
    int n = sprintf(text, "HTTP/1.1 500 No\r\nContent-Length: %5d\r\n\r\n", 0);
    n = sprintf(text, "HTTP/1.1 500 No\r\nContent-Length: %5d\r\n\r\n", PIECE - n);
    memset(text + n, 'x', (size_t)(PIECE - n));
    memcpy(text + PIECE, unasked, sizeof(unasked));
    for (int i = 0; i < 2; i++) {
        struct step steps[] = {{text, 0, END_KEEP, ALL, false}};
        struct rig r;

        rig_start(&r, i ? path : NULL, steps, 1);
        assert_int_equal(post(&r, 1).status, 500);
        assert_int_equal(post(&r, 1).status, 500);
        assert_int_equal(r.s.n_connections, 2);
        rig_stop(&r);
    }
    free(text);
}

/* The process was stopped for longer than the requests' time. The answers arrived meanwhile, more than one pass
 * reads. */
static void test_answers_that_lay_there(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    enum { OUT = 150, TIME_MS = 700 };
    struct rig r;
    struct answer a;
    int n_requests, n_connections;
    int64_t sent;
    (void)state;

    rig_start(&r, NULL, steps, 1);
    adapter_free(&r);
    r.q.forward.concurrency = OUT;
    rig_forward(&r);
    for (;;) {
        for (int i = 0; i < OUT; i++) /* as many connections as requests */
            send_one(&r, (uint64_t)i + 1, 10, DEADLINE_MS);
        for (int i = 0; i < OUT; i++)
            wait_answer(&r, &a);
        assert_int_equal(step(&r, &a), 0);
        n_requests = r.s.n_requests;
        n_connections = r.s.n_connections;
        int64_t start = clock_ms();
        for (int i = 0; i < OUT; i++)
            send_one(&r, (uint64_t)i + 1, 10, TIME_MS);
        sent = clock_ms();
        if (sent < start + TIME_MS / 2)
            break;
        for (int i = 0; i < OUT; i++) /* the machine stood still, so some were not sent */
            wait_answer(&r, &a);
    }
    wait_until(r.s.n_requests == n_requests + OUT && clock_ms() > sent + TIME_MS + 100);
    for (int i = 0; i < OUT; i++) {
        assert_int_equal(step(&r, &a), 1);
        assert_int_equal(a.kind, ANSWER_STATUS);
    }
    assert_int_equal(r.s.n_connections, n_connections);
    rig_stop(&r);
}

static void test_early_success(void **state)
{
    static const struct step steps[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 0, END_KEEP, 0, false}};
    struct rig r;
    struct answer a;
    (void)state;

    rig_start(&r, NULL, steps, 1);
    a = post(&r, 100);
    assert_int_equal(a.kind, ANSWER_STATUS);
    assert_int_equal(a.status, 200);
    rig_stop(&r);
}

static void test_too_much(void **state)
{
    size_t size = 3 << 20;
    char *big = malloc(size + 200);
    struct step steps[] = {{big, 0, END_KEEP, ALL, false}};
    struct rig r;
    struct answer a;
    (void)state;

    int n = sprintf(big, "HTTP/1.1 500 No\r\nContent-Length: %zu\r\n\r\n", size);
    for (size_t i = 0; i < size; i++)
        memcpy(big + (size_t)n + i, i % 2 ? "\xa9" : "\xc3", 1);
    steps[0].len = (size_t)n + size;
    rig_start(&r, NULL, steps, 1);
    r.q.forward.max_response_bytes = 101;
    a = post(&r, 1);
    assert_int_equal(a.kind, ANSWER_STATUS);
    assert_int_equal(a.status, 500);
    assert_true(a.cut);
    assert_int_equal(a.body.len, 101);
    assert_error(a, "answered 500: \"\xc3\xa9");
    r.q.forward.max_response_bytes = 0;
    a = post(&r, 1);
    assert_true(a.kind == ANSWER_STATUS && a.cut && a.body.len == 0);
    rig_stop(&r);

    /* headers without an end: before and after a final status line */
    for (int i = 0; i < 2; i++) {
        n = sprintf(big, "HTTP/1.1 %s\r\n", i ? "200 OK" : "103 Early Hints");
        for (int k = 0; k < 1200; k++)
            n += sprintf(big + n, "X-Filler-%04d: %0100d\r\n", k, 1);
        steps[0].len = (size_t)n;
        rig_start(&r, NULL, steps, 1);
        a = post(&r, 1);
        assert_int_equal(a.kind, i ? ANSWER_STATUS : ANSWER_DIED);
        assert_int_equal(a.status, i ? 200 : 0);
        assert_int_equal(a.cut, i);
        rig_stop(&r);
    }
    free(big);
}

static void test_timeouts(void **state)
{
    static const struct {
        const char *answer;
        size_t read_body;
        enum answer_kind kind;
        int status;
    } rows[] = {
        {NULL, ALL, ANSWER_TIMEOUT, 0},
        {NULL, 0, ANSWER_TIMEOUT, 0},
        {"HTTP/1.1 100 Continue\r\n\r\n", ALL, ANSWER_TIMEOUT, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", ALL, ANSWER_TIMEOUT, 0},
        {"HTTP/1.1 409 No\r\nRetry-After: 3\r\nContent-Length: 9\r\n\r\nabc", ALL, ANSWER_STATUS, 409},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct step steps[] = {{rows[i].answer, 0, END_HANG, rows[i].read_body, false}};
        struct rig r;
        struct answer a;

        rig_start(&r, NULL, steps, 1);
        a = post_for(&r, rows[i].read_body ? 1000 : 8 << 20, 600);
        assert_int_equal(a.kind, rows[i].kind);
        assert_int_equal(a.status, rows[i].status);
        assert_int_in_range(a.took_us, 590000, 6000000);
        if (a.kind == ANSWER_TIMEOUT)
            assert_error(a, "no answer from 127.0.0.1:");
        rig_stop(&r);
    }
}

static void assert_unreachable(struct rig *r, const char *url, const char *path, bool refused,
                               const char *part)
{
    struct answer a;

    snprintf(r->url, sizeof(r->url), "%s", url);
    r->q.forward.unix_socket = (char *)path;
    rig_forward(r);
    a = post(r, 10);
    if (a.kind != ANSWER_UNREACHABLE)
        fail_msg("kind %d: %s", a.kind, a.error);
    assert_error(a, part);
    assert_int_equal(a.refused, refused);
    adapter_free(r);
}

static void test_unreachable(void **state)
{
    struct rig r;
    char url[64], path[64], part[96];
    int fd, full, clients[8];
    (void)state;

    rig_init(&r);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/",
             port_bound(&fd, -1)); /* bound, so that no other process listens there */
    snprintf(part, sizeof(part), "connection refused by %s", url + 7);
    part[strlen(part) - 1] = '\0';
    assert_unreachable(&r, url, NULL, true, part);
    snprintf(path, sizeof(path), "%s/none.sock", dir);
    assert_unreachable(&r, "http://localhost/", path, true, path);
    assert_unreachable(&r, "http://no-such-host.invalid:81/", NULL, true, "no-such-host.invalid:81");
    /* independent of its size */
    r.body_len = 1;
    snprintf(r.url, sizeof(r.url), "https%s", url + 4);
    r.q.forward.unix_socket = NULL;
    rig_forward(&r);
    assert_int_equal(post(&r, 20000).kind, ANSWER_UNREACHABLE);
    adapter_free(&r);
    close(fd);

    /* No connection is accepted and the backlog is full: the connect does not finish. */
    int port = port_bound(&full, 0);
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 8; i++) {
        clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        connect(clients[i], (struct sockaddr *)&in, sizeof(in));
    }
    r.q.forward.connect_timeout_ms = 200;
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/", port);
    assert_unreachable(&r, url, NULL, false, "no connection to 127.0.0.1:");
    for (int i = 0; i < 8; i++)
        close(clients[i]);
    close(full);
    header_block_deinit(&r.headers);
    free(r.body);
}

/* Connections to a Unix socket are not accepted: one finds room and carries a request; the other waits as long as it
 * may be sent. */
static void test_never_offered(void **state)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct rig r;
    struct answer a;
    int64_t start_ms;
    (void)state;

    rig_init(&r);
    snprintf(un.sun_path, sizeof(un.sun_path), "%s/full.sock", dir);
    snprintf(r.url, sizeof(r.url), "http://localhost/");
    r.q.forward.unix_socket = un.sun_path;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
    assert_int_equal(listen(fd, 0), 0);
    rig_forward(&r);
    start_ms = clock_ms();
    for (uint64_t ref = 1; ref <= 2; ref++) {
        struct forward_request q = {
            .ref = ref, .headers = &r.headers, .timeout_ms = 2 * DEADLINE_MS, .send_by_ms = start_ms + 300};

        forward_send(r.w, &q);
    }
    wait_answer(&r, &a);
    assert_int_equal(a.ref, 2);
    assert_int_equal(a.kind, ANSWER_UNREACHABLE);
    assert_false(a.refused);
    assert_error(a, "no connection to ");
    assert_true(clock_ms() >= start_ms + 300);
    /* sent requests go on */
    for (start_ms = clock_ms(); clock_ms() < start_ms + 100;) {
        assert_int_equal(step(&r, &a), 0);
        turn(&r, 20);
    }
    assert_int_equal(forward_in_flight(r.w), 1);
    rig_stop(&r);
    close(fd);
    unlink(un.sun_path);
}

static void test_refused_configuration(void **state)
{
    static const char *const urls[] = {"", "ftp://a/", "http://", "not a url"};
    struct rig r;
    struct fault f = {0};
    char path[200];
    (void)state;

    rig_init(&r);
    for (size_t i = 0; i < 4; i++) {
        snprintf(r.url, sizeof(r.url), "%s", urls[i]);
        f.text[0] = '\0';
        assert_int_equal(adapter_make(&r, &f), -1);
        assert_true(fault_is_set(&f));
    }
    snprintf(r.url, sizeof(r.url), "http://localhost/");
    memset(path, 'a', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    r.q.forward.unix_socket = path;
    assert_int_equal(adapter_make(&r, &f), -1);
    r.q.forward.unix_socket = NULL;
    r.q.forward.authorization.file = (char *)"/nonexistent/token";
    assert_int_equal(adapter_make(&r, &f), -1);
    assert_non_null(strstr(f.text, "/nonexistent/token"));
    header_block_deinit(&r.headers);
}

static void test_many_at_once(void **state)
{
    static const struct step steps[] = {{NULL, 0, END_KEEP, ALL, true}};
    enum { TOTAL = 3000, OUT = 64 };
    char path[64];
    char key[16];
    bool seen[TOTAL] = {false};
    struct rig r;
    struct answer a;
    uint64_t sent = 0, got = 0, abandoned = 0;
    (void)state;

    snprintf(path, sizeof(path), "%s/many.sock", dir);
    rig_start(&r, path, steps, 1);
    adapter_free(&r);
    r.q.forward.concurrency = OUT;
    rig_forward(&r);
    int64_t deadline = clock_ms() + DEADLINE_MS;
    while (got + abandoned < TOTAL) {
        while (sent < TOTAL && forward_in_flight(r.w) < OUT) {
            struct header_block b = {0};
            char line[64];

            snprintf(line, sizeof(line), "Idempotency-Key: %d", (int)sent);
            header_add(&b, line);
            struct forward_request q = {
                .ref = sent, .headers = &b, .body = SLICE("abc"), .timeout_ms = DEADLINE_MS};
            forward_send(r.w, &q);
            header_block_deinit(&b); /* already copied */
            if (sent % 100 == 99) {
                forward_abandon(r.w, 0, sent);
                forward_abandon(r.w, 0, sent);
                seen[sent] = true;
                abandoned++;
            }
            sent++;
        }
        while (step(&r, &a)) {
            assert_int_equal(a.kind, ANSWER_STATUS);
            snprintf(key, sizeof(key), "%d", (int)a.ref);
            assert_true(slice_equal(a.body, slice_of(key)));
            assert_false(seen[a.ref]);
            seen[a.ref] = true;
            got++;
        }
        turn(&r, 100);
        assert_true(clock_ms() < deadline);
    }
    assert_int_equal(forward_in_flight(r.w), 0);
    forward_abandon(r.w, 0, 5);
    assert_true(r.s.n_connections <= OUT + 2 * (int)abandoned);
    rig_stop(&r);
}

/* A forbidden body may arrive during the next request, and would be taken for its answer. */
static void test_no_content_with_a_length(void **state)
{
    static const struct step steps[] = {
        {"HTTP/1.1 204 No\r\nContent-Length: 25\r\n\r\n", 0, END_KEEP, ALL, false}};
    struct rig r;
    (void)state;

    rig_start(&r, NULL, steps, 1);
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(post(&r, 10).status, 204);
        assert_int_equal(r.s.n_connections, i);
    }
    rig_stop(&r);
}

static void test_error_bodies(void **state)
{
    static char answer[4096];
    static const struct step steps[] = {{answer, 0, END_KEEP, ALL, false}};
    struct rig r;
    struct answer a;
    (void)state;

    snprintf(answer, sizeof(answer), "HTTP/1.1 422 No\r\nContent-Length: 1000\r\n\r\n%0*d", 1000, 7);
    rig_start(&r, NULL, steps, 1);
    a = post(&r, 10);
    assert_string_equal(a.brief, "answered 422");
    assert_int_equal(strlen(a.error), strlen("answered 422: \"\"") + 256);
    assert_int_equal(outcome_brief(a.error, strlen(a.error)), strlen(a.brief));
    adapter_free(&r);
    r.q.forward.error_body = false;
    rig_forward(&r);
    a = post(&r, 10);
    assert_string_equal(a.error, "answered 422");
    assert_int_equal(a.body.len, 1000);
    rig_stop(&r);
}

static void test_abandon_and_free(void **state)
{
    static const struct step steps[] = {{NULL, 0, END_HANG, ALL, false}};
    struct rig r;
    struct answer a;
    (void)state;

    rig_start(&r, NULL, steps, 1);
    send_one(&r, 1, 10, DEADLINE_MS);
    assert_int_equal(step(&r, &a), 0);
    assert_int_equal(forward_in_flight(r.w), 1);
    while (r.s.n_requests < 1) {
        turn(&r, 10);
        assert_int_equal(step(&r, &a), 0);
    }
    forward_abandon(r.w, 0, 7); /* no such request */
    assert_int_equal(forward_in_flight(r.w), 1);
    forward_abandon(r.w, 0, 1);
    assert_int_equal(forward_in_flight(r.w), 0);
    wait_until(r.s.n_open == 0); /* its connection is closed */
    send_one(&r, 1, 10, DEADLINE_MS);
    while (r.s.n_requests < 2) {
        turn(&r, 10);
        assert_int_equal(step(&r, &a), 0);
    }
    rig_stop(&r);
}

/* The loop sleeps until an event, with a request in flight and after it. */
static void test_sleeps(void **state)
{
    static const struct step steps[] = {{NULL, 0, END_HANG, ALL, false}};
    struct rig r;
    struct answer a;
    struct rusage before, after;
    int64_t start;
    int turns = 0;
    (void)state;

    rig_start(&r, NULL, steps, 1);
    assert_true(forward_due_ms(r.w) == INT64_MAX);
    send_one(&r, 1, 10, DEADLINE_MS);
    while (r.s.n_requests < 1) {
        assert_false(step(&r, &a));
        turn(&r, 10);
    }
    getrusage(RUSAGE_THREAD, &before);
    for (start = clock_ms(); clock_ms() - start < 500; turns++) {
        assert_false(step(&r, &a));
        turn(&r, 500);
    }
    getrusage(RUSAGE_THREAD, &after);
    assert_true(turns < 20);
    assert_true(after.ru_utime.tv_sec == before.ru_utime.tv_sec ||
                after.ru_utime.tv_usec < before.ru_utime.tv_usec);
    rig_stop(&r);
}

/* Asks for a probe twice, and takes its one result. text: why it is not ready. */
static enum forward_probe_result probe(struct rig *r, char text[512])
{
    struct forward_event e;
    enum forward_probe_result result;
    int64_t deadline = clock_ms() + DEADLINE_MS;

    assert_int_equal(forward_step(r->w, &e), FORWARD_NOTHING);
    forward_probe(r->w, 0);
    forward_probe(r->w, 0);
    while (!forward_step(r->w, &e)) {
        turn(r, 50);
        assert_true(clock_ms() < deadline);
    }
    assert_int_equal(e.kind, FORWARD_PROBE);
    assert_int_equal(e.probe.application, 0);
    result = e.probe.result;
    snprintf(text, 512, "%s", e.probe.error);
    assert_int_equal(forward_step(r->w, &e), FORWARD_NOTHING);
    return result;
}

static void test_probe_connect(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    char path[64];
    char text[512];
    (void)state;

    snprintf(path, sizeof(path), "%s/probe.sock", dir);
    for (int i = 0; i < 2; i++) {
        struct rig r;

        rig_start(&r, i ? path : NULL, steps, 1);
        assert_int_equal(post(&r, 1).status, 204);
        for (int k = 1; k <= 5; k++) {
            assert_int_equal(probe(&r, text), PROBE_READY);
            wait_until(r.s.n_connections == 1 + k);
            wait_until(r.s.n_open == 1); /* only the forward's connection is left */
        }
        assert_int_equal(post(&r, 1).status, 204);
        assert_int_equal(r.s.n_connections, 6);
        assert_int_equal(r.s.n_requests, 2);
        server_stop(&r.s);
        assert_int_equal(probe(&r, text), PROBE_UNREACHABLE);
        assert_non_null(strstr(text, i ? path : "connection refused by 127.0.0.1:"));
        r.s.fd = 0;
        forward_probe(r.w, 0); /* freed while it runs */
        rig_stop(&r);
    }
}

static void test_probe_get(void **state)
{
    static const struct step steps[][1] = {
        {{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup", 0, END_KEEP, ALL, false}},
        {{"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", 0, END_KEEP, ALL, false}},
        {{"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", 0, END_KEEP, ALL, false}},
        {{NULL, 0, END_CLOSE, ALL, false}},
        {{NULL, 0, END_HANG, ALL, false}},
    };
    static const char *const reasons[] = {"", "answered 503 to GET /ready", "answered 302",
                                          "closed by 127.0.0.1:", "no answer from 127.0.0.1:"};
    static const enum forward_probe_result results[] = {PROBE_READY, PROBE_NOT_READY, PROBE_NOT_READY,
                                                        PROBE_NOT_READY, PROBE_SILENT};
    char url[64];
    char text[512];
    (void)state;

    for (size_t i = 0; i < 5; i++) {
        struct rig r;

        rig_start(&r, NULL, steps[i], 1);
        snprintf(url, sizeof(url), "http://secret:secret@127.0.0.1:%d/ready?a=secret", r.s.port);
        r.q.ready_url = url;
        r.q.forward.connect_timeout_ms = 100;
        adapter_free(&r);
        rig_forward(&r);
        assert_int_equal(probe(&r, text), results[i]);
        if (!strstr(text, reasons[i]) || strstr(text, "secret"))
            fail_msg("%s", text);
        wait_until(r.s.n_heads && r.s.n_open == 0); /* the probe may have ended before the server read its
                                                       request */
        assert_int_equal(strncmp(r.s.head, "GET /ready?a=secret HTTP/1.1\r\n", 30), 0);
        rig_stop(&r);
    }
}

/* A readiness URL with the forward's host uses the Unix socket, another one does not. */
static void test_probe_get_unix(void **state)
{
    static const struct step steps[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup", 0, END_KEEP, ALL, false}};
    char path[64], url[64];
    char text[512];
    struct rig r;
    int fd;
    (void)state;

    snprintf(path, sizeof(path), "%s/ready.sock", dir);
    rig_start(&r, path, steps, 1);
    r.q.ready_url = (char *)"http://127.0.0.1/healthz";
    adapter_free(&r);
    rig_forward(&r);
    assert_int_equal(probe(&r, text), PROBE_READY);
    assert_int_equal(strncmp(r.s.head, "GET /healthz ", 13), 0);
    adapter_free(&r);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/", port_bound(&fd, -1));
    r.q.ready_url = url;
    rig_forward(&r);
    assert_int_equal(probe(&r, text), PROBE_UNREACHABLE);
    assert_non_null(strstr(text, "connection refused"));
    close(fd);
    rig_stop(&r);
}

static void text_write(const char *path, const char *text)
{
    char next[128];

    snprintf(next, sizeof(next), "%s.next", path);
    FILE *h = fopen(next, "w");
    fputs(text, h);
    fclose(h);
    rename(next, path);
}

static void test_authorization_rotates(void **state)
{
    static const struct step steps[] = {{ok, 0, END_KEEP, ALL, false}};
    char path[64];
    struct rig r;
    (void)state;

    snprintf(path, sizeof(path), "%s/token", dir);
    text_write(path, "Bearer one\n");
    rig_start(&r, NULL, steps, 1);
    adapter_free(&r);
    r.q.forward.authorization.file = path;
    rig_forward(&r);
    post(&r, 1);
    assert_non_null(strstr(r.s.head, "\r\nAuthorization: Bearer one\r\n"));
    text_write(path, "Bearer two\n");
    wait_until((post(&r, 1), strstr(r.s.head, "\r\nAuthorization: Bearer two\r\n")));
    /* missing, or invalid in a header: the last valid one stays */
    int64_t start = clock_ms();
    unlink(path);
    wait_until((post(&r, 1), clock_ms() - start > 1100));
    assert_non_null(strstr(r.s.head, "\r\nAuthorization: Bearer two\r\n"));
    text_write(path, "Bearer\r\nX-Evil: 1\n");
    wait_until((post(&r, 1), clock_ms() - start > 2300));
    assert_non_null(strstr(r.s.head, "\r\nAuthorization: Bearer two\r\n"));
    assert_null(strstr(r.s.head, "X-Evil"));
    rig_stop(&r);
}

static void test_tls(void **state)
{
    static const struct step steps[] = {
        {ok, 0, END_KEEP, ALL, false}, {NULL, 0, END_CLOSE, ALL, false}, {ok, 0, END_KEEP, ALL, false}};
    char *cert = in_dir("cert.pem"), *key = in_dir("key.pem"), url[64];
    struct rig r = {0};
    struct answer a;
    char text[512];
    (void)state;

    certificate_make(cert, key);
    for (int wants = 0; wants < 2; wants++) {
        memset(&r, 0, sizeof(r));
        rig_init(&r);
        r.s.tls = tls_server(wants);
        server_start(&r.s, NULL, steps, 3);
        snprintf(url, sizeof(url), "https://127.0.0.1:%d/", r.s.port);
        assert_unreachable(&r, url, NULL, true, "certificate"); /* an unknown authority to the system */
        r.q.forward.tls.ca_file = cert;
        if (wants) {
            assert_unreachable(&r, url, NULL, false,
                               "does not accept the client certificate: certificate required");
            r.q.forward.tls.cert_file = cert;
            r.q.forward.tls.key_file = key;
        }
        rig_forward(&r);
        a = post(&r, 1 << 20);
        if (a.status != 204)
            fail_msg("kind %d: %s", a.kind, a.error);
        a = post(&r, 100);
        assert_int_equal(a.kind, ANSWER_DIED);
        assert_int_equal(r.s.n_heads, 2);
        assert_int_equal(post(&r, 100).status, 204);
        assert_false(r.s.body_is_wrong);
        assert_int_equal(probe(&r, text), PROBE_READY);
        adapter_free(&r);
        if (!wants) {
            snprintf(url, sizeof(url), "https://localhost:%d/", r.s.port);
            assert_unreachable(&r, url, NULL, true, "SSL"); /* a name other than the certificate's */
            snprintf(r.url, sizeof(r.url), "%s", url);
            r.q.forward.tls.verify = false;
            rig_forward(&r);
            assert_int_equal(post(&r, 1).status, 204);
            adapter_free(&r);
        }
        r.w = NULL;
        rig_stop(&r);
    }

    /* A server that does not speak TLS. */
    rig_start(&r, NULL, steps, 1);
    snprintf(url, sizeof(url), "https://127.0.0.1:%d/", r.s.port);
    adapter_free(&r);
    r.q.forward.connect_timeout_ms = 300;
    assert_unreachable(&r, url, NULL, false, "no connection to 127.0.0.1:");
    rig_stop(&r);
    free(cert);
    free(key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_request_on_the_wire),
        cmocka_unit_test(test_never_sent_twice),
        cmocka_unit_test(test_stale_connection),
        cmocka_unit_test(test_early_answer),
        cmocka_unit_test(test_early_success),
        cmocka_unit_test(test_unasked),
        cmocka_unit_test(test_answers_that_lay_there),
        cmocka_unit_test(test_too_much),
        cmocka_unit_test(test_timeouts),
        cmocka_unit_test(test_unreachable),
        cmocka_unit_test(test_never_offered),
        cmocka_unit_test(test_refused_configuration),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_no_content_with_a_length),
        cmocka_unit_test(test_error_bodies),
        cmocka_unit_test(test_abandon_and_free),
        cmocka_unit_test(test_sleeps),
        cmocka_unit_test(test_probe_connect),
        cmocka_unit_test(test_probe_get),
        cmocka_unit_test(test_probe_get_unix),
        cmocka_unit_test(test_authorization_rotates),
        cmocka_unit_test(test_tls),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
