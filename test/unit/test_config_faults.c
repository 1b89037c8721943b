/* Faults of a configuration: each is reported with its path and a text, all at once, and never with a secret. */

#include "cmocka_all.h"
#include "onceward/base/buf.h"
#include "onceward/config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Surrounds a case. A 'Q' case is put inside queues.q, 'R' inside the root, 'D' inside defaults; 'W' is the
 * whole file. */
static void write_case(struct buf *out, char where, const char *json)
{
    static const char servers[] =
        "\"broker\": {\"url\": \"amqp://localhost\"}, \"database\": {\"url\": \"host=h\"}";
    static const char queues[] = "\"queues\": {\"q\": {\"forward\": {\"url\": \"http://h\"}}}";

    buf_reset(out);
    switch (where) {
    case 'W':
        buf_add_text(out, json);
        break;
    case 'R':
        buf_printf(out, "{%s}", json);
        break;
    case 'B': /* the root without broker and database */
        buf_printf(out, "{%s, %s}", queues, json);
        break;
    case 'S': /* the root without queues */
        buf_printf(out, "{%s, %s}", servers, json);
        break;
    case 'A': /* the complete root, with additions */
        buf_printf(out, "{%s, %s, %s}", servers, queues, json);
        break;
    case 'D':
        buf_printf(out, "{%s, \"defaults\": {%s}, %s}", servers, json, queues);
        break;
    case 'F': /* a queue without its forward */
        buf_printf(out, "{%s, \"queues\": {\"q\": {%s}}}", servers, json);
        break;
    default:
        buf_printf(out, "{%s, \"queues\": {\"q\": {\"forward\": {\"url\": \"http://h\"}, %s}}}", servers,
                   json);
    }
}

struct fault_case {
    char where;
    const char *json;
    const char *path, *text; /* of the only error; text NULL: no error */
};

static void print_report(const struct config_report *r)
{
    for (size_t i = 0; i < r->n; i++)
        fprintf(stderr, "  %s%s: %s\n", r->findings[i].warning ? "(warning) " : "", r->findings[i].path,
                r->findings[i].text);
}

static void check_case(const struct fault_case *k, bool warnings)
{
    struct config *c = NULL;
    struct config_report report;
    struct buf text = {0};

    write_case(&text, k->where, k->json);
    int result = config_parse(text.data, text.len, "test.json", NULL, &c, &report);
    size_t n_expected = k->text ? 1 : 0;
    bool good = result == (warnings || !k->text ? 0 : -1) && (c != NULL) == (result == 0);

    good = good && report.n_errors == (warnings ? 0 : n_expected);
    if (warnings || !k->text)
        good = good && report.n == n_expected;
    for (size_t i = 0; good && k->text && i < 1; i++)
        good = !strcmp(report.findings[0].path, k->path) && !strcmp(report.findings[0].text, k->text) &&
               report.findings[0].warning == warnings;
    if (!good) {
        print_report(&report);
        fail_msg("%s\nexpected %s: %s", k->json, k->text ? k->path : "nothing", k->text ? k->text : "");
    }
    config_report_deinit(&report);
    config_free(c);
    buf_deinit(&text);
}

#define CHECK_ALL(cases, warnings)                                                                           \
    for (size_t i = 0; i < sizeof(cases) / sizeof((cases)[0]); i++)                                          \
    check_case(&(cases)[i], warnings)

static void test_json(void **state)
{
    static const struct fault_case cases[] = {
        {'W', "", "", "test.json is empty; expected an object"},
        {'W', "[]", "", "test.json: expected an object, got a list"},
        {'W', "\"x\"", "", "test.json: expected an object, got a string"},
        {'W', "{\"broker\": {", "",
         "test.json, line 1, column 12: the file ends in the middle; expected the rest of the object"},
        {'W', "{} x", "", "test.json, line 1, column 4: expected nothing behind the object"},
        {'W', "{\n \"a\": 1,\n}", "",
         "test.json, line 3, column 1: expected a name in double quotes (JSON has no comments and no comma "
         "before a closing brace)"},
        {'W', "{\n // no\n}", "",
         "test.json, line 2, column 2: expected a name in double quotes (JSON has no comments and no comma "
         "before a closing brace)"},
        {'W', "{\"a\" 1}", "", "test.json, line 1, column 6: expected : behind a name"},
        {'W', "{\"a\": [1 2]}", "", "test.json, line 1, column 10: expected , or ] in a list"},
        {'W', "{\"a\": [1,]}", "",
         "test.json, line 1, column 10: expected a value (JSON has no comma before a closing bracket)"},
        {'W', "{\"a\": secret}", "",
         "test.json, line 1, column 12: expected a value, a name or punctuation of JSON"},
        {'W', "{\"a\": \"x\ny\"}", "",
         "test.json, line 1, column 8: a string without an end on its line; expected its closing quote (a "
         "line end is written \\n)"},
        {'W', "{\"a\": \"x\ty\"}", "",
         "test.json, line 1, column 8: a control character in a string; expected an escape such as \\t"},
        {'W', "{\"a\": \"\\q\"}", "",
         "test.json, line 1, column 9: an escape that JSON does not have; expected one of \\\" \\\\ \\/ \\b "
         "\\f \\n \\r \\t \\uXXXX"},
        {'W', "{\"a\": \"\\ud800\"}", "",
         "test.json, line 1, column 14: half of a surrogate pair; expected both halves"},
        {'W', "{\"a\": \"\xFF\"}", "", "test.json, line 1, column 7: expected UTF-8"},
        {'W', "{\"a\\u0000b\": 1}", "", "test.json, line 1, column 11: a name with NUL; expected none"},
        {'W', "-1e309", "", "test.json: expected an object, got a number too large"},
        {'W', "{\"a\": 99999999999999999999 x}", "",
         "test.json, line 1, column 28: expected , or } in an object"},
        {'W', "broker:\n  url: secret\n", "",
         "test.json: expected { at the start: the configuration is JSON, not YAML or TOML"},
        {'W', "\n# secret\n{}", "",
         "test.json: expected { at the start: the configuration is JSON, not YAML or TOML"},
        {'W', "---\nbroker: {}\n", "",
         "test.json: expected { at the start: the configuration is JSON, not YAML or TOML"},
        {'W', "// secret\n{}", "",
         "test.json: expected { at the start: the configuration is JSON, not YAML or TOML"},
        {'W', "\xEF\xBB\xBF{}", "", "test.json starts with a byte order mark; expected UTF-8 without one"},
        {'W', "\xFF\xFE{", "", "test.json is in UTF-16; expected UTF-8"},
    };

    CHECK_ALL(cases, false);
}

/* Queue names with a range. */
static void test_ranges(void **state)
{
    static const struct fault_case cases[] = {
        {'Q', "\"queue\": \"o-{0..3}\", \"consumer\": \"o\"", NULL, NULL},
        {'Q', "\"queue\": \"o-{00..15}-x\", \"consumer\": \"o\", \"prefetch\": 1", NULL, NULL},
        {'Q', "\"queue\": \"o-{7..262}\", \"consumer\": \"o\"", NULL, NULL},
        {'Q', "\"queue\": \"o-{7..263}\", \"consumer\": \"o\"", "queues.q.queue",
         "expected a range of at most 256 queues"},
        {'Q', "\"queue\": \"o-{3..0}\", \"consumer\": \"o\"", "queues.q.queue",
         "expected a range whose first number is not above its last one"},
        {'Q', "\"queue\": \"o-{0..}\", \"consumer\": \"o\"", "queues.q.queue",
         "expected a range of two whole numbers in the braces, such as {0..15}"},
        {'Q', "\"queue\": \"o-{-1..3}\", \"consumer\": \"o\"", "queues.q.queue",
         "expected a range of two whole numbers in the braces, such as {0..15}"},
        {'Q', "\"queue\": \"o-{0..9999999999}\", \"consumer\": \"o\"", "queues.q.queue",
         "expected a range of two whole numbers in the braces, such as {0..15}"},
        {'Q', "\"queue\": \"o-{00..150}\", \"consumer\": \"o\"", "queues.q.queue",
         "expected as many digits in both numbers of a range with leading zeros, such as {00..15}"},
        {'Q', "\"queue\": \"o-{0..3}-{0..3}\", \"consumer\": \"o\"", "queues.q.queue",
         "expected one range, and no other braces in the name"},
        {'Q', "\"queue\": \"{o}-{0..3}\", \"consumer\": \"o\"", "queues.q.queue",
         "expected one range, and no other braces in the name"},
        {'Q', "\"queue\": \"o-{0..3}\"", "queues.q",
         "missing consumer; expected a name for messages of all queues of o-{0..3}, since the range may "
         "change"},
        {'S', "\"queues\": {\"o-{0..x}\": {\"consumer\": \"o\", \"forward\": {\"url\": \"http://h\"}}}",
         "queues.\"o-{0..x}\"", "expected a range of two whole numbers in the braces, such as {0..15}"},
        {'F',
         "\"queue\": \"o-{0..3}\", \"consumer\": \"o\", \"prefetch\": 2, \"forward\": {\"url\": "
         "\"http://h\", \"concurrency\": 9}",
         "queues.q.prefetch",
         "prefetch (2) of 4 partitions is below forward.concurrency (9); expected at least as much in all"},
        {'S',
         "\"defaults\": {\"forward\": {\"url\": \"http://h\"}}, \"queues\": {\"o-2\": {}, \"o\": {\"queue\": "
         "\"o-{1..3}\", \"consumer\": \"o\"}}",
         "queues.o.queue", "o-2 is a queue of queues.o-2, too; expected each queue once"},
        {'S',
         "\"defaults\": {\"forward\": {\"url\": \"http://h\"}}, \"queues\": {\"p\": {\"queue\": "
         "\"o-{3..9}\", "
         "\"consumer\": \"p\"}, \"o\": {\"queue\": \"o-{1..3}\", \"consumer\": \"o\"}}",
         "queues.o.queue", "o-3 is a queue of queues.p, too; expected each queue once"},
        {'S',
         "\"defaults\": {\"forward\": {\"url\": \"http://h\"}}, \"queues\": {\"p\": {\"queue\": "
         "\"o-{03..09}\", "
         "\"consumer\": \"p\"}, \"o\": {\"queue\": \"o-{1..3}\", \"consumer\": \"o\"}}",
         NULL, NULL},
    };
    static const struct fault_case warnings[] = {
        {'Q', "\"queue\": \"o-{0-3}\"", "queues.q",
         "the queue name o-{0-3} has a brace, and no range such as {0..15}: it is one queue"},
    };

    CHECK_ALL(cases, false);
    CHECK_ALL(warnings, true);
}

