/* Dead letters back into AMQP fields: the inverse of fields_to_json(exact) and properties_to_json. The JSON is this
 * program's own, but people can edit it in the database, so every value is checked. Pure; any thread. */

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/scan.h"
#include "onceward/config/json.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

struct reader {
    struct scan scan;
    struct message *m;
    struct buf scratch;
    struct fault *f;
};

/* Children of a value. Their number is known only at the end; then they move into the message. */
struct field_list {
    struct field *items;
    size_t n, cap;
};

static int read_value(struct reader *r, struct field *out);
static int read_members(struct reader *r, struct field_list *l);

static int malformed(struct reader *r, const char *expected)
{
    return fault_set(r->f, "not a stored header table: expected %s", expected);
}

static struct field *list_add(struct field_list *l)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 8;
        l->items = mem_realloc(l->items, l->cap * sizeof(*l->items));
    }
    l->items[l->n] = (struct field){0};
    return &l->items[l->n++];
}

static struct field *list_keep(struct reader *r, struct field_list *l)
{
    struct field *kept = NULL;

    if (l->n) {
        kept = message_alloc(r->m, l->n * sizeof(*kept));
        memcpy(kept, l->items, l->n * sizeof(*kept));
    }
    free(l->items);
    return kept;
}

static struct slice keep_decoded(struct reader *r, struct slice raw)
{
    buf_reset(&r->scratch);
    scan_decode(&r->scratch, raw);
    return message_keep(r->m, r->scratch.data, r->scratch.len);
}

static int base64_sextet(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Reads base64 with padding, into the message. */
static int read_base64(struct reader *r, struct slice *out)
{
    struct slice raw;
    uint32_t bits = 0;
    int n_bits = 0;

    if (scan_peek(&r->scan) != SCAN_STRING || !scan_string(&r->scan, &raw) || raw.len % 4)
        return malformed(r, "base64");
    buf_reset(&r->scratch);
    for (size_t i = 0; i < raw.len; i++) {
        int value = base64_sextet(raw.data[i]);

        if (value < 0) {
            bool padding =
                raw.data[i] == '=' && i + 2 >= raw.len && (i + 1 == raw.len || raw.data[i + 1] == '=');

            if (!padding)
                return malformed(r, "base64");
            break;
        }
        bits = bits << 6 | (uint32_t)value;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            buf_add_char(&r->scratch, (char)(bits >> n_bits & 0xFF));
        }
    }
    *out = message_keep(r->m, r->scratch.data, r->scratch.len);
    return 0;
}

/* Makes a NUL-terminated copy of a number as written: bare, or in a string if it is too large for other readers. */
static int read_number_text(struct reader *r, const char **out, bool *integer)
{
    struct slice raw;

    *integer = false;
    if (scan_peek(&r->scan) == SCAN_STRING) {
        if (!scan_string(&r->scan, &raw))
            return malformed(r, "a number");
        struct scan inner = {.at = raw.data, .end = raw.data + raw.len};
        struct slice number;
        if (!scan_number(&inner, &number, integer) || inner.at != inner.end)
            *integer = false; /* NaN and infinities */
    } else if (!scan_number(&r->scan, &raw, integer)) {
        return malformed(r, "a number");
    }
    buf_reset(&r->scratch);
    buf_add_slice(&r->scratch, raw);
    *out = buf_text(&r->scratch);
    return 0;
}

static int read_unsigned(struct reader *r, uint64_t max, uint64_t *out)
{
    const char *text = "";
    bool integer;

    if (read_number_text(r, &text, &integer) < 0)
        return -1;
    errno = 0;
    uint64_t value = integer && text[0] != '-' ? strtoull(text, NULL, 10) : 0;
    if (!integer || text[0] == '-' || errno || value > max)
        return malformed(r, "an unsigned integer in range");
    *out = value;
    return 0;
}

static int read_signed(struct reader *r, int64_t min, int64_t max, int64_t *out)
{
    const char *text = "";
    bool integer;

    if (read_number_text(r, &text, &integer) < 0)
        return -1;
    errno = 0;
    int64_t value = integer ? strtoll(text, NULL, 10) : 0;
    if (!integer || errno || value < min || value > max)
        return malformed(r, "an integer in range");
    *out = value;
    return 0;
}

