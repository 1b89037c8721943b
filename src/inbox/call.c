/* The calls of the schema's functions: text, parameters and answers of each, as tables. Stateless, no I/O. */
#include "call.h"

#include "columns.h"

#include "onceward/base/mem.h"
#include "text.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_SPARE_BYTES = 64 };

static char *number_text(int64_t v)
{
    char text[24];
    int len = snprintf(text, sizeof(text), "%" PRId64, v);

    return mem_copy(text, (size_t)len);
}

void call_scalars_init(struct call_scalars *s, const struct inbox_self *self)
{
    *s = (struct call_scalars){0};
    s->value[SCALAR_INSTANCE] = mem_copy(self->instance, strlen(self->instance));
    s->value[SCALAR_NUMBER] = number_text(self->number);
    s->value[SCALAR_OWN] = mem_copy(self->own ? "t" : "f", 1);
    s->value[SCALAR_GRACE] = number_text(TAKEOVER_GRACE_MS);
}

void call_scalars_deinit(struct call_scalars *s)
{
    for (int i = 0; i < N_CALL_SCALARS; i++)
        mem_clear(&s->value[i]);
}

void call_scalars_order_changes(struct call_scalars *s, int64_t n)
{
    free(s->value[SCALAR_ORDER_CHANGES]);
    s->value[SCALAR_ORDER_CHANGES] = number_text(n);
}

void call_scalars_gone(struct call_scalars *s, const char *const *instances, size_t n)
{
    struct buf literal = {0};

    mem_clear(&s->value[SCALAR_GONE]);
    if (!n)
        return;
    text_array_add(&literal, instances, n);
    s->value[SCALAR_GONE] = mem_copy(literal.data, literal.len);
    buf_deinit(&literal);
}

enum { OID_BOOL = 16, OID_INT8 = 20, OID_TEXT = 25, OID_TEXT_ARRAY = 1009 };

static const Oid scalar_types[N_CALL_SCALARS] = {
    [SCALAR_INSTANCE] = OID_TEXT,   [SCALAR_NUMBER] = OID_INT8, [SCALAR_OWN] = OID_BOOL,
    [SCALAR_GONE] = OID_TEXT_ARRAY, [SCALAR_GRACE] = OID_INT8,  [SCALAR_ORDER_CHANGES] = OID_INT8,
};

/* --- the calls --- */

/* Columns of an answer. The first two are always ord and answer. */
enum answer_field {
    FIELD_END,
    FIELD_ATTEMPT,
    FIELD_TAKEOVERS,
    FIELD_CRASHES,
    FIELD_UNPROVEN_MS,
    FIELD_UNPROVEN_STEP,
    FIELD_BATCH_CAP,
    FIELD_WAIT,
    FIELD_AGE,
    FIELD_TAKEN_OVER,
    FIELD_NAMESAKE,
    FIELD_DETAIL,
    FIELD_LETTER
};

/* Number of a parameter: scalars come first, then columns of the queues, then columns of the items. */
enum { FIRST_QUEUE_COLUMN = N_CALL_SCALARS, FIRST_COLUMN = FIRST_QUEUE_COLUMN + N_QUEUE_COLUMNS };

#define S(id) (SCALAR_##id)
#define Q(id) (FIRST_QUEUE_COLUMN + QUEUE_##id)
#define C(id) (FIRST_COLUMN + COLUMN_##id)

struct call {
    const char *verb;
    const char *sql;
    uint8_t params[CALL_MAX_PARAMS];
    size_t n_params;
    enum answer_field answers[12];
};

#define PARAMS(...) .params = {__VA_ARGS__}, .n_params = sizeof((uint8_t[]){__VA_ARGS__})

#define CLAIM_COLUMNS                                                                                        \
    "SELECT ord, answer, attempt, takeovers, crashes, unproven_ms, unproven_step, batch_cap, wait_ms, "      \
    "age_ms, taken_over, namesake, detail FROM onceward."
#define CLAIM_PARAMS                                                                                         \
    S(INSTANCE), S(NUMBER), S(OWN), S(GONE), S(GRACE), Q(CONSUMERS), Q(WINDOWS), Q(MAX_WINDOWS),             \
        Q(MAX_ATTEMPTS), Q(REVIVES), C(OF), C(IDS), C(TOKENS), C(FINGERPRINTS), C(TYPES), C(DEATHS),         \
        C(ALONE)
