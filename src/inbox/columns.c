/* A batch's data about its items and their queues, as one array per property. Pure.
 *
 * Properties that most items lack are NULL. An array of only NULLs is sent as NULL and costs nothing. */
#include "columns.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

enum {
    ERROR_MAX_BYTES = 1024,
    NAME_MAX_BYTES = 1024, /* AMQP's short strings: 255 bytes, each of which may become a U+FFFD */
};

/* --- one function per column: adds an item's value --- */

typedef void (*column_add)(struct array *, const struct inbox_item *);

static void add_id(struct array *a, const struct inbox_item *i)
{
    array_add(a, i->message_id.data, i->message_id.len);
}

/* A letter without an id, or with one that is not text, has its id in the raw ids. */
static bool letter_has_id(const struct inbox_item *i)
{
    return i->message_id.len && slice_is_text(i->message_id);
}

static void add_letter_id(struct array *a, const struct inbox_item *i)
{
    if (letter_has_id(i))
        add_id(a, i);
    else
        array_add_null(a);
}

static void add_raw_id(struct array *a, const struct inbox_item *i)
{
    if (i->letter->raw_id.len)
        array_add_slice(a, i->letter->raw_id);
    else if (i->message_id.len && !letter_has_id(i))
        array_add_slice(a, i->message_id);
    else
        array_add_null(a);
}

static void add_token(struct array *a, const struct inbox_item *i)
{
    array_add(a, i->token, sizeof(i->token));
}

static void add_fingerprint(struct array *a, const struct inbox_item *i)
{
    array_add(a, i->fingerprint, sizeof(i->fingerprint));
}

static void add_type(struct array *a, const struct inbox_item *i)
{
    array_add_text(a, i->message_type, NAME_MAX_BYTES);
}

static void add_deaths(struct array *a, const struct inbox_item *i)
{
    array_add_int8(a, i->deaths);
}

static void add_status(struct array *a, const struct inbox_item *i)
{
    if (i->http_status)
        array_add_int4(a, i->http_status);
    else
        array_add_null(a);
}

static void add_result(struct array *a, const struct inbox_item *i)
{
    if (slice_is_text(i->result))
        array_add_slice(a, i->result);
    else
        array_add_null(a);
}

static void add_error(struct array *a, const struct inbox_item *i)
{
    array_add_text(a, i->error, ERROR_MAX_BYTES);
}

static void add_delay(struct array *a, const struct inbox_item *i)
{
    array_add_int8(a, i->delay_ms);
}

/* NULL counts as false. */
static void add_flag(struct array *a, bool v)
{
    if (v)
        array_add_bool(a, v);
    else
        array_add_null(a);
}

static void add_alone(struct array *a, const struct inbox_item *i)
{
    add_flag(a, i->alone);
}

static void add_only_expired(struct array *a, const struct inbox_item *i)
{
    add_flag(a, i->only_expired);
}

static void add_give_back(struct array *a, const struct inbox_item *i)
{
    add_flag(a, i->give_back);
}

/* NULL counts as negative. */
static void add_count(struct array *a, int v)
{
    if (v >= 0)
        array_add_int4(a, v);
    else
        array_add_null(a);
}

static void add_crashes(struct array *a, const struct inbox_item *i)
{
    add_count(a, i->crashes);
}

static void add_unproven_step(struct array *a, const struct inbox_item *i)
{
    add_count(a, i->unproven_step);
}

static void add_batch_cap(struct array *a, const struct inbox_item *i)
{
    add_count(a, i->batch_cap > 0 ? i->batch_cap : -1);
}

static void add_reason(struct array *a, const struct inbox_item *i)
{
    array_add_text(a, slice_of(i->letter->reason), NAME_MAX_BYTES);
}

static void add_rowless(struct array *a, const struct inbox_item *i)
{
    add_flag(a, i->letter->rowless);
}

static void add_looked_for(struct array *a, const struct inbox_item *i)
{
    add_flag(a, i->letter->looked_for);
}

static void add_exhausted(struct array *a, const struct inbox_item *i)
{
    add_flag(a, i->letter->exhausted);
}

static void add_attempts(struct array *a, const struct inbox_item *i)
{
    array_add_int4(a, i->letter->attempts);
}

/* An empty body may have a NULL address, but it is still a body. */
static void add_body(struct array *a, const struct inbox_item *i)
{
    array_add(a, i->letter->body.data, i->letter->body.len);
}

static void add_content_type(struct array *a, const struct inbox_item *i)
{
    array_add_text(a, i->letter->content_type, NAME_MAX_BYTES);
}

/* An empty text is not valid JSON, so it becomes NULL. */
static void add_json(struct array *a, struct slice s)
{
    array_add_text(a, s.len ? s : (struct slice){0}, INT_MAX);
}

