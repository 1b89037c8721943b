/* The calls of the schema's functions: text, parameters and answers of each, as tables. No I/O, no state. */
#include "call.h"

#include "onceward/base/mem.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ERROR_MAX_BYTES = 1024,
    NAME_MAX_BYTES = 1024,    /* short strings of AMQP, 255 bytes, each of which may become a U+FFFD */
    TAKEOVER_GRACE_MS = 2000, /* live holders settle first */
    BODY_SPARE_BYTES = 64,
};

void call_scalars_init(struct call_scalars *s, const struct inbox_queue *q, const struct inbox_self *self)
{
    struct {
        enum call_scalar scalar;
        int64_t v;
    } numbers[] = {
        {SCALAR_WINDOW, q->token_window_ms}, {SCALAR_MAX_WINDOW, q->max_window_ms},
        {SCALAR_GRACE, TAKEOVER_GRACE_MS},   {SCALAR_MAX_ATTEMPTS, q->max_attempts},
        {SCALAR_REVIVE, q->revive},
    };

    *s = (struct call_scalars){0};
    s->value[SCALAR_CONSUMER] = mem_copy(q->consumer, strlen(q->consumer));
    s->value[SCALAR_VHOST] = mem_copy(q->vhost, strlen(q->vhost));
    s->value[SCALAR_QUEUE] = mem_copy(q->queue, strlen(q->queue));
    s->value[SCALAR_INSTANCE] = mem_copy(self->instance, strlen(self->instance));
    s->value[SCALAR_TRANSACTION] = mem_copy(q->transaction ? "t" : "f", 1);
    s->value[SCALAR_OWN] = mem_copy(self->own && q->transaction ? "t" : "f", 1);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        char text[24];
        int len = snprintf(text, sizeof(text), "%" PRId64, numbers[i].v);

        s->value[numbers[i].scalar] = mem_copy(text, (size_t)len);
    }
}

void call_scalars_deinit(struct call_scalars *s)
{
    for (int i = 0; i < N_CALL_SCALARS; i++)
        mem_clear(&s->value[i]);
}

enum { OID_BOOL = 16, OID_INT8 = 20, OID_INT4 = 23, OID_TEXT = 25 };

static const Oid scalar_types[N_CALL_SCALARS] = {
    [SCALAR_CONSUMER] = OID_TEXT,     [SCALAR_VHOST] = OID_TEXT,       [SCALAR_QUEUE] = OID_TEXT,
    [SCALAR_INSTANCE] = OID_TEXT,     [SCALAR_TRANSACTION] = OID_BOOL, [SCALAR_OWN] = OID_BOOL,
    [SCALAR_WINDOW] = OID_INT8,       [SCALAR_MAX_WINDOW] = OID_INT8,  [SCALAR_GRACE] = OID_INT8,
    [SCALAR_MAX_ATTEMPTS] = OID_INT4, [SCALAR_REVIVE] = OID_INT4,
};

/* --- one function for each array: what an item puts into it --- */

typedef void (*column_add)(struct array *, const struct inbox_item *);

static void add_id(struct array *a, const struct inbox_item *i)
{
    array_add(a, i->message_id.data, i->message_id.len);
}

/* A letter may have no id, or one that is not text: then it is in the raw ids. */
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

static void add_only_expired(struct array *a, const struct inbox_item *i)
{
    array_add_bool(a, i->only_expired);
}

static void add_give_back(struct array *a, const struct inbox_item *i)
{
    array_add_bool(a, i->give_back);
}

static void add_reason(struct array *a, const struct inbox_item *i)
{
    array_add_text(a, slice_of(i->letter->reason), NAME_MAX_BYTES);
}

static void add_rowless(struct array *a, const struct inbox_item *i)
{
    array_add_bool(a, i->letter->rowless);
}

static void add_redelivered(struct array *a, const struct inbox_item *i)
{
    array_add_bool(a, i->letter->redelivered);
}

static void add_exhausted(struct array *a, const struct inbox_item *i)
{
    array_add_bool(a, i->letter->exhausted);
}

static void add_attempts(struct array *a, const struct inbox_item *i)
{
    array_add_int4(a, i->letter->attempts);
}

/* An empty body may come without an address; it is a body all the same. */
static void add_body(struct array *a, const struct inbox_item *i)
{
    array_add(a, i->letter->body.data, i->letter->body.len);
}

