/* AMQP header tables and properties as JSON. Pure functions; any thread.
 *
 * In the exact form an object with a single key that starts with '!' is always a tag, and never a table:
 * names that start with '!' are kept in "!names", as are names that are not text and second values of a name,
 * which JSON readers lose. So a reader needs no guess. Nesting comes from publishers and is unbounded on the
 * wire; here it ends at FIELD_DEPTH_MAX, which keeps the stack small. */

#include "core/field_text.h"
#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/core/message.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

struct json_form {
    struct buf *out;
    bool exact;
    int depth;
};

static void add_value(struct json_form *j, const struct field *f);

static void add_string_or_base64(struct buf *out, struct slice s)
{
    if (slice_is_text(s)) {
        buf_add_json(out, s);
        return;
    }
    buf_add_text(out, "{\"!S\":\"");
    add_base64(out, s);
    buf_add_text(out, "\"}");
}

/* Opens {"!<kind>": if the value does not show its kind. */
static bool open_tag(struct json_form *j, const struct field *f)
{
    bool small = f->kind == FIELD_I64 && f->i >= INT32_MIN && f->i <= INT32_MAX;

    if (!j->exact || f->kind == FIELD_I32 || (f->kind == FIELD_I64 && !small))
        return false;
    buf_printf(j->out, "{\"!%c\":", f->kind);
    return true;
}

static void add_integer(struct json_form *j, const struct field *f)
{
    bool tagged = open_tag(j, f);

    if (f->kind == FIELD_I8 || f->kind == FIELD_I16 || f->kind == FIELD_I32 || f->kind == FIELD_I64)
        buf_printf(j->out, "%" PRId64, f->i);
    else if (j->exact && f->u > INT64_MAX) /* most readers have no integers of this size */
        buf_printf(j->out, "\"%" PRIu64 "\"", f->u);
    else
        buf_printf(j->out, "%" PRIu64, f->u);
    if (tagged)
        buf_add_char(j->out, '}');
}

static void add_float(struct json_form *j, const struct field *f)
{
    bool single = f->kind == FIELD_F32, finite = isfinite(f->d);
    bool tagged = !finite || (j->exact && single);

    if (tagged)
        buf_add_text(j->out, j->exact && single ? "{\"!f\":" : "{\"!double\":");
    if (!finite)
        buf_add_char(j->out, '"');
    add_double(j->out, f->d, single);
    if (!finite)
        buf_add_char(j->out, '"');
    if (tagged)
        buf_add_char(j->out, '}');
}

static void add_tagged(struct json_form *j, const struct field *f)
{
    struct buf *out = j->out;

    switch (f->kind) {
    case FIELD_TIMESTAMP:
        buf_printf(out,
                   j->exact && f->u > INT64_MAX ? "{\"!timestamp\":\"%" PRIu64 "\"}"
                                                : "{\"!timestamp\":%" PRIu64 "}",
                   f->u);
        break;
    case FIELD_DECIMAL:
        buf_add_text(out, "{\"!decimal\":\"");
        add_decimal(out, f->decimal.value, f->decimal.decimals);
        buf_add_text(out, "\"}");
        break;
    default:
        buf_add_text(out, "{\"!bytes\":\"");
        add_base64(out, f->bytes);
        buf_add_text(out, "\"}");
    }
}

static void add_array(struct json_form *j, const struct field *items, size_t n)
{
    buf_add_char(j->out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_add_char(j->out, ',');
        add_value(j, &items[i]);
    }
    buf_add_char(j->out, ']');
}

struct named {
    struct slice name;
    size_t at;
};

static int named_compare(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int order = slice_compare(x->name, y->name);

    return order ? order : (x->at > y->at) - (x->at < y->at);
}

/* Marks the fields that cannot be plain members of an exact object. The caller frees the result; NULL: none. */
static bool *odd_names(const struct field *fields, size_t n)
{
    struct named *sorted = mem_zalloc(n, sizeof(*sorted));
    bool *odd = mem_zalloc(n, sizeof(*odd)), any = false;

    for (size_t i = 0; i < n; i++)
        sorted[i] = (struct named){fields[i].name, i};
    qsort(sorted, n, sizeof(*sorted), named_compare);
    for (size_t i = 0; i < n; i++) {
        struct slice name = sorted[i].name;

        odd[sorted[i].at] = (name.len && name.data[0] == '!') || !slice_is_text(name) ||
                            (i && slice_equal(name, sorted[i - 1].name));
        any |= odd[sorted[i].at];
    }
    free(sorted);
    if (!any)
        mem_clear(&odd);
    return odd;
}

