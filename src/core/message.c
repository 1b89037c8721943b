/* The message and its arena.
 *
 * The arena is a list of blocks, newest first. The oldest one lies in the same allocation as the message
 * itself, so that an ordinary message without a large header table costs one allocation. Memory is zero from
 * the start and is handed out once, so nothing needs to be cleared later. Any thread, one at a time. */

#include "onceward/core/message.h"

#include "core/field_text.h"
#include "onceward/base/buf.h"
#include "onceward/base/mem.h"
#include "onceward/base/table.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

enum { FIRST_BLOCK = 512, NEXT_BLOCK = 2048, BLOCK_MAX = 32 * 1024 };

struct message_block {
    struct message_block *older;
    size_t used, cap;
    _Alignas(max_align_t) char data[];
};

struct message_and_block {
    struct message message;
    _Alignas(max_align_t) char block[sizeof(struct message_block) + FIRST_BLOCK];
};

struct message *message_new(void)
{
    struct message_and_block *both = mem_zalloc(1, sizeof(*both));
    struct message_block *first = (struct message_block *)both->block;

    first->cap = FIRST_BLOCK;
    both->message.arena = first;
    return &both->message;
}

void message_free(struct message *m)
{
    if (!m)
        return;
    free(m->body);
    for (struct message_block *b = m->arena, *older; b; b = older) {
        older = b->older;
        if (older) /* the oldest block is part of the message */
            free(b);
    }
    free(m);
}

size_t message_bytes(const struct message *m)
{
    size_t n = m->body_len;

    for (const struct message_block *b = m->arena; b->older; b = b->older)
        n += sizeof(*b) + b->cap;
    return n;
}

/* Adds a block for at least size bytes. A large piece gets a block of its own behind the current one, which stays in
 * use. */
static char *block_add(struct message *m, size_t size)
{
    struct message_block *current = m->arena;
    size_t cap = current->older ? current->cap * 2 : NEXT_BLOCK;
    bool alone = size > BLOCK_MAX / 4;

    if (cap > BLOCK_MAX)
        cap = BLOCK_MAX;
    if (alone || cap < size)
        cap = size;
    assert(cap < SIZE_MAX - sizeof(struct message_block));
    struct message_block *b = mem_zalloc(1, sizeof(*b) + cap);
    b->cap = cap;
    b->used = size;
    if (alone && current->older) {
        b->older = current->older;
        current->older = b;
    } else {
        b->older = current;
        m->arena = b;
    }
    return b->data;
}

static char *take(struct message *m, size_t size, size_t align)
{
    struct message_block *b = m->arena;
    size_t at = (b->used + align - 1) & ~(align - 1);

    if (at > b->cap || b->cap - at < size)
        return block_add(m, size);
    b->used = at + size;
    return b->data + at;
}

void *message_alloc(struct message *m, size_t size)
{
    return take(m, size, _Alignof(max_align_t));
}

struct slice message_keep(struct message *m, const void *data, size_t len)
{
    char *copy = take(m, len, 1);

    if (len)
        memcpy(copy, data, len);
    return (struct slice){copy, len};
}

static const struct slice property_names[N_PROPERTIES] = {
    [PROPERTY_CONTENT_TYPE] = {"content_type", 12},
    [PROPERTY_CONTENT_ENCODING] = {"content_encoding", 16},
    [PROPERTY_CORRELATION_ID] = {"correlation_id", 14},
    [PROPERTY_REPLY_TO] = {"reply_to", 8},
    [PROPERTY_EXPIRATION] = {"expiration", 10},
    [PROPERTY_MESSAGE_ID] = {"message_id", 10},
    [PROPERTY_TYPE] = {"type", 4},
    [PROPERTY_USER_ID] = {"user_id", 7},
    [PROPERTY_APP_ID] = {"app_id", 6},
    [PROPERTY_CLUSTER_ID] = {"cluster_id", 10},
};

const char *property_name(enum property p)
{
    assert((unsigned)p < N_PROPERTIES);
    return property_names[p].data;
}

int property_find(struct slice name)
{
    for (int p = 0; p < N_PROPERTIES; p++)
        if (slice_equal(name, property_names[p]))
            return p;
    return -1;
}

