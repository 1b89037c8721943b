/* A batch's data about its items and their queues, as one array per property. Pure.
 *
 * Properties that most items lack are NULL. An array of only NULLs is sent as NULL and costs nothing. */
#include "columns.h"

#include "history_hash.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

enum {
    TEXT_MAX_BYTES =
        1024, /* errors and names. AMQP's short strings have 255 bytes, each of which may become U+FFFD */
    TOKEN_BYTES = 16
};

static_assert(sizeof(((struct inbox_item *)0)->token) == TOKEN_BYTES &&
                  sizeof(((struct inbox_item *)0)->fingerprint) == TOKEN_BYTES,
              "both are written by the same rule");

/* The way in which a member becomes an element. */
enum rule {
    RULE_BOOL,
    RULE_FLAG, /* NULL: false */
    RULE_INT4,
    RULE_COUNT,    /* NULL: negative */
    RULE_POSITIVE, /* NULL: 0 or negative */
    RULE_INT8,
    RULE_INTERVAL,   /* milliseconds */
    RULE_BYTES_16,   /* a token or fingerprint */
    RULE_STRING,     /* ends with 0. NULL: NULL */
    RULE_SLICE,      /* NULL: data NULL */
    RULE_WHOLE,      /* a slice, never NULL: an empty body may have a NULL address, but is still a body */
    RULE_TEXT,       /* made valid, and cut */
    RULE_NAME,       /* as TEXT, but never NULL: the default exchange is the empty text */
    RULE_JSON,       /* NULL: empty, which is not valid JSON */
    RULE_VALID_TEXT, /* NULL: not text */

    RULE_PLACE,   /* of the item's queue: see column_encode */
    RULE_HASH,    /* of the id in the history. NULL: the queue does not compact */
    RULE_TEXT_ID, /* NULL: the letter has its id among the raw ids */
    RULE_RAW_ID,  /* the id of a letter whose id is not text */
};

enum record { RECORD_ITEM, RECORD_LETTER, RECORD_STORED };

struct column_info {
    enum array_type type;
    enum rule rule;
    enum record record;
    size_t offset;
    size_t size; /* of typical elements */
};

#define ITEM(member)   RECORD_ITEM, offsetof(struct inbox_item, member)
#define LETTER(member) RECORD_LETTER, offsetof(struct inbox_letter, member)
#define STORED(member) RECORD_STORED, offsetof(struct inbox_message, member)

static const struct column_info columns[N_COLUMNS] = {
#define COLUMN(id, type, bytes, value, rule) [COLUMN_##id] = {ARRAY_##type, RULE_##rule, value, bytes},
#include "columns.def"
};

static const struct column_info queue_columns[N_QUEUE_COLUMNS] = {
#define QUEUE_COLUMN(id, type, member, rule)                                                                 \
    [QUEUE_##id] = {ARRAY_##type, RULE_##rule, RECORD_ITEM, offsetof(struct inbox_queue, member), 0},
#include "columns.def"
};

static void add_unless(struct array *a, bool is_null, int v)
{
    if (is_null)
        array_add_null(a);
    else
        array_add_int4(a, v);
}

static void add_slice(struct array *a, enum rule rule, struct slice s)
{
    switch (rule) {
    case RULE_WHOLE:
        array_add(a, s.data, s.len);
        break;
    case RULE_TEXT:
        array_add_text(a, s, TEXT_MAX_BYTES);
        break;
    case RULE_NAME:
        array_add_text(a, s.data ? s : SLICE(""), TEXT_MAX_BYTES);
        break;
    case RULE_JSON:
        array_add_text(a, s.len ? s : (struct slice){0}, INT_MAX);
        break;
    default:
        array_add_slice(a, s);
    }
}

/* Does the letter have a text id? Otherwise its id, if any, is in the raw ids. */
static bool letter_has_id(const struct inbox_item *i)
{
    return i->message_id.len && slice_is_text(i->message_id);
}

static struct slice raw_id(const struct inbox_item *i)
{
    if (i->letter->raw_id.len)
        return i->letter->raw_id;
    return i->message_id.len && !letter_has_id(i) ? i->message_id : (struct slice){0};
}

static void add_value(struct array *a, const struct column_info *c, const void *record)
{
    const void *v = (const char *)record + c->offset;

    switch (c->rule) {
    case RULE_BOOL:
        array_add_bool(a, *(const bool *)v);
        break;
    case RULE_FLAG:
        if (*(const bool *)v)
            array_add_bool(a, true);
        else
            array_add_null(a);
        break;
    case RULE_INT4:
        array_add_int4(a, *(const int *)v);
        break;
    case RULE_COUNT:
        add_unless(a, *(const int *)v < 0, *(const int *)v);
        break;
    case RULE_POSITIVE:
        add_unless(a, *(const int *)v <= 0, *(const int *)v);
        break;
    case RULE_INT8:
        array_add_int8(a, *(const int64_t *)v);
        break;
    case RULE_INTERVAL:
        array_add_interval(a, *(const int64_t *)v);
        break;
    case RULE_BYTES_16:
        array_add(a, v, TOKEN_BYTES);
        break;
    case RULE_STRING:
        array_add_slice(a, slice_of(*(const char *const *)v));
        break;
    case RULE_VALID_TEXT:
        array_add_slice(a, slice_is_text(*(const struct slice *)v) ? *(const struct slice *)v
                                                                   : (struct slice){0});
        break;
    case RULE_TEXT_ID:
        array_add_slice(a, letter_has_id(record) ? *(const struct slice *)v : (struct slice){0});
        break;
    case RULE_RAW_ID:
        array_add_slice(a, raw_id(record));
        break;
    default:
        add_slice(a, c->rule, *(const struct slice *)v);
    }
}

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

static void add_hash(struct array *a, const struct inbox_queue *q, struct slice message_id)
{
    uint8_t hash[HISTORY_HASH_BYTES];

    if (q->compacts && history_hash(q->consumer, message_id, hash))
        array_add(a, hash, sizeof(hash));
    else
        array_add_null(a);
}

void column_encode(enum column c, struct array *a, const struct inbox_queue *queues,
                   const struct inbox_item *const *items, size_t n)
{
    const struct column_info *info = &columns[c];
    size_t bytes = n * info->size;
    int32_t of = 0;

    if (c == COLUMN_BODIES ||
        c == COLUMN_STORED_BODIES) /* the only large columns: allocated once, as a whole */
        for (size_t i = 0; i < n; i++)
            bytes += body_bytes(c, items[i]);
    array_start(a, info->type, n, bytes);
    for (size_t i = 0; i < n; i++) {
        const void *const records[] = {
            [RECORD_ITEM] = items[i], [RECORD_LETTER] = items[i]->letter, [RECORD_STORED] = items[i]->stored};
        const void *record = records[info->record];

        if (info->rule == RULE_PLACE)
            array_add_int4(a, of += is_first_of_its_queue(items, i));
        else if (info->rule == RULE_HASH)
            add_hash(a, &queues[items[i]->queue], items[i]->message_id);
        else if (!record)
            array_add_null(a);
        else
            add_value(a, info, record);
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
            add_value(a, &queue_columns[c], &queues[items[i]->queue]);
        n_queues++;
    }
    return n_queues;
}
