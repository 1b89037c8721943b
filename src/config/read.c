/* Fills a struct from a JSON object, by the table of keys. Reading continues after every error, so that all are
 * reported at once. A message repeats a value only if the file contains it literally and its key has words,
 * durations, sizes or ports: any other string may be a secret. */

#include "config/read.h"

#include "config/arena.h"
#include "config/duplicates.h"
#include "config/expand.h"
#include "config/exposed.h"
#include "config/read_lists.h"
#include "config/report.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/config/config.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

static void add_prefix(struct buf *path, const struct reading *r)
{
    buf_reset(path);
    buf_add_text(path, r->prefix);
    if (path->len)
        buf_add_char(path, '.');
}

static void report_expected(struct reading *r, const struct key *k, const char *path, const char *got)
{
    struct buf expected = {0};

    key_expected(&expected, k);
    report_error(r->report, path, "expected %s, got %s", buf_text(&expected), got);
    buf_deinit(&expected);
}

/* Appends the given text if it is no secret and the file contains it. */
static void show_given(const struct reading *r, const char *text, const char *otherwise, struct buf *out)
{
    enum { SHOWN_MAX = 40 };
    struct slice s = slice_of(text);

    if (!r->is_literal || !slice_is_text(s)) {
        buf_add_text(out, otherwise);
        return;
    }
    if (s.len > SHOWN_MAX)
        for (s.len = SHOWN_MAX; s.len && ((unsigned char)s.data[s.len] & 0xC0) == 0x80;)
            s.len--;
    buf_add_json(out, s);
    if (s.len < strlen(text))
        buf_add_text(out, "…");
}

static void report_form(struct reading *r, const struct key *k, const char *path, const char *text,
                        const char *otherwise)
{
    struct buf got = {0}, nearest = {0};

    show_given(r, text, otherwise, &got);
    if (r->is_literal && value_nearest(&nearest, k, text))
        buf_printf(&got, "; did you mean \"%s\"?", buf_text(&nearest));
    report_expected(r, k, path, buf_text(&got));
    buf_deinit(&got);
    buf_deinit(&nearest);
}

static bool is_length(struct reading *r, const struct key *k, const char *path, size_t len)
{
    char got[64];
    int64_t low, high;

    key_bounds(k, &low, &high);
    if ((int64_t)len >= low && (int64_t)len <= high)
        return true;
    snprintf(got, sizeof(got), len ? "%zu bytes" : "an empty one", len);
    report_expected(r, k, path, got);
    return false;
}

/* Stores a text. file: the path that it was read from, or NULL. */
static bool store_text(struct reading *r, const struct key *k, const char *path, struct buf *text,
                       const char *file)
{
    char *field = (char *)r->target + k->offset;
    const char *expected;

    if (!is_length(r, k, path, text->len))
        return false;
    if (k->type != TYPE_SECRET && !slice_is_text(buf_slice(text))) {
        report_error(r->report, path, "expected UTF-8 text");
        return false;
    }
    if (k->check && (expected = k->check(buf_text(text)))) {
        report_error(r->report, path, "expected %s", expected);
        return false;
    }
    char *copy = arena_copy(r->config->arena, text->data, text->len);
    if (k->type == TYPE_SECRET) {
        *(struct config_text *)field =
            (struct config_text){copy, file ? arena_copy(r->config->arena, file, strlen(file)) : NULL};
    } else {
        *(char **)field = copy;
    }
    return true;
}

static bool in_range(struct reading *r, const struct key *k, const char *path, int64_t value)
{
    int64_t low, high;
    struct buf got = {0};

    key_bounds(k, &low, &high);
    if (value >= low && value <= high)
        return true;
    if (k->type == TYPE_INT || k->type == TYPE_PORT)
        buf_printf(&got, "%" PRId64, value);
    else if (k->type == TYPE_DURATION || k->type == TYPE_DURATION_OFF)
        duration_write(&got, value);
    else
        size_write(&got, (uint64_t)value);
    report_expected(r, k, path, buf_text(&got));
    buf_deinit(&got);
    return false;
}

static bool store_quantity(struct reading *r, const struct key *k, const char *path, const char *text)
{
    void *field = (char *)r->target + k->offset;
    bool duration = k->type == TYPE_DURATION || k->type == TYPE_DURATION_OFF;
    int64_t ms = 0;
    size_t bytes = 0;
    bool none = (k->type == TYPE_DURATION_OFF && !strcmp(text, "off")) ||
                (k->type == TYPE_SIZE_NONE && !strcmp(text, "none"));

    if (!none) {
        if (duration ? config_duration(text, &ms) : config_size(text, &bytes)) {
            report_form(r, k, path, text, "a string of another form");
            return false;
        }
        if (!in_range(r, k, path, duration ? ms : (int64_t)bytes))
            return false;
    }
    if (duration)
        *(int64_t *)field = ms;
    else
        *(size_t *)field = bytes;
    return true;
}

