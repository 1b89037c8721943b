/* Deliveries that may be requeued: see returns.h. */
#include "onceward/core/returns.h"

#include "onceward/base/buf.h"

enum {
    LIMIT_SPARE = 2,        /* deliveries left when a message is renewed or stored whole */
    LIMIT_SINCE_VERSION = 4 /* RabbitMQ with a default limit (facts: quorum-queues, poison messages) */
};

static int read_limit(const struct returns *r)
{
    return r->limits.read ? r->limits.delivery_limit : LIMIT_UNKNOWN;
}

/* Does the broker apply its own limit? RabbitMQ 4 does where the queue has none; a queue that cannot be read may have
 * a lower one. */
static bool has_default(const struct returns *r)
{
    return r->limits.read && r->server_major >= LIMIT_SINCE_VERSION;
}

int returns_limit_of_key(int key)
{
    return key < 0 ? LIMIT_UNKNOWN : key == 0 ? LIMIT_NONE : key;
}

int returns_limit(const struct returns *r)
{
    int told = r->configured, read = read_limit(r);

    if (r->kind == KIND_CLASSIC)
        return LIMIT_NONE;
    if (told == LIMIT_UNKNOWN && read == LIMIT_UNKNOWN)
        return has_default(r) ? LIMIT_SINCE_4 : LIMIT_UNKNOWN;
    if (told == LIMIT_UNKNOWN || (read != LIMIT_UNKNOWN && read < told))
        return read;
    return told;
}

bool returns_limit_is_assumed(const struct returns *r)
{
    return r->kind != KIND_CLASSIC && r->configured == LIMIT_UNKNOWN && read_limit(r) == LIMIT_UNKNOWN &&
           has_default(r);
}

void returns_limit_words(const struct returns *r, struct buf *ret)
{
    int limit = returns_limit(r);

    if (returns_limit_is_assumed(r))
        buf_printf(
            ret,
            "RabbitMQ's own delivery limit of %d is assumed; set queues.<name>.delivery_limit if it is "
            "different (0: none)",
            limit);
    else if (limit == LIMIT_UNKNOWN)
        buf_printf(ret, "its delivery limit is not known (%s); set queues.<name>.delivery_limit (0: none)",
                   r->limits.read ? "the queue has no x-delivery-limit, and a policy may set one"
                                  : "the queue's arguments cannot be read");
    else {
        buf_add_text(ret, limit == LIMIT_NONE ? "it has no delivery limit" : "its delivery limit is ");
        if (limit != LIMIT_NONE)
            buf_printf(ret, "%d", limit);
        buf_add_text(ret, limit == r->configured ? " (delivery_limit)" : " (x-delivery-limit of the queue)");
    }
}

bool returns_limit_is_near(const struct returns *r)
{
    int limit = returns_limit(r);

    return limit < LIMIT_SINCE_4; /* also for LIMIT_UNKNOWN */
}

bool returns_leave_none(const struct returns *r)
{
    return r->kind == KIND_QUORUM && returns_limit(r) == 0;
}

int64_t returns_count(const struct returns *r, int64_t delivery_count)
{
    bool counts = r->kind == KIND_QUORUM;

    return counts && delivery_count > 0 ? delivery_count : 0;
}

/* An unknown limit counts as the smallest one that can be protected. */
static int limit_to_keep(const struct returns *r)
{
    int limit = returns_limit(r);

    return limit == LIMIT_UNKNOWN ? LIMIT_LEAST : limit;
}

int64_t returns_renew_count(const struct returns *r)
{
    int limit = limit_to_keep(r);

    if (limit == LIMIT_NONE || r->ordered)
        return INT64_MAX;
    return limit - LIMIT_SPARE > 1 ? limit - LIMIT_SPARE : 1;
}

int64_t returns_near_count(const struct returns *r)
{
    int limit = limit_to_keep(r), least = limit < LIMIT_SPARE ? limit : LIMIT_SPARE;

    if (limit == LIMIT_NONE || r->ordered)
        return INT64_MAX;
    if (least < 1) /* a message that arrives for the first time is not stored */
        least = 1;
    return limit - LIMIT_SPARE > least ? limit - LIMIT_SPARE : least;
}

bool returns_is_near(const struct returns *r, int64_t delivery_count)
{
    return returns_count(r, delivery_count) >= returns_near_count(r);
}

bool returns_is_last(const struct returns *r, int64_t delivery_count)
{
    int64_t count = returns_count(r, delivery_count);

    return count >= returns_renew_count(r) && count >= limit_to_keep(r) - 1;
}

bool returns_are_counted(const struct returns *r)
{
    enum { FREE_SINCE_MAJOR = 4, FREE_SINCE_MINOR = 3 };

    return r->server_major < FREE_SINCE_MAJOR ||
           (r->server_major == FREE_SINCE_MAJOR && r->server_minor < FREE_SINCE_MINOR);
}

bool returns_go_behind(const struct returns *r)
{
    int limit = returns_limit(r);

    return r->kind == KIND_QUORUM && r->server_major < LIMIT_SINCE_VERSION &&
           (limit == LIMIT_UNKNOWN || limit == LIMIT_NONE);
}

bool returns_need_consumer(const struct returns *r)
{
    return r->limits.read && r->limits.needs_consumer;
}

bool returns_may_need_consumer(const struct returns *r)
{
    return !r->limits.read || r->limits.needs_consumer;
}

bool returns_limit_is_missing(struct returns *r, int64_t delivery_count)
{
    if (r->told || !returns_count(r, delivery_count))
        return false;
    if (returns_limit(r) != LIMIT_UNKNOWN && !returns_limit_is_assumed(r))
        return false;
    r->told = true;
    return true;
}
