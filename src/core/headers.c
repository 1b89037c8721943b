/* HTTP request fields from an AMQP delivery. Pure; any thread. This runs once per forward, so it writes into one buffer
 * and allocates nothing.
 *
 * A value from outside is percent-encoded, or was checked byte by byte (trace_context.c, media_type.c), so that it
 * cannot end its line. An optional field is written, then removed if it exceeds the bound of all optional fields.
 * Values that are far too large are not written at all. */

#include "onceward/core/headers.h"

#include "core/field_text.h"
#include "core/trace_context.h"
#include "onceward/core/media_type.h"

#include <time.h>

enum { LINE_OVERHEAD = 4 /* ": " and CR LF on the wire */ };

/* Names of the optional fields of one kind that were written: servers would join a second field of the same name to
 * the first. */
struct names_sent {
    struct slice names[OPTIONAL_HEADERS_MAX];
    size_t n;
};

struct writer {
    struct header_block *b;
    size_t n_optional, optional_bytes, n_dropped;
    size_t start; /* of the current optional field */
    struct slice traceparent, tracestate, content_type;
    const char *coding; /* the registered name, which was sent; NULL: none */
    struct names_sent names;
};

void header_block_deinit(struct header_block *b)
{
    buf_deinit(&b->text);
    b->n = 0;
}

static void field_end(struct header_block *b)
{
    buf_add_char(&b->text, '\0');
    b->n++;
}

#define FIELD(b, literal) buf_add(&(b)->text, literal ": ", sizeof(literal ": ") - 1)

/* Could a value of at least len bytes fit? Otherwise the field is counted as dropped. */
static bool optional_begin(struct writer *w, size_t len)
{
    w->start = w->b->text.len;
    if (w->n_optional < OPTIONAL_HEADERS_MAX && w->optional_bytes + len <= OPTIONAL_BYTES_MAX)
        return true;
    w->n_dropped++;
    return false;
}

static bool optional_end(struct writer *w)
{
    size_t size = w->b->text.len - w->start + 2;

    if (w->optional_bytes + size > OPTIONAL_BYTES_MAX) {
        w->b->text.len = w->start;
        w->n_dropped++;
        return false;
    }
    w->optional_bytes += size;
    w->n_optional++;
    field_end(w->b);
    return true;
}

/* Adds an optional field with a percent-encoded value. Absent and empty values are not sent, since servers and HTTP
 * libraries do not tell them apart. */
static void add_optional(struct writer *w, struct slice name, struct slice value)
{
    if (!value.len || !optional_begin(w, name.len + value.len + LINE_OVERHEAD))
        return;
    buf_add_slice(&w->b->text, name);
    buf_add(&w->b->text, ": ", 2);
    buf_add_percent(&w->b->text, value);
    optional_end(w);
}