static bool store_port(struct reading *r, const struct key *k, const char *path, const char *text)
{
    size_t len = strlen(text);

    if (!len || len > 9 || text[strspn(text, "0123456789")]) {
        report_form(r, k, path, text, "a string of another form");
        return false;
    }
    if (!in_range(r, k, path, strtol(text, NULL, 10)))
        return false;
    *(int *)((char *)r->target + k->offset) = (int)strtol(text, NULL, 10);
    return true;
}

static bool store_choice(struct reading *r, const struct key *k, const char *path, const char *text)
{
    void *field = (char *)r->target + k->offset;
    struct slice word;

    for (size_t i = 0; (word = key_word(k->range, i)).len; i++) {
        if (!slice_equal(word, slice_of(text)))
            continue;
        if (k->type == TYPE_FLAG)
            *(bool *)field = i == 1;
        else
            *(int *)field = (int)i; /* every enum here is an int, numbered in the order of its words */
        return true;
    }
    report_form(r, k, path, text, "another string");
    return false;
}

static bool store_string(struct reading *r, const struct key *k, const char *path, struct buf *text,
                         const char *file)
{
    switch (k->type) {
    case TYPE_TEXT:
    case TYPE_SECRET:
    case TYPE_PATH:
        return store_text(r, k, path, text, file);
    case TYPE_PORT:
        return store_port(r, k, path, buf_text(text));
    case TYPE_CHOICE:
    case TYPE_FLAG:
        return store_choice(r, k, path, buf_text(text));
    default:
        return store_quantity(r, k, path, buf_text(text));
    }
}

static bool read_as_string(struct reading *r, const struct key *k, const char *path, json_t *value)
{
    struct buf text = {0};

    if (!json_is_string(value)) {
        report_expected(r, k, path, kind_name(value));
        return false;
    }
    r->is_literal = !is_variable(json_string_value(value));
    bool good = read_string(r, path, value, &text) == 0 && store_string(r, k, path, &text, NULL);
    r->is_literal = false;
    if (good && k->type == TYPE_SECRET && !is_variable(json_string_value(value)) &&
        exposed_is_secret(k, buf_text(&text)))
        r->config->holds_secrets = true;
    buf_deinit(&text);
    return good;
}

static bool read_from_file(struct reading *r, const struct key *k, const char *path, json_t *value)
{
    struct buf file = {0}, text = {0};
    struct fault f = {0};
    bool good = false;

    if (!json_is_string(value) || !json_string_length(value)) {
        report_error(r->report, path, "expected the path of a file, got %s",
                     json_is_string(value) ? "an empty string" : kind_name(value));
        return false;
    }
    if (read_string(r, path, value, &file) < 0)
        goto out;
    if (text_file_read(&text, buf_text(&file), &f) < 0) {
        report_unread(r, path, value, buf_text(&file), &f);
        goto out;
    }
    good = store_string(r, k, path, &text, buf_text(&file));
out:
    buf_deinit(&file);
    buf_deinit(&text);
    return good;
}

static bool read_value(struct reading *r, const struct key *k, const char *path, json_t *value)
{
    void *field = (char *)r->target + k->offset;

    switch (k->type) {
    case TYPE_PORT:
        if (json_is_string(value))
            return read_as_string(r, k, path, value);
        __attribute__((fallthrough));
    case TYPE_INT:
        if (!json_is_integer(value)) {
            report_expected(r, k, path, kind_name(value));
            return false;
        }
        if (!in_range(r, k, path, json_integer_value(value)))
            return false;
        *(int *)field = (int)json_integer_value(value);
        return true;
    case TYPE_BOOL:
        if (!json_is_boolean(value)) {
            report_expected(r, k, path, kind_name(value));
            return false;
        }
        *(bool *)field = json_is_true(value);
        return true;
    case TYPE_HEADERS:
    case TYPE_IDENTITIES:
    case TYPE_STATUSES:
    case TYPE_NAMES:
        if (k->type == TYPE_HEADERS ? !json_is_object(value) : !json_is_array(value)) {
            report_expected(r, k, path, kind_name(value));
            return false;
        }
        return read_list(r, k, path, value);
    default:
        return read_as_string(r, k, path, value);
    }
}

