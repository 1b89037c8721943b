#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A one-dimensional array parameter in PostgreSQL's binary form: a header of ARRAY_HEADER bytes (dimensions,
 * flags, element type, number of elements, lower bound), then each element as its length (-1: NULL) and its
 * bytes.
 *
 * It is built once and can be sent in pieces, from front to back, without a copy: array_slice writes a
 * piece's header over the bytes before it. So a piece may be sent any number of times, with any length, until
 * it is skipped. Skipped elements are lost. */
enum { ARRAY_HEADER = 20 };

enum array_type {
    ARRAY_BOOL,
    ARRAY_BYTEA,
    ARRAY_INT8,
    ARRAY_INT4,
    ARRAY_TEXT,
    ARRAY_INTERVAL,
    ARRAY_UUID,
    N_ARRAY_TYPES
};

/* PostgreSQL's numbers of the type of the elements, and of the array. */
struct array_oids {
    uint32_t element, array;
};

extern const struct array_oids array_oids[N_ARRAY_TYPES];

struct array {
    struct buf buf;
    size_t at; /* first element that is not skipped */
    enum array_type type;
    bool has_null;
    bool has_value; /* at least one element of the whole array is not NULL */
};

void array_deinit(struct array *a);

/* Empties the array and keeps its memory. bytes: expected size of all elements together. */
void array_start(struct array *a, enum array_type type, size_t n, size_t bytes);

void array_add(struct array *a, const void *data, size_t len);
void array_add_null(struct array *a);
void array_add_slice(struct array *a, struct slice s); /* data NULL: NULL */
void array_add_int4(struct array *a, int32_t v);
void array_add_int8(struct array *a, int64_t v);
void array_add_bool(struct array *a, bool v);
void array_add_interval(struct array *a, int64_t ms);

/* Adds s as valid text: see text_add. data NULL: NULL. */
void array_add_text(struct array *a, struct slice s, size_t max);

/* Returns the next n elements as an array. Valid until the array is changed, skipped or sliced. */
struct slice array_slice(struct array *a, size_t n);

void array_skip(struct array *a, size_t n);
