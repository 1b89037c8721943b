/* The configuration as a whole: the result of a valid file, and that the samples, the schema, the documentation and
 * the code have the same keys. ONCEWARD_UPDATE=1 writes the generated files instead of comparing them. */

#include "cmocka_all.h"
#include "config/keys.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/markdown.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"
#include "onceward/config/keys.h"
#include "onceward/config/pattern.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SOURCE(path) ONCEWARD_SOURCE_DIR "/" path

static bool is_update(void)
{
    const char *update = getenv("ONCEWARD_UPDATE");

    return update && !strcmp(update, "1");
}

/* False: the file does not exist. */
static bool read_file(const char *path, struct buf *out)
{
    FILE *file = fopen(path, "r");
    size_t n;

    if (!file)
        return false;
    while ((n = fread(buf_reserve(out, 65536), 1, 65536, file)))
        out->len += n;
    fclose(file);
    return true;
}

static void write_file(const char *path, const struct buf *content)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(content->data, 1, content->len, file), content->len);
    assert_int_equal(fclose(file), 0);
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

static struct config *load(const char *path)
{
    struct config *c = NULL;
    struct config_report report;

    if (config_load(path, NULL, &c, &report) < 0)
        fail_msg("%s: %s", report.findings[0].path, report.findings[0].text);
    config_report_deinit(&report);
    return c;
}

/* --- generated files --- */

