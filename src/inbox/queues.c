/* The queues that share a connection. Pure, but for what it reads of results. */
#include "queues.h"

#include "call.h"
#include "registration.h"
#include "text.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static char *text_copy(const char *text)
{
    return text ? mem_copy(text, strlen(text)) : NULL;
}

/* qsort's callbacks have no argument. */
struct named {
    const char *consumer;
    size_t queue;
};

static int named_compare(const void *a, const void *b)
{
    const struct named *left = a, *right = b;
    int order = strcmp(left->consumer, right->consumer);

    return order ? order : (left->queue > right->queue) - (left->queue < right->queue);
}

static void ranks_make(struct queues *q)
{
    struct named *names = mem_zalloc(q->n, sizeof(*names));

    for (size_t i = 0; i < q->n; i++)
        names[i] = (struct named){q->list[i].consumer, i};
    qsort(names, q->n, sizeof(*names), named_compare);
    for (size_t i = 0; i < q->n; i++)
        q->ranks[names[i].queue] = i;
    free(names);
}

void queues_init(struct queues *q, const struct inbox_queue *list, size_t n)
{
    *q = (struct queues){.list = mem_zalloc(n, sizeof(*q->list)),
                         .ranks = mem_zalloc(n, sizeof(*q->ranks)),
                         .registrations = mem_zalloc(n, sizeof(*q->registrations)),
                         .refusals = mem_zalloc(n, sizeof(*q->refusals)),
                         .n = n};
    for (size_t i = 0; i < n; i++) {
        q->list[i] = list[i];
        q->list[i].consumer = text_copy(list[i].consumer);
        q->list[i].vhost = text_copy(list[i].vhost);
        q->list[i].queue = text_copy(list[i].queue);
        q->list[i].takes_over = text_copy(list[i].takes_over);
    }
    ranks_make(q);
}

void queues_deinit(struct queues *q)
{
    for (size_t i = 0; i < q->n; i++) {
        free((char *)q->list[i].consumer);
        free((char *)q->list[i].vhost);
        free((char *)q->list[i].queue);
        free((char *)q->list[i].takes_over);
        free(q->refusals[i]);
    }
    mem_clear(&q->list);
    mem_clear(&q->ranks);
    mem_clear(&q->registrations);
    mem_clear(&q->refusals);
    q->n = 0;
}

void queues_consumers(const struct queues *q, struct buf *literal)
{
    const char **texts = mem_zalloc(q->n, sizeof(*texts));

    for (size_t i = 0; i < q->n; i++)
        texts[i] = q->list[i].consumer;
    text_array_add(literal, texts, q->n);
    free(texts);
}

void queues_stores(const struct queues *q, struct buf *consumers, struct buf *retentions)
{
    const char **texts = mem_zalloc(q->n, sizeof(*texts));
    size_t n = 0;

    buf_add_char(retentions, '{');
    for (size_t i = 0; i < q->n; i++) {
        if (!q->list[i].store_ms)
            continue;
        buf_printf(retentions, "%s%" PRId64, n ? "," : "", q->list[i].store_ms);
        texts[n++] = q->list[i].consumer;
    }
    buf_add_char(retentions, '}');
    text_array_add(consumers, texts, n);
    free(texts);
}

void queues_register_params(const struct queues *q, struct buf params[REGISTER_PARAMS])
{
    const char **texts = mem_zalloc(q->n, sizeof(*texts));

    for (int p = 0; p < REGISTER_PARAMS; p++) {
        for (size_t i = 0; i < q->n; i++) {
            const struct inbox_queue *k = &q->list[i];
            const char *const fields[REGISTER_PARAMS] = {k->consumer, k->vhost, k->queue, k->takes_over};

            texts[i] = fields[p];
        }
        text_array_add(&params[p], texts, q->n);
    }
    free(texts);
}

static const char *result_text(const PGresult *result, int row, int column)
{
    return PQgetisnull(result, row, column) ? "?" : PQgetvalue(result, row, column);
}

static void refusal_set(struct queues *q, size_t at, const PGresult *result, int row)
{
    struct registration r = {.consumer = q->list[at].consumer,
                             .queue = q->list[at].queue,
                             .vhost = q->list[at].vhost,
                             .other_queue = result_text(result, row, 2),
                             .other_vhost = result_text(result, row, 3)};
    struct fault f = {0};

    if (strcmp(PQgetvalue(result, row, 1), "busy") == 0) {
        q->registrations[at] = INBOX_BUSY;
        fault_set(&f, "the record of consumer \"%s\" is being changed by somebody else", r.consumer);
    } else {
        q->registrations[at] = INBOX_REFUSED;
        registration_refuse(&r, &f);
    }
    free(q->refusals[at]); /* two rows for one queue are none of ours */
    q->refusals[at] = text_copy(f.text);
}

/* The index of the queue that a row is about; -1: it is about none. */
static int64_t queue_of(const struct queues *q, const PGresult *result, int row)
{
    int ord = 0;

    return call_int4(result, row, 0, &ord) && ord >= 1 && (size_t)ord <= q->n ? ord - 1 : -1;
}

int queues_registered(struct queues *q, const PGresult *result, struct fault *f)
{
    for (int row = 0; row < PQntuples(result); row++)
        if (queue_of(q, result, row) < 0)
            return fault_set(f, "the database answered something else than was asked");
    for (size_t i = 0; i < q->n; i++) {
        q->registrations[i] = INBOX_REGISTERED;
        mem_clear(&q->refusals[i]);
    }
    for (int row = 0; row < PQntuples(result); row++)
        refusal_set(q, (size_t)queue_of(q, result, row), result, row);
    return 0;
}

bool queues_are_registered(const struct queues *q)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->registrations[i] != INBOX_REGISTERED)
            return false;
    return true;
}