static void read_key(struct reading *r, const struct key *k, const char *path, json_t *value, bool from_file)
{
    bool good = from_file ? read_from_file(r, k, path, value) : read_value(r, k, path, value);

    r->origins[k - keys] = good ? r->origin : ORIGIN_BAD;
    r->ways[k - keys] = from_file                                                        ? WAY_FILE
                        : json_is_string(value) && is_variable(json_string_value(value)) ? WAY_VARIABLE
                                                                                         : WAY_PLAIN;
}

void read_fallbacks(struct reading *r)
{
    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];

        if (k->scope != r->scope || k->presence != KEY_HAS)
            continue;
        json_t *value = key_takes_file(k) || k->type == TYPE_PATH
                            ? json_string(k->fallback)
                            : json_loads(k->fallback, JSON_DECODE_ANY, NULL);
        assert(value);
        bool good = read_value(r, k, k->path, value);
        assert(good);
        json_decref(value);
    }
}

/* Finds the key whose K_file this is, or NULL. */
static const struct key *find_file_key(enum key_scope scope, struct slice path)
{
    const struct slice end = SLICE("_file");

    if (path.len <= end.len || memcmp(path.data + path.len - end.len, end.data, end.len) != 0)
        return NULL;
    return key_find(scope, (struct slice){path.data, path.len - end.len});
}

/* Reports an unknown key. below: group and name together. */
static void report_unknown(struct reading *r, const char *path, struct slice group, const char *name,
                           struct slice below)
{
    struct buf nearest = {0};

    if (strchr(name, '.') && key_find(r->scope, below))
        report_error(r->report, path,
                     "unknown key; expected nested objects, such as {\"forward\": {\"url\": …}}");
    else if (find_file_key(r->scope, below))
        report_error(r->report, path, "unknown key; only strings can be taken from a file");
    else if (key_nearest(&nearest, r->scope, group, slice_of(name)))
        report_error(r->report, path, "unknown key; did you mean %s?", buf_text(&nearest));
    else
        report_error(r->report, path, "unknown key");
    buf_deinit(&nearest);
}

static void read_group(struct reading *r, json_t *object, struct slice group);

static void read_member(struct reading *r, json_t *object, struct slice group, const char *name,
                        json_t *value)
{
    struct buf below = {0}, path = {0};
    const struct key *k;

    buf_add_slice(&below, group);
    buf_add_text(&below, name);
    buf_add_text(&path, r->prefix);
    if (group.len) {
        if (path.len)
            buf_add_char(&path, '.');
        buf_add(&path, group.data, group.len - 1);
    }
    path_add(&path, name);

    const char *shown = buf_text(&path);
    if (strchr(name, '.')) {
        report_unknown(r, shown, group, name, buf_slice(&below));
    } else if ((k = key_find(r->scope, buf_slice(&below)))) {
        read_key(r, k, shown, value, false);
    } else if ((k = find_file_key(r->scope, buf_slice(&below))) && key_takes_file(k)) {
        struct slice plain = {name, strlen(name) - 5};

        if (json_object_getn(object, plain.data, plain.len)) {
            report_error(r->report, shown, "given together with %.*s; expected only one of the two",
                         (int)plain.len, plain.data);
            r->origins[k - keys] = ORIGIN_BAD;
        } else {
            read_key(r, k, shown, value, true);
        }
    } else if (!key_is_group(r->scope, buf_slice(&below))) {
        report_unknown(r, shown, group, name, buf_slice(&below));
    } else if (!json_is_object(value)) {
        report_error(r->report, shown, "expected an object of keys, got %s", kind_name(value));
    } else {
        buf_add_char(&below, '.');
        read_group(r, value, buf_slice(&below));
    }
    buf_deinit(&below);
    buf_deinit(&path);
}

/* Reads a group of keys. group: "" or "forward.". */
static void read_group(struct reading *r, json_t *object, struct slice group)
{
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        const char *plain = plain_name(r, name);
        bool special = r->scope == SCOPE_ROOT && !group.len &&
                       (!strcmp(plain, "queues") || !strcmp(plain, "defaults") || !strcmp(plain, "$schema"));

        if (!special)
            read_member(r, object, group, plain, value);
    }
}

void read_object(struct reading *r, json_t *object)
{
    read_group(r, object, SLICE(""));
}

void read_missing(struct reading *r)
{
    struct buf path = {0}, expected = {0};

    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];

        if (k->scope != r->scope || k->presence != KEY_NEEDED || r->origins[i] != ORIGIN_NONE)
            continue;
        add_prefix(&path, r);
        buf_add_text(&path, k->path);
        buf_reset(&expected);
        key_expected(&expected, k);
        report_error(r->report, buf_text(&path), "missing; expected %s",
                     k->check ? k->check("") : buf_text(&expected));
    }
    buf_deinit(&path);
    buf_deinit(&expected);
}