static int read_double(struct reader *r, double *out)
{
    const char *text = "";
    bool integer;
    char *end;

    if (read_number_text(r, &text, &integer) < 0)
        return -1;
    *out = strtod(text, &end);
    return end == text || *end ? malformed(r, "a number, \"NaN\" or \"Infinity\"") : 0;
}

/* Reads a number and rounds it to the wire's precision: an edited number may have more digits. */
static int read_single(struct reader *r, double *out)
{
    double wide;

    if (read_double(r, &wide) < 0)
        return -1;
    *out = (float)wide;
    return isinf(*out) && !isinf(wide) ? malformed(r, "a number that 32 bits can hold") : 0;
}

/* Reads a decimal. A negative "-1.23" is impossible: the wire's decimals are unsigned here. */
static int read_decimal(struct reader *r, struct field *out)
{
    const char *text;
    bool integer;
    uint64_t value = 0;
    unsigned decimals = 0;
    bool point = false;

    if (read_number_text(r, &text, &integer) < 0)
        return -1;
    if (!*text)
        return malformed(r, "a decimal");
    for (; *text; text++) {
        if (*text == '.' && !point) {
            point = true;
            continue;
        }
        if (*text < '0' || *text > '9')
            return malformed(r, "a decimal");
        value = value * 10 + (uint64_t)(*text - '0');
        decimals += point;
        if (value > UINT32_MAX || decimals > UINT8_MAX)
            return malformed(r, "a decimal of 32 bits");
    }
    out->kind = FIELD_DECIMAL;
    out->decimal.value = (uint32_t)value;
    out->decimal.decimals = (uint8_t)decimals;
    return 0;
}

static int read_kind(struct reader *r, char kind, struct field *out)
{
    switch (kind) {
    case FIELD_I8:
        return read_signed(r, INT8_MIN, INT8_MAX, &out->i);
    case FIELD_I16:
        return read_signed(r, INT16_MIN, INT16_MAX, &out->i);
    case FIELD_I32:
        return read_signed(r, INT32_MIN, INT32_MAX, &out->i);
    case FIELD_I64:
        return read_signed(r, INT64_MIN, INT64_MAX, &out->i);
    case FIELD_U8:
        return read_unsigned(r, UINT8_MAX, &out->u);
    case FIELD_U16:
        return read_unsigned(r, UINT16_MAX, &out->u);
    case FIELD_U32:
        return read_unsigned(r, UINT32_MAX, &out->u);
    case FIELD_U64:
        return read_unsigned(r, UINT64_MAX, &out->u);
    case FIELD_F32:
        return read_single(r, &out->d);
    case FIELD_F64:
        return read_double(r, &out->d);
    case FIELD_STRING:
    case FIELD_BYTES:
        return read_base64(r, &out->bytes);
    default:
        return malformed(r, "a known kind of value");
    }
}

/* Reads a tagged value such as {"!l": 5}, behind its tag. */
static int read_tagged(struct reader *r, struct slice tag, struct field *out)
{
    if (tag.len == 2) {
        out->kind = (enum field_kind)tag.data[1];
        return read_kind(r, tag.data[1], out);
    }
    if (slice_equal(tag, SLICE("!double"))) {
        out->kind = FIELD_F64;
        return read_double(r, &out->d);
    }
    if (slice_equal(tag, SLICE("!timestamp"))) {
        out->kind = FIELD_TIMESTAMP;
        return read_unsigned(r, UINT64_MAX, &out->u);
    }
    if (slice_equal(tag, SLICE("!bytes"))) {
        out->kind = FIELD_BYTES;
        return read_base64(r, &out->bytes);
    }
    if (slice_equal(tag, SLICE("!decimal")))
        return read_decimal(r, out);
    if (slice_equal(tag, SLICE("!deep"))) { /* nested deeper than the stored levels */
        out->kind = FIELD_VOID;
        return scan_skip(&r->scan) ? 0 : malformed(r, "null");
    }
    return malformed(r, "a known tag");
}

