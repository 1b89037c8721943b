/* The keys whose values are lists: header fields, sources of the message id, status codes, names. */

#include "config/read_lists.h"

#include "config/arena.h"
#include "config/checks.h"
#include "config/expand.h"
#include "config/exposed.h"
#include "config/report.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/config/config.h"

#include <assert.h>
#include <inttypes.h>
#include <strings.h>

enum { FIELD_VALUE_MAX = 8192, FIELD_NAME_MAX = 255 };

static const char *item_path(struct buf *out, const char *path, size_t at)
{
    buf_reset(out);
    buf_printf(out, "%s[%zu]", path, at);
    return buf_text(out);
}

/* --- forward.headers --- */

static struct config_header *find_header(struct config_header *headers, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcasecmp(headers[i].name, name))
            return &headers[i];
    return NULL;
}

/* Name of the field in NAME_file; length 0: another name. */
static struct slice header_of_file(const char *name)
{
    const struct slice end = SLICE("_file");
    size_t len = strlen(name);

    if (len <= end.len || memcmp(name + len - end.len, end.data, end.len) != 0)
        return (struct slice){0};
    return (struct slice){name, len - end.len};
}

/* Reads the value, or the content of the file that it names. False: a fault was reported. */
static bool read_header_value(struct reading *r, const char *path, json_t *value, bool from_file,
                              struct buf *out)
{
    struct buf file = {0};
    struct fault f = {0};
    bool good = false;

    if (!json_is_string(value))
        report_error(r->report, path, "expected %s, got %s", from_file ? "the path of a file" : "a string",
                     kind_name(value));
    else if (!from_file)
        good = read_string(r, path, value, out) == 0;
    else if (read_string(r, path, value, &file) == 0 && text_file_read(out, buf_text(&file), &f) == 0)
        good = true;
    else if (f.text[0])
        report_unread(r, path, value, buf_text(&file), &f);
    buf_deinit(&file);
    return good;
}

static bool read_header(struct reading *r, const char *path, struct slice name, json_t *value, bool from_file,
                        struct config_header *out)
{
    struct buf text = {0};
    char *copy = arena_copy(r->config->arena, name.data, name.len);
    bool good = read_header_value(r, path, value, from_file, &text);
    const char *expected = check_field_name(copy);

    if (!expected && name.len > FIELD_NAME_MAX)
        expected = "a field name of at most 255 bytes";
    if (!expected && good)
        expected = check_field_value(buf_text(&text));
    if (!expected && good && (!text.len || text.len > FIELD_VALUE_MAX))
        expected = "a field value of 1 to 8192 bytes";
    if (expected)
        report_error(r->report, path, "expected %s", expected);
    good = good && !expected;
    bool is_literal = good && !from_file && !is_variable(json_string_value(value)),
         is_secret = !is_literal || exposed_is_secret_field(copy);

    if (is_literal && is_secret)
        r->config->holds_secrets = true;
    if (good)
        *out = (struct config_header){copy, arena_copy(r->config->arena, text.data, text.len), is_secret};
    buf_deinit(&text);
    return good;
}

