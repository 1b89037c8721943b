/* Finds the end of a field's value, for every kind that AMQP has. Pure. */

#include "broker/cursor.h"

#include "onceward/core/message.h"

/* Number of bytes of a value of fixed size; -1: the size varies, or AMQP has no such kind. */
static int fixed_size(char kind)
{
    switch ((enum field_kind)kind) {
    case FIELD_VOID:
        return 0;
    case FIELD_BOOL:
    case FIELD_I8:
    case FIELD_U8:
        return 1;
    case FIELD_I16:
    case FIELD_U16:
        return 2;
    case FIELD_I32:
    case FIELD_U32:
    case FIELD_F32:
        return 4;
    case FIELD_DECIMAL:
        return 5;
    case FIELD_I64:
    case FIELD_U64:
    case FIELD_F64:
    case FIELD_TIMESTAMP:
        return 8;
    default:
        return -1;
    }
}

static bool has_length(char kind)
{
    return kind == FIELD_STRING || kind == FIELD_BYTES || kind == FIELD_ARRAY || kind == FIELD_TABLE;
}

bool value_take(struct cursor *c, char *ret_kind, struct slice *ret_value)
{
    if (c->at == c->end)
        return false;
    *ret_kind = *c->at++;
    if (has_length(*ret_kind))
        return bytes_take(c, 4, ret_value);
    int size = fixed_size(*ret_kind);

    *ret_value = (struct slice){c->at, (size_t)size};
    return size >= 0 && cursor_skip(c, (size_t)size);
}