static void test_schema_is_current(void **state)
{
    struct buf made = {0}, found = {0};

    config_keys_schema(&made);
    if (is_update())
        write_file(SOURCE("conf/onceward.schema.json"), &made);
    assert_true(read_file(SOURCE("conf/onceward.schema.json"), &found));
    if (!slice_equal(buf_slice(&made), buf_slice(&found)))
        fail_msg(
            "conf/onceward.schema.json is not what the code makes; run this test with ONCEWARD_UPDATE=1");
    json_t *parsed = json_loadb(made.data, made.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(parsed);
    json_decref(parsed);
    buf_deinit(&made);
    buf_deinit(&found);
}

static void check_page(const char *open, const char *close, void make(struct buf *out))
{
    struct buf readme = {0}, table = {0}, updated = {0};

    if (!read_file(SOURCE("conf/README.md"), &readme))
        skip();
    const char *start = strstr(buf_text(&readme), open);
    const char *end = start ? strstr(start, close) : NULL;
    if (!end) {
        buf_deinit(&readme);
        skip();
    }
    start += strlen(open);
    make(&table);
    if (is_update()) {
        buf_add(&updated, readme.data, (size_t)(start - readme.data));
        buf_add_slice(&updated, buf_slice(&table));
        buf_add_text(&updated, end);
        write_file(SOURCE("conf/README.md"), &updated);
    } else if (!slice_equal(buf_slice(&table), (struct slice){start, (size_t)(end - start)})) {
        fail_msg("the table at %s in conf/README.md is not what the code makes; run this test with "
                 "ONCEWARD_UPDATE=1",
                 open);
    }
    buf_deinit(&readme);
    buf_deinit(&table);
    buf_deinit(&updated);
}

static void test_page_is_current(void **state)
{
    check_page("<!-- keys -->\n", "<!-- /keys -->", config_keys_markdown);
}

static void test_code_is_kept_on_one_line(void **state)
{
    struct buf text = {0};

    markdown_add_paragraph(
        &text, "A sentence of the documentation that ends a few columns before the width of a line with "
               "code such as `onceward status --config FILE`.");
    assert_non_null(strstr(buf_text(&text), "\n`onceward status --config FILE`.\n"));
    buf_deinit(&text);
}

static void test_links_are_their_words_on_a_terminal(void **state)
{
    struct buf text = {0};

    markdown_add_unlinked(
        &text, "See [the limits](a.md#b) or [c](d). A list `[[\"x\", \"y\"]]` [stays] (so), and [this");
    assert_string_equal(buf_text(&text),
                        "See the limits or c. A list `[[\"x\", \"y\"]]` [stays] (so), and [this");
    buf_deinit(&text);
}

static void test_markdown(void **state)
{
    struct buf table = {0};
    size_t entries = 0, groups = 0;

    config_keys_markdown(&table);
    for (const char *p = buf_text(&table); (p = strstr(p, "\n#### `")); p++)
        entries++;
    for (const char *p = buf_text(&table); (p = strstr(p, "### ")); p++)
        groups += p == table.data || p[-1] == '\n';
    for (size_t i = 0; i < n_keys; i++)
        assert_true(*keys[i].example);
    assert_int_equal(entries, n_keys);
    assert_int_equal(groups, 13);
    assert_non_null(
        strstr(table.data, "#### `broker.url`\n\nstring · **required**: this or `broker.host` · example `"));
    assert_non_null(
        strstr(table.data, "#### `retry.max_age`\n\nduration 1s to 3650d, or `off` · default `off` · "));
    assert_non_null(
        strstr(table.data, "#### `vhost`\n\nstring · default: the URL's · example `\"shop\"`\n\nVirtual"));
    buf_deinit(&table);
}

/* --- the samples --- */

static json_t *at_path(json_t *object, const char *path)
{
    for (const char *dot; object && (dot = strchr(path, '.')); path = dot + 1)
        object = json_object_getn(object, path, (size_t)(dot - path));
    return json_object_get(object, path);
}

static size_t count_leaves(enum key_scope scope, json_t *object, const char *prefix)
{
    const char *name;
    json_t *value;
    size_t n = 0;

    json_object_foreach(object, name, value)
    {
        struct buf path = {0};

        buf_printf(&path, "%s%s%s", prefix, *prefix ? "." : "", name);
        if (key_find(scope, buf_slice(&path)))
            n++;
        else if (key_is_group(scope, buf_slice(&path)))
            n += count_leaves(scope, value, buf_text(&path));
        else if (strcmp(buf_text(&path), "queues") != 0)
            fail_msg("conf/full.json has %s, which is no key of the table", buf_text(&path));
        buf_deinit(&path);
    }
    return n;
}

/* Keys that replace broker.url are in the other sample, which takes it from files. */
static bool is_beside_url(const struct key *k)
{
    static const char *const paths[] = {"broker.host", "broker.port", "broker.vhost"};

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (!strcmp(k->path, paths[i]))
            return true;
    return false;
}

/* Keys of order exclude some others, so they have a queue of their own. */
static bool is_of_order(const struct key *k)
{
    return !strncmp(k->path, "order.", strlen("order."));
}

static void test_full_lists_every_key(void **state)
{
    json_t *root = json_load_file(SOURCE("conf/full.json"), JSON_REJECT_DUPLICATES, NULL);
    json_t *secrets = json_load_file(SOURCE("conf/secrets.json"), JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_non_null(secrets);
    json_t *queue = at_path(root, "queues.payments"), *ordered = at_path(root, "queues.accounts");
    size_t n = 0;

    assert_non_null(queue);
    for (size_t i = 0; i < n_keys; i++) {
        char file[80];

        snprintf(file, sizeof(file), "%s_file", keys[i].path);
        if (is_of_order(&keys[i])) {
            assert_non_null(at_path(ordered, keys[i].path));
            continue;
        }
        if (is_beside_url(&keys[i]) ? !at_path(secrets, keys[i].path) && !at_path(secrets, file)
                                    : !at_path(keys[i].scope == SCOPE_ROOT ? root : queue, keys[i].path))
            fail_msg("conf/full.json lacks %s", keys[i].path);
        n += !is_beside_url(&keys[i]);
    }
    assert_int_equal(count_leaves(SCOPE_ROOT, root, "") + count_leaves(SCOPE_QUEUE, queue, ""), n);
    json_decref(root);
    json_decref(secrets);
}

/* The broker's address from its parts. */
static void test_broker_host(void **state)
{
    static const struct {
        const char *broker, *url;
    } cases[] = {
        {"\"host\": \"mq\"", "amqp://mq:5672/%2F"},
        {"\"host\": \"mq\", \"port\": 5671", "amqps://mq:5671/%2F"},
        {"\"host\": \"mq\", \"port\": \"${PORT}\", \"vhost\": \"a/b c\"", "amqp://mq:1234/a%2Fb%20c"},
        {"\"host\": \"mq\", \"tls\": {\"verify\": true}", "amqps://mq:5671/%2F"},
        {"\"host\": \"mq\", \"port\": 5672, \"tls\": {\"ca_file\": \"/dev/null\"}", "amqps://mq:5672/%2F"},
        {"\"host\": \"::1\"", "amqp://[::1]:5672/%2F"},
        {"\"host\": \"[fe80::1]\", \"vhost\": \"v\"", "amqp://[fe80::1]:5672/v"},
        {"\"host\": \"10.0.0.7\", \"user\": \"u\", \"password\": \"p\"", "amqp://10.0.0.7:5672/%2F"},
    };

    setenv("PORT", "1234", 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];

        snprintf(text, sizeof(text),
                 "{\"broker\": {%s}, \"database\": {\"url\": \"host=h\"}, \"queues\": {\"q\": {\"forward\": "
                 "{\"url\": \"http://h\"}}}}",
                 cases[i].broker);
        struct config *c = parse(text);
        assert_string_equal(c->broker.url.value, cases[i].url);
        assert_null(c->broker.url.file);
        config_free(c);
    }
}

static void test_ordered_defaults(void **state)
{
    struct config *c =
        parse("{\"broker\": {\"url\": \"amqp://localhost\"}, \"database\": {\"url\": \"host=h\"}, "
              "\"queues\": {\"q\": {\"order\": {\"key\": [\"routing_key\", \"header:a\"]}, "
              "\"forward\": {\"url\": \"http://h\"}}}}");
    const struct config_queue *q = &c->queues[0];

    assert_int_equal(q->order.key.n, 2);
    assert_int_equal(q->order.key.items[0].kind, IDENTITY_ROUTING_KEY);
    assert_int_equal(q->order.key.items[1].kind, IDENTITY_HEADER);
    assert_int_equal(q->revive, 0);
    assert_false(q->order.unkeyed_is_dead);
    assert_int_equal(q->prefetch, 256);
    assert_int_equal(q->max_message_bytes, q->max_bytes / 256);
    config_free(c);
}

static void test_batch_defaults(void **state)
{
    static const struct {
        const char *forward, *queue;
        int prefetch, parked;
        size_t response;
    } cases[] = {
        {"", "", 128, 1000, 65536},
        {"\"batch\": {\"max_messages\": 100}", "", 3200, 6400, 65536 + 100 * 1024},
        {"\"batch\": {\"max_messages\": 100}", ", \"max_parked\": 500", 3200, 500, 65536 + 100 * 1024},
        {"\"batch\": {\"max_messages\": 100}", ", \"store_response\": \"2KiB\"", 3200, 6400,
         65536 + 100 * (1024 + 2048 + 64)},
        {"\"batch\": {\"max_messages\": 100}",
         ", \"store_response\": \"2KiB\", \"completion\": \"transaction\"", 3200, 6400, 65536 + 100 * 1024},
        {"\"batch\": {\"max_messages\": 1000}, \"concurrency\": 64", "", 65535, 131070, 65536 + 1000 * 1024},
        {"\"batch\": {\"max_messages\": 10}, \"max_response\": \"1MiB\"", "", 320, 1000, 1048576}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];

        snprintf(text, sizeof(text),
                 "{\"broker\": {\"url\": \"amqp://localhost\"}, \"database\": {\"url\": \"host=h\"}, "
                 "\"queues\": {\"q\": {\"forward\": {\"url\": \"http://h\"%s%s}%s}}}",
                 *cases[i].forward ? ", " : "", cases[i].forward, cases[i].queue);
        struct config *c = parse(text);
        assert_int_equal(c->queues[0].prefetch, cases[i].prefetch);
        assert_int_equal(c->queues[0].max_parked, cases[i].parked);
        assert_int_equal(c->queues[0].forward.max_response_bytes, cases[i].response);
        config_free(c);
    }
}