static void test_structure(void **state)
{
    static const struct fault_case cases[] = {
        {'A', "\"$schema\": \"conf/onceward.schema.json\"", NULL, NULL},
        {'S', "\"queues\": {}", "queues",
         "no queue is given; expected an object with at least one queue, name to keys (or `outbox`)"},
        {'S', "\"queues\": []", "queues",
         "no queue is given; expected an object with at least one queue, name to keys (or `outbox`)"},
        {'S', "\"shutdown_grace\": \"30s\"", "queues",
         "missing; expected an object with at least one queue, name to keys (or `outbox`)"},
        {'S', "\"queues\": {\"q\": 5}", "queues.q", "expected an object of queue keys, got a number"},
        {'S', "\"queues\": {\"\": {\"forward\": {\"url\": \"http://h\"}}}", "queues.\"\"",
         "expected a name of 1 to 255 bytes for a queue"},
        {'A', "\"defaults\": []", "defaults", "expected an object of queue keys, got a list"},
        {'A', "\"log\": \"debug\"", "log", "expected an object of keys, got a string"},
        {'Q', "\"retry\": null", "queues.q.retry", "expected an object of keys, got null"},
        {'B', "\"database\": {\"url\": \"host=h\"}", "broker.url",
         "missing; expected a URL that starts with amqp:// or amqps://, or broker.host"},
        {'F', "\"prefetch\": 20", "queues.q.forward.url",
         "missing; expected a URL that starts with http:// or https://"},
        /* unknown */
        {'A', "\"borker\": {}", "borker", "unknown key; did you mean broker?"},
        {'A', "\"queue\": {}", "queue", "unknown key; did you mean queues?"},
        {'A', "\"token_window\": \"5s\"", "token_window",
         "unknown key; did you mean queues.<name>.token_window?"},
        {'A', "\"zzz\": 1", "zzz", "unknown key"},
        {'A', "\"a key\": 1", "\"a key\"", "unknown key"},
        {'A', "\"log\": {\"Level\": \"info\"}", "log.Level", "unknown key; did you mean level?"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"concurency\": 5}", "queues.q.forward.concurency",
         "unknown key; did you mean concurrency?"},
        {'Q', "\"concurrency\": 5", "queues.q.concurrency",
         "unknown key; did you mean queues.<name>.forward.concurrency?"},
        {'Q', "\"max_atempts\": 5", "queues.q.max_atempts",
         "unknown key; did you mean queues.<name>.retry.max_attempts?"},
        {'Q', "\"shutdown_grace\": 5", "queues.q.shutdown_grace",
         "unknown key; did you mean shutdown_grace?"},
        {'Q', "\"retry.backoff\": \"1s\"", "queues.q.retry.backoff",
         "unknown key; expected nested objects, such as {\"forward\": {\"url\": …}}"},
        {'Q', "\"prefetch_file\": \"x\"", "queues.q.prefetch_file",
         "unknown key; only strings can be taken from a file"},
        {'D', "\"retry\": {\"backof\": \"1s\"}", "defaults.retry.backof",
         "unknown key; did you mean backoff?"},
        /* twice */
        {'W',
         "{\"broker\": {\"url\": \"amqp://localhost\"}, \"database\": {\"url\": \"host=h\"},\n\"queues\": "
         "{\"q\": "
         "{\"forward\": {\"url\": \"http://h\",\n\"\\u0075rl\": \"http://i\"}}}}",
         "queues.q.forward.url", "given twice, in lines 2 and 3"},
    };

    CHECK_ALL(cases, false);
}