static void add_properties(struct array *a, const struct inbox_item *i)
{
    add_json(a, i->letter->properties_json);
}

static void add_headers(struct array *a, const struct inbox_item *i)
{
    add_json(a, i->letter->headers_json);
}

/* The default exchange is the empty text, never NULL. */
static void add_name(struct array *a, struct slice s)
{
    array_add_text(a, s.data ? s : SLICE(""), NAME_MAX_BYTES);
}

static void add_exchange(struct array *a, const struct inbox_item *i)
{
    add_name(a, i->letter->exchange);
}

static void add_routing_key(struct array *a, const struct inbox_item *i)
{
    add_name(a, i->letter->routing_key);
}

static void add_letter_deaths(struct array *a, const struct inbox_item *i)
{
    array_add_int8(a, i->letter->deaths);
}

static void add_content_header(struct array *a, const struct inbox_item *i)
{
    array_add_slice(a, i->letter->content_header);
}

/* --- columns of a stored message; all are NULL if there is none --- */

static void add_arrival(struct array *a, const struct inbox_item *i)
{
    array_add_int8(a, (int64_t)i->ref);
}

static void add_stored_exchange(struct array *a, const struct inbox_item *i)
{
    if (i->stored)
        add_name(a, i->stored->exchange);
    else
        array_add_null(a);
}

static void add_stored_routing_key(struct array *a, const struct inbox_item *i)
{
    if (i->stored)
        add_name(a, i->stored->routing_key);
    else
        array_add_null(a);
}

static void add_stored_content_header(struct array *a, const struct inbox_item *i)
{
    array_add_slice(a, i->stored ? i->stored->content_header : (struct slice){0});
}

static void add_stored_body(struct array *a, const struct inbox_item *i)
{
    if (i->stored)
        array_add(a, i->stored->body.data, i->stored->body.len);
    else
        array_add_null(a);
}

/* --- columns of the queues --- */

typedef void (*queue_column_add)(struct array *, const struct inbox_queue *);

static void add_consumer(struct array *a, const struct inbox_queue *q)
{
    array_add_slice(a, slice_of(q->consumer));
}

static void add_vhost(struct array *a, const struct inbox_queue *q)
{
    array_add_slice(a, slice_of(q->vhost));
}

static void add_queue(struct array *a, const struct inbox_queue *q)
{
    array_add_slice(a, slice_of(q->queue));
}

static void add_transaction(struct array *a, const struct inbox_queue *q)
{
    array_add_bool(a, q->transaction);
}

static void add_window(struct array *a, const struct inbox_queue *q)
{
    array_add_interval(a, q->token_window_ms);
}

static void add_max_window(struct array *a, const struct inbox_queue *q)
{
    array_add_interval(a, q->max_window_ms > q->token_window_ms ? q->max_window_ms : q->token_window_ms);
}

static void add_max_attempts(struct array *a, const struct inbox_queue *q)
{
    array_add_int4(a, q->max_attempts);
}

static void add_revive(struct array *a, const struct inbox_queue *q)
{
    array_add_int4(a, q->revive);
}

/* --- the columns --- */

