/* Loads a configuration: the file, its JSON, every key, then the checks across keys. One thread, at start. */

#include "config/arena.h"
#include "config/broker_url.h"
#include "config/cross.h"
#include "config/duplicates.h"
#include "config/expand.h"
#include "config/exposed.h"
#include "config/read.h"
#include "config/report.h"
#include "config/values.h"
#include "onceward/base/buf.h"
#include "onceward/base/clock.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/runtime_folder.h"
#include "onceward/base/scan.h"
#include "onceward/base/sha256.h"
#include "onceward/config/config.h"
#include "onceward/config/pattern.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* PARTITIONED_MAX: below the 2047 channels that RabbitMQ allows per connection by default. */
enum {
    QUEUES_MAX = 256,
    PARTITIONED_MAX = 1024,
    QUEUE_NAME_MAX = 255,
    MESSAGE_DEFAULT = 16 << 20,
    ORDERED_PREFETCH = 256
};

/* --- JSON --- */

/* Text for a syntax error, in place of the library's messages, which quote a piece of the file that may be a secret. */
static const char *syntax_text(const json_error_t *e)
{
    static const struct {
        const char *start, *text;
    } known[] = {
        {"']' expected", "expected , or ] in a list"},
        {"'}' expected", "expected , or } in an object"},
        {"':' expected", "expected : behind a name"},
        {"string or '}' expected",
         "expected a name in double quotes (JSON has no comments and no comma before a closing brace)"},
        {"'[' or '{' expected", "expected { at the start"},
        {"unexpected token", "expected a value (JSON has no comma before a closing bracket)"},
        {"unexpected newline",
         "a string without an end on its line; expected its closing quote (a line end is written \\n)"},
        {"control character", "a control character in a string; expected an escape such as \\t"},
        {"invalid escape",
         "an escape that JSON does not have; expected one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX"},
        {"invalid Unicode", "half of a surrogate pair; expected both halves"},
        {"invalid token", "expected a value, a name or punctuation of JSON"},
    };

    switch (json_error_code(e)) {
    case json_error_invalid_utf8:
        return "expected UTF-8";
    case json_error_premature_end_of_input:
        return "the file ends in the middle; expected the rest of the object";
    case json_error_end_of_input_expected:
        return "expected nothing behind the object";
    case json_error_stack_overflow:
        return "nested too deeply";
    case json_error_null_byte_in_key:
        return "a name with NUL; expected none";
    case json_error_duplicate_key:
        return "a name that is given twice in one object";
    default:
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            if (!strncmp(e->text, known[i].start, strlen(known[i].start)))
                return known[i].text;
        return "not well-formed JSON";
    }
}

/* Is the first character impossible in JSON, as in a comment, or the first key of YAML or TOML? */
static bool is_other_language(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i] | 0x20;

        if (strchr(" \t\r\n", text[i]))
            continue;
        return (c >= 'a' && c <= 'z') || strchr("#-/;%", text[i]);
    }
    return false;
}

static void report_syntax(struct config_report *report, const char *name, const json_error_t *e)
{
    report_error(report, "", "%s, line %d, column %d: %s", name, e->line, e->column, syntax_text(e));
}

static bool number_is_too_large(struct slice raw, bool integer)
{
    char *copy = mem_copy(raw.data, raw.len);
    bool too_large;

    errno = 0;
    if (integer) {
        strtoll(copy, NULL, 10);
        too_large = errno == ERANGE;
    } else {
        too_large = isinf(strtod(copy, NULL));
    }
    free(copy);
    return too_large;
}

/* Replaces each number that is too large for the library, which would stop there, by one that fits but is invalid
 * everywhere: it is then reported with its key path among the other errors. */
static void numbers_tame(char *text, size_t len)
{
    struct scan s = {.at = text, .end = text + len};
    struct slice raw;
    bool integer;

    while (s.at < s.end) {
        enum scan_kind kind = scan_peek(&s);

        if (kind == SCAN_STRING && scan_string(&s, &raw))
            continue;
        if (kind != SCAN_NUMBER || !scan_number(&s, &raw, &integer)) {
            s.at += s.at < s.end;
            continue;
        }
        if (raw.len >= sizeof(NUMBER_TOO_LARGE) - 1 && number_is_too_large(raw, integer)) {
            char *number = text + (raw.data - text);

            memset(number, ' ', raw.len);
            memcpy(number, NUMBER_TOO_LARGE, sizeof(NUMBER_TOO_LARGE) - 1);
        }
    }
}

