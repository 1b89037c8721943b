/* The documentation's tables and the JSON schema, generated from the table of keys. */

#include "config/keys.h"
#include "onceward/base/buf.h"
#include "onceward/base/markdown.h"
#include "onceward/base/mem.h"
#include "onceward/config/keys.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- Markdown --- */

static void add_type(struct buf *out, const struct key *k)
{
    const char *dots = strstr(k->range, "..");
    struct slice low = {k->range, dots ? (size_t)(dots - k->range) : 0};
    const char *high = dots ? dots + 2 : "";
    struct slice word;

    switch (k->type) {
    case TYPE_TEXT:
    case TYPE_SECRET:
        buf_add_text(out, "string");
        return;
    case TYPE_PATH:
        buf_add_text(out, "path");
        return;
    case TYPE_INT:
        buf_printf(out, "number %.*s to %s", (int)low.len, low.data, high);
        return;
    case TYPE_PORT:
        buf_add_text(out, "port");
        return;
    case TYPE_BOOL:
        buf_add_text(out, "`true` or `false`");
        return;
    case TYPE_DURATION:
    case TYPE_DURATION_OFF:
        buf_printf(out, "duration %.*s to %s%s", (int)low.len, low.data, high,
                   k->type == TYPE_DURATION_OFF ? ", or `off`" : "");
        return;
    case TYPE_SIZE:
    case TYPE_SIZE_NONE:
        buf_printf(out, "size %.*s to %s%s", (int)low.len, low.data, high,
                   k->type == TYPE_SIZE_NONE ? ", or `none`" : "");
        return;
    case TYPE_CHOICE:
    case TYPE_FLAG:
        for (size_t i = 0; (word = key_word(k->range, i)).len; i++)
            buf_printf(out, "%s`%.*s`", i ? ", " : "", (int)word.len, word.data);
        return;
    case TYPE_HEADERS:
        buf_add_text(out, "object of strings");
        return;
    case TYPE_IDENTITIES:
        buf_add_text(out, "list");
        return;
    case TYPE_STATUSES:
        buf_printf(out, "list of %.*s to %s", (int)low.len, low.data, high);
        return;
    case TYPE_NAMES:
        buf_add_text(out, "list of strings");
        return;
    }
}

/* Headings of the documentation, each before the first key of its group. */
static const struct group {
    enum key_scope scope;
    const char *first;
    const char *title;
} groups[] = {
    {SCOPE_ROOT, "instance", "The process"},
    {SCOPE_ROOT, "broker.url", "The broker"},
    {SCOPE_ROOT, "database.url", "The database"},
    {SCOPE_ROOT, "log.level", "The log and the metrics"},
    {SCOPE_ROOT, "outbox.exchanges", "Outbox"},
    {SCOPE_QUEUE, "queue", "The queue"},
    {SCOPE_QUEUE, "forward.url", "Requests to the application"},
    {SCOPE_QUEUE, "completion", "Completion and windows"},
    {SCOPE_QUEUE, "prefetch", "Limits"},
    {SCOPE_QUEUE, "message_id", "Ids and order"},
    {SCOPE_QUEUE, "retry.max_attempts", "Retries and dead letters"},
    {SCOPE_QUEUE, "ready.url", "Readiness"},
    {SCOPE_QUEUE, "store_response", "Retention"},
};

static void add_group(struct buf *out, const struct key *k)
{
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        if (groups[i].scope != k->scope || strcmp(groups[i].first, k->path) != 0)
            continue;
        buf_printf(out, "### %s\n\n", groups[i].title);
        if (k->scope == SCOPE_QUEUE)
            buf_add_text(out, "Below `queues.<name>`, or below `defaults` for all queues.\n\n");
    }
}

void config_keys_markdown(struct buf *out)
{
    struct buf head = {0}, sentence = {0};

    for (size_t i = 0; i < n_keys; i++) {
        const struct key *k = &keys[i];

        add_group(out, k);
        buf_printf(out, "#### `%s`\n\n", k->path);
        buf_reset(&head);
        add_type(&head, k);
        if (k->presence == KEY_NEEDED)
            buf_add_text(&head, " · **required**");
        else if (k->presence == KEY_EITHER)
            buf_printf(&head, " · **required**: %s", k->fallback);
        else
            buf_printf(&head, k->presence == KEY_HAS ? " · default `%s`" : " · default: %s", k->fallback);
        if (*k->example)
            buf_printf(&head, " · example `%s`", k->example);
        markdown_add_paragraph(out, buf_text(&head));
        buf_reset(&sentence);
        buf_printf(&sentence, "%s.", k->sentence);
        buf_add_char(out, '\n');
        markdown_add_paragraph(out, buf_text(&sentence));
        buf_add_char(out, '\n');
    }
    buf_deinit(&head);
    buf_deinit(&sentence);
}