/* Reads header fields. Fields of the defaults stay unless this object has a field of the same name (in any case). */
static bool read_headers(struct reading *r, const struct key *k, const char *path, json_t *object)
{
    struct config_forward *forward = &((struct config_queue *)r->target)->forward;
    size_t n_old = forward->n_headers, n = n_old;
    struct config_header *all = arena_alloc(r->config->arena, n_old + json_object_size(object), sizeof(*all));
    bool *is_new = arena_alloc(r->config->arena, n_old + json_object_size(object), sizeof(*is_new));
    struct buf below = {0};
    bool good = true;
    int64_t low, high;
    const char *name;
    json_t *value;

    if (n_old)
        memcpy(all, forward->headers, n_old * sizeof(*all));
    json_object_foreach(object, name, value)
    {
        struct config_header header = {0};

        buf_reset(&below);
        buf_add_text(&below, path);
        const char *plain = plain_name(r, name);
        path_add(&below, plain);
        struct slice of_file = header_of_file(plain);
        if (!read_header(r, buf_text(&below), of_file.len ? of_file : slice_of(plain), value, of_file.len > 0,
                         &header)) {
            good = false;
            continue;
        }
        if (plain != name) /* already reported as given twice */
            continue;
        struct config_header *same = find_header(all, n, header.name);
        if (same && is_new[same - all]) {
            report_error(r->report, buf_text(&below),
                         "given twice; expected one field of a name, whatever its case, by value or by file");
            good = false;
            continue;
        }
        if (!same)
            same = &all[n++];
        *same = header;
        is_new[same - all] = true;
    }
    buf_deinit(&below);
    key_bounds(k, &low, &high);
    if ((int64_t)n > high) {
        report_error(r->report, path, "expected at most %" PRId64 " fields, got %zu", high, n);
        good = false;
    }
    if (good) {
        forward->headers = all;
        forward->n_headers = n;
    }
    return good;
}

/* --- message_id, order.key --- */

/* Parses a source of `k`. An order key allows one kind of source more than a message id. */
static int parse_source(const struct key *k, struct slice text, struct identity_source *out, struct fault *f)
{
    bool of_order = !strcmp(k->path, "order.key");

    if (of_order && slice_equal(text, SLICE("routing_key"))) {
        *out = (struct identity_source){.kind = IDENTITY_ROUTING_KEY};
        return 0;
    }
    return identity_parse(text, out, f);
}

static bool read_source(struct reading *r, const struct key *k, const char *path, json_t *value,
                        struct identity_source *out)
{
    struct buf text = {0};
    struct fault f = {0};
    bool good = read_string(r, path, value, &text) == 0;

    if (good) {
        char *copy = arena_copy(r->config->arena, text.data, text.len); /* the source points into it */
        /* The fault repeats the text, and an environment variable may hold a secret. */
        bool is_verbatim = slice_equal(buf_slice(&text), slice_of(json_string_value(value)));

        good = parse_source(k, (struct slice){copy, text.len}, out, &f) == 0;
        if (!good)
            report_error(r->report, path, "%s",
                         is_verbatim ? f.text
                                     : "expected property:<name>, header:<name>, json:<pointer>, cloudevents "
                                       "or body-sha256");
    }
    buf_deinit(&text);
    return good;
}

static bool read_joined(struct reading *r, const struct key *k, const char *path, json_t *list,
                        struct identity_source *out)
{
    size_t n = json_array_size(list);
    struct identity_source *parts = arena_alloc(r->config->arena, n, sizeof(*parts));
    struct buf below = {0};
    bool good = n >= 1 && n <= 8;

    if (!good)
        report_error(r->report, path, "expected 1 to 8 strings to join, got %zu", n);
    for (size_t i = 0; i < n; i++) {
        json_t *value = json_array_get(list, i);

        item_path(&below, path, i);
        if (!json_is_string(value)) {
            report_error(r->report, buf_text(&below), "expected a string, got %s", kind_name(value));
            good = false;
        } else if (!read_source(r, k, buf_text(&below), value, &parts[i])) {
            good = false;
        }
    }
    buf_deinit(&below);
    *out = (struct identity_source){.kind = IDENTITY_JOIN, .parts = parts, .n_parts = n};
    return good;
}

static bool read_identities(struct reading *r, const struct key *k, const char *path, json_t *list)
{
    size_t n = json_array_size(list);
    struct identity_source *sources = arena_alloc(r->config->arena, n, sizeof(*sources));
    struct buf below = {0};
    int64_t low, high;

    key_bounds(k, &low, &high);
    bool good = (int64_t)n >= low && (int64_t)n <= high;
    if (!good)
        report_error(r->report, path, "expected %" PRId64 " to %" PRId64 " elements, got %zu", low, high, n);
    for (size_t i = 0; i < n; i++) {
        json_t *value = json_array_get(list, i);
        bool read = false;

        item_path(&below, path, i);
        if (json_is_string(value))
            read = read_source(r, k, buf_text(&below), value, &sources[i]);
        else if (json_is_array(value))
            read = read_joined(r, k, buf_text(&below), value, &sources[i]);
        else
            report_error(r->report, buf_text(&below), "expected a string or a list of strings, got %s",
                         kind_name(value));
        good &= read;
    }
    buf_deinit(&below);
    if (good) {
        struct config_sources *field = (void *)((char *)r->target + k->offset);

        *field = (struct config_sources){sources, n};
    }
    return good;
}