static void add_content_type(struct array *a, const struct inbox_item *i)
{
    array_add_text(a, i->letter->content_type, NAME_MAX_BYTES);
}

/* An empty text is no JSON: then there is none. */
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

/* --- the arrays --- */

/* COLUMN(id, element type, its usual size, what an item puts into it) */
#define COLUMNS(COLUMN)                                                                                      \
    COLUMN(IDS, TEXT, 40, add_id)                                                                            \
    COLUMN(LETTER_IDS, TEXT, 40, add_letter_id)                                                              \
    COLUMN(TOKENS, UUID, 16, add_token)                                                                      \
    COLUMN(FINGERPRINTS, BYTEA, 16, add_fingerprint)                                                         \
    COLUMN(TYPES, TEXT, 0, add_type)                                                                         \
    COLUMN(DEATHS, INT8, 8, add_deaths)                                                                      \
    COLUMN(STATUSES, INT4, 4, add_status)                                                                    \
    COLUMN(RESULTS, TEXT, 0, add_result)                                                                     \
    COLUMN(ERRORS, TEXT, 0, add_error)                                                                       \
    COLUMN(DELAYS, INT8, 8, add_delay)                                                                       \
    COLUMN(ONLY_EXPIRED, BOOL, 1, add_only_expired)                                                          \
    COLUMN(GIVE_BACK, BOOL, 1, add_give_back)                                                                \
    COLUMN(REASONS, TEXT, 16, add_reason)                                                                    \
    COLUMN(ROWLESS, BOOL, 1, add_rowless)                                                                    \
    COLUMN(REDELIVERED, BOOL, 1, add_redelivered)                                                            \
    COLUMN(EXHAUSTED, BOOL, 1, add_exhausted)                                                                \
    COLUMN(ATTEMPTS, INT4, 4, add_attempts)                                                                  \
    COLUMN(RAW_IDS, BYTEA, 0, add_raw_id)                                                                    \
    COLUMN(BODIES, BYTEA, 0, add_body)                                                                       \
    COLUMN(CONTENT_TYPES, TEXT, 0, add_content_type)                                                         \
    COLUMN(PROPERTIES, TEXT, 0, add_properties)                                                              \
    COLUMN(HEADERS, TEXT, 0, add_headers)                                                                    \
    COLUMN(EXCHANGES, TEXT, 0, add_exchange)                                                                 \
    COLUMN(ROUTING_KEYS, TEXT, 0, add_routing_key)                                                           \
    COLUMN(LETTER_DEATHS, INT8, 8, add_letter_deaths)

enum column {
#define COLUMN(id, type, size, add) COLUMN_##id,
    COLUMNS(COLUMN)
#undef COLUMN
        N_COLUMNS
};

static const struct {
    enum array_type type;
    size_t size;
    column_add add;
} columns[N_COLUMNS] = {
#define COLUMN(id, type, size, add) {ARRAY_##type, size, add},
    COLUMNS(COLUMN)
#undef COLUMN
};

static Oid array_oid(enum array_type type)
{
    switch (type) {
    case ARRAY_BOOL:
        return 1000;
    case ARRAY_BYTEA:
        return 1001;
    case ARRAY_INT8:
        return 1016;
    case ARRAY_INT4:
        return 1007;
    case ARRAY_TEXT:
        return 1009;
    case ARRAY_UUID:
        return 2951;
    }
    assert(0);
    return 0;
}

/* --- the calls --- */

/* What a column of an answer is. The first two are always ord and answer. */
enum answer_field {
    FIELD_END,
    FIELD_ATTEMPT,
    FIELD_WAIT,
    FIELD_AGE,
    FIELD_TAKEN_OVER,
    FIELD_DETAIL,
    FIELD_LETTER
};

/* A parameter: a scalar, or a column behind the scalars' numbers. */
#define S(id) (SCALAR_##id)
#define C(id) (N_CALL_SCALARS + COLUMN_##id)

struct call {
    const char *verb;
    const char *sql;
    uint8_t params[CALL_MAX_PARAMS];
    size_t n_params;
    enum answer_field answers[6];
};

#define PARAMS(...) .params = {__VA_ARGS__}, .n_params = sizeof((uint8_t[]){__VA_ARGS__})

