/* Very many requests to a port where nobody listens. In the release build there are 100,000: what is slow, or
 * leaks a descriptor each, does not come to its end. */

#include "cmocka_all.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/forward/forward.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
enum { TOTAL = 20000 };
#else
enum { TOTAL = 100000 };
#endif

enum { OUT = 64, DEADLINE_MS = 90000, FILES = 256 };

/* Bound, so that nobody else listens there. */
static int port_taken(int *fd)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);

    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*fd, (struct sockaddr *)&in, sizeof(in)), 0);
    assert_int_equal(getsockname(*fd, (struct sockaddr *)&in, &len), 0);
    return ntohs(in.sin_port);
}

/* No error of a transfer has the look of a success: neither the kind, nor the status, nor what follows from
 * them. */
static void answer_is_no_success(const struct forward_answer *a)
{
    static const struct outcome_rules rules[] = {{.transaction = false}, {.transaction = true}};

    assert_int_equal(a->kind, ANSWER_UNREACHABLE);
    assert_int_equal(a->status, 0);
    assert_int_equal(a->body.len, 0);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(outcome_of(a->kind, a->status, &rules[i]), VERDICT_UNAVAILABLE);
}

static void test_many_to_a_dead_port(void **state)
{
    struct config_queue q = {
        .forward = {.connect_timeout_ms = 1000, .max_response_bytes = 1024, .concurrency = OUT}};
    struct header_block headers = {0};
    struct rlimit files = {FILES, FILES};
    struct forward_answer a;
    struct forward *w;
    struct fault f = {0};
    uint64_t sent = 0, got = 0;
    char url[64];
    int fd;
    (void)state;

    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/", port_taken(&fd));
    q.forward.url = url;
    forward_global_init();
    assert_int_equal(forward_new(&q, &w, &f), 0);
    for (int64_t end = clock_ms() + DEADLINE_MS; got < TOTAL;) {
        while (sent < TOTAL && forward_in_flight(w) < OUT) {
            struct forward_request r = {
                .ref = ++sent, .headers = &headers, .body = SLICE("abc"), .timeout_ms = DEADLINE_MS};

            assert_int_equal(forward_send(w, &r, &f), 0);
        }
        forward_wait(w, NULL, 0, 100);
        for (; forward_step(w, &a); got++)
            answer_is_no_success(&a);
        assert_true(clock_ms() < end);
    }
    assert_int_equal(forward_in_flight(w), 0);
    forward_free(w);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_to_a_dead_port)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