static void add_checked(struct writer *w, struct slice name, struct slice value)
{
    if (!value.len || !optional_begin(w, name.len + value.len + LINE_OVERHEAD))
        return;
    buf_add_slice(&w->b->text, name);
    buf_add(&w->b->text, ": ", 2);
    buf_add_slice(&w->b->text, value);
    optional_end(w);
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

static bool same_ignoring_case(struct slice a, struct slice b)
{
    if (a.len != b.len)
        return false;
    for (size_t i = 0; i < a.len; i++)
        if (lower(a.data[i]) != lower(b.data[i]))
            return false;
    return true;
}

static bool was_sent(const struct names_sent *sent, struct slice name)
{
    for (size_t i = 0; i < sent->n; i++)
        if (same_ignoring_case(sent->names[i], name))
            return true;
    return false;
}

static struct slice trim(struct slice s)
{
    while (s.len && (s.data[0] == ' ' || s.data[0] == '\t'))
        s.data++, s.len--;
    while (s.len && (s.data[s.len - 1] == ' ' || s.data[s.len - 1] == '\t'))
        s.len--;
    return s;
}

/* Finds the registered name of a content coding, or NULL (RFC 9110, 8.4.1: compared without case). */
static const char *coding_find(struct slice s)
{
    static const char *const known[] = {"gzip", "deflate", "br", "zstd", "compress", "identity"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (same_ignoring_case(s, slice_of(known[i])))
            return known[i];
    return NULL;
}

static bool cut_event_prefix(struct slice *name)
{
    enum { PREFIX = sizeof("cloudEvents:") - 1 };

    if (name->len <= PREFIX || memcmp(name->data, "cloudEvents", PREFIX - 1) != 0 ||
        (name->data[PREFIX - 1] != ':' && name->data[PREFIX - 1] != '_'))
        return false;
    name->data += PREFIX;
    name->len -= PREFIX;
    return true;
}

static bool is_stringlike(const struct field *f)
{
    return f->kind == FIELD_STRING || f->kind == FIELD_BYTES;
}

/* Finds the headers that decide about others, in one pass. */
static void find_special(struct writer *w, const struct message *m)
{
    for (size_t i = 0; i < m->n_headers; i++) {
        const struct field *f = &m->headers[i];
        struct slice name = f->name;

        if (!is_stringlike(f))
            continue;
        if (!w->traceparent.len && same_ignoring_case(name, SLICE("traceparent")))
            w->traceparent = trim(f->bytes);
        else if (!w->tracestate.len && same_ignoring_case(name, SLICE("tracestate")))
            w->tracestate = trim(f->bytes);
        else if (!w->content_type.len && cut_event_prefix(&name) &&
                 slice_equal(name, SLICE("datacontenttype")))
            w->content_type = f->bytes;
    }
    if (!traceparent_is_valid(w->traceparent))
        w->traceparent = w->tracestate = (struct slice){0};
    else if (!tracestate_is_valid(w->tracestate))
        w->tracestate = (struct slice){0};
}

struct slice trace_id(const struct message *m)
{
    enum { AT = 3, LEN = 32 }; /* 00-<32 hex>-… */

    for (size_t i = 0; i < m->n_headers; i++) {
        const struct field *f = &m->headers[i];
        struct slice value;

        if (!is_stringlike(f) || !same_ignoring_case(f->name, SLICE("traceparent")))
            continue;
        value = trim(f->bytes);
        if (value.len) /* the first non-empty value, as for the request */
            return traceparent_is_valid(value) ? (struct slice){value.data + AT, LEN} : (struct slice){0};
    }
    return (struct slice){0};
}

static void write_mandatory(struct header_block *b, const struct message *m, const struct request_facts *r)
{
    struct buf *out = &b->text;

    FIELD(b, "Idempotency-Key");
    buf_add_char(out, '"');
    size_t id_at = out->len;
    buf_add_percent(out, r->message_id);
    size_t id_len = out->len - id_at;
    buf_add_char(out, '"');
    field_end(b);
    FIELD(b, "Onceward-Message-Id");
    buf_reserve(out, id_len); /* so that the copy does not move its source */
    buf_add(out, out->data + id_at, id_len);
    field_end(b);
    FIELD(b, "Onceward-Queue");
    buf_add_percent(out, r->queue);
    field_end(b);
    FIELD(b, "Onceward-Consumer");
    buf_add_percent(out, r->consumer);
    field_end(b);
    FIELD(b, "Onceward-Token");
    buf_add_slice(out, r->token);
    field_end(b);
    FIELD(b, "Onceward-Token-Window-Ms");
    buf_add_number(out, r->window_ms > 0 ? (uint64_t)r->window_ms : 0);
    field_end(b);
    FIELD(b, "Onceward-Attempt");
    buf_add_number(out, r->attempt > 0 ? (uint64_t)r->attempt : 0);
    field_end(b);
    FIELD(b, "Onceward-Redelivered");
    buf_add_text(out, m->redelivered ? "true" : "false");
    field_end(b);
}

static void write_content(struct writer *w, const struct message *m, struct slice fallback)
{
    struct header_block *b = w->b;
    struct slice type = fallback, coding = m->properties[PROPERTY_CONTENT_ENCODING];

    if (m->properties[PROPERTY_CONTENT_TYPE].len)
        w->content_type = m->properties[PROPERTY_CONTENT_TYPE];
    if (w->content_type.len) {
        type = trim(w->content_type);
        if (media_type_is_valid(type))
            w->content_type.len = 0; /* sent unchanged, so no further field is needed */
        else
            type.len = 0;
    }
    FIELD(b, "Content-Type");
    buf_add_slice(&b->text, type.len ? type : SLICE("application/octet-stream"));
    field_end(b);
    w->coding = coding.len ? coding_find(coding) : NULL;
    if (w->coding) {
        FIELD(b, "Content-Encoding");
        buf_add_text(&b->text, w->coding);
        field_end(b);
    }
}

/* CloudEvents' canonical texts (CloudEvents 1.0.2, type system): a timestamp is RFC 3339, binary is base64. */
static bool event_value_add(struct buf *value, const struct field *f)
{
    enum { YEAR_10000 = 253402300800 };
    struct tm tm;
    time_t t = (time_t)f->u;
    char text[32];

    if (f->kind == FIELD_BYTES) {
        add_base64(value, f->bytes);
        return true;
    }
    if (f->kind != FIELD_TIMESTAMP || f->u >= (uint64_t)YEAR_10000 || !gmtime_r(&t, &tm))
        return field_add_text(value, f);
    buf_add(value, text, strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm));
    return true;
}

static bool is_event_name(struct slice name)
{
    for (size_t i = 0; i < name.len; i++)
        if (!(name.data[i] >= 'a' && name.data[i] <= 'z') && !(name.data[i] >= '0' && name.data[i] <= '9'))
            return false;
    /* The field Content-Type carries the first, the body is the second (CloudEvents HTTP binding, 3.1.1 and 3.1.2). */
    return name.len && !slice_equal(name, SLICE("datacontenttype")) && !slice_equal(name, SLICE("data"));
}

/* Adds "<prefix><name>: " and the percent-encoded value, a scalar of any kind. Empty values are not written. */
static void add_scalar(struct writer *w, struct slice prefix, struct slice name, const struct field *f,
                       bool event)
{
    struct buf *out = &w->b->text;
    size_t least = prefix.len + name.len + LINE_OVERHEAD;

    if (is_stringlike(f) ? !f->bytes.len
                         : f->kind == FIELD_ARRAY || f->kind == FIELD_TABLE || f->kind == FIELD_VOID)
        return;
    if (!optional_begin(w, is_stringlike(f) ? least + f->bytes.len : least))
        return;
    if (was_sent(&w->names, name)) {
        w->n_dropped++;
        return;
    }
    buf_add_slice(out, prefix);
    buf_add_slice(out, name);
    buf_add(out, ": ", 2);
    if (f->kind == FIELD_STRING || (f->kind == FIELD_BYTES && !event)) {
        buf_add_percent(out, f->bytes);
    } else {
        struct buf value = {0};

        if (event)
            event_value_add(&value, f);
        else
            field_add_text(&value, f);
        buf_add_percent(out, buf_slice(&value));
        buf_deinit(&value);
    }
    if (optional_end(w))
        w->names.names[w->names.n++] = name;
}

static void write_events(struct writer *w, const struct message *m)
{
    for (size_t i = 0; i < m->n_headers; i++) {
        struct slice name = m->headers[i].name;

        if (cut_event_prefix(&name) && is_event_name(name))
            add_scalar(w, SLICE("ce-"), name, &m->headers[i], true);
    }
}

static void write_properties(struct writer *w, const struct message *m)
{
    char digits[24];
    struct buf number = {digits, 0, sizeof(digits)};
    const struct slice *p = m->properties;

    if (w->content_type.len)
        add_optional(w, SLICE("Amqp-Content-Type"), w->content_type);
    if (!w->coding)
        add_optional(w, SLICE("Amqp-Content-Encoding"), p[PROPERTY_CONTENT_ENCODING]);
    add_optional(w, SLICE("Amqp-Exchange"), m->exchange);
    add_optional(w, SLICE("Amqp-Routing-Key"), m->routing_key);
    add_optional(w, SLICE("Amqp-Type"), p[PROPERTY_TYPE]);
    add_optional(w, SLICE("Amqp-App-Id"), p[PROPERTY_APP_ID]);
    add_optional(w, SLICE("Amqp-User-Id"), p[PROPERTY_USER_ID]);
    add_optional(w, SLICE("Amqp-Correlation-Id"), p[PROPERTY_CORRELATION_ID]);
    add_optional(w, SLICE("Amqp-Reply-To"), p[PROPERTY_REPLY_TO]);
    if (m->has_timestamp) {
        buf_add_number(&number, m->timestamp);
        add_optional(w, SLICE("Amqp-Timestamp"), buf_slice(&number));
    }
    if (m->has_priority) {
        buf_reset(&number);
        buf_add_number(&number, m->priority);
        add_optional(w, SLICE("Amqp-Priority"), buf_slice(&number));
    }
    add_optional(w, SLICE("Amqp-Expiration"), p[PROPERTY_EXPIRATION]);
}

static bool is_plain_name(struct slice name)
{
    for (size_t i = 0; i < name.len; i++) {
        char c = lower(name.data[i]);

        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '-')
            return false;
    }
    return name.len > 0;
}