/* --- permanent_status --- */

static bool read_statuses(struct reading *r, const struct key *k, const char *path, json_t *list)
{
    enum { STATUSES_MAX = 300 };
    struct config_queue *q = r->target;
    size_t n = json_array_size(list);
    int *statuses = arena_alloc(r->config->arena, n, sizeof(*statuses));
    bool seen[STATUSES_MAX] = {0};
    struct buf below = {0};
    bool good = true;
    int64_t low, high;

    key_bounds(k, &low, &high);
    for (size_t i = 0; i < n; i++) {
        json_t *value = json_array_get(list, i);
        int64_t status = json_is_integer(value) ? json_integer_value(value) : -1;
        const char *shown = item_path(&below, path, i);

        if (!json_is_integer(value))
            report_error(r->report, shown, "expected a status from %" PRId64 " to %" PRId64 ", got %s", low,
                         high, kind_name(value));
        else if (status < low || status > high)
            report_error(r->report, shown, "expected a status from %" PRId64 " to %" PRId64 ", got %" PRId64,
                         low, high, status);
        else if (seen[status - low])
            report_error(r->report, shown, "%" PRId64 " is given twice", status);
        if (status < low || status > high || seen[status - low]) {
            good = false;
            continue;
        }
        seen[status - low] = true;
        statuses[i] = (int)status;
    }
    buf_deinit(&below);
    if (good) {
        q->permanent_status = statuses;
        q->n_permanent_status = n;
    }
    return good;
}

/* --- outbox.exchanges --- */

static bool read_name(struct reading *r, const char *path, json_t *value, char **ret)
{
    enum { NAME_MAX_BYTES = 255 };
    struct buf text = {0};
    bool good = false;

    if (!json_is_string(value))
        report_error(r->report, path, "expected a string, got %s", kind_name(value));
    else
        good = read_string(r, path, value, &text) == 0;
    if (good && text.len > NAME_MAX_BYTES) {
        report_error(r->report, path, "expected a name of at most %d bytes", NAME_MAX_BYTES);
        good = false;
    }
    *ret = arena_copy(r->config->arena, text.data, text.len);
    buf_deinit(&text);
    return good;
}

static bool read_names(struct reading *r, const struct key *k, const char *path, json_t *list)
{
    struct config_names names = {.n = json_array_size(list)};
    struct buf below = {0};
    int64_t low, high;

    key_bounds(k, &low, &high);
    bool good = (int64_t)names.n >= low && (int64_t)names.n <= high;
    if (!good)
        report_error(r->report, path, "expected %" PRId64 " to %" PRId64 " elements, got %zu", low, high,
                     names.n);
    names.items = arena_alloc(r->config->arena, names.n, sizeof(*names.items));
    for (size_t i = 0; i < names.n; i++)
        good &= read_name(r, item_path(&below, path, i), json_array_get(list, i), &names.items[i]);
    buf_deinit(&below);
    if (good)
        *(struct config_names *)((char *)r->target + k->offset) = names;
    return good;
}

bool read_list(struct reading *r, const struct key *k, const char *path, json_t *value)
{
    switch (k->type) {
    case TYPE_HEADERS:
        return read_headers(r, k, path, value);
    case TYPE_IDENTITIES:
        return read_identities(r, k, path, value);
    case TYPE_NAMES:
        return read_names(r, k, path, value);
    default:
        assert(k->type == TYPE_STATUSES);
        return read_statuses(r, k, path, value);
    }
}