/* --- for people --- */

static void add_default(struct buf *out, const struct key *k)
{
    if (k->presence == KEY_NEEDED)
        buf_add_text(out, "required");
    else if (k->presence == KEY_EITHER)
        buf_printf(out, "required: %s", k->fallback);
    else
        buf_add_text(out, k->fallback);
}

void config_keys_each(void (*each)(void *ctx, const char *path, const char *fallback, const char *sentence),
                      void *ctx)
{
    struct buf path = {0}, fallback = {0}, plain = {0};

    for (size_t i = 0; i < n_keys; i++) {
        buf_reset(&path);
        buf_printf(&path, "%s%s", keys[i].scope == SCOPE_QUEUE ? "queues.<name>." : "", keys[i].path);
        buf_reset(&fallback);
        add_default(&fallback, &keys[i]);
        buf_reset(&plain);
        markdown_add_unlinked(&plain, keys[i].sentence);
        each(ctx, buf_text(&path), buf_text(&fallback), buf_text(&plain));
    }
    buf_deinit(&path);
    buf_deinit(&fallback);
    buf_deinit(&plain);
}

static void explain_key(struct buf *out, const struct key *k)
{
    buf_printf(out, "%s%s (configuration key)\n  ", k->scope == SCOPE_QUEUE ? "queues.<name>." : "", k->path);
    markdown_add_unlinked(out, k->sentence);
    buf_add_text(out, ".\n  ");
    add_type(out, k);
    buf_add_text(out, k->presence == KEY_MAY || k->presence == KEY_HAS ? "; default: " : "; ");
    add_default(out, k);
    buf_printf(out, ".%s\n",
               k->type == TYPE_SECRET ? " To read it from a file, append _file to the name." : "");
}

/* Skips "queues.<name>." or "defaults." at the start of a path. */
static const char *below_queue(const char *name)
{
    const char *dot = strchr(name, '.');

    if (dot && !strncasecmp(name, "defaults.", 9))
        return dot + 1;
    if (dot && !strncasecmp(name, "queues.", 7) && strchr(dot + 1, '.'))
        return strchr(dot + 1, '.') + 1;
    return NULL;
}

static bool is_meant(const struct key *k, const char *name, size_t len)
{
    const char *below = below_queue(name), *dot = strrchr(k->path, '.');

    if (below && k->scope == SCOPE_QUEUE) {
        len -= (size_t)(below - name);
        name = below;
    } else if (below) {
        return false;
    }
    return (strlen(k->path) == len && !strncasecmp(k->path, name, len)) ||
           (dot && !below && strlen(dot + 1) == len && !strncasecmp(dot + 1, name, len));
}

size_t config_keys_explain(struct buf *out, const char *name)
{
    size_t len = strlen(name), n = 0;

    for (int by_file = 0; by_file < 2 && !n; by_file++) {
        if (by_file && (len <= 5 || strcasecmp(name + len - 5, "_file") != 0))
            break;
        for (size_t i = 0; i < n_keys; i++) {
            if (!is_meant(&keys[i], name, by_file ? len - 5 : len) || (by_file && !key_takes_file(&keys[i])))
                continue;
            explain_key(out, &keys[i]);
            n++;
        }
    }
    return n;
}

bool config_keys_nearest(struct buf *out, const char *name)
{
    const char *below = below_queue(name);

    return key_nearest(out, SCOPE_QUEUE, SLICE(""), slice_of(below ? below : name));
}

/* --- JSON schema --- */

/* A text with a variable, whose value is unknown to the schema. */
#define VARIABLE "\\$\\{[A-Za-z_]"

static json_t *string_of_pattern(const char *pattern)
{
    struct buf whole = {0};

    buf_printf(&whole, "^(%s)$|" VARIABLE, pattern);
    json_t *s = json_pack("{s:s, s:s}", "type", "string", "pattern", buf_text(&whole));
    buf_deinit(&whole);
    return s;
}

static json_t *schema_of_words(const char *words)
{
    json_t *list = json_array();
    struct slice word;

    for (size_t i = 0; (word = key_word(words, i)).len; i++)
        json_array_append_new(list, json_stringn(word.data, word.len));
    return json_pack("{s:[{s:o}, {s:s, s:s}]}", "anyOf", "enum", list, "type", "string", "pattern", VARIABLE);
}

