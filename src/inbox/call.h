#pragma once

#include "array.h"

#include "onceward/inbox/inbox.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The calls of the schema's functions: which parameters each takes and what it answers, as tables. */

enum { CALL_MAX_PARAMS = 34, CALL_MAX_ARRAYS = 29, CALL_NAME_SIZE = 40 };

/* Parameters that are the same for every call of a connection, in text form. */
enum call_scalar { SCALAR_INSTANCE, SCALAR_NUMBER, SCALAR_OWN, SCALAR_GONE, SCALAR_GRACE, N_CALL_SCALARS };

struct call_scalars {
    char *value[N_CALL_SCALARS]; /* NULL: NULL */
};

void call_scalars_init(struct call_scalars *s, const struct inbox_self *self);
void call_scalars_deinit(struct call_scalars *s);
void call_scalars_gone(struct call_scalars *s, const char *const *instances, size_t n);

/* What a batch says, encoded. */
struct call_data {
    struct array arrays[CALL_MAX_ARRAYS];
    size_t n_queues;
};

/* Frees what takes more than kept_bytes. */
void call_data_deinit(struct call_data *d, size_t kept_bytes);

/* A statement's parameters as libpq wants them. */
struct call_params {
    int n;
    Oid types[CALL_MAX_PARAMS];
    const char *values[CALL_MAX_PARAMS];
    int lengths[CALL_MAX_PARAMS];
    int formats[CALL_MAX_PARAMS];
};

/* The text of the call, and the name it is prepared under. The name carries a hash of the text: behind a
 * pooler a statement of that name may have been prepared by another program's session, and must then be the
 * same statement. */
const char *call_sql(enum inbox_op op);
void call_name(enum inbox_op op, char name[CALL_NAME_SIZE]);

/* Of a statement's text, for its name: the same in every process. */
uint32_t call_hash(const char *sql);

/* Encodes items, in this order, in which those of one queue stand together. */
void call_encode(enum inbox_op op, struct call_data *d, const struct inbox_queue *queues,
                 const struct inbox_item *const *items, size_t n);

/* The next n items are done with. */
void call_skip(enum inbox_op op, struct call_data *d, size_t n);

/* How many bytes an item takes, for what is split by bytes: bodies and headers. */
size_t call_item_bytes(enum inbox_op op, const struct inbox_item *item);

/* The parameters for the next n items. Valid until the data are changed. */
void call_params(enum inbox_op op, const struct call_scalars *scalars, struct call_data *d, size_t n,
                 struct call_params *ret);

/* Row `at` of an answer: *ret_ord counts from 1; one less than 0 is for so many items, which no other row
 * names. The row's ref and op are the caller's. false: not what was agreed upon; then `why` says so when the
 * ord at least was readable, else *ret_ord is 0. */
bool call_row(enum inbox_op op, const PGresult *result, int at, struct inbox_row *row, int *ret_ord,
              char id_text[24], struct buf *why);

/* Big-endian numbers of an answer; false: NULL or another size. */
bool call_int8(const PGresult *result, int at, int column, int64_t *ret);

bool call_int4(const PGresult *result, int at, int column, int *ret);

/* NULL is false. */
bool call_bool(const PGresult *result, int at, int column);
