#pragma once

#include "onceward/core/message.h"

/* The property flags of a content header of class basic (AMQP 0-9-1, sections 1.8 and 4.2.6.1). The values
 * follow in this order, from the highest bit to the lowest. */
enum {
    BIT_CONTENT_TYPE = 15,
    BIT_CONTENT_ENCODING = 14,
    BIT_HEADERS = 13,
    BIT_DELIVERY_MODE = 12,
    BIT_PRIORITY = 11,
    BIT_CORRELATION_ID = 10,
    BIT_REPLY_TO = 9,
    BIT_EXPIRATION = 8,
    BIT_MESSAGE_ID = 7,
    BIT_TIMESTAMP = 6,
    BIT_TYPE = 5,
    BIT_USER_ID = 4,
    BIT_APP_ID = 3,
    BIT_CLUSTER_ID = 2,
    BIT_LAST = BIT_CLUSTER_ID,
    BIT_MORE = 0, /* another word of flags follows; class basic never sets it */
};

/* Property whose value is a short string; -1: the bit has another type. */
static inline int property_of_bit(int bit)
{
    switch (bit) {
    case BIT_CONTENT_TYPE:
        return PROPERTY_CONTENT_TYPE;
    case BIT_CONTENT_ENCODING:
        return PROPERTY_CONTENT_ENCODING;
    case BIT_CORRELATION_ID:
        return PROPERTY_CORRELATION_ID;
    case BIT_REPLY_TO:
        return PROPERTY_REPLY_TO;
    case BIT_EXPIRATION:
        return PROPERTY_EXPIRATION;
    case BIT_MESSAGE_ID:
        return PROPERTY_MESSAGE_ID;
    case BIT_TYPE:
        return PROPERTY_TYPE;
    case BIT_USER_ID:
        return PROPERTY_USER_ID;
    case BIT_APP_ID:
        return PROPERTY_APP_ID;
    case BIT_CLUSTER_ID:
        return PROPERTY_CLUSTER_ID;
    default:
        return -1;
    }
}