static void write_plain_headers(struct writer *w, const struct message *m)
{
    w->names.n = 0;
    for (size_t i = 0; i < m->n_headers; i++) {
        struct slice name = m->headers[i].name;

        if (!is_plain_name(name) || (w->traceparent.len && same_ignoring_case(name, SLICE("traceparent"))) ||
            (w->tracestate.len && same_ignoring_case(name, SLICE("tracestate"))))
            continue;
        add_scalar(w, SLICE("Amqp-Header-"), name, &m->headers[i], false);
    }
}

/* A lower bound for the size of the headers' JSON, so that a huge table is not written only to be removed. */
static size_t json_at_least(const struct message *m)
{
    size_t sum = 2;

    for (size_t i = 0; i < m->n_headers; i++) {
        sum += m->headers[i].name.len + 4;
        if (is_stringlike(&m->headers[i]))
            sum += m->headers[i].bytes.len;
    }
    return sum;
}

static void write_whole_table(struct writer *w, const struct message *m)
{
    struct buf *out = &w->b->text;

    if (!optional_begin(w, sizeof("Amqp-Headers") - 1 + LINE_OVERHEAD + json_at_least(m) / 3 * 4))
        return;
    FIELD(w->b, "Amqp-Headers");
    /* The JSON is written at the end, with its base64url behind it, which then replaces it. */
    size_t json_at = out->len;
    fields_to_json(out, m->headers, m->n_headers, false);
    size_t json_len = out->len - json_at;
    buf_reserve(out, json_len / 3 * 4 + 4); /* so that the encoding does not move its source */
    buf_add_base64url(out, out->data + json_at, json_len);
    size_t len = out->len - json_at - json_len;
    memmove(out->data + json_at, out->data + json_at + json_len, len);
    out->len = json_at + len;
    optional_end(w);
}

