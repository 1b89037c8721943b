#pragma once

#include <stddef.h>
#include <stdint.h>

/* A delivery tag and the channel that it belongs to. */
struct broker_tag {
    uint64_t generation; /* unique for each opening of a channel in the process; never 0; names the queue */
    uint64_t number;
};

/* A delivery as the broker sent it: filled in by the broker's adapter, kept until the delivery ends. */
struct delivery_copy {
    struct broker_tag tag;
    uint32_t consumer;      /* consumer whose credit it uses */
    int64_t delivery_count; /* message_delivery_count() */
    int64_t n_rejected;     /* message_rejections() by this queue */
    uint64_t body_len;
    size_t n_bytes; /* memory that it takes, or would take: message_bytes() with the body */
};
