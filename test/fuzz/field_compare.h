#pragma once

#include "onceward/core/message.h"

/* Are two header tables equal, ignoring the order of their fields? The values of one name keep their order. */

static inline bool tables_equal(const struct field *a, size_t n_a, const struct field *b, size_t n_b);

static inline bool doubles_equal(double a, double b)
{
    return a == b || (a != a && b != b); /* NaN equals NaN */
}

static inline bool fields_equal(const struct field *a, const struct field *b)
{
    if (a->kind != b->kind || !slice_equal(a->name, b->name))
        return false;
    switch (a->kind) {
    case FIELD_BOOL:
        return a->boolean == b->boolean;
    case FIELD_F32: /* the wire has only the float */
        return doubles_equal((double)(float)a->d, (double)(float)b->d);
    case FIELD_F64:
        return doubles_equal(a->d, b->d);
    case FIELD_DECIMAL:
        return a->decimal.decimals == b->decimal.decimals && a->decimal.value == b->decimal.value;
    case FIELD_STRING:
    case FIELD_BYTES:
        return slice_equal(a->bytes, b->bytes);
    case FIELD_ARRAY:
        for (size_t i = 0; i < a->children.n && i < b->children.n; i++)
            if (!fields_equal(&a->children.items[i], &b->children.items[i]))
                return false;
        return a->children.n == b->children.n;
    case FIELD_TABLE:
        return tables_equal(a->children.items, a->children.n, b->children.items, b->children.n);
    case FIELD_VOID:
        return true;
    default:
        return a->u == b->u;
    }
}

/* The field of that name after a number of others with the same name. */
static inline const struct field *named_field(const struct field *fields, size_t n, struct slice name,
                                              size_t skip)
{
    for (size_t i = 0; i < n; i++)
        if (slice_equal(fields[i].name, name) && skip-- == 0)
            return &fields[i];
    return NULL;
}

static inline bool tables_equal(const struct field *a, size_t n_a, const struct field *b, size_t n_b)
{
    for (size_t i = 0; i < n_a; i++) {
        size_t before = 0;

        for (size_t k = 0; k < i; k++)
            before += slice_equal(a[k].name, a[i].name);
        const struct field *other = named_field(b, n_b, a[i].name, before);
        if (!other || !fields_equal(&a[i], other))
            return false;
    }
    return n_a == n_b;
}

static inline bool properties_equal(const struct message *a, const struct message *b)
{
    for (int p = 0; p < N_PROPERTIES; p++)
        if (!a->properties[p].data != !b->properties[p].data ||
            !slice_equal(a->properties[p], b->properties[p]))
            return false;
    return a->has_delivery_mode == b->has_delivery_mode && a->has_priority == b->has_priority &&
           a->has_timestamp == b->has_timestamp && a->delivery_mode == b->delivery_mode &&
           a->priority == b->priority && a->timestamp == b->timestamp;
}
