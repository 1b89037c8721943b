/* The queues that share a connection. Pure, except that results are read. */
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

/* qsort's callbacks take no context argument. */
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
                         .ranges = mem_zalloc(n, sizeof(*q->ranges)),
                         .formers = mem_zalloc(n, sizeof(*q->formers)),
                         .ended = mem_zalloc(n, sizeof(*q->ended)),
                         .of_other_broker = mem_zalloc(n, sizeof(*q->of_other_broker)),
                         .n = n};
    for (size_t i = 0; i < n; i++) {
        q->list[i] = list[i];
        q->list[i].consumer = mem_copy_text(list[i].consumer);
        q->list[i].broker = mem_copy_text(list[i].broker);
        q->list[i].vhost = mem_copy_text(list[i].vhost);
        q->list[i].queue = mem_copy_text(list[i].queue);
        q->list[i].takes_over = mem_copy_text(list[i].takes_over);
        q->list[i].order_key = mem_copy_text(list[i].order_key);
    }
    ranks_make(q);
}

void queues_deinit(struct queues *q)
{
    for (size_t i = 0; i < q->n; i++) {
        free((char *)q->list[i].consumer);
        free((char *)q->list[i].broker);
        free((char *)q->list[i].vhost);
        free((char *)q->list[i].queue);
        free((char *)q->list[i].takes_over);
        free((char *)q->list[i].order_key);
        free(q->refusals[i]);
        free(q->ranges[i]);
        free(q->formers[i]);
    }
    mem_clear(&q->ranges);
    mem_clear(&q->formers);
    mem_clear(&q->ended);
    mem_clear(&q->of_other_broker);
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

void queues_register_params(struct queues *q, struct buf params[REGISTER_PARAMS])
{
    const char **texts = mem_zalloc(q->n, sizeof(*texts));

    for (int p = 0; p < REGISTER_PARAMS; p++) {
        for (size_t i = 0; i < q->n; i++) {
            const struct inbox_queue *k = &q->list[i];
            const char *const fields[REGISTER_PARAMS] = {k->consumer, k->broker,     k->vhost,
                                                         k->queue,    k->takes_over, q->ended[i] ? "t" : "f",
                                                         k->order_key};

            texts[i] = fields[p];
        }
        text_array_add(&params[p], texts, q->n);
    }
    q->has_changed = false;
    free(texts);
}

static const char *result_text(const PGresult *result, int row, int column)
{
    return PQgetisnull(result, row, column) ? "?" : PQgetvalue(result, row, column);
}

enum { R_ANSWER = 1, R_QUEUE, R_VHOST, R_BROKER, R_FORMER, R_NUMBER };

/* Sets the consumer name of the queue's rows. Nothing of the queue is in flight, since it was not registered. */
static void consumer_replace(struct queues *q, size_t at, const char *consumer)
{
    free((char *)q->list[at].consumer);
    q->list[at].consumer = mem_copy_text(consumer);
    ranks_make(q);
}

/* Sets the recorded range of a registered queue, if that range is or was another one than its own. */
static void range_set(struct queues *q, size_t at, const PGresult *result, int row)
{
    const char *recorded = result_text(result, row, R_QUEUE);

    if (strcmp(recorded, q->list[at].queue) != 0)
        q->ranges[at] = mem_copy_text(recorded);
    if (PQgetisnull(result, row, R_FORMER))
        return;
    free(q->formers[at]);
    q->formers[at] = mem_copy_text(PQgetvalue(result, row, R_FORMER));
}

static void refusal_set(struct queues *q, size_t at, const PGresult *result, int row)
{
    const struct inbox_queue *k = &q->list[at];
    struct registration r = {.consumer = k->consumer,
                             .queue = k->queue,
                             .vhost = k->vhost,
                             .broker = k->broker,
                             .other_queue = result_text(result, row, R_QUEUE),
                             .other_vhost = result_text(result, row, R_VHOST),
                             .other_broker = result_text(result, row, R_BROKER)};
    const char *answer = PQgetvalue(result, row, R_ANSWER);
    struct fault f = {0};

    if (strcmp(answer, "range") == 0) {
        range_set(q, at, result, row);
        return;
    }
    q->registrations[at] = INBOX_REFUSED;
    if (strcmp(answer, "former") == 0) { /* the next call asks for the record of that name */
        q->registrations[at] = INBOX_BUSY;
        consumer_replace(q, at, result_text(result, row, R_FORMER));
        fault_set(&f,
                  "its rows belong to consumer \"%s\", which takes_over names: that one is registered next",
                  q->list[at].consumer);
    } else if (strcmp(answer, "busy") == 0) {
        q->registrations[at] = INBOX_BUSY;
        fault_set(
            &f,
            "another transaction has locked the record of consumer \"%s\" (see pg_locks), or its broker is not known yet",
            r.consumer);
    } else if (strcmp(answer, "taken") == 0) {
        r.former = result_text(result, row, R_FORMER);
        registration_refuse_taken(&r, &f);
    } else if (strcmp(answer, "order") == 0) {
        registration_refuse_order(&r, &f);
    } else if (strcmp(answer, "mode") == 0 || strcmp(answer, "running") == 0) {
        registration_refuse_mode(&r, k->order_key, result_text(result, row, R_FORMER),
                                 strcmp(answer, "running") == 0, &f);
    } else {
        q->of_other_broker[at] = registration_is_of_other_broker(&r);
        registration_refuse(&r, &f);
    }
    free(q->refusals[at]); /* the schema never returns two rows for one queue */
    q->refusals[at] = mem_copy_text(f.text);
}

/* Index of the row's queue; -1: none. */
static int64_t queue_of(const struct queues *q, const PGresult *result, int row)
{
    int ord = 0;

    return call_int4(result, row, 0, &ord) && ord >= 1 && (size_t)ord <= q->n ? ord - 1 : -1;
}

/* Is it the row of no queue, with the number of changes of order.key? */
static bool row_is_changes(const PGresult *result, int row)
{
    int ord;

    return call_int4(result, row, 0, &ord) && ord == 0;
}

int queues_registered(struct queues *q, const PGresult *result, struct fault *f)
{
    if (q->has_changed) { /* the answer was made for the previous broker */
        q->has_changed = false;
        return 0;
    }
    for (int row = 0; row < PQntuples(result); row++)
        if (queue_of(q, result, row) < 0 && !row_is_changes(result, row))
            return fault_set(f, "the database's answer does not fit the question");
    for (size_t i = 0; i < q->n; i++) {
        q->registrations[i] = INBOX_REGISTERED;
        mem_clear(&q->refusals[i]);
        mem_clear(&q->ranges[i]);
        q->of_other_broker[i] = false;
    }
    for (int row = 0; row < PQntuples(result); row++)
        if (row_is_changes(result, row))
            call_int8(result, row, R_NUMBER, &q->order_changes);
        else
            refusal_set(q, (size_t)queue_of(q, result, row), result, row);
    return 0;
}

void queues_not_registered(struct queues *q, const struct fault *f)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->registrations[i] == INBOX_BUSY) {
            free(q->refusals[i]);
            q->refusals[i] = mem_copy_text(f->text);
        }
}

bool queues_are_registered(const struct queues *q)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->registrations[i] != INBOX_REGISTERED)
            return false;
    return true;
}

bool queues_are_ordered(const struct queues *q)
{
    for (size_t i = 0; i < q->n; i++)
        if (q->list[i].order_key && *q->list[i].order_key)
            return true;
    return false;
}

bool queues_have_range(const struct queues *q)
{
    for (size_t i = 0; i < q->n; i++)
        if (strstr(q->list[i].queue, ".."))
            return true;
    return false;
}

void queues_set_broker(struct queues *q, size_t queue, const char *broker)
{
    struct inbox_queue *k = &q->list[queue];

    if (k->broker && !strcmp(k->broker, broker))
        return;
    free((char *)k->broker);
    k->broker = mem_copy_text(broker);
    q->registrations[queue] = INBOX_BUSY;
    q->has_changed = true;
}