static void test_range_expands(void **state)
{
    struct config *c =
        parse("{\"broker\": {\"url\": \"amqp://h\"}, \"database\": {\"url\": \"host=h\"}, \"defaults\": "
              "{\"forward\": {\"url\": \"http://h\"}}, \"queues\": {\"one\": {}, \"orders\": {\"queue\": "
              "\"orders-{08..11}.v2\", \"consumer\": \"shop\"}, \"two\": {}}}");
    static const char *const names[] = {"one",          "orders-08.v2", "orders-09.v2",
                                        "orders-10.v2", "orders-11.v2", "two"};
    static const size_t entries[] = {0, 1, 1, 1, 1, 2}, places[] = {0, 0, 1, 2, 3, 0};

    assert_int_equal(c->n_queues, 6);
    assert_int_equal(c->n_entries, 3);
    for (size_t i = 0; i < c->n_queues; i++) {
        const struct config_queue *q = &c->queues[i];

        assert_string_equal(q->queue, names[i]);
        assert_int_equal(q->entry, entries[i]);
        assert_int_equal(q->partition, places[i]);
        assert_int_equal(q->n_partitions, q->entry == 1 ? 4 : 1);
        assert_int_equal(!!q->pattern, q->entry == 1);
        assert_string_equal(q->consumer, q->entry == 1 ? "shop" : names[i]);
        assert_string_equal(q->name, q->entry == 1 ? "orders" : names[i]);
    }
    assert_string_equal(c->queues[1].pattern, "orders-{08..11}.v2");
    config_free(c);
}