/* Loads the root object. NULL: an error was reported. Duplicate names are reported, and all of them are read;
 * *ret_marked is true then. */
static json_t *load_tame(const char *text, size_t len, const char *name, struct config_report *report,
                         bool *ret_marked)
{
    json_error_t e;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);

    if (!root && json_error_code(&e) == json_error_duplicate_key) {
        json_error_t twice = e;
        size_t before = report->n_errors;
        struct buf marked = {0};

        root = json_loadb(text, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
        if (root) {
            duplicates_report(report, (struct slice){text, len}, &marked);
            json_decref(root);
            root = json_loadb(marked.data, marked.len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
            *ret_marked = true;
        }
        buf_deinit(&marked);
        if (root && report->n_errors == before)
            report_syntax(report, name, &twice);
    }
    if (!root && is_other_language(text, len)) {
        report_error(report, "", "%s: expected { at the start: the configuration is JSON, not YAML or TOML",
                     name);
    } else if (!root) {
        report_syntax(report, name, &e);
    } else if (!json_is_object(root)) {
        report_error(report, "", "%s: expected an object, got %s", name, kind_name(root));
        json_decref(root);
        root = NULL;
    }
    return root;
}

static json_t *load_json(const char *text, size_t len, const char *name, struct config_report *report,
                         bool *ret_marked)
{
    if (len > CONFIG_FILE_MAX) {
        report_error(report, "", "%s is larger than %d KiB", name, CONFIG_FILE_MAX / 1024);
        return NULL;
    }
    if (!len) {
        report_error(report, "", "%s is empty; expected an object", name);
        return NULL;
    }
    if (len >= 2 && (!memcmp(text, "\xFF\xFE", 2) || !memcmp(text, "\xFE\xFF", 2))) {
        report_error(report, "", "%s is in UTF-16; expected UTF-8", name);
        return NULL;
    }
    if (len >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) {
        report_error(report, "", "%s starts with a byte order mark; expected UTF-8 without one", name);
        return NULL;
    }
    char *copy = mem_copy(text, len);

    numbers_tame(copy, len);
    json_t *root = load_tame(copy, len, name, report, ret_marked);
    free(copy);
    return root;
}

/* --- queues --- */

static void read_defaults(struct reading *r, struct config_queue *target, json_t *root,
                          const struct reading *of_root)
{
    const char *name;
    json_t *value;

    *r = (struct reading){.config = of_root->config,
                          .report = of_root->report,
                          .scope = SCOPE_QUEUE,
                          .target = target,
                          .prefix = "defaults",
                          .is_marked = of_root->is_marked,
                          .values = of_root->values};
    read_fallbacks(r);
    r->origin = ORIGIN_DEFAULTS;
    json_object_foreach(root, name, value)
    {
        if (strcmp(plain_name(r, name), "defaults") != 0)
            continue;
        if (json_is_object(value))
            read_object(r, value);
        else
            report_error(r->report, "defaults", "expected an object of queue keys, got %s", kind_name(value));
    }
}

static bool is_queue_name(struct config_report *report, const char *path, const char *name)
{
    if (*name && strlen(name) <= QUEUE_NAME_MAX)
        return true;
    report_error(report, path, "expected a name of 1 to %d bytes for a queue", QUEUE_NAME_MAX);
    return false;
}

/* Sets the bounds of an ordered queue, which requeues nothing: a whole prefetch of its largest messages must fit. */
static void settle_order(struct queue_reading *q)
{
    struct config_queue *c = &q->queue;

    c->prefetch = ORDERED_PREFETCH;
    c->revive = 0;
    if (!c->max_message_bytes)
        c->max_message_bytes = c->max_bytes / (size_t)c->prefetch / c->n_partitions;
    if (c->max_message_bytes > MESSAGE_DEFAULT && reading_origin(&q->reading, "max_message") == ORIGIN_NONE)
        c->max_message_bytes = MESSAGE_DEFAULT;
}

static bool is_default(const struct queue_reading *q, const char *key)
{
    return reading_origin(&q->reading, key) == ORIGIN_NONE;
}

/* The prefetch is twice the number of messages in all slots, so that the next requests are claimed while the others
 * are in flight. All of them may wait for their next attempt. An answer that names every message, or has each one's
 * result, must not be cut. */
static void settle_batch(struct queue_reading *q)
{
    enum { PREFETCH_MOST = 65535, ANSWER_PER_MESSAGE = 1024 };
    struct config_queue *c = &q->queue;
    int64_t prefetch = (int64_t)2 * c->forward.concurrency * c->forward.batch.max_messages;
    size_t results = config_batch_results(c);

    if (is_default(q, "prefetch"))
        c->prefetch = prefetch < PREFETCH_MOST ? (int)prefetch : PREFETCH_MOST;
    if (is_default(q, "max_parked") && c->max_parked < 2 * c->prefetch)
        c->max_parked = 2 * c->prefetch;
    if (is_default(q, "forward.max_response"))
        c->forward.max_response_bytes += (size_t)c->forward.batch.max_messages * ANSWER_PER_MESSAGE + results;
}

/* Decides whether the entry is one queue or several, after its keys were read. */
static void pattern_settle(struct queue_reading *q)
{
    struct pattern p;
    const char *wrong;

    q->queue.n_partitions = 1;
    if (!pattern_read(q->queue.queue, &p, &wrong)) {
        if (strpbrk(q->queue.queue, "{}"))
            report_warning(q->reading.report, q->path,
                           "the queue name %s has a brace, and no range such as {0..15}: it is one queue",
                           q->queue.queue);
        return;
    }
    if (wrong) { /* in the entry's name; an error in a key was reported already */
        report_error(q->reading.report, q->path, "expected %s", wrong);
        return;
    }
    q->queue.pattern = q->queue.queue;
    q->queue.n_partitions = pattern_count(&p);
    if (!q->queue.consumer && reading_origin(&q->reading, "consumer") != ORIGIN_BAD)
        report_error(
            q->reading.report, q->path,
            "missing consumer; expected a name for messages of all queues of %s, since the range may "
            "change",
            q->queue.pattern);
}

static void partition_name(struct config *c, struct config_queue *q, const struct pattern *p, size_t at)
{
    struct buf name = {0};

    pattern_add_name(&name, p, at);
    q->queue = arena_copy(c->arena, name.data, name.len);
    buf_deinit(&name);
}

/* Expands an entry to its queues. */
static void queues_expand(struct config *c, const struct queue_reading *entries, size_t n)
{
    struct config_queue *q;
    size_t n_queues = 0;

    for (size_t i = 0; i < n; i++)
        n_queues += entries[i].queue.n_partitions;
    q = c->queues = arena_alloc(c->arena, n_queues, sizeof(*c->queues));
    c->n_queues = n_queues;
    c->n_entries = n;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < entries[i].queue.n_partitions; k++, q++) {
            struct pattern p;
            const char *wrong;

            *q = entries[i].queue;
            q->entry = i;
            q->partition = k;
            if (!q->pattern)
                continue;
            pattern_read(q->pattern, &p, &wrong);
            partition_name(c, q, &p, k);
        }
}