static const struct {
    enum array_type type;
    size_t size; /* of typical elements */
    column_add add;
} columns[N_COLUMNS] = {
    [COLUMN_OF] = {ARRAY_INT4, 4, NULL},
    [COLUMN_IDS] = {ARRAY_TEXT, 40, add_id},
    [COLUMN_LETTER_IDS] = {ARRAY_TEXT, 40, add_letter_id},
    [COLUMN_TOKENS] = {ARRAY_UUID, 16, add_token},
    [COLUMN_FINGERPRINTS] = {ARRAY_BYTEA, 16, add_fingerprint},
    [COLUMN_TYPES] = {ARRAY_TEXT, 0, add_type},
    [COLUMN_DEATHS] = {ARRAY_INT8, 8, add_deaths},
    [COLUMN_ALONE] = {ARRAY_BOOL, 0, add_alone},
    [COLUMN_STATUSES] = {ARRAY_INT4, 4, add_status},
    [COLUMN_RESULTS] = {ARRAY_TEXT, 0, add_result},
    [COLUMN_ERRORS] = {ARRAY_TEXT, 0, add_error},
    [COLUMN_DELAYS] = {ARRAY_INT8, 8, add_delay},
    [COLUMN_ONLY_EXPIRED] = {ARRAY_BOOL, 1, add_only_expired},
    [COLUMN_GIVE_BACK] = {ARRAY_BOOL, 1, add_give_back},
    [COLUMN_CRASHES] = {ARRAY_INT4, 0, add_crashes},
    [COLUMN_UNPROVEN_STEPS] = {ARRAY_INT4, 0, add_unproven_step},
    [COLUMN_BATCH_CAPS] = {ARRAY_INT4, 0, add_batch_cap},
    [COLUMN_REASONS] = {ARRAY_TEXT, 16, add_reason},
    [COLUMN_ROWLESS] = {ARRAY_BOOL, 1, add_rowless},
    [COLUMN_LOOKED_FOR] = {ARRAY_BOOL, 1, add_looked_for},
    [COLUMN_EXHAUSTED] = {ARRAY_BOOL, 1, add_exhausted},
    [COLUMN_ATTEMPTS] = {ARRAY_INT4, 4, add_attempts},
    [COLUMN_RAW_IDS] = {ARRAY_BYTEA, 0, add_raw_id},
    [COLUMN_BODIES] = {ARRAY_BYTEA, 0, add_body},
    [COLUMN_CONTENT_TYPES] = {ARRAY_TEXT, 0, add_content_type},
    [COLUMN_PROPERTIES] = {ARRAY_TEXT, 0, add_properties},
    [COLUMN_HEADERS] = {ARRAY_TEXT, 0, add_headers},
    [COLUMN_EXCHANGES] = {ARRAY_TEXT, 0, add_exchange},
    [COLUMN_ROUTING_KEYS] = {ARRAY_TEXT, 0, add_routing_key},
    [COLUMN_LETTER_DEATHS] = {ARRAY_INT8, 8, add_letter_deaths},
    [COLUMN_CONTENT_HEADERS] = {ARRAY_BYTEA, 0, add_content_header},
    [COLUMN_ARRIVALS] = {ARRAY_INT8, 8, add_arrival},
    [COLUMN_STORED_EXCHANGES] = {ARRAY_TEXT, 0, add_stored_exchange},
    [COLUMN_STORED_ROUTING_KEYS] = {ARRAY_TEXT, 16, add_stored_routing_key},
    [COLUMN_STORED_CONTENT_HEADERS] = {ARRAY_BYTEA, 64, add_stored_content_header},
    [COLUMN_STORED_BODIES] = {ARRAY_BYTEA, 0, add_stored_body},
};

static const struct {
    enum array_type type;
    queue_column_add add;
} queue_columns[N_QUEUE_COLUMNS] = {
    [QUEUE_CONSUMERS] = {ARRAY_TEXT, add_consumer},
    [QUEUE_VHOSTS] = {ARRAY_TEXT, add_vhost},
    [QUEUE_NAMES] = {ARRAY_TEXT, add_queue},
    [QUEUE_TRANSACTIONS] = {ARRAY_BOOL, add_transaction},
    [QUEUE_WINDOWS] = {ARRAY_INTERVAL, add_window},
    [QUEUE_MAX_WINDOWS] = {ARRAY_INTERVAL, add_max_window},
    [QUEUE_MAX_ATTEMPTS] = {ARRAY_INT4, add_max_attempts},
    [QUEUE_REVIVES] = {ARRAY_INT4, add_revive},
};

static bool is_first_of_its_queue(const struct inbox_item *const *items, size_t at)
{
    return at == 0 || items[at]->queue != items[at - 1]->queue ||
           (items[at]->letter && items[at]->letter->queue != items[at - 1]->letter->queue);
}

static size_t body_bytes(enum column c, const struct inbox_item *i)
{
    if (c == COLUMN_BODIES)
        return i->letter->body.len;
    return i->stored ? i->stored->body.len : 0;
}

void column_encode(enum column c, struct array *a, const struct inbox_item *const *items, size_t n)
{
    size_t bytes = n * columns[c].size;
    int32_t of = 0;

    if (c == COLUMN_BODIES ||
        c == COLUMN_STORED_BODIES) /* the only large columns: allocated once, as a whole */
        for (size_t i = 0; i < n; i++)
            bytes += body_bytes(c, items[i]);
    array_start(a, columns[c].type, n, bytes);
    for (size_t i = 0; i < n; i++) {
        if (c == COLUMN_OF)
            array_add_int4(a, of += is_first_of_its_queue(items, i));
        else
            columns[c].add(a, items[i]);
    }
}

size_t column_of_queues(enum queue_column c, struct array *a, const struct inbox_queue *queues,
                        const struct inbox_item *const *items, size_t n)
{
    size_t n_queues = 0;

    array_start(a, queue_columns[c].type, 1, 0);
    for (size_t i = 0; i < n; i++) {
        if (!is_first_of_its_queue(items, i))
            continue;
        if (c == QUEUE_NAMES && items[i]->letter->queue)
            array_add_slice(a, slice_of(items[i]->letter->queue));
        else
            queue_columns[c].add(a, &queues[items[i]->queue]);
        n_queues++;
    }
    return n_queues;
}