static void test_values(void **state)
{
    setenv("SET", "5s", 1);
    setenv("EMPTY", "", 1);
    unsetenv("UNSET");
    setenv("NOT_TEXT", "\xFF", 1);
    static const struct fault_case cases[] = {
        {'Q', "\"prefetch\": \"20\"", "queues.q.prefetch",
         "expected a whole number from 1 to 65535, got a string"},
        {'Q', "\"prefetch\": 20.0", "queues.q.prefetch",
         "expected a whole number from 1 to 65535, got a number with a fraction or an exponent"},
        {'Q', "\"prefetch\": 99999999999999999999", "queues.q.prefetch",
         "expected a whole number from 1 to 65535, got a number too large"},
        {'Q', "\"prefetch\": -1e309", "queues.q.prefetch",
         "expected a whole number from 1 to 65535, got a number too large"},
        {'Q', "\"vhost\": \"99999999999999999999 1e400\"", NULL, NULL},
        {'Q', "\"prefetch\": 0", "queues.q.prefetch", "expected a whole number from 1 to 65535, got 0"},
        {'Q', "\"prefetch\": 65536", "queues.q.prefetch",
         "expected a whole number from 1 to 65535, got 65536"},
        {'Q', "\"prefetch\": 65535", NULL, NULL},
        {'Q', "\"brake\": 1000001", "queues.q.brake",
         "expected a whole number from 0 to 1000000, got 1000001"},
        {'Q', "\"brake\": 1000000", NULL, NULL},
        {'Q', "\"token_window\": 30", "queues.q.token_window",
         "expected a duration from 2s to 1d, such as \"30s\" (units ms, s, m, h, d), got a number"},
        {'Q', "\"token_window\": \"30\"", "queues.q.token_window",
         "expected a duration from 2s to 1d, such as \"30s\" (units ms, s, m, h, d), got \"30\"; did you "
         "mean \"30s\"?"},
        {'Q', "\"token_window\": \"1s\"", "queues.q.token_window",
         "expected a duration from 2s to 1d, such as \"30s\" (units ms, s, m, h, d), got 1s"},
        {'Q', "\"token_window\": \"1999ms\"", "queues.q.token_window",
         "expected a duration from 2s to 1d, such as \"30s\" (units ms, s, m, h, d), got 1999ms"},
        {'Q', "\"token_window\": \"2s\"", NULL, NULL},
        {'Q', "\"token_window\": \"${SET}\"", NULL, NULL},
        {'Q', "\"token_window\": \"${UNSET}\"", "queues.q.token_window",
         "the environment variable UNSET is not set"},
        {'Q', "\"token_window\": \"${SET\"", "queues.q.token_window",
         "expected ${NAME}, where NAME has letters, digits and _ (a literal ${ is written $${)"},
        {'Q', "\"token_window\": \"${}\"", "queues.q.token_window",
         "expected ${NAME}, where NAME has letters, digits and _ (a literal ${ is written $${)"},
        {'Q', "\"token_window\": \"${S-T}\"", "queues.q.token_window",
         "expected ${NAME}, where NAME has letters, digits and _ (a literal ${ is written $${)"},
        {'Q', "\"token_window\": \"${1S}\"", "queues.q.token_window",
         "expected ${NAME}, where NAME has letters, digits and _ (a literal ${ is written $${)"},
        {'Q', "\"vhost\": \"${NOT_TEXT}\"", "queues.q.vhost",
         "the environment variable NOT_TEXT does not hold UTF-8"},
        {'Q', "\"vhost\": \"${EMPTY}\"", "queues.q.vhost",
         "expected a string of 1 to 255 bytes, got an empty one"},
        {'Q', "\"vhost\": \"a\\u0000b\"", "queues.q.vhost", "expected a string without NUL"},
        {'Q', "\"vhost\": [\"v\"]", "queues.q.vhost", "expected a string of 1 to 255 bytes, got a list"},
        {'Q', "\"vhost\": null", "queues.q.vhost", "expected a string of 1 to 255 bytes, got null"},
        {'Q', "\"completion\": \"both\"", "queues.q.completion",
         "expected \"response\" or \"transaction\", got \"both\""},
        {'Q', "\"completion\": \"Transaction\"", "queues.q.completion",
         "expected \"response\" or \"transaction\", got \"Transaction\"; did you mean \"transaction\"?"},
        {'A', "\"metrics\": {\"listen\": \"localhost:9464\"}", "metrics.listen",
         "expected an address and a port, as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:9464"},
        {'A', "\"metrics\": {\"listen\": \"127.0.0.1\"}", "metrics.listen",
         "expected an address and a port, as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:9464"},
        {'A', "\"metrics\": {\"listen\": \":9464\"}", "metrics.listen",
         "expected an address and a port, as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:9464"},
        {'A', "\"metrics\": {\"listen\": \"127.0.0.1:0\"}", "metrics.listen",
         "expected an address and a port, as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:9464"},
        {'A', "\"metrics\": {\"listen\": \"127.0.0.1:65536\"}", "metrics.listen",
         "expected an address and a port, as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:9464"},
        {'A', "\"metrics\": {\"listen\": \"::1:9464\"}", "metrics.listen",
         "expected an address and a port, as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:9464"},
        {'A', "\"metrics\": {\"listen\": \"[127.0.0.1]:9464\"}", "metrics.listen",
         "expected an address and a port, as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:9464"},
        {'A', "\"metrics\": {\"listen\": \"127.0.0.1:1\"}", "", NULL},
        {'A', "\"metrics\": {\"listen\": \"[::1]:65535\"}", "", NULL},
        {'A', "\"log\": {\"level\": \"warn\"}", "log.level",
         "expected \"debug\", \"info\", \"warning\" or \"error\", got \"warn\"; did you mean \"warning\"?"},
        {'A', "\"log\": {\"level\": \"${SET}\"}", "log.level",
         "expected \"debug\", \"info\", \"warning\" or \"error\", got another string"},
        {'Q', "\"token_window\": \"5 min\"", "queues.q.token_window",
         "expected a duration from 2s to 1d, such as \"30s\" (units ms, s, m, h, d), got \"5 min\"; did you "
         "mean "
         "\"5m\"?"},
        {'Q', "\"token_window\": \"${EMPTY}30\"", "queues.q.token_window",
         "expected a duration from 2s to 1d, such as \"30s\" (units ms, s, m, h, d), got a string of another "
         "form"},
        {'Q', "\"token_window\": \"1h30m and more of this, as long as it gets\"", "queues.q.token_window",
         "expected a duration from 2s to 1d, such as \"30s\" (units ms, s, m, h, d), got \"1h30m and more of "
         "this, as long "
         "as it ge\"…"},
        {'Q', "\"max_bytes\": \"64MB\"", "queues.q.max_bytes",
         "expected a size from 1KiB to 64GiB, such as \"16KiB\" (units B, KiB, MiB, GiB), got \"64MB\"; did "
         "you mean "
         "\"64MiB\"?"},
        {'A', "\"log\": {\"level\": \"trace\"}", "log.level",
         "expected \"debug\", \"info\", \"warning\" or \"error\", got \"trace\""},
        {'A', "\"log\": {\"messages\": true}", "log.messages",
         "expected \"none\", \"sampled\" or \"all\", got true or false"},
        {'Q', "\"max_bytes\": \"64\"", "queues.q.max_bytes",
         "expected a size from 1KiB to 64GiB, such as \"16KiB\" (units B, KiB, MiB, GiB), got \"64\""},
        {'Q', "\"max_bytes\": \"1B\"", "queues.q.max_bytes",
         "expected a size from 1KiB to 64GiB, such as \"16KiB\" (units B, KiB, MiB, GiB), got 1B"},
        {'Q', "\"max_message\": \"513MiB\"", "queues.q.max_message",
         "expected a size from 1B to 512MiB, such as \"16KiB\" (units B, KiB, MiB, GiB), got 513MiB"},
        {'Q', "\"store_response\": \"65KiB\"", "queues.q.store_response",
         "expected \"none\" or a size from 1B to 64KiB, such as \"16KiB\" (units B, KiB, MiB, GiB), got "
         "65KiB"},
        {'Q', "\"store_response\": \"none\"", NULL, NULL},
        {'Q', "\"store_response\": \"64KiB\"", NULL, NULL},
        {'Q', "\"retry\": {\"max_age\": \"off\"}", NULL, NULL},
        {'Q', "\"retry\": {\"max_age\": \"never\"}", "queues.q.retry.max_age",
         "expected \"off\" or a duration from 1s to 3650d, such as \"30s\" (units ms, s, m, h, d), got "
         "\"never\""},
        {'F', "\"forward\": {\"url\": \"https://h\", \"tls\": {\"verify\": \"no\"}}",
         "queues.q.forward.tls.verify", "expected true or false, got a string"},
    };

    CHECK_ALL(cases, false);
}

static void test_long_names(void **state)
{
    struct buf json = {0}, path = {0};

    for (int len = 255; len <= 256; len++) {
        struct fault_case k = {'Q', NULL, NULL, NULL};

        buf_reset(&json);
        buf_printf(&json, "\"consumer\": \"%0*d\"", len, 0);
        k.json = buf_text(&json);
        if (len == 256) {
            k.path = "queues.q.consumer";
            k.text = "expected a string of 1 to 255 bytes, got 256 bytes";
        }
        check_case(&k, false);
        buf_reset(&json);
        buf_printf(&json, "\"queues\": {\"%0*d\": {\"forward\": {\"url\": \"http://h\"}}}", len, 0);
        buf_reset(&path);
        buf_printf(&path, "queues.\"%080d\"", 0);
        k = (struct fault_case){'S', buf_text(&json), buf_text(&path),
                                len == 256 ? "expected a name of 1 to 255 bytes for a queue" : NULL};
        check_case(&k, false);
    }
    buf_deinit(&json);
    buf_deinit(&path);
}

#define BROKER(url)   "\"broker\": {\"url\": \"" url "\"}, \"database\": {\"url\": \"host=h\"}"
#define FORWARD(url)  "\"forward\": {\"url\": \"" url "\"}"
#define DATABASE(url) "\"database\": {\"url\": \"" url "\"}, \"broker\": {\"url\": \"amqp://localhost\"}"

