/* What may go back to the broker: see returns.h. */
#include "onceward/core/returns.h"
#include "onceward/core/mutant.h"

enum {
    LIMIT_SPARE = 2,        /* what arrives so near the limit is stored whole */
    UNKNOWN_NEAR = 2,       /* the same where nobody has told the limit */
    LIMIT_SINCE_VERSION = 4 /* of RabbitMQ: from it on queues have a limit of their own (facts: quorum-queues,
                               poison messages) */
};

int returns_limit(const struct returns *r)
{
    if (r->kind == KIND_CLASSIC && !MUTANT(CLASSIC_HAS_A_LIMIT))
        return LIMIT_NONE;
    if (r->configured != LIMIT_UNKNOWN)
        return r->configured;
    return r->server_major >= LIMIT_SINCE_VERSION ? LIMIT_SINCE_4 : LIMIT_UNKNOWN;
}

int64_t returns_count(const struct returns *r, int64_t delivery_count)
{
    bool counts = r->kind == KIND_QUORUM || MUTANT(CLASSIC_HAS_A_LIMIT);

    return counts && delivery_count > 0 ? delivery_count : 0;
}

int64_t returns_near_count(const struct returns *r)
{
    int limit = returns_limit(r), least;

    if (limit == LIMIT_NONE)
        return INT64_MAX;
    if (limit == LIMIT_UNKNOWN)
        return UNKNOWN_NEAR;
    least = limit < LIMIT_SPARE ? limit : LIMIT_SPARE;
    return limit - LIMIT_SPARE > least ? limit - LIMIT_SPARE : least;
}

bool returns_is_near(const struct returns *r, int64_t delivery_count)
{
    return returns_count(r, delivery_count) >= returns_near_count(r);
}

bool returns_is_last(const struct returns *r, int64_t delivery_count)
{
    int limit = returns_limit(r);

    return returns_is_near(r, delivery_count) &&
           (limit == LIMIT_UNKNOWN || returns_count(r, delivery_count) >= limit - 1);
}

bool returns_go_behind(const struct returns *r)
{
    int limit = returns_limit(r);

    return r->kind == KIND_QUORUM && r->server_major < LIMIT_SINCE_VERSION &&
           (limit == LIMIT_UNKNOWN || limit == LIMIT_NONE);
}

bool returns_limit_is_missing(struct returns *r, int64_t delivery_count)
{
    if (r->told || returns_limit(r) != LIMIT_UNKNOWN || !returns_count(r, delivery_count))
        return false;
    r->told = true;
    return true;
}