static json_t *schema_of_text(const struct key *k)
{
    int64_t low, high;

    key_bounds(k, &low, &high);
    json_t *s = json_pack("{s:s, s:I}", "type", "string", "minLength", (json_int_t)(low ? 1 : 0));
    if (high <= 255) /* a variable's name may be longer than its value, but hardly this long */
        json_object_set_new(s, "maxLength", json_integer(high));
    return s;
}

static json_t *schema_of_identities(const struct key *k)
{
    static const char source[] = "(property|header):.+|json:(/.*)?|cloudevents|body-sha256";
    int64_t low, high;

    key_bounds(k, &low, &high);
    return json_pack("{s:s, s:I, s:I, s:{s:[o, {s:s, s:i, s:i, s:o}]}}", "type", "array", "minItems",
                     (json_int_t)low, "maxItems", (json_int_t)high, "items", "anyOf",
                     string_of_pattern(source), "type", "array", "minItems", 1, "maxItems", 8, "items",
                     string_of_pattern(source));
}

static json_t *schema_of_value(const struct key *k)
{
    int64_t low, high;

    switch (k->type) {
    case TYPE_TEXT:
    case TYPE_SECRET:
    case TYPE_PATH:
        return schema_of_text(k);
    case TYPE_INT:
        key_bounds(k, &low, &high);
        return json_pack("{s:s, s:I, s:I}", "type", "integer", "minimum", (json_int_t)low, "maximum",
                         (json_int_t)high);
    case TYPE_PORT:
        key_bounds(k, &low, &high);
        return json_pack("{s:[{s:s, s:I, s:I}, o]}", "anyOf", "type", "integer", "minimum", (json_int_t)low,
                         "maximum", (json_int_t)high, string_of_pattern("[0-9]{1,5}"));
    case TYPE_BOOL:
        return json_pack("{s:s}", "type", "boolean");
    case TYPE_DURATION:
        return string_of_pattern("[0-9]+(ms|s|m|h|d)");
    case TYPE_DURATION_OFF:
        return string_of_pattern("off|[0-9]+(ms|s|m|h|d)");
    case TYPE_SIZE:
        return string_of_pattern("[0-9]+(B|KiB|MiB|GiB)");
    case TYPE_SIZE_NONE:
        return string_of_pattern("none|[0-9]+(B|KiB|MiB|GiB)");
    case TYPE_CHOICE:
    case TYPE_FLAG:
        return schema_of_words(k->range);
    case TYPE_HEADERS:
        key_bounds(k, &low, &high);
        return json_pack("{s:s, s:I, s:{s:s, s:i}}", "type", "object", "maxProperties", (json_int_t)high,
                         "additionalProperties", "type", "string", "minLength", 1);
    case TYPE_IDENTITIES:
        return schema_of_identities(k);
    case TYPE_STATUSES:
        key_bounds(k, &low, &high);
        return json_pack("{s:s, s:b, s:{s:s, s:I, s:I}}", "type", "array", "uniqueItems", 1, "items", "type",
                         "integer", "minimum", (json_int_t)low, "maximum", (json_int_t)high);
    case TYPE_NAMES:
        key_bounds(k, &low, &high);
        return json_pack("{s:s, s:I, s:I, s:{s:s, s:i}}", "type", "array", "minItems", (json_int_t)low,
                         "maxItems", (json_int_t)high, "items", "type", "string", "maxLength", 255);
    }
    return NULL;
}

static json_t *describe(const struct key *k)
{
    struct buf text = {0}, type = {0};

    add_type(&type, k);
    markdown_add_unlinked(&text, k->sentence);
    buf_printf(&text, ". (%s", buf_text(&type));
    if (k->presence == KEY_MAY || k->presence == KEY_EITHER)
        buf_printf(&text, k->presence == KEY_MAY ? "; default: %s" : "; required: %s", k->fallback);
    buf_add_text(&text, ")");
    json_t *s = json_stringn(text.data, text.len);
    buf_deinit(&text);
    buf_deinit(&type);
    return s;
}

static json_t *default_of(const struct key *k)
{
    return key_takes_file(k) || k->type == TYPE_PATH ? json_string(k->fallback)
                                                     : json_loads(k->fallback, JSON_DECODE_ANY, NULL);
}

static json_t *object_schema(void)
{
    return json_pack("{s:s, s:b, s:{}}", "type", "object", "additionalProperties", 0, "properties");
}