static void test_pattern_has(void **state)
{
    struct pattern plain, zeros;
    const char *wrong;

    assert_true(pattern_read("q{0..12}x", &plain, &wrong));
    assert_null(wrong);
    assert_true(pattern_read("q{00..12}x", &zeros, &wrong));
    assert_null(wrong);
    assert_int_equal(pattern_count(&plain), 13);
    assert_true(pattern_has(&plain, "q0x") && pattern_has(&plain, "q12x"));
    assert_false(pattern_has(&plain, "q13x") || pattern_has(&plain, "q03x") || pattern_has(&plain, "qx"));
    assert_false(pattern_has(&plain, "q1xx") || pattern_has(&plain, "qqx") || pattern_has(&plain, "x"));
    assert_true(pattern_has(&zeros, "q03x") && pattern_has(&zeros, "q12x"));
    assert_false(pattern_has(&zeros, "q3x") || pattern_has(&zeros, "q003x"));
    assert_false(pattern_read("q{a}", &plain, &wrong));
    assert_null(wrong);
}

static void test_full_is_valid(void **state)
{
    struct config *c = load(SOURCE("conf/full.json"));

    assert_string_equal(c->instance, "payments-0");
    assert_true(c->instance_is_set);
    assert_int_equal(c->broker.delivery_limit, 20);
    assert_string_equal(c->broker.password.value, "better-with-password_file");
    assert_string_equal(c->queues[0].forward.authorization.value, "Bearer better-with-authorization_file");
    assert_string_equal(c->queues[0].queue, "payments.v2");
    assert_string_equal(c->queues[0].name, "payments");
    assert_int_equal(c->queues[0].message_id.n, 3);
    assert_int_equal(c->queues[0].message_id.items[1].kind, IDENTITY_JOIN);
    assert_int_equal(c->queues[0].message_id.items[1].n_parts, 2);
    assert_true(slice_equal(c->queues[0].message_id.items[1].parts[1].name, SLICE("x-id")));
    assert_int_equal(c->queues[0].store_response_bytes, 16384);
    config_free(c);
}