static void test_urls(void **state)
{
    static const char escapes[] = "expected a URL without white space, in which % stands before two hex "
                                  "digits (or use broker.user and broker.password)";
    static const char host[] = "expected a host, and after a : a port from 1 to 65535, in the URL";
    static const char behind[] = "expected no @ behind a /, ? or # in the URL (percent-encode those of the "
                                 "password, or use broker.password)";
    static const char vhost[] =
        "expected nothing behind the vhost in the URL (a / inside the vhost is written %2F)";
    static const struct fault_case cases[] = {
        {'B', BROKER("amqps://user:pass@host:5672/v%2Fhost"), NULL, NULL},
        {'B', BROKER("AMQP://[::1]:5672/"), NULL, NULL},
        {'B', BROKER("amqps://host"), NULL, NULL},
        {'B', BROKER("http://secret"), "broker.url", "expected a URL that starts with amqp:// or amqps://"},
        {'B', BROKER("amqp:/host"), "broker.url", "expected a URL that starts with amqp:// or amqps://"},
        {'B', BROKER("host:5672"), "broker.url", "expected a URL that starts with amqp:// or amqps://"},
        {'B', BROKER("amqp://u:p w@h"), "broker.url", escapes},
        {'B', BROKER("amqp://u:p%w@h"), "broker.url", escapes},
        {'B', BROKER("amqp://u:p%2"), "broker.url", escapes},
        {'B', BROKER("amqp://u:p%00@h"), "broker.url", escapes},
        {'B', BROKER("amqp://u:p@w@h"), "broker.url",
         "expected one @ in the URL (percent-encode those of the password, or use broker.password)"},
        {'B', BROKER("amqp://u:p/w@h"), "broker.url", behind},
        {'B', BROKER("amqp://u:12/w@h"), "broker.url", behind},
        {'B', BROKER("amqp://u:12?w@h"), "broker.url", behind},
        {'B', BROKER("amqp://u:12#w@h"), "broker.url", behind},
        {'B', BROKER("amqp://u:p@w/x@h"), "broker.url", behind},
        {'B', BROKER("amqp://"), "broker.url", host},
        {'B', BROKER("amqp://u:p@"), "broker.url", host},
        {'B', BROKER("amqp://h:"), "broker.url", host},
        {'B', BROKER("amqp://h:0"), "broker.url", host},
        {'B', BROKER("amqp://h:65536"), "broker.url", host},
        {'B', BROKER("amqp://[::1"), "broker.url", host},
        {'B', BROKER("amqp://[]"), "broker.url", host},
        {'B', BROKER("amqp://h/a/b"), "broker.url", vhost},
        {'B', BROKER("amqp://h/a?heartbeat=5"), "broker.url", vhost},
        {'B', DATABASE("postgres://h/d"), NULL, NULL},
        {'B', DATABASE("postgresql://u:p@a:1,b:2/d?sslmode=require"), NULL, NULL},
        {'B', DATABASE("host=/run/postgresql dbname=d"), NULL, NULL},
        {'B', DATABASE("host=h options='-c a://b=c'"), NULL, NULL},
        {'B', DATABASE("mysql://u:secret@h/d?a=b"), "database.url",
         "expected a URL that starts with postgres:// or postgresql://"},
        {'B', DATABASE("secret"), "database.url",
         "expected a URL that starts with postgres:// or postgresql://, or keywords and values such as "
         "\"host=db dbname=app\""},
        {'B', DATABASE("postgres://h/d d"), "database.url",
         "expected a URL without white space, in which % stands before two hex digits (or use "
         "database.password)"},
        {'F', FORWARD("https://h:8443/a/b?c=d"), NULL, NULL},
        {'F', FORWARD("http://[::1]/"), NULL, NULL},
        {'F', FORWARD("ftp://h/"), "queues.q.forward.url",
         "expected a URL that starts with http:// or https://"},
        {'F', FORWARD("http:///a"), "queues.q.forward.url", host},
        {'F', FORWARD("http://h:x/"), "queues.q.forward.url", host},
        {'F', FORWARD("http://u:secret@h/"), "queues.q.forward.url",
         "expected a URL without a user or password (use forward.authorization)"},
        {'F', FORWARD("http://h/#a"), "queues.q.forward.url", "expected a URL without a fragment"},
        {'F', FORWARD("http://h/a b"), "queues.q.forward.url",
         "expected a URL without white space, in which % stands before two hex digits"},
        {'Q', "\"ready\": {\"url\": \"tcp://h\"}", "queues.q.ready.url",
         "expected a URL that starts with http:// or https://"},
    };

    CHECK_ALL(cases, false);
}

#define HOST(json) "\"database\": {\"url\": \"host=h\"}, \"broker\": {" json "}"

static void test_broker_host(void **state)
{
    static const char host[] =
        "expected the name or address of a server, without a scheme, a user and a port (broker.port)";
    static const char beside[] =
        "given together with broker.url; expected it in the URL, or broker.host instead of the URL";
    static const struct fault_case cases[] = {
        {'B', HOST("\"host\": \"localhost\", \"port\": \"5672\", \"vhost\": \"v\""), NULL, NULL},
        {'B', HOST("\"host\": \"amqp://localhost\""), "broker.host", host},
        {'B', HOST("\"host\": \"localhost:5672\""), "broker.host", host},
        {'B', HOST("\"host\": \"[localhost]\""), "broker.host", host},
        {'B', HOST("\"host\": \"u@localhost\""), "broker.host", host},
        {'B', HOST("\"host\": \"a b\""), "broker.host", host},
        {'B', HOST("\"host\": \"\""), "broker.host", "expected a string of 1 to 255 bytes, got an empty one"},
        {'B', HOST("\"host\": \"localhost\", \"port\": 0"), "broker.port",
         "expected a port from 1 to 65535, such as 5672, got 0"},
        {'B', HOST("\"host\": \"localhost\", \"port\": \"65536\""), "broker.port",
         "expected a port from 1 to 65535, such as 5672, got 65536"},
        {'B', HOST("\"host\": \"localhost\", \"port\": \"amqp\""), "broker.port",
         "expected a port from 1 to 65535, such as 5672, got \"amqp\""},
        {'B', HOST("\"host\": \"localhost\", \"port\": 5672.5"), "broker.port",
         "expected a port from 1 to 65535, such as 5672, got a number with a fraction or an exponent"},
        {'B', HOST("\"host\": \"localhost\", \"port_file\": \"/nonexistent/port\""), "broker.port_file",
         "cannot open /nonexistent/port: No such file or directory"},
        {'B', HOST("\"url\": \"amqp://localhost\", \"host\": \"localhost\""), "broker.host",
         "given together with broker.url; expected only one of the two"},
        {'B', HOST("\"url\": \"amqp://localhost\", \"port\": 5672"), "broker.port", beside},
        {'B', HOST("\"url\": \"amqp://localhost\", \"vhost\": \"v\""), "broker.vhost", beside},
        {'B', HOST("\"port\": 5672"), "broker.url",
         "missing; expected a URL that starts with amqp:// or amqps://, or broker.host"},
        /* two entries for one queue, with the vhost from different keys */
        {'W',
         "{\"broker\": {\"host\": \"localhost\", \"vhost\": \"v/w\"}, \"database\": {\"url\": \"host=\"}, "
         "\"queues\": "
         "{\"a\": {\"forward\": {\"url\": \"http://h\"}}, \"b\": {\"queue\": \"a\", \"vhost\": \"v/w\", "
         "\"consumer\": \"x\", \"forward\": {\"url\": \"http://h\"}}}}",
         "queues.b.queue", "the same queue and vhost as queues.a; expected each queue once"},
    };

    CHECK_ALL(cases, false);
}

#define HEADERS(json) "\"forward\": {\"url\": \"http://localhost\", \"headers\": " json "}"