void headers_write(struct header_block *b, const struct message *m, const struct request_facts *r)
{
    struct writer w = {.b = b};

    buf_reset(&b->text);
    b->n = 0;
    if (m->n_headers)
        find_special(&w, m);
    write_mandatory(b, m, r);
    write_content(&w, m, r->content_type);
    if (m->n_headers) {
        add_checked(&w, SLICE("traceparent"), w.traceparent);
        add_checked(&w, SLICE("tracestate"), w.tracestate);
        write_events(&w, m);
    }
    write_properties(&w, m);
    if (m->n_headers) {
        write_plain_headers(&w, m);
        write_whole_table(&w, m);
    }
    if (w.n_dropped) {
        FIELD(b, "Onceward-Headers-Dropped");
        buf_add_number(&b->text, w.n_dropped);
        field_end(b);
    }
}

void headers_write_batch(struct header_block *b, const struct batch_facts *r)
{
    buf_reset(&b->text);
    b->n = 0;
    FIELD(b, "Content-Type");
    buf_add_text(&b->text, "application/json");
    field_end(b);
    FIELD(b, "Accept-Encoding"); /* Onceward reads the answer */
    buf_add_text(&b->text, "identity");
    field_end(b);
    FIELD(b, "Onceward-Batch");
    buf_add_number(&b->text, r->n);
    field_end(b);
    FIELD(b, "Onceward-Consumer");
    buf_add_percent(&b->text, r->consumer);
    field_end(b);
    FIELD(b, "Onceward-Token-Window-Ms");
    buf_add_number(&b->text, r->window_ms > 0 ? (uint64_t)r->window_ms : 0);
    field_end(b);
}