/* Schema of the object that contains the last name of path, created if needed. *last: that name. */
static json_t *group_of(json_t *scope, const char *path, const char **last)
{
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        json_t *properties = json_object_get(scope, "properties");
        json_t *group = json_object_getn(properties, path, (size_t)(dot - path));

        if (!group) {
            group = object_schema();
            json_object_setn_new(properties, path, (size_t)(dot - path), group);
        }
        scope = group;
    }
    *last = path;
    return scope;
}

/* Adds K_file, which excludes K. */
static void add_file_variant(json_t *group, const struct key *k, const char *name)
{
    char file[80], text[160];

    snprintf(file, sizeof(file), "%s_file", name);
    snprintf(text, sizeof(text), "A file that holds `%s`; one line end at its end is dropped%s.", name,
             k->type == TYPE_SECRET ? ". Read again at every connect" : "");
    json_object_set_new(json_object_get(group, "properties"), file,
                        json_pack("{s:s, s:s, s:i}", "description", text, "type", "string", "minLength", 1));
    json_t *not = json_object_get(group, "not");
    if (!not ) {
        not = json_pack("{s:[]}", "anyOf");
        json_object_set_new(group, "not", not );
    }
    json_array_append_new(json_object_get(not, "anyOf"), json_pack("{s:[s, s]}", "required", name, file));
}

/* Requires the key, as itself or by file. */
static void require(json_t *group, const char *name)
{
    char file[80];

    snprintf(file, sizeof(file), "%s_file", name);
    if (!json_object_get(group, "anyOf"))
        json_object_set_new(group, "anyOf", json_array());
    json_array_append_new(json_object_get(group, "anyOf"), json_pack("{s:[s]}", "required", name));
    json_array_append_new(json_object_get(group, "anyOf"), json_pack("{s:[s]}", "required", file));
}

static void add_key(json_t *scope, const struct key *k)
{
    const char *name;
    json_t *group = group_of(scope, k->path, &name);
    json_t *schema = json_object();
    json_t *value = schema_of_value(k);

    json_object_set_new(schema, "description", describe(k));
    if (k->presence == KEY_HAS)
        json_object_set_new(schema, "default", default_of(k));
    json_object_update(schema, value);
    json_decref(value);
    json_object_set_new(json_object_get(group, "properties"), name, schema);
    if (key_takes_file(k))
        add_file_variant(group, k, name);
    if (k->scope == SCOPE_ROOT && (k->presence == KEY_NEEDED || k->presence == KEY_EITHER))
        require(group, name); /* the defaults may have the queue's key */
}

void config_keys_schema(struct buf *out)
{
    json_t *root = object_schema(), *queue = object_schema();
    json_t *properties = json_object_get(root, "properties");
    json_t *whole =
        json_pack("{s:s, s:s, s:s}", "$schema", "https://json-schema.org/draft/2020-12/schema", "title",
                  "The configuration of onceward", "description",
                  "In every string, ${NAME} is replaced by an environment variable; $${ is a literal ${.");

    json_object_set_new(
        properties, "$schema",
        json_pack("{s:s, s:s}", "type", "string", "description", "Location of this schema; for editors."));
    for (size_t i = 0; i < n_keys; i++)
        add_key(keys[i].scope == SCOPE_ROOT ? root : queue, &keys[i]);
    json_object_set_new(properties, "defaults",
                        json_pack("{s:s, s:s}", "description",
                                  "Keys of all queues, unless the queue's own entry sets them.", "$ref",
                                  "#/$defs/queue"));
    json_object_set_new(properties, "queues",
                        json_pack("{s:s, s:s, s:i, s:{s:i, s:i}, s:{s:s}}", "description",
                                  "The queues to consume, by their names in the log: at least one, unless "
                                  "there is an `outbox`.",
                                  "type", "object", "maxProperties", 256, "propertyNames", "minLength", 1,
                                  "maxLength", 255, "additionalProperties", "$ref", "#/$defs/queue"));
    json_object_set_new(root, "required", json_pack("[s, s]", "broker", "database"));
    json_object_set_new(root, "anyOf",
                        json_pack("[{s:[s], s:{s:{s:i}}}, {s:[s]}]", "required", "queues", "properties",
                                  "queues", "minProperties", 1, "required", "outbox"));
    json_object_update(whole, root);
    json_object_set_new(whole, "$defs", json_pack("{s:o}", "queue", queue));
    json_decref(root);
    char *text = json_dumps(whole, JSON_INDENT(2));
    json_decref(whole);
    buf_add_text(out, text);
    buf_add_char(out, '\n');
    free(text);
}