static int read_odd_names(struct reader *r, struct field_list *l)
{
    int more;

    if (scan_peek(&r->scan) != SCAN_ARRAY || !scan_open(&r->scan))
        return malformed(r, "an array of names");
    for (bool first = true; (more = scan_next_item(&r->scan, first)) == 1; first = false) {
        struct field *f = list_add(l);

        if (scan_peek(&r->scan) != SCAN_ARRAY || !scan_open(&r->scan) ||
            scan_next_item(&r->scan, true) != 1 || read_base64(r, &f->name) < 0 ||
            scan_next_item(&r->scan, false) != 1 || read_value(r, f) < 0 ||
            scan_next_item(&r->scan, false) != 0)
            return malformed(r, "a pair of name and value");
    }
    return more == 0 ? 0 : malformed(r, "the end of an array");
}

/* Reads an object: a table, or a tag and its value. The caller frees the list, also on failure. */
static int read_object(struct reader *r, struct field *out, struct field_list *l)
{
    struct scan start = r->scan;
    struct slice key;

    if (!scan_open(&r->scan))
        return malformed(r, "less nesting");
    int more = scan_next_member(&r->scan, true, &key);
    if (more == 1 && key.len && key.data[0] == '!' && !slice_equal(key, SLICE("!names"))) {
        if (read_tagged(r, key, out) < 0)
            return -1;
        return scan_next_member(&r->scan, false, &key) == 0 ? 0 : malformed(r, "one tag");
    }
    r->scan = start;
    out->kind = FIELD_TABLE;
    return read_members(r, l);
}

static int read_members(struct reader *r, struct field_list *l)
{
    struct slice key;
    int more;

    if (scan_peek(&r->scan) != SCAN_OBJECT || !scan_open(&r->scan))
        return malformed(r, "an object");
    for (bool first = true; (more = scan_next_member(&r->scan, first, &key)) == 1; first = false) {
        if (slice_equal(key, SLICE("!names"))) {
            if (read_odd_names(r, l) < 0)
                return -1;
            continue;
        }
        if (key.len && key.data[0] == '!')
            return malformed(r, "a name");
        struct field f = {.name = keep_decoded(r, key)};
        if (read_value(r, &f) < 0)
            return -1;
        *list_add(l) = f;
    }
    return more == 0 ? 0 : malformed(r, "the end of an object");
}

static int read_items(struct reader *r, struct field_list *l)
{
    int more;

    if (!scan_open(&r->scan))
        return malformed(r, "less nesting");
    for (bool first = true; (more = scan_next_item(&r->scan, first)) == 1; first = false) {
        struct field f = {0};

        if (read_value(r, &f) < 0)
            return -1;
        *list_add(l) = f;
    }
    return more == 0 ? 0 : malformed(r, "the end of an array");
}

/* Reads a bare number: kind I if it fits, else l, else d. A database that normalises numbers may have removed a
 * double's exponent. */
static int read_bare_number(struct reader *r, struct field *out)
{
    const char *text;
    bool integer;

    if (read_number_text(r, &text, &integer) < 0)
        return -1;
    errno = 0;
    int64_t value = integer ? strtoll(text, NULL, 10) : 0;
    if (integer && !errno) {
        out->kind = value >= INT32_MIN && value <= INT32_MAX ? FIELD_I32 : FIELD_I64;
        out->i = value;
    } else {
        out->kind = FIELD_F64;
        out->d = strtod(text, NULL);
    }
    return 0;
}

static int read_children(struct reader *r, struct field *out, bool object)
{
    struct field_list l = {0};
    int error;

    if (!object)
        out->kind = FIELD_ARRAY;
    error = object ? read_object(r, out, &l) : read_items(r, &l);
    if (error < 0 || (out->kind != FIELD_TABLE && out->kind != FIELD_ARRAY)) {
        free(l.items);
        return error;
    }
    out->children.n = l.n;
    out->children.items = list_keep(r, &l);
    return 0;
}