static const struct call calls[N_INBOX_OPS] = {
    [INBOX_CLAIM] =
        {"claim",
         "SELECT ord, answer, attempt, wait_ms, age_ms, taken_over, detail FROM onceward.sidecar_claim("
         "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
         PARAMS(S(CONSUMER), S(TRANSACTION), S(WINDOW), S(GRACE), S(MAX_ATTEMPTS), S(REVIVE), S(INSTANCE),
                S(OWN), C(IDS), C(TOKENS), C(FINGERPRINTS), C(TYPES), C(DEATHS), S(MAX_WINDOW)),
         {FIELD_ATTEMPT, FIELD_WAIT, FIELD_AGE, FIELD_TAKEN_OVER, FIELD_DETAIL, FIELD_END}},
    [INBOX_CLAIM_ASYNC] =
        {"claim",
         "SELECT ord, answer, attempt, wait_ms, age_ms, taken_over, detail FROM onceward.sidecar_claim("
         "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
         PARAMS(S(CONSUMER), S(TRANSACTION), S(WINDOW), S(GRACE), S(MAX_ATTEMPTS), S(REVIVE), S(INSTANCE),
                S(OWN), C(IDS), C(TOKENS), C(FINGERPRINTS), C(TYPES), C(DEATHS), S(MAX_WINDOW)),
         {FIELD_ATTEMPT, FIELD_WAIT, FIELD_AGE, FIELD_TAKEN_OVER, FIELD_DETAIL, FIELD_END}},
    [INBOX_LOOK] = {"look",
                    "SELECT ord, answer, wait_ms, detail FROM onceward.sidecar_look("
                    "$1, $2, $3, $4, $5)",
                    PARAMS(S(CONSUMER), S(GRACE), C(IDS), C(TOKENS), C(FINGERPRINTS)),
                    {FIELD_WAIT, FIELD_DETAIL, FIELD_END}},
    [INBOX_SETTLE] = {"settle",
                      "SELECT ord, answer FROM onceward.sidecar_settle($1, $2, $3, $4, $5)",
                      PARAMS(S(CONSUMER), C(IDS), C(TOKENS), C(STATUSES), C(RESULTS)),
                      {FIELD_END}},
    [INBOX_FAIL] = {"fail",
                    "SELECT ord, answer, wait_ms FROM onceward.sidecar_fail("
                    "$1, $2, $3, $4, $5, $6, $7, $8)",
                    PARAMS(S(CONSUMER), C(IDS), C(TOKENS), C(ERRORS), C(STATUSES), C(DELAYS), C(ONLY_EXPIRED),
                           C(GIVE_BACK)),
                    {FIELD_WAIT, FIELD_END}},
    [INBOX_RELEASE] = {"release",
                       "SELECT ord, answer FROM onceward.sidecar_release($1, $2, $3, $4, $5)",
                       PARAMS(S(CONSUMER), C(IDS), C(TOKENS), C(ERRORS), C(DELAYS)),
                       {FIELD_END}},
    [INBOX_BURY] = {"bury",
                    "SELECT ord, answer, letter_id FROM onceward.sidecar_bury("
                    "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, "
                    "$13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)",
                    PARAMS(S(CONSUMER), S(VHOST), S(QUEUE), S(MAX_ATTEMPTS), S(GRACE), C(LETTER_IDS),
                           C(TOKENS), C(FINGERPRINTS), C(TYPES), C(STATUSES), C(ERRORS), C(REASONS),
                           C(ROWLESS), C(REDELIVERED), C(EXHAUSTED), C(ATTEMPTS), C(RAW_IDS), C(BODIES),
                           C(CONTENT_TYPES), C(PROPERTIES), C(HEADERS), C(EXCHANGES), C(ROUTING_KEYS),
                           C(LETTER_DEATHS)),
                    {FIELD_LETTER, FIELD_END}},
};

const char *call_sql(enum inbox_op op)
{
    return calls[op].sql;
}

