/* The memory limit of a control group, and the resulting limits of queues. */
#include "cmocka_all.h"

#include "onceward/base/cgroup.h"
#include "onceward/base/fault.h"
#include "onceward/config/config.h"
#include "onceward/config/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MIB = 1 << 20 };

static char root[256];

/* Creates a file below the root, including its folders. */
static void put(const char *path, const char *text)
{
    char all[1024];
    FILE *f;

    snprintf(all, sizeof(all), "%s%s", root, path);
    for (char *at = all + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(all, 0700);
        *at = '/';
    }
    f = fopen(all, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int setup(void **state)
{
    snprintf(root, sizeof(root), "/tmp/onceward-test-cgroup-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[300];

    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static uint64_t limit(void)
{
    uint64_t ret = 0;

    return cgroup_memory_limit(root, &ret) ? ret : 0;
}

static void test_version_2_is_read_up_to_its_root(void **state)
{
    assert_int_equal(limit(), 0);
    put("/proc/self/cgroup", "0::/pod/one\n");
    assert_int_equal(limit(), 0);
    put("/sys/fs/cgroup/pod/one/memory.max", "max\n");
    assert_int_equal(limit(), 0);
    put("/sys/fs/cgroup/pod/memory.max", "268435456\n");
    assert_int_equal(limit(), 256 * MIB);
    put("/sys/fs/cgroup/pod/one/memory.max", "134217728\n");
    assert_int_equal(limit(), 128 * MIB);
}

static void test_version_1_is_read_with_its_word_for_none(void **state)
{
    put("/proc/self/cgroup", "12:cpu,cpuacct:/a\n4:memory:/a/b\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(limit(), 0);
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "134217728\n");
    assert_int_equal(limit(), 128 * MIB);
}

/* A container sees its group as the mount's root, under the host's path. */
static void test_a_path_that_is_not_there_leads_to_the_root(void **state)
{
    put("/proc/self/cgroup", "0::/kubepods/pod1/c1\n");
    put("/sys/fs/cgroup/memory.max", "134217728\n");
    assert_int_equal(limit(), 128 * MIB);
}

static void test_what_fits_stays_as_it_is(void **state)
{
    struct config_queue one = {.max_bytes = 64 * MIB, .max_message_bytes = 16 * MIB};
    struct config c = {.queues = &one, .n_queues = 1};
    struct fault f = {0};

    assert_false(memory_fit(&c, 128 * MIB, &f));
    assert_int_equal(one.max_bytes, 64 * MIB);
}

/* A queue of the defaults fits alone, but not beside batches, or beside an outbox. A message that exceeds
 * batch.max_bytes has a request of its own, in base64; together they are copies of what max_bytes allows. */
static void test_batches_and_the_outbox_count_as_well(void **state)
{
    static const struct {
        int max_messages, concurrency;
        size_t batch_mib, results_mib;
        bool outbox, ordered;
        int beside, lowered_to;
    } cases[] = {
        {.concurrency = 16, .lowered_to = 16},
        {.max_messages = 100, .concurrency = 2, .batch_mib = 1, .beside = 43, .lowered_to = 2},
        {.max_messages = 100, .concurrency = 16, .batch_mib = 1, .beside = 85, .lowered_to = 16},
        {.max_messages = 100, .concurrency = 1, .batch_mib = 64, .beside = 64, .lowered_to = 1},
        {.max_messages = 100,
         .concurrency = 16,
         .batch_mib = 1,
         .ordered = true,
         .beside = 171,
         .lowered_to = 16},
        {.concurrency = 16, .outbox = true, .beside = 37, .lowered_to = 16},
        {.max_messages = 100, .concurrency = 2, .outbox = true, .beside = 80, .lowered_to = 2},
        {.max_messages = 100, .concurrency = 2, .results_mib = 3, .beside = 49, .lowered_to = 2},
        {.max_messages = 100, .concurrency = 16, .results_mib = 7, .beside = 197, .lowered_to = 3},
        {.max_messages = 100, .concurrency = 2, .results_mib = 40, .beside = 123, .lowered_to = 1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config_queue one = {.max_bytes = 64 * MIB,
                                   .max_message_bytes = 16 * MIB,
                                   .order.key.n = cases[i].ordered,
                                   .store_response_bytes = cases[i].results_mib ? 64 << 10 : 0,
                                   .forward = {.concurrency = cases[i].concurrency,
                                               .max_response_bytes = cases[i].results_mib * MIB,
                                               .batch = {.max_messages = cases[i].max_messages,
                                                         .max_bytes = cases[i].batch_mib * MIB}}};
        struct config c = {.queues = &one,
                           .n_queues = 1,
                           .outbox = {.is_there = cases[i].outbox, .max_message_bytes = 16 * MIB}};
        struct fault f = {0};
        char text[32];

        assert_int_equal(memory_fit(&c, 128 * MIB, &f), cases[i].beside > 0);
        snprintf(text, sizeof(text), "outbox (%d MiB", cases[i].beside);
        assert_int_equal(strstr(f.text, text) != NULL, cases[i].beside > 0);
        assert_int_equal(one.forward.concurrency, cases[i].lowered_to);
        assert_int_equal(strstr(f.text, "forward.concurrency") != NULL,
                         cases[i].concurrency > cases[i].lowered_to);
        assert_true(one.max_bytes >= 8 * MIB && one.max_message_bytes >= 8 * MIB);
        assert_false(memory_fit(&c, 128 * MIB, &f));
    }
}

static void test_three_queues_share_in_proportion(void **state)
{
    struct config_queue q[] = {{.max_bytes = 64 * MIB, .max_message_bytes = 16 * MIB},
                               {.max_bytes = 64 * MIB, .max_message_bytes = 16 * MIB},
                               {.max_bytes = 128 * MIB, .max_message_bytes = 16 * MIB}};
    struct config c = {.queues = q, .n_queues = 3};
    struct fault f = {0};

    assert_true(memory_fit(&c, 128 * MIB, &f));
    assert_int_equal(q[0].max_bytes, 16 * MIB);
    assert_int_equal(q[2].max_bytes, 32 * MIB);
    assert_int_equal(q[2].max_message_bytes, 16 * MIB);
    assert_non_null(strstr(f.text, "lowered to 64 MiB in all and 16 MiB"));
    assert_false(memory_fit(&c, 128 * MIB, &f));
}

static void test_a_letter_keeps_its_share(void **state)
{
    struct config_queue one = {.max_bytes = 64 * MIB, .max_message_bytes = 64 * MIB};
    struct config c = {.queues = &one, .n_queues = 1};
    struct fault f = {0};

    assert_true(memory_fit(&c, 128 * MIB, &f));
    assert_int_equal(one.max_message_bytes, 24 * MIB);
    assert_int_equal(one.max_bytes, 48 * MIB);
}

static void test_what_would_be_rejected_is_still_taken(void **state)
{
    struct config_queue q[] = {
        {.max_bytes = 64 * MIB, .max_message_bytes = 64 * MIB, .too_large_is_reject = true},
        {.max_bytes = 64 * MIB, .max_message_bytes = 64 * MIB}};
    struct config c = {.queues = q, .n_queues = 2};
    struct fault f = {0};

    assert_true(memory_fit(&c, 128 * MIB, &f));
    assert_int_equal(q[0].max_message_bytes, 64 * MIB);
    assert_int_equal(q[0].max_bytes, 24 * MIB);
    assert_int_equal(q[1].max_message_bytes, 24 * MIB);
    assert_int_equal(q[1].max_bytes, 24 * MIB);
    assert_non_null(
        strstr(f.text, "48 MiB in all and 64 MiB (max_message stays where on_too_large is reject"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_version_2_is_read_up_to_its_root, setup, teardown),
        cmocka_unit_test_setup_teardown(test_version_1_is_read_with_its_word_for_none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_path_that_is_not_there_leads_to_the_root, setup, teardown),
        cmocka_unit_test(test_what_fits_stays_as_it_is),
        cmocka_unit_test(test_batches_and_the_outbox_count_as_well),
        cmocka_unit_test(test_three_queues_share_in_proportion),
        cmocka_unit_test(test_a_letter_keeps_its_share),
        cmocka_unit_test(test_what_would_be_rejected_is_still_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