#define CLAIM_ANSWERS                                                                                        \
    {                                                                                                        \
        FIELD_ATTEMPT, FIELD_TAKEOVERS, FIELD_CRASHES, FIELD_UNPROVEN_MS, FIELD_UNPROVEN_STEP,               \
            FIELD_BATCH_CAP, FIELD_WAIT, FIELD_AGE, FIELD_TAKEN_OVER, FIELD_NAMESAKE, FIELD_DETAIL,          \
            FIELD_END                                                                                        \
    }

#define CLAIM(verb, transaction)                                                                             \
    {                                                                                                        \
        verb,                                                                                                \
            CLAIM_COLUMNS                                                                                    \
            "sidecar_claim_many(" transaction                                                                \
            ", $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",       \
            PARAMS(CLAIM_PARAMS, S(ORDER_CHANGES), C(HASHES)), CLAIM_ANSWERS                                 \
    }

#define CLAIM_STORE(verb, transaction)                                                                       \
    {                                                                                                        \
        verb,                                                                                                \
            CLAIM_COLUMNS "sidecar_claim_store_many(" transaction                                            \
                          ", $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, "   \
                          "$18, $19, $20, $21, $22, $23, $24)",                                              \
            PARAMS(CLAIM_PARAMS, C(ARRIVALS), C(STORED_EXCHANGES), C(STORED_ROUTING_KEYS),                   \
                   C(STORED_CONTENT_HEADERS), C(STORED_BODIES), S(ORDER_CHANGES), C(HASHES)),                \
            CLAIM_ANSWERS                                                                                    \
    }

static const struct call calls[N_INBOX_OPS] = {
    [INBOX_CLAIM] = CLAIM("claim", "false"),
    [INBOX_CLAIM_ASYNC] = CLAIM("claim_async", "true"),
    [INBOX_CLAIM_STORE] = CLAIM_STORE("claim_store", "false"),
    [INBOX_CLAIM_STORE_ASYNC] = CLAIM_STORE("claim_store_async", "true"),
    [INBOX_LOOK] = {"look",
                    "SELECT ord, answer, attempt, takeovers, crashes, unproven_ms, unproven_step, wait_ms, "
                    "namesake, detail FROM onceward.sidecar_look_many("
                    "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
                    PARAMS(S(INSTANCE), S(NUMBER), S(OWN), S(GONE), S(GRACE), Q(CONSUMERS), Q(TRANSACTIONS),
                           Q(WINDOWS), Q(MAX_WINDOWS), C(OF), C(IDS), C(TOKENS), C(FINGERPRINTS)),
                    {FIELD_ATTEMPT, FIELD_TAKEOVERS, FIELD_CRASHES, FIELD_UNPROVEN_MS, FIELD_UNPROVEN_STEP,
                     FIELD_WAIT, FIELD_NAMESAKE, FIELD_DETAIL, FIELD_END}},
    [INBOX_RENEW] = {"renew",
                     "SELECT ord, answer, wait_ms, namesake, detail FROM onceward.sidecar_renew_many("
                     "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
                     PARAMS(S(INSTANCE), S(NUMBER), S(OWN), S(GONE), S(GRACE), Q(CONSUMERS), Q(TRANSACTIONS),
                            Q(WINDOWS), Q(MAX_WINDOWS), C(OF), C(IDS), C(FINGERPRINTS), C(TYPES)),
                     {FIELD_WAIT, FIELD_NAMESAKE, FIELD_DETAIL, FIELD_END}},
    [INBOX_SETTLE] = {"settle",
                      "SELECT ord, answer FROM onceward.sidecar_settle_many($1, $2, $3, $4, $5, $6)",
                      PARAMS(Q(CONSUMERS), C(OF), C(IDS), C(TOKENS), C(STATUSES), C(RESULTS)),
                      {FIELD_END}},
    [INBOX_FAIL] = {"fail",
                    "SELECT ord, answer, wait_ms FROM onceward.sidecar_fail_many("
                    "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
                    PARAMS(Q(CONSUMERS), C(OF), C(IDS), C(TOKENS), C(ERRORS), C(STATUSES), C(DELAYS),
                           C(ONLY_EXPIRED), C(GIVE_BACK), C(CRASHES), C(UNPROVEN_STEPS), C(BATCH_CAPS)),
                    {FIELD_WAIT, FIELD_END}},
    [INBOX_RELEASE] =
        {"release",
         "SELECT ord, answer FROM onceward.sidecar_release_many($1, $2, $3, $4, $5, $6, $7, $8, $9)",
         PARAMS(Q(CONSUMERS), C(OF), C(IDS), C(TOKENS), C(ERRORS), C(DELAYS), C(CRASHES), C(UNPROVEN_STEPS),
                C(BATCH_CAPS)),
         {FIELD_END}},
    [INBOX_DEAD_LETTER] =
        {"bury",
         "SELECT ord, answer, letter_id FROM onceward.sidecar_bury_many("
         "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, "
         "$20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34)",
         PARAMS(S(INSTANCE), S(NUMBER), S(OWN), S(GONE), S(GRACE), Q(CONSUMERS), Q(VHOSTS), Q(NAMES),
                Q(TRANSACTIONS), Q(WINDOWS), Q(MAX_WINDOWS), Q(MAX_ATTEMPTS), C(OF), C(LETTER_IDS), C(TOKENS),
                C(FINGERPRINTS), C(TYPES), C(STATUSES), C(ERRORS), C(REASONS), C(ROWLESS), C(LOOKED_FOR),
                C(EXHAUSTED), C(ATTEMPTS), C(RAW_IDS), C(BODIES), C(CONTENT_TYPES), C(PROPERTIES), C(HEADERS),
                C(EXCHANGES), C(ROUTING_KEYS), C(LETTER_DEATHS), C(CONTENT_HEADERS), C(HOLDS)),
         {FIELD_LETTER, FIELD_END}},
};