/* Adds the queues of a wider range that are outside the entry's own one, behind to. */
static size_t leaving_add(struct config *c, const struct config_queue *own, const char *range,
                          struct config_queue *to)
{
    struct pattern all, mine;
    const char *wrong;
    size_t n = 0;

    if (!pattern_read(range, &all, &wrong) || !pattern_read(own->pattern, &mine, &wrong))
        return 0;
    for (size_t i = 0; i < pattern_count(&all) && i < PARTITIONED_MAX; i++) {
        struct config_queue *q = &to[n];

        *q = *own;
        q->leaving = true;
        partition_name(c, q, &all, i);
        n += !pattern_has(&mine, q->queue);
    }
    return n;
}

void config_widen(struct config *c, size_t entry, const char *range)
{
    struct config_queue *all = arena_alloc(c->arena, c->n_queues + PARTITIONED_MAX + 1, sizeof(*all)),
                        *first = NULL;
    size_t n = 0;

    for (size_t i = 0; i < c->n_queues; i++) {
        if (c->queues[i].entry == entry && c->queues[i].leaving)
            continue;
        all[n] = c->queues[i];
        if (all[n].entry == entry && !first)
            first = &all[n];
        if (all[n].entry == entry)
            all[n].range = arena_copy(c->arena, range, strlen(range));
        n++;
        if (all[n - 1].entry == entry &&
            (i + 1 == c->n_queues || c->queues[i + 1].entry != entry || c->queues[i + 1].leaving) &&
            !all[n - 1].leaving)
            n += leaving_add(c, first, range, &all[n]);
    }
    for (size_t i = 0, at = 0; i < n; i++) {
        at = i && all[i].entry == all[i - 1].entry ? at + 1 : 0;
        all[i].partition = at;
    }
    for (size_t i = n, of = 0; i-- > 0;) {
        if (i + 1 == n || all[i].entry != all[i + 1].entry)
            of = all[i].partition + 1;
        all[i].n_partitions = of;
    }
    c->queues = all;
    c->n_queues = n;
}