static int read_value(struct reader *r, struct field *out)
{
    struct slice raw;
    enum scan_kind kind = scan_peek(&r->scan);

    switch (kind) {
    case SCAN_OBJECT:
    case SCAN_ARRAY:
        return read_children(r, out, kind == SCAN_OBJECT);
    case SCAN_STRING:
        out->kind = FIELD_STRING;
        if (!scan_string(&r->scan, &raw))
            return malformed(r, "a string");
        out->bytes = keep_decoded(r, raw);
        return 0;
    case SCAN_NUMBER:
        return read_bare_number(r, out);
    case SCAN_TRUE:
    case SCAN_FALSE:
        out->kind = FIELD_BOOL;
        out->boolean = kind == SCAN_TRUE;
        return scan_literal(&r->scan) ? 0 : malformed(r, "true or false");
    case SCAN_NULL:
        out->kind = FIELD_VOID;
        return scan_literal(&r->scan) ? 0 : malformed(r, "null");
    case SCAN_BAD:
        break;
    }
    return malformed(r, "a value");
}

static int reader_init(struct reader *r, struct slice json, struct message *m, struct fault *f)
{
    *r = (struct reader){.scan = {.at = json.data, .end = json.data + json.len}, .m = m, .f = f};
    return json.len && slice_is_utf8(json) ? 0 : malformed(r, "JSON in UTF-8");
}

int jsonread_fields(struct slice headers_json, struct message *m, struct fault *f)
{
    struct reader r;
    struct field_list l = {0};

    if (reader_init(&r, headers_json, m, f) < 0)
        return -1;
    int error = read_members(&r, &l);
    if (!error && !scan_at_end(&r.scan))
        error = malformed(&r, "nothing behind the object");
    buf_deinit(&r.scratch);
    if (error) {
        free(l.items);
        return -1;
    }
    m->n_headers = l.n;
    m->headers = list_keep(&r, &l);
    return 0;
}

static int read_property_text(struct reader *r, struct slice *out)
{
    struct field f = {0};

    if (read_value(r, &f) < 0)
        return -1;
    if (f.kind != FIELD_STRING)
        return fault_set(r->f, "not stored properties: expected a string");
    *out = f.bytes;
    return 0;
}

static int read_property(struct reader *r, struct slice key, struct message *out)
{
    int property = property_find(key);
    uint64_t value;

    if (property >= 0)
        return read_property_text(r, &out->properties[property]);
    if (slice_equal(key, SLICE("timestamp"))) {
        out->has_timestamp = true;
        return read_unsigned(r, UINT64_MAX, &out->timestamp);
    }
    bool priority = slice_equal(key, SLICE("priority"));
    if (!priority && !slice_equal(key, SLICE("delivery_mode")))
        return fault_set(r->f, "not stored properties: there is a name that is no property");
    if (read_unsigned(r, UINT8_MAX, &value) < 0)
        return -1;
    *(priority ? &out->has_priority : &out->has_delivery_mode) = true;
    *(priority ? &out->priority : &out->delivery_mode) = (uint8_t)value;
    return 0;
}

int jsonread_properties(struct slice properties_json, struct message *m, struct fault *f)
{
    struct reader r;
    struct message read = {0};
    struct slice key;
    int more = -1, error = 0;

    if (reader_init(&r, properties_json, m, f) < 0)
        return -1;
    if (scan_peek(&r.scan) != SCAN_OBJECT || !scan_open(&r.scan))
        return fault_set(f, "not stored properties: expected an object");
    for (bool first = true; !error && (more = scan_next_member(&r.scan, first, &key)) == 1; first = false)
        error = read_property(&r, key, &read);
    buf_deinit(&r.scratch);
    if (!error && (more != 0 || !scan_at_end(&r.scan)))
        error = fault_set(f, "not stored properties: malformed JSON");
    if (error)
        return -1;
    memcpy(m->properties, read.properties, sizeof(m->properties));
    m->has_delivery_mode = read.has_delivery_mode;
    m->has_priority = read.has_priority;
    m->has_timestamp = read.has_timestamp;
    m->delivery_mode = read.delivery_mode;
    m->priority = read.priority;
    m->timestamp = read.timestamp;
    return 0;
}