static void test_forward(void **state)
{
    setenv("HIDDEN", "a secret", 1);
    setenv("LINES", "a\nsecret", 1);
    static const char own[] = "expected another name: this field is written by onceward itself";
    static const char family[] = "expected another name: fields that start with Onceward-, Amqp- and ce- are "
                                 "written by onceward itself";
    static const struct fault_case cases[] = {
        {'F', HEADERS("{\"X-A\": \"a\", \"Authorization\": \"b\", \"X-Tab\": \"a\\tb\"}"), NULL, NULL},
        {'F', HEADERS("[]"), "queues.q.forward.headers",
         "expected an object of names and strings, got a list"},
        {'F', HEADERS("{\"X\": 5}"), "queues.q.forward.headers.X", "expected a string, got a number"},
        {'F', HEADERS("{\"X\": \"\"}"), "queues.q.forward.headers.X",
         "expected a field value of 1 to 8192 bytes"},
        {'F', HEADERS("{\"X\": \"a\\r\\nb\"}"), "queues.q.forward.headers.X",
         "expected a field value without line ends and other control characters"},
        {'F', HEADERS("{\"X\": \" a\"}"), "queues.q.forward.headers.X",
         "expected a field value without white space at its ends"},
        {'F', HEADERS("{\"X\": \"${UNSET}\"}"), "queues.q.forward.headers.X",
         "the environment variable UNSET is not set"},
        {'F', HEADERS("{\"X\": \"a\", \"x\": \"b\"}"), "queues.q.forward.headers.x",
         "given twice; expected one field of a name, whatever its case, by value or by file"},
        {'F', HEADERS("{\"X\": \"a\", \"x_file\": \"/proc/version\"}"), "queues.q.forward.headers.x_file",
         "given twice; expected one field of a name, whatever its case, by value or by file"},
        {'F', HEADERS("{\"X_file\": \"/nonexistent/x\"}"), "queues.q.forward.headers.X_file",
         "cannot open /nonexistent/x: No such file or directory"},
        {'F', HEADERS("{\"X_file\": 5}"), "queues.q.forward.headers.X_file",
         "expected the path of a file, got a number"},
        {'F', HEADERS("{\"X_file\": \"/dev/null\"}"), "queues.q.forward.headers.X_file",
         "expected a field value of 1 to 8192 bytes"},
        {'F', HEADERS("{\"X_file\": \"/proc/mounts\"}"), "queues.q.forward.headers.X_file",
         "expected a field value without line ends and other control characters"},
        {'F', HEADERS("{\"Host_file\": \"/proc/version\"}"), "queues.q.forward.headers.Host_file", own},
        {'F', HEADERS("{\"X Y\": \"a\"}"), "queues.q.forward.headers.\"X Y\"",
         "expected a field name of letters, digits and !#$%&'*+-.^_`|~"},
        {'F', HEADERS("{\"X:\": \"a\"}"), "queues.q.forward.headers.\"X:\"",
         "expected a field name of letters, digits and !#$%&'*+-.^_`|~"},
        {'F', HEADERS("{\"\": \"a\"}"), "queues.q.forward.headers.\"\"",
         "expected a field name of letters, digits and !#$%&'*+-.^_`|~"},
        {'F', HEADERS("{\"onceward-token\": \"a\"}"), "queues.q.forward.headers.onceward-token", family},
        {'F', HEADERS("{\"Amqp-X\": \"a\"}"), "queues.q.forward.headers.Amqp-X", family},
        {'F', HEADERS("{\"IDEMPOTENCY-KEY\": \"a\"}"), "queues.q.forward.headers.IDEMPOTENCY-KEY", own},
        {'F', HEADERS("{\"Content-Length\": \"5\"}"), "queues.q.forward.headers.Content-Length", own},
        {'F', HEADERS("{\"Transfer-Encoding\": \"chunked\"}"), "queues.q.forward.headers.Transfer-Encoding",
         own},
        {'F', HEADERS("{\"Host\": \"h\"}"), "queues.q.forward.headers.Host", own},
        {'D', "\"forward\": {\"headers\": {\"Host\": \"h\"}}", "defaults.forward.headers.Host", own},
        {'F', "\"forward\": {\"url\": \"http://h\", \"authorization\": \"a\\nb\"}",
         "queues.q.forward.authorization",
         "expected a field value without line ends and other control characters"},
        {'F',
         "\"forward\": {\"url\": \"http://h\", \"authorization\": \"a\", \"headers\": {\"authorization\": "
         "\"b\"}}",
         "queues.q.forward.authorization",
         "forward.authorization is given together with an Authorization field in forward.headers; expected only one "
         "of the two"},
        {'F',
         "\"forward\": {\"url\": \"http://h\", \"authorization\": \"a\", \"authorization_file\": \"/b\"}",
         "queues.q.forward.authorization_file",
         "given together with authorization; expected only one of the two"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"authorization_file\": \"/nonexistent/x\"}",
         "queues.q.forward.authorization_file", "cannot open /nonexistent/x: No such file or directory"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"authorization_file\": \"/none/${HIDDEN}\"}",
         "queues.q.forward.authorization_file", "cannot open /none/${HIDDEN}: No such file or directory"},
        {'F', HEADERS("{\"X_file\": \"/none/${HIDDEN}\"}"), "queues.q.forward.headers.X_file",
         "cannot open /none/${HIDDEN}: No such file or directory"},
        {'F', HEADERS("{\"X_file\": \"/none/${LINES}\"}"), "queues.q.forward.headers.X_file",
         "/none/${LINES} cannot be read"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"authorization_file\": \"/\"}",
         "queues.q.forward.authorization_file", "cannot read /: Is a directory"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"authorization_file\": \"/dev/zero\"}",
         "queues.q.forward.authorization_file", "/dev/zero is larger than 64 KiB"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"authorization_file\": \"/dev/null\"}",
         "queues.q.forward.authorization_file", "expected a string of 1 to 8192 bytes, got an empty one"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"authorization_file\": \"\"}",
         "queues.q.forward.authorization_file", "expected the path of a file, got an empty string"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"authorization_file\": 5}",
         "queues.q.forward.authorization_file", "expected the path of a file, got a number"},
        {'F', "\"forward\": {\"url_file\": \"${UNSET}\"}", "queues.q.forward.url_file",
         "the environment variable UNSET is not set"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"unix_socket\": \"run/app\"}",
         "queues.q.forward.unix_socket", "expected an absolute path"},
        {'F',
         "\"forward\": {\"url\": \"http://h\", \"unix_socket\": "
         "\"/"
         "234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890"
         "12345678\"}",
         "queues.q.forward.unix_socket", "expected a string of 1 to 107 bytes, got 108 bytes"},
        {'F',
         "\"forward\": {\"url\": \"http://h\", \"unix_socket\": "
         "\"/"
         "234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890"
         "1234567\"}",
         NULL, NULL},
    };

    CHECK_ALL(cases, false);
}

static void test_lists(void **state)
{
    static const struct fault_case cases[] = {
        {'Q', "\"message_id\": \"property:message_id\"", "queues.q.message_id",
         "expected a list of strings and lists of strings, such as [\"property:message_id\"], got a string"},
        {'Q', "\"message_id\": []", "queues.q.message_id", "expected 1 to 16 elements, got 0"},
        {'Q', "\"message_id\": [\"cloudevents\", 5]", "queues.q.message_id[1]",
         "expected a string or a list of strings, got a number"},
        {'Q', "\"message_id\": [[]]", "queues.q.message_id[0]", "expected 1 to 8 strings to join, got 0"},
        {'Q', "\"message_id\": [[\"header:a\", [\"header:b\"]]]", "queues.q.message_id[0][1]",
         "expected a string, got a list"},
        {'Q', "\"message_id\": [[\"header:a\", \"header:${UNSET}\"]]", "queues.q.message_id[0][1]",
         "the environment variable UNSET is not set"},
        {'Q',
         "\"message_id\": [\"property:message_id\", \"header:x\", \"json:/a~1b\", \"cloudevents\", "
         "\"body-sha256\", [\"property:type\", \"header:x\"]]",
         NULL, NULL},
        {'Q', "\"permanent_status\": 400", "queues.q.permanent_status",
         "expected a list of whole numbers from 300 to 599, got a number"},
        {'Q', "\"permanent_status\": [400, 299]", "queues.q.permanent_status[1]",
         "expected a status from 300 to 599, got 299"},
        {'Q', "\"permanent_status\": [600]", "queues.q.permanent_status[0]",
         "expected a status from 300 to 599, got 600"},
        {'Q', "\"permanent_status\": [400, 1e400]", "queues.q.permanent_status[1]",
         "expected a status from 300 to 599, got a number too large"},
        {'Q', "\"permanent_status\": [\"400\"]", "queues.q.permanent_status[0]",
         "expected a status from 300 to 599, got a string"},
        {'Q', "\"permanent_status\": [400, 410, 400]", "queues.q.permanent_status[2]", "400 is given twice"},
        {'Q', "\"permanent_status\": [300, 599]", NULL, NULL},
    };

    CHECK_ALL(cases, false);
}

