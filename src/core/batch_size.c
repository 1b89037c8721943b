/* The learned size of a request: see batch_size.h. */
#include "onceward/core/batch_size.h"

#include <assert.h>

static const double GROWTH = 1.1;

void batch_size_init(struct batch_size *s, size_t most_messages, size_t most_bytes)
{
    *s = (struct batch_size){.messages = (double)most_messages,
                             .bytes = (double)most_bytes,
                             .most_messages = most_messages,
                             .most_bytes = most_bytes};
}

size_t batch_size_messages(const struct batch_size *s)
{
    return (size_t)s->messages;
}

size_t batch_size_bytes(const struct batch_size *s)
{
    return (size_t)s->bytes;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double at_least_one(double value)
{
    return value < 1 ? 1 : value;
}

static bool is_whole(const struct batch_size *s)
{
    return s->messages >= (double)s->most_messages && s->bytes >= (double)s->most_bytes;
}

/* A tenth of less than ten is less than one message, so the number is kept as a fraction. */
bool batch_size_good(struct batch_size *s, bool is_full, uint64_t n_cuts)
{
    bool was_whole = is_whole(s);

    assert(s->messages >= 1 && s->messages <= (double)s->most_messages);
    if (n_cuts != s->n_cuts || !is_full)
        return false;
    s->messages = least(s->messages * GROWTH, (double)s->most_messages);
    s->bytes = least(s->bytes * GROWTH, (double)s->most_bytes);
    return is_whole(s) && !was_whole;
}

bool batch_size_window_over(struct batch_size *s, size_t n, uint64_t n_cuts)
{
    if (n_cuts != s->n_cuts || n < 2 || s->messages < 2)
        return false;
    s->messages = at_least_one(s->messages / 2);
    s->n_cuts++;
    return true;
}

bool batch_size_too_large(struct batch_size *s, size_t n, uint64_t n_cuts)
{
    if (n_cuts != s->n_cuts || n < 2)
        return false;
    s->messages = at_least_one(s->messages / 2);
    s->bytes = at_least_one(s->bytes / 2);
    s->n_cuts++;
    return true;
}
