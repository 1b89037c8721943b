/* Lines by key: one first per key, in the order of arrival, and an empty line leaves nothing behind. */
#include "cmocka_all.h"
#include "onceward/core/keys.h"

#include <string.h>

enum { N = 200, N_KEYS = 7, N_STEPS = 20000 };

static void key_of(int n, uint8_t ret[KEY_BYTES])
{
    memset(ret, 0, KEY_BYTES);
    ret[KEY_BYTES - 1] = (uint8_t)n;
}

static void test_the_first_of_a_key_goes_and_the_next_follows(void **state)
{
    struct key_place a1 = {0}, a2 = {0}, a3 = {0}, b1 = {0};
    struct keys k = {0};
    uint8_t a[KEY_BYTES], b[KEY_BYTES];

    key_of(1, a);
    key_of(2, b);
    assert_true(keys_join(&k, a, &a1));
    assert_false(keys_join(&k, a, &a2));
    assert_true(keys_join(&k, b, &b1)); /* another key does not wait */
    assert_false(keys_join(&k, a, &a3));
    assert_true(key_place_is_first(&a1) && !key_place_is_first(&a2) && key_place_is_first(&b1));
    assert_ptr_equal(keys_leave(&k, &a1), &a2);
    assert_null(keys_leave(&k, &a1)); /* a second time */
    assert_null(keys_leave(&k, &b1));
    assert_ptr_equal(keys_leave(&k, &a2), &a3);
    assert_null(keys_leave(&k, &a3));
    assert_int_equal(k.lines.len, 0);
    keys_deinit(&k);
}

static void test_one_that_leaves_out_of_the_middle_wakes_none(void **state)
{
    struct key_place p[3] = {0};
    struct keys k = {0};
    uint8_t a[KEY_BYTES];

    key_of(1, a);
    for (int i = 0; i < 3; i++)
        keys_join(&k, a, &p[i]);
    assert_null(keys_leave(&k, &p[1]));
    assert_ptr_equal(keys_leave(&k, &p[0]), &p[2]);
    keys_leave(&k, &p[2]);
    keys_deinit(&k);
}

static void test_the_end_empties_all_lines(void **state)
{
    struct key_place p[N] = {0};
    struct keys k = {0};
    uint8_t key[KEY_BYTES];

    for (int i = 0; i < N; i++) {
        key_of(i % N_KEYS, key);
        keys_join(&k, key, &p[i]);
    }
    assert_int_equal(k.lines.len, N_KEYS);
    keys_deinit(&k);
    for (int i = 0; i < N; i++)
        assert_null(p[i].line);
    key_of(3, key);
    assert_true(keys_join(&k, key, &p[0])); /* usable again */
    keys_deinit(&k);
}

/* The same calls on arrays that are searched have the same result. */
static void test_any_order_of_calls(void **state)
{
    static struct key_place p[N];
    static int at[N]; /* time of arrival; 0: absent */
    struct keys k = {0};
    uint32_t random = 1;
    uint8_t key[KEY_BYTES];

    for (int step = 1; step < N_STEPS; step++) {
        random = random * 1664525 + 1013904223;
        int i = (int)(random >> 8) % N, first = -1;

        if (!at[i]) {
            bool alone = true;

            for (int n = i % N_KEYS; n < N; n += N_KEYS)
                alone = alone && !at[n];
            key_of(i % N_KEYS, key);
            assert_int_equal(keys_join(&k, key, &p[i]), alone);
            at[i] = step;
            continue;
        }
        bool was_first = true;

        for (int n = i % N_KEYS; n < N; n += N_KEYS) {
            if (n == i || !at[n])
                continue;
            was_first = was_first && at[i] < at[n];
            if (first < 0 || at[n] < at[first])
                first = n;
        }
        assert_int_equal(key_place_is_first(&p[i]), was_first);
        assert_ptr_equal(keys_leave(&k, &p[i]), was_first && first >= 0 ? &p[first] : NULL);
        at[i] = 0;
    }
    keys_deinit(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_of_a_key_goes_and_the_next_follows),
        cmocka_unit_test(test_one_that_leaves_out_of_the_middle_wakes_none),
        cmocka_unit_test(test_the_end_empties_all_lines),
        cmocka_unit_test(test_any_order_of_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
