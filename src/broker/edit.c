/* Removes fields from an encoded message before it is published again. Nothing is decoded, so that no kind of
 * field, no order and no spelling of a number is lost. Pure. */

#include "broker/edit.h"

#include "broker/cursor.h"
#include "broker/flags.h"
#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/core/message.h"

enum { CLASS_BASIC = 60, PERSISTENT = 2 };

/* Copies a header table without the headers of an earlier journey. */
static bool headers_edit(struct buf *out, struct slice table)
{
    struct cursor c = {table.data, table.data + table.len};
    size_t start = out->len;

    buf_add_u32(out, 0);
    while (c.at < c.end) {
        const char *from = c.at;
        struct slice name, value;
        char kind;

        if (!bytes_take(&c, 1, &name) || !value_take(&c, &kind, &value))
            return false;
        if (!header_is_spent(name))
            buf_add(out, from, (size_t)(c.at - from));
    }
    buf_set_length(out, start);
    return true;
}

/* Cuts the value of the property with that bit, including its length prefix if it has one. */
static bool value_cut(struct cursor *c, int bit, struct slice *ret)
{
    const char *from = c->at;
    struct slice text;
    uint64_t number;
    bool ok;

    if (bit == BIT_DELIVERY_MODE || bit == BIT_PRIORITY)
        ok = number_take(c, 1, &number);
    else if (bit == BIT_TIMESTAMP)
        ok = number_take(c, 8, &number);
    else
        ok = bytes_take(c, 1, &text);
    *ret = (struct slice){from, (size_t)(c->at - from)};
    return ok;
}

/* User of the publishing connection; does the message keep its expiration? */
struct journey {
    struct slice user;
    bool keeps_expiration;
};

static bool is_left_out(int bit, struct slice value, const struct journey *j)
{
    if (bit == BIT_USER_ID)
        return !slice_equal((struct slice){value.data + 1, value.len - 1}, j->user);
    return (bit == BIT_EXPIRATION && !j->keeps_expiration) || bit == BIT_DELIVERY_MODE;
}

/* Appends the properties, and sets the flags of the remaining ones in *ret_flags. */
static bool properties_edit(struct buf *out, struct cursor *c, unsigned flags, const struct journey *j,
                            unsigned *ret_flags)
{
    for (int bit = BIT_CONTENT_TYPE; bit >= BIT_LAST; bit--) {
        bool is_there = flags >> bit & 1;
        struct slice value = {0};

        if (is_there && bit == BIT_HEADERS) {
            if (!bytes_take(c, 4, &value) || !headers_edit(out, value))
                return false;
        } else if (is_there && !value_cut(c, bit, &value)) {
            return false;
        } else if (bit == BIT_DELIVERY_MODE) {
            buf_add_char(out, PERSISTENT);
            is_there = true;
        } else if (is_there && is_left_out(bit, value, j)) {
            is_there = false;
        } else {
            buf_add_slice(out, value);
        }
        *ret_flags |= (unsigned)is_there << bit;
    }
    return c->at == c->end;
}

int content_header_edit(struct buf *out, struct slice properties, uint64_t body_len, struct slice user,
                        bool keeps_expiration, struct fault *f)
{
    struct cursor c = {properties.data, properties.data + properties.len};
    unsigned kept = 0;
    uint64_t flags;

    buf_add_u16(out, CLASS_BASIC);
    buf_add_u16(out, 0); /* weight, unused */
    buf_add_u64(out, body_len);
    size_t at = out->len;
    buf_add_u16(out, 0);
    if (!number_take(&c, 2, &flags) || flags >> BIT_MORE & 1 ||
        !properties_edit(out, &c, (unsigned)flags, &(struct journey){user, keeps_expiration}, &kept))
        return fault_set(f, "the content header does not have the form that AMQP gives it");
    out->data[at] = (char)(kept >> 8);
    out->data[at + 1] = (char)kept;
    return 0;
}