static void add_odd(struct json_form *j, const struct field *fields, size_t n, const bool *odd, bool comma)
{
    buf_add_text(j->out, comma ? ",\"!names\":[" : "\"!names\":[");
    comma = false;
    for (size_t i = 0; i < n; i++) {
        if (!odd[i])
            continue;
        buf_add_text(j->out, comma ? ",[\"" : "[\"");
        add_base64(j->out, fields[i].name);
        buf_add_text(j->out, "\",");
        add_value(j, &fields[i]);
        buf_add_char(j->out, ']');
        comma = true;
    }
    buf_add_char(j->out, ']');
}

static void add_table(struct json_form *j, const struct field *fields, size_t n)
{
    bool *odd = j->exact && n ? odd_names(fields, n) : NULL;
    bool comma = false;

    buf_add_char(j->out, '{');
    for (size_t i = 0; i < n; i++) {
        if (odd && odd[i])
            continue;
        if (comma)
            buf_add_char(j->out, ',');
        buf_add_json(j->out, fields[i].name);
        buf_add_char(j->out, ':');
        add_value(j, &fields[i]);
        comma = true;
    }
    if (odd)
        add_odd(j, fields, n, odd, comma);
    buf_add_char(j->out, '}');
    free(odd);
}

static void add_children(struct json_form *j, const struct field *f)
{
    if (j->depth == FIELD_DEPTH_MAX) {
        buf_add_text(j->out, "{\"!deep\":null}");
        return;
    }
    j->depth++;
    if (f->kind == FIELD_ARRAY)
        add_array(j, f->children.items, f->children.n);
    else
        add_table(j, f->children.items, f->children.n);
    j->depth--;
}

static void add_value(struct json_form *j, const struct field *f)
{
    switch (f->kind) {
    case FIELD_BOOL:
        buf_add_text(j->out, f->boolean ? "true" : "false");
        return;
    case FIELD_I8:
    case FIELD_U8:
    case FIELD_I16:
    case FIELD_U16:
    case FIELD_I32:
    case FIELD_U32:
    case FIELD_I64:
    case FIELD_U64:
        add_integer(j, f);
        return;
    case FIELD_F32:
    case FIELD_F64:
        add_float(j, f);
        return;
    case FIELD_STRING:
        if (j->exact)
            add_string_or_base64(j->out, f->bytes);
        else
            buf_add_json(j->out, f->bytes);
        return;
    case FIELD_DECIMAL:
    case FIELD_BYTES:
    case FIELD_TIMESTAMP:
        add_tagged(j, f);
        return;
    case FIELD_ARRAY:
    case FIELD_TABLE:
        add_children(j, f);
        return;
    case FIELD_VOID:
        break;
    }
    buf_add_text(j->out, "null");
}

void fields_to_json(struct buf *out, const struct field *fields, size_t n, bool exact)
{
    struct json_form j = {.out = out, .exact = exact, .depth = 1};

    add_table(&j, fields, n);
}

static void add_number(struct buf *out, bool *comma, const char *name, uint64_t value)
{
    const char *quote = value > INT64_MAX ? "\"" : "";

    buf_printf(out, "%s\"%s\":%s%" PRIu64 "%s", *comma ? "," : "", name, quote, value, quote);
    *comma = true;
}

void properties_to_json(struct buf *out, const struct message *m)
{
    bool comma = false;

    buf_add_char(out, '{');
    for (int p = 0; p < N_PROPERTIES; p++) {
        if (!m->properties[p].data)
            continue;
        buf_add_text(out, comma ? ",\"" : "\"");
        buf_add_text(out, property_name((enum property)p));
        buf_add_text(out, "\":");
        add_string_or_base64(out, m->properties[p]);
        comma = true;
    }
    if (m->has_delivery_mode)
        add_number(out, &comma, "delivery_mode", m->delivery_mode);
    if (m->has_priority)
        add_number(out, &comma, "priority", m->priority);
    if (m->has_timestamp)
        add_number(out, &comma, "timestamp", m->timestamp);
    buf_add_char(out, '}');
}