static void read_queue(struct queue_reading *q, const struct reading *defaults, const char *name,
                       json_t *object)
{
    struct config *c = defaults->config;
    struct buf path = {0};

    buf_add_text(&path, "queues");
    path_add(&path, name);
    q->path = arena_copy(c->arena, path.data, path.len);
    buf_deinit(&path);
    q->queue = *(const struct config_queue *)defaults->target;
    q->queue.name = arena_copy(c->arena, name, strlen(name));
    q->reading = *defaults;
    q->reading.target = &q->queue;
    q->reading.prefix = q->path;
    q->reading.origin = ORIGIN_GIVEN;
    if (!is_queue_name(defaults->report, q->path, name))
        return;
    if (json_is_object(object)) {
        read_object(&q->reading, object);
        read_missing(&q->reading);
    } else {
        report_error(defaults->report, q->path, "expected an object of queue keys, got %s",
                     kind_name(object));
    }
    if (!q->queue.queue)
        q->queue.queue = q->queue.name;
    pattern_settle(q);
    if (q->queue.forward.batch.max_messages)
        settle_batch(q);
    if (q->queue.order.key.n)
        settle_order(q);
    if (!q->queue.max_hold_ms)
        q->queue.max_hold_ms = q->queue.consumer_timeout_ms / 6 * 5;
    if (!q->queue.max_message_bytes)
        q->queue.max_message_bytes =
            q->queue.max_bytes < MESSAGE_DEFAULT ? q->queue.max_bytes : MESSAGE_DEFAULT;
    if (!q->queue.consumer)
        q->queue.consumer = q->queue.queue;
}

/* Counts all entries, including those of a duplicate "queues". */
static size_t count_queues(const struct reading *r, json_t *root)
{
    const char *name;
    json_t *value;
    size_t n = 0;

    json_object_foreach(root, name, value)
    {
        if (strcmp(plain_name(r, name), "queues") == 0)
            n += json_object_size(value);
    }
    return n;
}

static void read_queues(struct reading *root_reading, json_t *root)
{
    struct config *c = root_reading->config;
    struct config_report *report = root_reading->report;
    json_t *object = json_object_get(root, "queues"), *value;
    struct config_queue template = {.delivery_limit = -1};
    struct reading defaults;
    const char *outer, *name;
    size_t n = 0;

    read_defaults(&defaults, &template, root, root_reading);
    if (c->outbox.is_there && (!object || (json_is_object(object) && !json_object_size(object))))
        return;
    if (!object || !json_is_object(object) || !json_object_size(object)) {
        report_error(report, "queues",
                     "%s; expected an object with at least one queue, name to keys (or `outbox`)",
                     object ? "no queue is given" : "missing");
        return;
    }
    size_t total = count_queues(root_reading, root);
    if (total > QUEUES_MAX) {
        report_error(report, "queues", "expected at most %d queues, got %zu", QUEUES_MAX, total);
        return;
    }
    struct queue_reading *queues = mem_zalloc(total, sizeof(*queues));
    json_object_foreach(root, outer, object)
    {
        if (strcmp(plain_name(root_reading, outer), "queues") != 0)
            continue;
        json_object_foreach(object, name, value)
        {
            read_queue(&queues[n], &defaults, plain_name(root_reading, name), value);
            if (!queues[n].queue.queue)
                continue;
            cross_check_queue(root_reading, &queues[n]);
            values_note(&queues[n++].reading);
        }
    }
    cross_check_queues(root_reading, queues, n);
    queues_expand(c, queues, n);
    if (c->n_queues > PARTITIONED_MAX)
        report_error(report, "queues", "expected at most %d queues with all partitions, got %zu",
                     PARTITIONED_MAX, c->n_queues);
    free(queues);
}

/* --- the whole --- */

/* Is there an outbox? An empty object counts, too. */
static bool has_outbox(const struct reading *r, json_t *root)
{
    const char *name;
    json_t *value;

    json_object_foreach(root, name, value)
    {
        if (strcmp(plain_name(r, name), "outbox") == 0)
            return true;
    }
    return false;
}

