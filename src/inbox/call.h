#pragma once

#include "array.h"

#include "onceward/inbox/inbox.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The calls of the schema's functions: parameters and answers of each, as tables. */

enum { CALL_MAX_PARAMS = 34, CALL_MAX_ARRAYS = 29, CALL_NAME_SIZE = 40 };

/* Parameters that are equal for every call of a connection, as text. */
enum call_scalar {
    SCALAR_INSTANCE,
    SCALAR_NUMBER,
    SCALAR_OWN,
    SCALAR_GONE,
    SCALAR_GRACE,
    SCALAR_ORDER_CHANGES,
    N_CALL_SCALARS
};

struct call_scalars {
    char *value[N_CALL_SCALARS]; /* NULL: SQL's NULL */
};

void call_scalars_init(struct call_scalars *s, const struct inbox_self *self);
void call_scalars_deinit(struct call_scalars *s);
void call_scalars_order_changes(struct call_scalars *s, int64_t n);
void call_scalars_gone(struct call_scalars *s, const char *const *instances, size_t n);

/* The encoded content of a batch. */
struct call_data {
    struct array arrays[CALL_MAX_ARRAYS];
    size_t n_queues;
};

/* Frees buffers larger than kept_bytes. */
void call_data_deinit(struct call_data *d, size_t kept_bytes);

/* A statement's parameters in libpq's form. */
struct call_params {
    int n;
    Oid types[CALL_MAX_PARAMS];
    const char *values[CALL_MAX_PARAMS];
    int lengths[CALL_MAX_PARAMS];
    int formats[CALL_MAX_PARAMS];
};

/* Text of the call, and name of its prepared statement. The name contains a hash of the text: if another program's
 * session behind a pooler has prepared a statement of that name, it is the same statement. */
const char *call_sql(enum inbox_op op);
void call_name(enum inbox_op op, char name[CALL_NAME_SIZE]);

/* Hash of a statement's text for its name, equal in every process. */
uint32_t call_hash(const char *sql);

/* Encodes items in this order, grouped by queue. */
void call_encode(enum inbox_op op, struct call_data *d, const struct inbox_queue *queues,
                 const struct inbox_item *const *items, size_t n);

/* Skips the next n items. */
void call_skip(enum inbox_op op, struct call_data *d, size_t n);

/* Size of an item's bodies and headers, which decides where batches are split. */
size_t call_item_bytes(enum inbox_op op, const struct inbox_item *item);

/* Sets the parameters for the next n items. Valid until the data change. */
void call_params(enum inbox_op op, const struct call_scalars *scalars, struct call_data *d, size_t n,
                 struct call_params *ret);

/* Reads row `at` of an answer. *ret_ord counts from 1; a negative one answers that many items that no other
 * row names. The caller sets the row's ref and op. False: malformed; `why` has the reason if at least the ord
 * was readable, else *ret_ord is 0. */
bool call_row(enum inbox_op op, const PGresult *result, int at, struct inbox_row *row, int *ret_ord,
              struct buf *why);

/* Big-endian numbers of an answer; false: NULL, or another size. */
bool call_int8(const PGresult *result, int at, int column, int64_t *ret);

bool call_int4(const PGresult *result, int at, int column, int *ret);

/* NULL is false. */
bool call_bool(const PGresult *result, int at, int column);