/* Every default once, by hand, so that the table cannot drift. */
static void test_minimal_and_defaults(void **state)
{
    struct config *c = load(SOURCE("conf/minimal.json"));
    struct config_queue *q = &c->queues[0];
    char pid[32];

    snprintf(pid, sizeof(pid), "-%ld-", (long)getpid());
    assert_false(c->instance_is_set);
    assert_non_null(strstr(c->instance, pid));
    assert_null(c->broker.user.value);
    assert_null(c->broker.password.value);
    assert_int_equal(c->broker.heartbeat_ms, 10000);
    assert_int_equal(c->broker.connect_timeout_ms, 5000);
    assert_int_equal(c->broker.delivery_limit, -1);
    assert_null(c->broker.tls.ca_file);
    assert_true(c->broker.tls.verify);
    assert_int_equal(c->database.prepared, PREPARED_AUTO);
    assert_int_equal(c->database.statement_timeout_ms, 10000);
    assert_int_equal(c->database.connect_timeout_ms, 5000);
    assert_int_equal(c->log.level, LOG_INFO);
    assert_int_equal(c->log.messages, MESSAGES_NONE);
    assert_int_equal(c->log.stats_interval_ms, 10000);
    assert_non_null(c->state_file); /* its rule: test_state_file.py */
    assert_int_equal(c->shutdown_grace_ms, 25000);
    assert_int_equal(c->n_queues, 1);
    assert_string_equal(q->name, "payments");
    assert_string_equal(q->queue, "payments");
    assert_string_equal(q->consumer, "payments");
    assert_null(q->vhost);
    assert_null(q->takes_over);
    assert_string_equal(q->forward.url, "http://127.0.0.1:8080/payments");
    assert_null(q->forward.unix_socket);
    assert_int_equal(q->forward.n_headers, 0);
    assert_null(q->forward.authorization.value);
    assert_true(q->forward.tls.verify);
    assert_int_equal(q->forward.connect_timeout_ms, 1000);
    assert_int_equal(q->forward.max_response_bytes, 65536);
    assert_int_equal(q->forward.concurrency, 16);
    assert_false(q->transaction);
    assert_int_equal(q->token_window_ms, 30000);
    assert_int_equal(q->max_window_ms, 1200000);
    assert_int_equal(q->commit_grace_ms, 1000);
    assert_int_equal(q->prefetch, 128);
    assert_int_equal(q->max_parked, 1000);
    assert_int_equal(q->max_bytes, 64 << 20);
    assert_int_equal(q->max_message_bytes, 16 << 20);
    assert_int_equal(q->delivery_limit, -1);
    assert_int_equal(q->max_hold_ms, 1500000);
    assert_int_equal(q->pause_hold_ms, 30000);
    assert_int_equal(q->message_id.n, 1);
    assert_int_equal(q->message_id.items[0].kind, IDENTITY_PROPERTY);
    assert_int_equal(q->max_attempts, 8);
    assert_int_equal(q->backoff_ms, 1000);
    assert_int_equal(q->max_backoff_ms, 300000);
    assert_int_equal(q->max_age_ms, 0);
    assert_int_equal(q->n_permanent_status, 5);
    assert_int_equal(q->permanent_status[4], 422);
    assert_int_equal(q->brake, 20);
    assert_false(q->mismatch_is_duplicate);
    assert_false(q->too_large_is_reject);
    assert_int_equal(q->revive, 3);
    assert_null(q->ready_url);
    assert_int_equal(q->ready_interval_ms, 1000);
    assert_int_equal(q->store_response_bytes, 0);
    assert_int_equal(q->retention_ms, 7 * 86400000ll);
    config_free(c);
}

/* --- merging --- */

static void test_defaults_merge(void **state)
{
    struct config *c = parse(
        "{\"broker\": {\"url\": \"amqp://h\"}, \"database\": {\"url\": \"host=h\"},"
        " \"defaults\": {\"forward\": {\"url\": \"http://d/\", \"concurrency\": 4,"
        "   \"headers\": {\"X-A\": \"a\", \"X-B\": \"b\"}}, \"retry\": {\"backoff\": \"2s\", "
        "\"max_attempts\": 5},"
        "   \"permanent_status\": [400], \"message_id\": [\"cloudevents\"], \"completion\": \"transaction\"},"
        " \"queues\": {\"one\": {}, \"two\": {\"forward\": {\"concurrency\": 8,"
        "   \"headers\": {\"x-b\": \"2\", \"X-C\": \"c\"}}, \"retry\": {\"max_attempts\": 6},"
        "   \"permanent_status\": [], \"message_id\": [\"header:x\"], \"completion\": \"response\"}}}");
    struct config_queue *one = &c->queues[0], *two = &c->queues[1];

    assert_int_equal(c->n_queues, 2);
    assert_string_equal(one->name, "one");
    assert_string_equal(one->consumer, "one");
    assert_string_equal(one->forward.url, "http://d/");
    assert_int_equal(one->forward.concurrency, 4);
    assert_int_equal(one->forward.n_headers, 2);
    assert_int_equal(one->n_permanent_status, 1);
    assert_int_equal(one->message_id.items[0].kind, IDENTITY_CLOUDEVENTS);
    assert_true(one->transaction);
    assert_string_equal(two->forward.url, "http://d/");
    assert_int_equal(two->forward.concurrency, 8);
    assert_int_equal(two->backoff_ms, 2000);
    assert_int_equal(two->max_attempts, 6);
    assert_int_equal(two->n_permanent_status, 0);
    assert_int_equal(two->message_id.items[0].kind, IDENTITY_HEADER);
    assert_false(two->transaction);
    assert_int_equal(two->forward.n_headers, 3);
    assert_string_equal(two->forward.headers[0].value, "a");
    assert_string_equal(two->forward.headers[1].value, "2");
    assert_string_equal(two->forward.headers[2].value, "c");
    assert_string_equal(one->forward.headers[1].value, "b");
    config_free(c);
}

