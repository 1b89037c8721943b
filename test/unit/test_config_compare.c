/* Two configurations side by side: every key of the table is compared, kept and applied as its row says. */

#include "cmocka_all.h"
#include "config/keys.h"
#include "onceward/base/buf.h"
#include "onceward/config/config.h"
#include "onceward/core/identity.h"

#include <stdlib.h>

static struct config *load_full(void)
{
    struct config *c = NULL;
    struct config_report report;
    const char *path = ONCEWARD_SOURCE_DIR "/conf/full.json";

    if (config_load(path, NULL, &c, &report) < 0)
        fail_msg("%s: %s", report.findings[0].path, report.findings[0].text);
    config_report_deinit(&report);
    return c;
}

static struct config *parse(const char *text)
{
    struct config *c = NULL;
    struct config_report report;

    if (config_parse(text, strlen(text), "test.json", NULL, &c, &report) < 0)
        fail_msg("%s: %s", report.findings[0].path, report.findings[0].text);
    config_report_deinit(&report);
    return c;
}

/* Gives a key another value, in place. */
static void change(const struct key *k, void *target)
{
    static char other[] = "something else";
    static struct config_header header = {other, other};
    static struct identity_source source = {.kind = IDENTITY_BODY_SHA256};
    static int status = 599;
    void *field = (char *)target + k->offset;
    struct config_queue *q = target;

    switch (k->type) {
    case TYPE_TEXT:
    case TYPE_PATH:
        *(char **)field = other;
        return;
    case TYPE_SECRET:
        *(struct config_text *)field = (struct config_text){.value = other};
        return;
    case TYPE_INT:
    case TYPE_PORT:
        *(int *)field += 1;
        return;
    case TYPE_CHOICE:
        *(int *)field = !*(int *)field;
        return;
    case TYPE_BOOL:
    case TYPE_FLAG:
        *(bool *)field = !*(bool *)field;
        return;
    case TYPE_DURATION:
    case TYPE_DURATION_OFF:
        *(int64_t *)field += 1;
        return;
    case TYPE_SIZE:
    case TYPE_SIZE_NONE:
        *(size_t *)field += 1;
        return;
    case TYPE_HEADERS:
        q->forward.headers = &header;
        q->forward.n_headers = 1;
        return;
    case TYPE_IDENTITIES:
        q->message_id = &source;
        q->n_message_id = 1;
        return;
    case TYPE_STATUSES:
        q->permanent_status = &status;
        q->n_permanent_status = 1;
        return;
    }
    fail_msg("a type of key that this test does not know");
}

static void assert_only(const struct texts *t, const char *text)
{
    if (t->n != 1 || strcmp(t->items[0], text) != 0)
        fail_msg("%zu keys, the first is %s; expected %s alone", t->n, t->n ? t->items[0] : "none", text);
}

static void test_same(void **state)
{
    struct config *a = load_full(), *b = load_full();
    struct config_diff d;

    config_compare(a, b, &d);
    assert_int_equal(d.changed_keys.n + d.needs_restart.n + d.changed.n + d.added.n + d.removed.n, 0);
    assert_int_equal(d.unchanged.n, a->n_queues);
    config_diff_deinit(&d);
    config_free(a);
    config_free(b);
}

static void test_every_key_of_the_root(void **state)
{
    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];
        struct config *a = load_full(), *b = load_full();
        struct config_diff d;

        if (k->scope == SCOPE_ROOT) {
            change(k, b);
            config_compare(a, b, &d);
            assert_only(k->effect == EFFECT_RESTART ? &d.needs_restart : &d.changed_keys, k->path);
            assert_int_equal(d.needs_restart.n + d.changed_keys.n, 1);
            assert_int_equal(d.changed.n, k->effect == EFFECT_QUEUES ? a->n_queues : 0);
            assert_int_equal(d.changed.n + d.unchanged.n, a->n_queues);
            config_diff_deinit(&d);

            config_keep(b, a);
            config_apply_now(a, b);
            config_compare(a, b, &d);
            assert_int_equal(d.needs_restart.n, 0);
            assert_int_equal(d.changed_keys.n, k->effect == EFFECT_QUEUES);
            config_diff_deinit(&d);
        }
        config_free(a);
        config_free(b);
    }
}

static void test_every_key_of_a_queue(void **state)
{
    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];
        struct config *a = load_full(), *b = load_full();
        struct buf path = {0};
        struct config_diff d;

        if (k->scope == SCOPE_QUEUE) {
            change(k, &b->queues[0]);
            config_compare(a, b, &d);
            buf_printf(&path, "queues.%s.%s", b->queues[0].name, k->path);
            assert_only(&d.changed_keys, buf_text(&path));
            assert_only(&d.changed, b->queues[0].name);
            assert_int_equal(d.needs_restart.n + d.added.n + d.removed.n, 0);
            config_diff_deinit(&d);
        }
        buf_deinit(&path);
        config_free(a);
        config_free(b);
    }
}

#define ROOT    "'broker':{'url':'amqp://b'},'database':{'url':'postgresql:///d'},"
#define FORWARD "'forward':{'url':'http://a/'}"

static struct config *quoted(const char *text)
{
    char copy[512];

    snprintf(copy, sizeof(copy), "%s", text);
    for (char *p = copy; *p; p++)
        if (*p == '\'')
            *p = '"';
    return parse(copy);
}

static void test_queues_and_defaults(void **state)
{
    struct config *a = quoted("{" ROOT "'queues':{'a':{" FORWARD "},'b':{" FORWARD "},'c':{" FORWARD "}}}");
    struct config *b = quoted("{" ROOT "'defaults':{" FORWARD ",'brake':1},"
                              "'queues':{'d':{},'b':{'brake':20},'c':{'queue':'c','consumer':'c'}}}");
    struct config_diff d;

    config_compare(a, b, &d);
    assert_only(&d.added, "d");
    assert_only(&d.removed, "a");
    assert_only(&d.unchanged, "b");
    assert_only(&d.changed, "c");
    assert_only(&d.changed_keys, "queues.c.brake");
    assert_ptr_equal(config_find_queue(b, "c"), &b->queues[2]);
    assert_null(config_find_queue(b, "a"));
    config_diff_deinit(&d);
    config_free(a);
    config_free(b);
}

/* A name that is not given is made anew at every reading; it is no change. */
static void test_instance(void **state)
{
    struct config *made = quoted("{" ROOT "'queues':{'a':{" FORWARD "}}}");
    struct config *again = quoted("{" ROOT "'queues':{'a':{" FORWARD "}}}");
    struct config *given = quoted("{'instance':'i'," ROOT "'queues':{'a':{" FORWARD "}}}");
    struct config_diff d;

    again->instance[0]++;
    config_compare(made, again, &d);
    assert_int_equal(d.needs_restart.n, 0);
    config_diff_deinit(&d);
    config_keep(again, made);
    assert_string_equal(again->instance, made->instance);

    config_compare(made, given, &d);
    assert_only(&d.needs_restart, "instance");
    config_diff_deinit(&d);
    config_keep(given, made);
    assert_string_equal(given->instance, made->instance);
    assert_false(given->instance_is_set);
    config_free(made);
    config_free(again);
    config_free(given);
}

int main(void)
{
    setenv("POD_UID", "0b7c", 1);
    setenv("RABBITMQ_PASSWORD", "r", 1);
    setenv("DATABASE_PASSWORD", "d", 1);
    setenv("APP_TOKEN", "secret", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_every_key_of_the_root),
        cmocka_unit_test(test_every_key_of_a_queue),
        cmocka_unit_test(test_queues_and_defaults),
        cmocka_unit_test(test_instance),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
