#pragma once

#include "onceward/core/message.h"

/* Field literals for the tables of the tests. */

#define TEXT(literal) SLICE(literal)

#define F_BOOL(n, v)       ((struct field){.name = slice_of(n), .kind = FIELD_BOOL, .boolean = (v)})
#define F_INT(n, k, v)     ((struct field){.name = slice_of(n), .kind = (k), .i = (v)})
#define F_UINT(n, k, v)    ((struct field){.name = slice_of(n), .kind = (k), .u = (v)})
#define F_FLOAT(n, k, v)   ((struct field){.name = slice_of(n), .kind = (k), .d = (v)})
#define F_DECIMAL(n, p, v) ((struct field){.name = slice_of(n), .kind = FIELD_DECIMAL, .decimal = {(p), (v)}})
#define F_STRING(n, v)     ((struct field){.name = slice_of(n), .kind = FIELD_STRING, .bytes = TEXT(v)})
#define F_BYTES(n, v)      ((struct field){.name = slice_of(n), .kind = FIELD_BYTES, .bytes = TEXT(v)})
#define F_VOID(n)          ((struct field){.name = slice_of(n), .kind = FIELD_VOID})
#define F_CHILDREN(n, k, array)                                                                              \
    ((struct field){                                                                                         \
        .name = slice_of(n), .kind = (k), .children = {(array), sizeof(array) / sizeof((array)[0])}})

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