/* --- texts from files and the environment --- */

static void temporary(char path[64], const char *content, size_t len)
{
    snprintf(path, 64, "/tmp/onceward-test-XXXXXX");
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, len), (ssize_t)len);
    close(fd);
}

static void test_files(void **state)
{
    char url[64], token[64], window[64], text[1024], *now = NULL;
    struct fault f = {0};

    temporary(url, "amqp://from-file\n", 17);
    temporary(token, "Bearer ${NOT_EXPANDED}\r\n", 24);
    temporary(window, "45s", 3);
    setenv("TOKEN_FILE", token, 1);
    snprintf(
        text, sizeof(text),
        "{\"broker\": {\"url_file\": \"%s\"}, \"database\": {\"url\": \"host=h\"}, \"defaults\": "
        "{\"forward\": {\"authorization\": "
        "\"old\"}}, \"queues\": {\"q\": {\"token_window_file\": \"%s\", \"forward\": {\"url\": \"http://h\", "
        "\"authorization_file\": \"${TOKEN_FILE}\"}}}}",
        url, window);
    struct config *c = parse(text);

    assert_string_equal(c->broker.url.value, "amqp://from-file");
    assert_string_equal(c->broker.url.file, url);
    assert_int_equal(c->queues[0].token_window_ms, 45000);
    assert_string_equal(c->queues[0].forward.authorization.value, "Bearer ${NOT_EXPANDED}");
    assert_string_equal(c->queues[0].forward.authorization.file, token);

    /* read again: the present content; only one line end is dropped */
    FILE *file = fopen(token, "w");
    assert_non_null(file);
    fputs("Bearer new\n\n", file);
    fclose(file);
    assert_int_equal(config_text_read(&c->queues[0].forward.authorization, &now, &f), 0);
    assert_string_equal(now, "Bearer new\n");
    mem_clear(&now);
    unlink(token);
    assert_int_equal(config_text_read(&c->queues[0].forward.authorization, &now, &f), -1);
    assert_null(now);
    assert_non_null(strstr(f.text, token));
    assert_int_equal(config_text_read(&c->database.url, &now, &f), 0);
    assert_string_equal(now, "host=h");
    mem_clear(&now);
    assert_int_equal(config_text_read(&c->database.password, &now, &f), 0);
    assert_null(now);
    config_free(c);
    unlink(url);
    unlink(window);
}

/* A field by file has its plain name, and replaces one of the defaults, like any field. */
static void test_header_files(void **state)
{
    char token[64], text[1024];

    temporary(token, "k ${NOT_EXPANDED}\n", 18);
    setenv("TOKEN_FILE", token, 1);
    snprintf(text, sizeof(text),
             "{\"broker\": {\"url\": \"amqp://h\"}, \"database\": {\"url\": \"host=h\"}, \"defaults\": "
             "{\"forward\": {\"url\": \"http://h\", \"headers\": {\"X-Key\": \"old\", \"X-Other_file\": "
             "\"%s\"}}}, "
             "\"queues\": {\"q\": {\"forward\": {\"headers\": {\"x-key_file\": \"${TOKEN_FILE}\"}}}}}",
             token);
    struct config *c = parse(text);
    const struct config_forward *w = &c->queues[0].forward;
    assert_int_equal(w->n_headers, 2);
    assert_string_equal(w->headers[0].name, "x-key");
    assert_string_equal(w->headers[0].value, "k ${NOT_EXPANDED}");
    assert_string_equal(w->headers[1].name, "X-Other");
    assert_string_equal(w->headers[1].value, "k ${NOT_EXPANDED}");
    config_free(c);
    unlink(token);
}

/* A queue's own text replaces a file in the defaults. */
static void test_text_replaces_file(void **state)
{
    char token[64], text[512];

    temporary(token, "old", 3);
    snprintf(text, sizeof(text),
             "{\"broker\": {\"url\": \"amqp://h\"}, \"database\": {\"url\": \"host=h\"}, \"defaults\": "
             "{\"forward\": "
             "{\"authorization_file\": \"%s\"}}, \"queues\": {\"q\": {\"forward\": {\"url\": \"http://h\", "
             "\"authorization\": \"new\"}}}}",
             token);
    struct config *c = parse(text);
    assert_string_equal(c->queues[0].forward.authorization.value, "new");
    assert_null(c->queues[0].forward.authorization.file);
    config_free(c);
    unlink(token);
}