static void test_combinations(void **state)
{
    static const struct fault_case cases[] = {
        {'Q', "\"token_window\": \"21m\"", "queues.q.token_window",
         "max_window (20m) is below token_window (21m); expected at least as much"},
        {'Q', "\"max_window\": \"29s\"", "queues.q.max_window",
         "max_window (29s) is below token_window (30s); expected at least as much"},
        {'Q', "\"max_hold\": \"32s\"", "queues.q.max_hold",
         "token_window (30s) with 2s of grace and commit_grace (1s) is above max_hold (32s); expected at "
         "most as much"},
        {'Q', "\"token_window\": \"30m\", \"max_window\": \"30m\"", "queues.q.token_window",
         "token_window (30m) with 2s of grace and commit_grace (1s) is above max_hold (25m); expected at "
         "most as much"},
        {'Q', "\"prefetch\": 15", "queues.q.prefetch",
         "prefetch (15) is below forward.concurrency (16); expected at least as much"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"concurrency\": 200}", "queues.q.forward.concurrency",
         "prefetch (128) is below forward.concurrency (200); expected at least as much"},
        {'D', "\"forward\": {\"concurrency\": 200}", "defaults.forward.concurrency",
         "prefetch (128) is below forward.concurrency (200); expected at least as much"},
        {'Q', "\"retry\": {\"backoff\": \"10m\"}", "queues.q.retry.backoff",
         "retry.max_backoff (5m) is below retry.backoff (10m); expected at least as much"},
        {'Q', "\"retention\": \"44m\"", "queues.q.retention",
         "retention (44m) is below max_window (20m) with max_hold (25m): a message could be forgotten while "
         "its "
         "transaction or a copy of it is under way, and be done twice; expected at least 45m"},
        {'Q', "\"retention\": \"45m\"", NULL, NULL},
        {'Q', "\"compact_after\": \"7d\"", "queues.q.compact_after",
         "compact_after (7d) is not below retention (7d): nothing would ever be compacted"},
        {'Q', "\"compact_after\": \"104m\"", "queues.q.compact_after",
         "compact_after (104m) is below max_window (20m) with max_hold (25m) and 1h: a token that was "
         "used would be "
         "answered as one that is unknown; expected at least 105m"},
        {'Q', "\"compact_after\": \"105m\"", NULL, NULL},
        {'Q', "\"retention\": \"30m\", \"max_window\": \"5m\"", NULL, NULL},
        {'D', "\"retention\": \"44m\"", "defaults.retention",
         "retention (44m) is below max_window (20m) with max_hold (25m): a message could be forgotten while "
         "its "
         "transaction or a copy of it is under way, and be done twice; expected at least 45m"},
        {'Q', "\"retention\": \"126s\"", "queues.q.retention",
         "retention (126s) is below the longest retry, the waits between 8 attempts (retry.max_attempts) "
         "from "
         "1s (retry.backoff) to 5m (retry.max_backoff); expected at least 127s"},
        {'Q', "\"retry\": {\"max_attempts\": 10000}", "queues.q.retry.max_attempts",
         "retention (7d) is below the longest retry, the waits between 10000 attempts (retry.max_attempts) "
         "from "
         "1s (retry.backoff) to 5m (retry.max_backoff); expected at least 2997511s"},
        {'F',
         "\"store_response\": \"2KiB\", \"forward\": {\"url\": \"http://h\", \"max_response\": \"1KiB\"}",
         "queues.q.store_response",
         "store_response (2KiB) is above forward.max_response (1KiB); expected at most as much"},
        {'F', "\"forward\": {\"url\": \"https://h\", \"tls\": {\"cert_file\": \"/dev/null\"}}",
         "queues.q.forward.tls.cert_file",
         "expected forward.tls.cert_file and forward.tls.key_file together"},
        {'S',
         "\"queues\": {\"a\": {\"forward\": {\"url\": \"http://h\"}}, \"b\": {\"queue\": \"a\", "
         "\"consumer\": \"x\", \"forward\": {\"url\": \"http://h\"}}}",
         "queues.b.queue", "the same queue and vhost as queues.a; expected each queue once"},
        {'A', "\"outbox\": {\"ordered\": [\"x\"], \"not_mandatory\": [\"x\"]}", "outbox.ordered",
         "'x' is in both: without `mandatory` the broker drops messages silently"},
        {'A', "\"outbox\": {\"ordered\": [\"x\"], \"exchanges\": [\"y\"]}", "outbox.ordered",
         "'x' is not in outbox.exchanges: the outbox may not publish to it"},
        {'A', "\"outbox\": {\"ordered\": [\"x\"], \"exchanges\": [\"y\", \"x\"]}", NULL, NULL},
        {'S',
         "\"queues\": {\"a\": {\"vhost\": \"/\", \"forward\": {\"url\": \"http://h\"}}, \"b\": {\"queue\": "
         "\"a\", \"consumer\": \"x\", \"forward\": {\"url\": \"http://h\"}}}",
         "queues.b.queue", "the same queue and vhost as queues.a; expected each queue once"},
        {'S',
         "\"queues\": {\"a\": {\"vhost\": \"v\", \"forward\": {\"url\": \"http://h\"}}, \"b\": {\"queue\": "
         "\"a\", \"consumer\": \"x\", \"forward\": {\"url\": \"http://h\"}}}",
         NULL, NULL},
        {'Q', "\"order\": {\"key\": [\"header:a\"]}", NULL, NULL},
        {'Q', "\"order\": {\"key\": [\"header:a\"]}, \"delivery_limit\": 20", NULL, NULL},
        {'Q', "\"order\": {\"key\": [\"header:a\"]}, \"delivery_limit\": 19", "queues.q.delivery_limit",
         "with a limit of 19 after that many restarts the broker drops all messages that an ordered queue "
         "holds; "
         "expected 0 (no limit) or at least 20"},
        {'F',
         "\"order\": {\"key\": [\"header:a\"]}, \"forward\": {\"url\": \"http://h\", \"batch\": "
         "{\"max_messages\": 256}}",
         NULL, NULL},
        {'F',
         "\"order\": {\"key\": [\"header:a\"]}, \"forward\": {\"url\": \"http://h\", \"batch\": "
         "{\"max_messages\": 257}}",
         "queues.q.forward.batch.max_messages",
         "is above the prefetch of an ordered queue (256); expected at most as much"},
        {'Q', "\"order\": {\"key\": [\"header:a\"]}, \"max_parked\": 10", "queues.q.max_parked",
         "has no effect on an ordered queue, where the prefetch bounds all that is held"},
        {'Q', "\"order\": {\"key\": [\"header:a\"]}, \"revive\": 1", "queues.q.revive",
         "has no effect on an ordered queue: a message that was moved back goes behind its successors"},
        {'Q', "\"order\": {\"key\": [\"header:a\"]}, \"prefetch\": 256", "queues.q.prefetch",
         "cannot be set on an ordered queue: it is 256, the same for all replicas, since a replica with "
         "another one "
         "would return messages to other places"},
        {'Q', "\"order\": {\"key\": [\"header:a\"]}, \"max_message\": \"257KiB\"", "queues.q.max_message",
         "max_message (257KiB) times prefetch (256) is above max_bytes (64MiB): an ordered queue returns "
         "nothing to the broker; expected max_message of at most 256KiB, or a larger max_bytes"},
        {'Q',
         "\"consumer\": \"c\", \"queue\": \"q-{0..1}\", \"order\": {\"key\": [\"header:a\", \"header:b\"]}",
         "queues.q.order.key",
         "has 2 sources; expected one with several partitions, the same that the exchange hashes on"},
        {'Q', "\"consumer\": \"c\", \"queue\": \"q-{0..1}\", \"order\": {\"key\": [\"header:a\"]}", NULL,
         NULL},
        {'Q',
         "\"consumer\": \"c\", \"queue\": \"q-{0..1}\", \"order\": {\"key\": [\"header:a\"]}, "
         "\"max_message\": \"129KiB\"",
         "queues.q.max_message",
         "max_message (129KiB) times prefetch (256) times 2 partitions is above max_bytes (64MiB): an "
         "ordered queue returns nothing to the broker; expected max_message of at most 128KiB, or a "
         "larger max_bytes"},
        {'Q', "\"order\": {\"unkeyed\": \"dead\"}", "queues.q.order.unkeyed",
         "needs order.key, which is not set"},
        {'Q', "\"order\": {\"key\": []}", "queues.q.order.key", "expected 1 to 16 elements, got 0"},
        {'F',
         "\"forward\": {\"url\": \"http://h\", \"batch\": {\"max_messages\": 2, \"max_bytes\": \"1MiB\"}}",
         NULL, NULL},
        {'F', "\"forward\": {\"url\": \"http://h\", \"batch\": {\"max_messages\": 1}}",
         "queues.q.forward.batch.max_messages", "expected a whole number from 2 to 1000, got 1"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"batch\": {\"max_bytes\": \"1MiB\"}}",
         "queues.q.forward.batch.max_bytes", "needs forward.batch.max_messages, which is not set"},
        {'F',
         "\"forward\": {\"url\": \"http://h\", \"batch\": {\"max_messages\": 1000}, \"max_response\": "
         "\"32KiB\"}",
         "queues.q.forward.max_response",
         "forward.max_response (32KiB) cuts an answer that names 1000 messages; expected at least 64 B "
         "for each"},
        {'F',
         "\"store_response\": \"2KiB\", \"forward\": {\"url\": \"http://h\", \"batch\": "
         "{\"max_messages\": 100}, "
         "\"max_response\": \"256KiB\"}",
         "queues.q.forward.max_response",
         "forward.max_response (256KiB) cuts an answer with the results of 100 messages, each of "
         "store_response "
         "(2KiB); expected at least 276736B"},
        {'F',
         "\"store_response\": \"2KiB\", \"forward\": {\"url\": \"http://h\", \"batch\": "
         "{\"max_messages\": 100}, "
         "\"max_response\": \"276736B\"}",
         NULL, NULL},
        {'Q', "\"message_id\": [\"routing_key\"]", "queues.q.message_id[0]",
         "\"routing_key\" is no source of a message id; expected property:<name>, header:<name>, "
         "json:<pointer>, cloudevents or body-sha256"},
        {'Q', "\"consumer\": \"onceward-try.q\"", "queues.q.consumer",
         "expected another name: `onceward try` deletes the rows of consumers that begin with onceward-try."},
        {'Q', "\"consumer\": \"onceward-outbox\"", "queues.q.consumer",
         "expected another name: this one is the outbox's"},
        {'Q', "\"consumer\": \"onceward-try\"", NULL, NULL},
        {'Q', "\"queue\": \"onceward-try.q\"", "queues.q.consumer",
         "the queue's name, \"onceward-try.q\", is reserved; expected another name: `onceward try` "
         "deletes the "
         "rows of consumers that begin with onceward-try."},
        {'Q', "\"queue\": \"onceward-try.q\", \"consumer\": \"c\"", NULL, NULL},
        {'S',
         "\"queues\": {\"a\": {\"forward\": {\"url\": \"http://h\"}}, \"b\": {\"consumer\": \"a\", "
         "\"forward\": {\"url\": \"http://h\"}}}",
         "queues.b.consumer",
         "the same consumer name as queues.a; expected a name of its own, since messages of one queue would "
         "count as completed in the other"},
        {'S',
         "\"queues\": {\"a\": {\"forward\": {\"url\": \"http://h:80/a\"}, \"ready\": {\"url\": "
         "\"http://h/ready\"}}, \"b\": "
         "{\"forward\": {\"url\": \"http://H/b\"}}}",
         "queues.b.ready.url",
         "differs from that of queues.a, which sends to the same application (H, port 80); expected the "
         "same"},
        {'S',
         "\"queues\": {\"a\": {\"forward\": {\"url\": \"http://h\"}}, \"b\": {\"forward\": {\"url\": "
         "\"http://h\", \"unix_socket\": "
         "\"/s\"}}}",
         "queues.b.forward.unix_socket",
         "differs from that of queues.a, which sends to the same application (h, port 80); expected the "
         "same"},
        {'S',
         "\"queues\": {\"a\": {\"ready\": {\"interval\": \"2s\"}, \"forward\": {\"url\": "
         "\"http://[::1]:1/\"}}, \"b\": {\"forward\": "
         "{\"url\": \"http://[::1]:1\"}}}",
         "queues.b.ready.interval",
         "differs from that of queues.a, which sends to the same application ([::1], port 1); expected the "
         "same"},
        {'S',
         "\"queues\": {\"a\": {\"forward\": {\"url\": \"https://h\", \"tls\": {\"ca_file\": "
         "\"/dev/null\"}}}, \"b\": {\"forward\": "
         "{\"url\": \"https://h:443\"}}}",
         "queues.b.forward.tls.ca_file",
         "differs from that of queues.a, which sends to the same application (h, port 443); expected the "
         "same"},
        {'S',
         "\"queues\": {\"a\": {\"forward\": {\"url\": \"http://h:81\"}, \"ready\": {\"interval\": \"2s\"}}, "
         "\"b\": {\"forward\": "
         "{\"url\": \"http://h\"}}, \"c\": {\"forward\": {\"url\": \"http://i\"}, \"ready\": {\"interval\": "
         "\"3s\"}}}",
         NULL, NULL},
        {'F', "\"forward\": {\"url\": \"http://h\", \"connect_timeout\": \"30s\"}",
         "queues.q.forward.connect_timeout",
         "forward.connect_timeout (30s) is not below token_window (30s): the window would be over before the "
         "message is sent; expected less"},
        {'F',
         "\"token_window\": \"5s\", \"forward\": {\"url\": \"http://h\", \"connect_timeout\": \"4999ms\"}",
         NULL, NULL},
        {'B',
         "\"database\": {\"url\": \"host=h\"}, \"broker\": {\"url\": \"amqp://localhost\", "
         "\"delivery_limit\": 5}",
         NULL, NULL},
        {'B',
         "\"database\": {\"url\": \"host=h\"}, \"broker\": {\"url\": \"amqp://localhost\", "
         "\"delivery_limit\": 0}",
         NULL, NULL},
        /* an invalid value is not compared */
        {'Q', "\"prefetch\": -1", "queues.q.prefetch", "expected a whole number from 1 to 65535, got -1"},
        {'Q', "\"token_window\": \"1s\", \"max_window\": \"2s\"", "queues.q.token_window",
         "expected a duration from 2s to 1d, such as \"30s\" (units ms, s, m, h, d), got 1s"},
    };

    CHECK_ALL(cases, false);
}