static void name_instance(struct config *c)
{
    char host[256] = "", name[256];

    c->instance_is_set = c->instance != NULL;
    if (c->instance)
        return;
    if (gethostname(host, sizeof(host) - 1) != 0 || !slice_is_text(slice_of(host)) || !*host)
        snprintf(host, sizeof(host), "localhost");
    int len = snprintf(name, sizeof(name), "%.200s-%ld-%" PRId64, host, (long)getpid(), clock_wall_ms());
    c->instance = arena_copy(c->arena, name, (size_t)len);
}

/* Sets the path before the values are recorded, since `check --effective` shows it. */
static void settle_state_file(struct config *c)
{
    char *path = c->state_file ? NULL : runtime_path();

    c->state_file_is_set = c->state_file != NULL;
    if (path)
        c->state_file = arena_copy(c->arena, path, strlen(path));
    free(path);
}

void config_set_instance(struct config *c, const char *name)
{
    c->instance = arena_copy(c->arena, name, strlen(name));
}

static void digest(struct config *c, struct slice text)
{
    struct buf hex = {0};
    uint8_t hash[32];

    sha256(text.data, text.len, hash);
    buf_add_hex(&hex, hash, CONFIG_DIGEST_LEN / 2);
    memcpy(c->digest, buf_text(&hex), CONFIG_DIGEST_LEN);
    buf_deinit(&hex);
}

const char *config_public_digest(const struct config *c)
{
    return c->holds_secrets ? NULL : c->digest;
}

static int parse(struct slice text, const char *name, config_database_check *check,
                 struct config **ret_config, struct config_report *report, struct config_values *values)
{
    *report = (struct config_report){0};
    bool is_marked = false;
    json_t *root = load_json(text.data, text.len, name, report, &is_marked);

    if (!root)
        return -1;
    struct config_arena *arena = arena_new();
    struct config *c = arena_alloc(arena, 1, sizeof(*c));
    c->arena = arena;
    c->broker.delivery_limit = -1;

    struct reading r = {.config = c,
                        .report = report,
                        .scope = SCOPE_ROOT,
                        .target = c,
                        .prefix = "",
                        .is_marked = is_marked,
                        .values = values};
    read_fallbacks(&r);
    r.origin = ORIGIN_GIVEN;
    read_object(&r, root);
    read_missing(&r);
    c->outbox.is_there = has_outbox(&r, root);
    broker_url_settle(&r);
    cross_check_root(&r, check);
    settle_state_file(c);
    values_note(&r);
    read_queues(&r, root);
    name_instance(c);
    json_decref(root);
    if (report->n_errors) {
        config_free(c);
        return -1;
    }
    digest(c, text);
    *ret_config = c;
    return 0;
}

struct config *config_defaults(void)
{
    struct config_arena *arena = arena_new();
    struct config *c = arena_alloc(arena, 1, sizeof(*c));
    struct config_report report = {0};
    struct reading r = {.config = c, .report = &report, .scope = SCOPE_ROOT, .target = c, .prefix = ""};

    c->arena = arena;
    read_fallbacks(&r);
    config_report_deinit(&report);
    return c;
}

int config_parse(const char *text, size_t len, const char *name, config_database_check *check,
                 struct config **ret_config, struct config_report *report)
{
    return parse((struct slice){text, len}, name, check, ret_config, report, NULL);
}

int config_load_values(const char *path, config_database_check *check, struct config **ret_config,
                       struct config_report *report, struct config_values *values)
{
    bool is_input = strcmp(path, "-") == 0;
    struct buf text = {0};
    struct fault f = {0};
    int error;

    if (file_read(&text, is_input ? "/dev/stdin" : path, CONFIG_FILE_MAX, &f) < 0) {
        *report = (struct config_report){0};
        report_error(report, "", "%s", f.text);
        error = -1;
    } else {
        error = parse((struct slice){buf_text(&text), text.len}, is_input ? "standard input" : path, check,
                      ret_config, report, values);
        if (!error && !is_input)
            exposed_check_file(report, path, (*ret_config)->holds_secrets);
    }
    buf_deinit(&text);
    return error;
}

int config_load(const char *path, config_database_check *check, struct config **ret_config,
                struct config_report *report)
{
    return config_load_values(path, check, ret_config, report, NULL);
}

void config_free(struct config *c)
{
    if (c)
        arena_free(c->arena);
}