void call_name(enum inbox_op op, char name[CALL_NAME_SIZE])
{
    uint32_t hash = 2166136261U; /* FNV-1a, the same in every process */

    for (const char *p = calls[op].sql; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 16777619U;
    snprintf(name, CALL_NAME_SIZE, "onceward_%s_%08" PRIx32, calls[op].verb, hash);
}

size_t call_n_arrays(enum inbox_op op)
{
    size_t n = 0;

    for (size_t i = 0; i < calls[op].n_params; i++)
        n += calls[op].params[i] >= N_CALL_SCALARS;
    return n;
}

size_t call_item_bytes(enum inbox_op op, const struct inbox_item *item)
{
    const struct inbox_letter *l = op == INBOX_BURY ? item->letter : NULL;

    return BODY_SPARE_BYTES + item->message_id.len +
           (l ? l->body.len + l->headers_json.len + l->properties_json.len
              : item->result.len + item->error.len);
}

void call_encode(enum inbox_op op, struct array *arrays, const struct inbox_item *const *items, size_t n)
{
    for (size_t i = 0, k = 0; i < calls[op].n_params; i++) {
        if (calls[op].params[i] < N_CALL_SCALARS)
            continue;
        enum column c = calls[op].params[i] - N_CALL_SCALARS;
        size_t bytes = n * columns[c].size;

        if (c == COLUMN_BODIES) /* the only big one: made once, in one piece */
            for (size_t j = 0; j < n; j++)
                bytes += items[j]->letter->body.len;
        array_start(&arrays[k], columns[c].type, n, bytes);
        for (size_t j = 0; j < n; j++)
            columns[c].add(&arrays[k], items[j]);
        k++;
    }
}

void call_params(enum inbox_op op, const struct call_scalars *scalars, struct array *arrays, size_t n,
                 struct call_params *ret)
{
    const struct call *c = &calls[op];

    ret->n = (int)c->n_params;
    for (size_t i = 0, k = 0; i < c->n_params; i++) {
        if (c->params[i] < N_CALL_SCALARS) {
            ret->types[i] = scalar_types[c->params[i]];
            ret->values[i] = scalars->value[c->params[i]];
            ret->lengths[i] = 0;
            ret->formats[i] = 0;
            continue;
        }
        struct array *a = &arrays[k++];
        struct slice s = array_slice(a, n);

        assert(s.len <= INT_MAX);
        ret->types[i] = array_oid(a->type);
        ret->values[i] = s.data;
        ret->lengths[i] = (int)s.len;
        ret->formats[i] = 1;
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

static bool int4_get(const PGresult *result, int at, int column, int *ret)
{
    uint32_t v = 0;

    if (PQgetisnull(result, at, column) || PQgetlength(result, at, column) != 4)
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

/* Fields that an answer does not have are NULL, and stay 0. */
static void field_get(enum answer_field field, const PGresult *result, int at, int column,
                      struct inbox_row *row, char id_text[24])
{
    int64_t id;

    switch (field) {
    case FIELD_ATTEMPT:
        int4_get(result, at, column, &row->attempt);
        break;
    case FIELD_WAIT:
        call_int8(result, at, column, &row->wait_ms);
        break;
    case FIELD_AGE:
        call_int8(result, at, column, &row->age_ms);
        break;
    case FIELD_TAKEN_OVER:
        row->taken_over = PQgetlength(result, at, column) == 1 && PQgetvalue(result, at, column)[0];
        break;
    case FIELD_DETAIL:
        row->detail = slice_get(result, at, column);
        break;
    case FIELD_LETTER:
        if (call_int8(result, at, column, &id)) {
            int len = snprintf(id_text, 24, "%" PRId64, id);

            row->id = (struct slice){id_text, (size_t)len};
        }
        break;
    case FIELD_END:
        break;
    }
}

bool call_row(enum inbox_op op, const PGresult *result, int at, struct inbox_row *row, int *ret_ord,
              char id_text[24], struct buf *why)
{
    const enum answer_field *fields = calls[op].answers;
    char name[32];

    *ret_ord = 0;
    if (PQnfields(result) < 2 || !int4_get(result, at, 0, ret_ord))
        return false;
    for (int i = 0; fields[i] != FIELD_END; i++)
        if (2 + i < PQnfields(result))
            field_get(fields[i], result, at, 2 + i, row, id_text);
    struct slice answer = slice_get(result, at, 1);

    snprintf(name, sizeof(name), "%.*s", (int)(answer.len < sizeof(name) ? answer.len : sizeof(name) - 1),
             answer.data ? answer.data : "");
    int found = row_answer_find(name);
    if (found >= 0 && found < ROW_UNKNOWN) {
        row->answer = (enum row_answer)found;
        return true;
    }
    buf_reset(why);
    buf_printf(why, "the database answered \"%s\", which this program does not know", name);
    return false;
}