static void test_warnings(void **state)
{
    static const struct fault_case cases[] = {
        {'A', "\"shutdown_grace\": \"20s\"", "shutdown_grace",
         "shutdown_grace (20s) is below token_window (30s) of queues.q: work in flight may be cut off at a "
         "shutdown"},
        {'Q', "\"token_window\": \"40s\"", "shutdown_grace",
         "shutdown_grace (25s) is below token_window (40s) of queues.q: work in flight may be cut off at a "
         "shutdown"},
        {'Q', "\"max_window\": \"26m\"", "queues.q.max_window",
         "max_window (26m) is above max_hold (25m): a job that is extended so far outlives its delivery"},
        {'Q', "\"max_hold\": \"31m\"", "queues.q.max_hold",
         "max_hold (31m) is above consumer_timeout (30m): the broker takes the delivery back first"},
        {'Q', "\"max_hold\": \"1h\", \"consumer_timeout\": \"2h\"", NULL, NULL},
        {'Q', "\"max_window\": \"100m\", \"consumer_timeout\": \"2h\"", NULL, NULL},
        {'Q', "\"consumer_timeout\": \"5m\"", "queues.q.max_window",
         "max_window (20m) is above max_hold (250s): a job that is extended so far outlives its delivery"},
        {'Q', "\"delivery_limit\": 4", "queues.q.delivery_limit",
         "with a limit of 4 the broker drops messages after so few crashes that no sidecar can prevent it; "
         "expected at least 5 (x-delivery-limit of the queue, or its policy)"},
        {'Q', "\"delivery_limit\": 0", NULL, NULL},
        {'Q', "\"takes_over\": \"q\"", NULL, NULL}, /* the queue was in another vhost */
        {'Q', "\"queue\": \"new\", \"takes_over\": \"q\"", NULL, NULL},
        {'Q', "\"pause_hold\": \"30m\"", "queues.q.pause_hold",
         "pause_hold (30m) is above max_hold (25m), which comes first"},
        {'B', BROKER("amqp://h:5672/v"), "broker.url",
         "has no TLS, and the broker is on another machine: anyone on the network path can read and "
         "change user, password and messages; amqps:// encrypts"},
        {'B', BROKER("amqp://u:p@127.0.0.2:5672/v"), NULL, NULL},
        {'B', BROKER("amqp://u:p@[::1]/v"), NULL, NULL},
        {'B', BROKER("amqp://localhost./v"), NULL, NULL},
        {'F', "\"forward\": {\"url\": \"http://h\", \"authorization\": \"Bearer x\"}",
         "queues.q.forward.authorization",
         "is sent without TLS to another machine: anyone on the network path can read it; https:// encrypts"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"headers\": {\"X-Api-Key\": \"x\"}}",
         "queues.q.forward.headers",
         "is sent without TLS to another machine: anyone on the network path can read it; https:// encrypts"},
        {'F', "\"forward\": {\"url\": \"http://h\", \"headers\": {\"X-Source\": \"x\"}}", NULL, NULL},
        {'F', "\"forward\": {\"url\": \"https://h\", \"authorization\": \"Bearer x\"}", NULL, NULL},
        {'F', "\"forward\": {\"url\": \"http://127.1.2.3:80\", \"authorization\": \"Bearer x\"}", NULL, NULL},
        {'F',
         "\"forward\": {\"url\": \"http://h\", \"unix_socket\": \"/s\", \"authorization\": \"Bearer x\"}",
         NULL, NULL},
        {'Q', "\"store_response\": \"1KiB\", \"completion\": \"transaction\"", "queues.q.store_response",
         "has no effect with completion \"transaction\": the application keeps a result with "
         "onceward.complete(token, result)"},
        {'B',
         "\"database\": {\"url\": \"host=h\"}, \"broker\": {\"url\": \"amqps://h\", \"tls\": {\"verify\": "
         "false}}",
         "broker.tls.verify", "is false: any server that answers at that address is trusted"},
        {'B',
         "\"database\": {\"url\": \"host=h\"}, \"broker\": {\"url\": \"amqp://localhost\", \"tls\": "
         "{\"ca_file\": "
         "\"/dev/null\"}}",
         "broker.tls.ca_file", "has no effect: the URL's scheme is not one with TLS"},
        {'B',
         "\"database\": {\"url\": \"host=h\"}, \"broker\": {\"url\": \"amqps://h\", \"tls\": {\"ca_file\": "
         "\"/nonexistent\"}}",
         "broker.tls.ca_file", "cannot be read now: No such file or directory"},
    };

    CHECK_ALL(cases, true);
}

/* All faults are reported at once, in the order of the file; those of the defaults once. */
static void test_all_at_once(void **state)
{
    static const char text[] =
        "{\"broker\": {\"url\": \"nonsense\", \"user\": 5},\n"
        " \"defaults\": {\"prefetch\": 0, \"retry\": {\"max_attempts\": \"8\"}, \"max_parked\": "
        "99999999999999999999, \"forward\": "
        "{\"conections\": 1}},\n"
        " \"queues\": {\"a\": {\"token_window\": \"1s\", \"message_id\": [\"cloudevents\", \"cookie:x\"]},\n"
        "  \"b\": {\"forward\": {\"url\": \"http://h\"}, \"brake\": 5, \"brake\": 6, \"revive\": "
        "\"${UNSET}\"}}}";
    static const char *const expected[] = {
        "queues.b.brake",        "broker.url",
        "broker.user",           "database.url",
        "defaults.prefetch",     "defaults.retry.max_attempts",
        "defaults.max_parked",   "defaults.forward.conections",
        "queues.a.token_window", "queues.a.message_id[1]",
        "queues.a.forward.url",  "queues.b.revive",
    };
    size_t n = sizeof(expected) / sizeof(expected[0]);
    struct config *c = NULL;
    struct config_report report;

    unsetenv("UNSET");
    assert_int_equal(config_parse(text, sizeof(text) - 1, "test.json", NULL, &c, &report), -1);
    assert_null(c);
    print_report(&report);
    assert_int_equal(report.n_errors, n);
    assert_int_equal(report.n, n);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(report.findings[i].path, expected[i]);
    config_report_deinit(&report);
}