static void names_of_properties(const struct message *m, struct buf *out)
{
    const struct {
        bool there;
        const char *name;
    } numbers[] = {{m->has_delivery_mode, "delivery_mode"},
                   {m->has_priority, "priority"},
                   {m->has_timestamp, "timestamp"}};
    const char *before = "the properties ";

    for (int p = 0; p < N_PROPERTIES; p++)
        if (m->properties[p].data) {
            buf_printf(out, "%s%s", before, property_name((enum property)p));
            before = ", ";
        }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i].there) {
            buf_printf(out, "%s%s", before, numbers[i].name);
            before = ", ";
        }
    if (*before == 't')
        buf_add_text(out, "no properties");
}

/* Headers that the broker adds are left out, since they contain no id. */
void message_add_names(const struct message *m, size_t most_headers, struct buf *out)
{
    enum { NAME_MAX_BYTES = 48 };
    const char *before = " and the headers ";
    size_t n = 0;

    names_of_properties(m, out);
    for (size_t i = 0; i < m->n_headers; i++) {
        if (header_is_spent(m->headers[i].name) || n++ >= most_headers)
            continue;
        buf_add_text(out, before);
        text_add_safe(out, slice_cut(m->headers[i].name, NAME_MAX_BYTES));
        before = ", ";
    }
    if (!n)
        buf_add_text(out, " and no headers");
    if (n > most_headers)
        buf_printf(out, " and %zu more", n - most_headers);
}

static const struct field *field_find(const struct field *fields, size_t n, struct slice name)
{
    for (size_t i = 0; i < n; i++)
        if (slice_equal(fields[i].name, name))
            return &fields[i];
    return NULL;
}

const struct field *message_header(const struct message *m, struct slice name)
{
    return field_find(m->headers, m->n_headers, name);
}

/* The value of an integer of any kind, saturated. 0 for other kinds and negative values, since counts come from
 * outside. */
static int64_t field_count(const struct field *f)
{
    int64_t value;

    return f && field_integer(f, &value) && value > 0 ? value : 0;
}

static bool field_is(const struct field *table, struct slice name, struct slice value)
{
    const struct field *f = field_find(table->children.items, table->children.n, name);

    return f && f->kind == FIELD_STRING && slice_equal(f->bytes, value);
}

/* Sums the counts in x-death, of all entries or of one queue's rejections. */
static int64_t deaths_of(const struct message *m, const struct slice *rejected_from)
{
    const struct field *deaths = message_header(m, SLICE("x-death"));
    int64_t sum = 0;

    if (!deaths || deaths->kind != FIELD_ARRAY)
        return 0;
    for (size_t i = 0; i < deaths->children.n; i++) {
        const struct field *entry = &deaths->children.items[i];

        if (entry->kind != FIELD_TABLE)
            continue;
        if (rejected_from && !(field_is(entry, SLICE("queue"), *rejected_from) &&
                               field_is(entry, SLICE("reason"), SLICE("rejected"))))
            continue;
        int64_t count = field_count(field_find(entry->children.items, entry->children.n, SLICE("count")));
        if (__builtin_add_overflow(sum, count, &sum))
            return INT64_MAX;
    }
    return sum;
}

bool message_was_in(const struct message *m, struct slice queue)
{
    const struct field *deaths = message_header(m, SLICE("x-death"));

    if (!deaths || deaths->kind != FIELD_ARRAY)
        return false;
    for (size_t i = 0; i < deaths->children.n; i++)
        if (deaths->children.items[i].kind == FIELD_TABLE &&
            field_is(&deaths->children.items[i], SLICE("queue"), queue))
            return true;
    return false;
}

int64_t message_deaths(const struct message *m)
{
    return deaths_of(m, NULL);
}

int64_t message_rejections(const struct message *m, struct slice queue)
{
    return deaths_of(m, &queue);
}

int64_t message_delivery_count(const struct message *m)
{
    return m->redelivered ? field_count(message_header(m, SLICE("x-delivery-count"))) : 0;
}

bool header_is_spent(struct slice name)
{
    static const char *const names[] = {"x-delivery-count",
                                        "x-acquired-count",
                                        "x-death",
                                        "CC",
                                        "BCC",
                                        "x-first-death-queue",
                                        "x-first-death-reason",
                                        "x-first-death-exchange",
                                        "x-last-death-queue",
                                        "x-last-death-reason",
                                        "x-last-death-exchange"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (slice_equal(name, slice_of(names[i])))
            return true;
    return false;
}