static void test_variables(void **state)
{
    setenv("ONE", "1", 1);
    setenv("NESTED", "${ONE}", 1);
    setenv("EMPTY", "", 1);
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"${ONE}", "1"}, {"a${ONE}b${ONE}", "a1b1"}, {"$ONE", "$ONE"},        {"$${ONE}", "${ONE}"},
        {"$$", "$$"},    {"$$${ONE}", "$${ONE}"},    {"${NESTED}", "${ONE}"}, {"x${EMPTY}y", "xy"},
        {"a$", "a$"},    {"{ONE}", "{ONE}"},         {"$${", "${"},           {"100%", "100%"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];

        snprintf(text, sizeof(text),
                 "{\"broker\": {\"url\": \"amqp://h\", \"password\": \"%s\"}, \"database\": {\"url\": "
                 "\"host=h\"}, \"queues\": {\"q\": "
                 "{\"forward\": {\"url\": \"http://h\", \"headers\": {\"X\": \"-%s-\"}}}}}",
                 cases[i].text, cases[i].text);
        struct config *c = parse(text);
        assert_string_equal(c->broker.password.value, cases[i].expected);
        snprintf(text, sizeof(text), "-%s-", cases[i].expected);
        assert_string_equal(c->queues[0].forward.headers[0].value, text);
        config_free(c);
    }
}

static void test_units(void **state)
{
    static const struct {
        const char *text;
        int64_t ms;
    } durations[] = {
        {"0s", 0},
        {"1ms", 1},
        {"1500ms", 1500},
        {"30s", 30000},
        {"5m", 300000},
        {"2h", 7200000},
        {"7d", 604800000},
        {"007s", 7000},
        {"", -1},
        {"s", -1},
        {"5", -1},
        {"-5s", -1},
        {"+5s", -1},
        {"5 s", -1},
        {" 5s", -1},
        {"5s ", -1},
        {"1.5s", -1},
        {"5S", -1},
        {"5sec", -1},
        {"1h30m", -1},
        {"5us", -1},
        {"99999999999999999999s", -1},
        {"9223372036854775807d", -1},
        {"9223372036854775807ms", INT64_MAX},
        {"106751991168d", -1},
    };
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {
        {"0B", 0}, {"512B", 512}, {"64KiB", 65536}, {"64MiB", 64 << 20},    {"3GiB", 3ll << 30},
        {"", -1},  {"64", -1},    {"64K", -1},      {"64KB", -1},           {"64kib", -1},
        {"B", -1}, {"-1B", -1},   {"1.5KiB", -1},   {"99999999999GiB", -1}, {"1TiB", -1},
    };

    for (size_t i = 0; i < sizeof(durations) / sizeof(durations[0]); i++) {
        int64_t ms = -1;

        assert_int_equal(config_duration(durations[i].text, &ms), durations[i].ms < 0);
        assert_int_equal(ms, durations[i].ms);
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t bytes = (size_t)-1;

        assert_int_equal(config_size(sizes[i].text, &bytes), sizes[i].bytes < 0);
        assert_int_equal(bytes, (size_t)sizes[i].bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schema_is_current),
        cmocka_unit_test(test_page_is_current),
        cmocka_unit_test(test_links_are_their_words_on_a_terminal),
        cmocka_unit_test(test_markdown),
        cmocka_unit_test(test_code_is_kept_on_one_line),
        cmocka_unit_test(test_full_lists_every_key),
        cmocka_unit_test(test_ordered_defaults),
        cmocka_unit_test(test_batch_defaults),
        cmocka_unit_test(test_range_expands),
        cmocka_unit_test(test_pattern_has),
        cmocka_unit_test(test_full_is_valid),
        cmocka_unit_test(test_minimal_and_defaults),
        cmocka_unit_test(test_broker_host),
        cmocka_unit_test(test_defaults_merge),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_header_files),
        cmocka_unit_test(test_text_replaces_file),
        cmocka_unit_test(test_variables),
        cmocka_unit_test(test_units),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