/* Duplicate names hide nothing, at any level. */
static void test_twice_hides_nothing(void **state)
{
    static const char text[] =
        "{\"broker\": {\"url\": \"nonsense\"}, \"broker\": {\"url\": \"amqp://localhost\", \"heartbeet\": "
        "1},\n"
        " \"database\": {\"url\": \"host=h\"}, \"defaults\": {\"brake\": -1}, \"defaults\": {\"revive\": "
        "-1},\n"
        " \"queues\": {\"a\": {\"prefetch\": 0, \"forward\": {\"url\": \"x\"}}, \"a\": {\"prefetch\": 70000, "
        "\"forward\": "
        "{\"url\": \"http://h\"}},\n"
        "  \"a\": {\"max_parked\": 0, \"forward\": {\"url\": \"http://h\", \"headers\": {\"Bad Name\": "
        "\"x\", \"X\": 5, \"X\": "
        "\"y\"}}}},\n"
        " \"queues\": {\"b\": {\"prefetch\": 1, \"prefetch\": \"2\", \"forward\": {\"url\": \"http://h\"}}}}";
    static const char *const expected[] = {
        "broker",
        "defaults",
        "queues.a",
        "queues.a",
        "queues.a.forward.headers.X",
        "queues",
        "queues.b.prefetch",
        "broker.url",
        "broker.heartbeet",
        "defaults.brake",
        "defaults.revive",
        "queues.a.prefetch",
        "queues.a.forward.url",
        "queues.a.prefetch",
        "queues.a.max_parked",
        "queues.a.forward.headers.\"Bad Name\"",
        "queues.a.forward.headers.X",
        "queues.b.prefetch",
    };
    struct config *c = NULL;
    struct config_report report;

    assert_int_equal(config_parse(text, sizeof(text) - 1, "test.json", NULL, &c, &report), -1);
    print_report(&report);
    for (size_t i = 0; i < report.n && i < sizeof(expected) / sizeof(expected[0]); i++)
        assert_string_equal(report.findings[i].path, expected[i]);
    assert_int_equal(report.n, sizeof(expected) / sizeof(expected[0]));
    config_report_deinit(&report);
}

/* A combination of two defaults is reported for one queue, not for each. */
static void test_defaults_once(void **state)
{
    static const char text[] =
        "{\"broker\": {\"url\": \"amqp://localhost\"}, \"database\": {\"url\": \"host=h\"},"
        " \"defaults\": {\"prefetch\": 10, \"forward\": {\"url\": \"http://h\", \"concurrency\": 20}},"
        " \"queues\": {\"a\": {}, \"b\": {}, \"c\": {\"prefetch\": 15}, \"d\": {\"prefetch\": 20}}}";
    struct config *c = NULL;
    struct config_report report;

    assert_int_equal(config_parse(text, sizeof(text) - 1, "test.json", NULL, &c, &report), -1);
    assert_int_equal(report.n, 2);
    assert_string_equal(report.findings[0].path, "defaults.prefetch");
    assert_string_equal(report.findings[1].path, "queues.c.prefetch");
    config_report_deinit(&report);
}

/* Wherever a file is broken, the report contains no piece of a secret. */
static void test_no_secrets(void **state)
{
    static const char text[] = "{\"broker\": {\"url\": \"amqp://u:HUSH@h\", \"password\": \"HUSH\", "
                               "\"heartbeat\": \"${S}\", \"tls\": {\"verify\": \"HUSH\"}}, \"database\": "
                               "{\"url\": \"HUSH\", \"password\": \"HUSH\\u0000\", \"prepared\": \"${S}\"}, "
                               "\"queues\": {\"q\": {\"consumer\": \"HUSH\", \"forward\": {\"url\": "
                               "\"HUSH\", \"authorization\": \"HUSH\\n\", \"headers\": {\"X\": \"HUSH\\n\"}, "
                               "\"unix_socket\": \"HUSH\"}, \"completion\": "
                               "\"${S}\", \"store_response\": \"${S}\"}}}";
    size_t n_reports = 0;

    setenv("S", "HUSH", 1);
    for (size_t len = 0; len < sizeof(text); len++) {
        for (int change = 0; change < 4; change++) {
            char copy[sizeof(text)];
            struct config *c = NULL;
            struct config_report report;

            memcpy(copy, text, sizeof(text));
            if (change && len < sizeof(text) - 1 && !strchr("HUS", copy[len]))
                copy[len] = "\n\x01\xFF"[change - 1];
            int result = config_parse(copy, change ? sizeof(text) - 1 : len, "test.json", NULL, &c, &report);
            assert_int_equal(result, -1);
            assert_true(report.n_errors > 0);
            for (size_t i = 0; i < report.n; i++, n_reports++)
                if (strstr(report.findings[i].text, "HUSH") || strstr(report.findings[i].path, "HUSH"))
                    fail_msg("%s: %s", report.findings[i].path, report.findings[i].text);
            config_report_deinit(&report);
        }
    }
    assert_true(n_reports > 2000);
}

static void test_huge_and_deep(void **state)
{
    struct config *c = NULL;
    struct config_report report;
    struct buf text = {0};

    /* too large by one byte, and exactly at the limit */
    buf_add_text(&text, "{\"broker\": {\"url\": \"amqp://localhost\"}, \"database\": {\"url\": \"host=h\"}, "
                        "\"queues\": {\"q\": {\"forward\": {\"url\": \"http://h\"}}}}");
    while (text.len < 1024 * 1024)
        buf_add_char(&text, ' ');
    assert_int_equal(config_parse(text.data, text.len, "test.json", NULL, &c, &report), 0);
    config_free(c);
    config_report_deinit(&report);
    buf_add_char(&text, ' ');
    assert_int_equal(config_parse(text.data, text.len, "test.json", NULL, &c, &report), -1);
    assert_string_equal(report.findings[0].text, "test.json is larger than 1024 KiB");
    config_report_deinit(&report);

    /* deep nesting */
    for (int depth = 900; depth < 200000; depth *= 11) {
        buf_reset(&text);
        buf_add_text(&text, "{\"a\": 1, \"a\": ");
        for (int i = 0; i < depth; i++)
            buf_add_text(&text, "[");
        for (int i = 0; i < depth; i++)
            buf_add_char(&text, ']');
        buf_add_char(&text, '}');
        assert_int_equal(config_parse(text.data, text.len, "test.json", NULL, &c, &report), -1);
        assert_true(report.n_errors > 0);
        config_report_deinit(&report);
    }

    /* more faults than the report holds, each of them twice */
    buf_reset(&text);
    buf_add_text(&text, "{\"x\": 0");
    for (int i = 0; text.len < 1000 * 1000; i++)
        buf_printf(&text, ", \"k%d\": 1", i / 2);
    buf_add_char(&text, '}');
    assert_int_equal(config_parse(text.data, text.len, "test.json", NULL, &c, &report), -1);
    assert_int_equal(report.n, 200);
    assert_string_equal(report.findings[199].text, "there is more; correct these first");
    config_report_deinit(&report);
    buf_deinit(&text);
}

static void test_file_faults(void **state)
{
    static const struct {
        const char *path, *text;
    } cases[] = {
        {"/nonexistent/c.json", "cannot open /nonexistent/c.json: No such file or directory"},
        {"/", "cannot read /: Is a directory"},
        {"/dev/zero", "/dev/zero is larger than 1024 KiB"},
        {"/dev/null", "/dev/null is empty; expected an object"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config *c = NULL;
        struct config_report report;

        assert_int_equal(config_load(cases[i].path, NULL, &c, &report), -1);
        assert_int_equal(report.n, 1);
        assert_string_equal(report.findings[0].path, "");
        assert_string_equal(report.findings[0].text, cases[i].text);
        config_report_deinit(&report);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),          cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_structure),     cmocka_unit_test(test_values),
        cmocka_unit_test(test_long_names),    cmocka_unit_test(test_urls),
        cmocka_unit_test(test_broker_host),   cmocka_unit_test(test_forward),
        cmocka_unit_test(test_lists),         cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_warnings),      cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_defaults_once), cmocka_unit_test(test_twice_hides_nothing),
        cmocka_unit_test(test_no_secrets),    cmocka_unit_test(test_huge_and_deep),
        cmocka_unit_test(test_file_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