const char *call_sql(enum inbox_op op)
{
    return calls[op].sql;
}

uint32_t call_hash(const char *sql)
{
    uint32_t hash = 2166136261U; /* FNV-1a */

    for (const char *p = sql; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 16777619U;
    return hash;
}

void call_name(enum inbox_op op, char name[CALL_NAME_SIZE])
{
    snprintf(name, CALL_NAME_SIZE, "onceward_%s_%08" PRIx32, calls[op].verb, call_hash(calls[op].sql));
}

size_t call_item_bytes(enum inbox_op op, const struct inbox_item *item)
{
    const struct inbox_letter *l = op == INBOX_DEAD_LETTER ? item->letter : NULL;
    bool stores = op == INBOX_CLAIM_STORE || op == INBOX_CLAIM_STORE_ASYNC;

    if (stores && item->stored)
        return BODY_SPARE_BYTES + item->message_id.len + item->stored->body.len +
               item->stored->content_header.len;
    return BODY_SPARE_BYTES + item->message_id.len +
           (l ? l->body.len + l->headers_json.len + l->properties_json.len + l->content_header.len
              : item->result.len + item->error.len);
}

void call_encode(enum inbox_op op, struct call_data *d, const struct inbox_queue *queues,
                 const struct inbox_item *const *items, size_t n)
{
    struct array *a = d->arrays;

    for (size_t i = 0; i < calls[op].n_params; i++) {
        int p = calls[op].params[i];

        if (p >= FIRST_COLUMN)
            column_encode((enum column)(p - FIRST_COLUMN), a++, queues, items, n);
        else if (p >= FIRST_QUEUE_COLUMN)
            d->n_queues =
                column_of_queues((enum queue_column)(p - FIRST_QUEUE_COLUMN), a++, queues, items, n);
    }
}

void call_skip(enum inbox_op op, struct call_data *d, size_t n)
{
    struct array *a = d->arrays;

    for (size_t i = 0; i < calls[op].n_params; i++) {
        if (calls[op].params[i] >= FIRST_COLUMN && a->has_value)
            array_skip(a, n);
        a += calls[op].params[i] >= FIRST_QUEUE_COLUMN;
    }
}

void call_data_deinit(struct call_data *d, size_t kept_bytes)
{
    for (size_t i = 0; i < CALL_MAX_ARRAYS; i++)
        if (d->arrays[i].buf.cap > kept_bytes)
            array_deinit(&d->arrays[i]);
}

void call_params(enum inbox_op op, const struct call_scalars *scalars, struct call_data *d, size_t n,
                 struct call_params *ret)
{
    const struct call *c = &calls[op];
    struct array *a = d->arrays;

    ret->n = (int)c->n_params;
    for (size_t i = 0; i < c->n_params; i++) {
        int p = c->params[i];

        ret->lengths[i] = 0;
        ret->formats[i] = 0;
        if (p < FIRST_QUEUE_COLUMN) {
            ret->types[i] = scalar_types[p];
            ret->values[i] = scalars->value[p];
            continue;
        }
        struct slice s = {0};

        if (a->has_value)
            s = array_slice(a, p < FIRST_COLUMN ? d->n_queues : n);
        assert(s.len <= INT_MAX);
        ret->types[i] = array_oids[a->type].array;
        ret->values[i] = s.data;
        ret->lengths[i] = (int)s.len;
        ret->formats[i] = 1;
        a++;
    }
}

/* --- answers --- */

bool call_int8(const PGresult *result, int at, int column, int64_t *ret)
{
    uint64_t v = 0;

    if (column >= PQnfields(result) || PQgetisnull(result, at, column) ||
        PQgetlength(result, at, column) != 8)
        return false;
    for (int i = 0; i < 8; i++)
        v = v << 8 | (uint8_t)PQgetvalue(result, at, column)[i];
    *ret = (int64_t)v;
    return true;
}

bool call_bool(const PGresult *result, int at, int column)
{
    return PQgetlength(result, at, column) == 1 && PQgetvalue(result, at, column)[0];
}

bool call_int4(const PGresult *result, int at, int column, int *ret)
{
    uint32_t v = 0;

    if (column >= PQnfields(result) || PQgetisnull(result, at, column) ||
        PQgetlength(result, at, column) != 4)
        return false;
    for (int i = 0; i < 4; i++)
        v = v << 8 | (uint8_t)PQgetvalue(result, at, column)[i];
    *ret = (int)v;
    return true;
}

static struct slice slice_get(const PGresult *result, int at, int column)
{
    if (PQgetisnull(result, at, column))
        return (struct slice){0};
    return (struct slice){PQgetvalue(result, at, column), (size_t)PQgetlength(result, at, column)};
}

/* Reads a count of a row, which may have been edited by hand: the sum of two counts, and one more, fit an int. */
static void count_get(const PGresult *result, int at, int column, int *ret)
{
    enum { MOST = 1000000000 };

    if (!call_int4(result, at, column, ret))
        return;
    if (*ret > MOST)
        *ret = MOST;
    if (*ret < 0)
        *ret = 0;
}

/* Reads a field. Fields that an answer lacks are NULL, and stay 0. */
static void field_get(enum answer_field field, const PGresult *result, int at, int column,
                      struct inbox_row *ret)
{
    struct row *row = &ret->row;

    switch (field) {
    case FIELD_ATTEMPT:
        count_get(result, at, column, &row->attempt);
        break;
    case FIELD_TAKEOVERS:
        count_get(result, at, column, &row->takeovers);
        break;
    case FIELD_CRASHES:
        count_get(result, at, column, &row->crashes);
        break;
    case FIELD_UNPROVEN_MS:
        call_int8(result, at, column, &row->unproven_ms);
        break;
    case FIELD_UNPROVEN_STEP:
        count_get(result, at, column, &row->unproven_step);
        break;
    case FIELD_BATCH_CAP:
        count_get(result, at, column, &row->batch_cap);
        break;
    case FIELD_WAIT:
        call_int8(result, at, column, &row->wait_ms);
        break;
    case FIELD_AGE:
        call_int8(result, at, column, &row->age_ms);
        break;
    case FIELD_TAKEN_OVER:
        row->taken_over = call_bool(result, at, column);
        break;
    case FIELD_NAMESAKE:
        ret->namesake = call_bool(result, at, column);
        break;
    case FIELD_DETAIL:
        row->detail = slice_get(result, at, column);
        break;
    case FIELD_LETTER:
        call_int8(result, at, column, &row->letter);
        break;
    case FIELD_END:
        break;
    }
}

bool call_row(enum inbox_op op, const PGresult *result, int at, struct inbox_row *row, int *ret_ord,
              struct buf *why)
{
    const enum answer_field *fields = calls[op].answers;
    char name[32];

    *ret_ord = 0;
    if (PQnfields(result) < 2 || !call_int4(result, at, 0, ret_ord))
        return false;
    for (int i = 0; fields[i] != FIELD_END; i++)
        if (2 + i < PQnfields(result))
            field_get(fields[i], result, at, 2 + i, row);
    struct slice answer = slice_get(result, at, 1);

    snprintf(name, sizeof(name), "%.*s", (int)(answer.len < sizeof(name) ? answer.len : sizeof(name) - 1),
             answer.data ? answer.data : "");
    int found = row_answer_find(name);
    if (found >= 0 && found < ROW_UNKNOWN) {
        row->row.answer = (enum row_answer)found;
        return true;
    }
    buf_reset(why);
    buf_printf(why, "the database answered \"%s\", which this program does not know", name);
    return false;
}
