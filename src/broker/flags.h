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

/* The properties whose values are short strings, by their bits. */
static const enum property property_of_bit[] = {
    [BIT_CONTENT_TYPE] = PROPERTY_CONTENT_TYPE,
    [BIT_CONTENT_ENCODING] = PROPERTY_CONTENT_ENCODING,
    [BIT_CORRELATION_ID] = PROPERTY_CORRELATION_ID,
    [BIT_REPLY_TO] = PROPERTY_REPLY_TO,
    [BIT_EXPIRATION] = PROPERTY_EXPIRATION,
    [BIT_MESSAGE_ID] = PROPERTY_MESSAGE_ID,
    [BIT_TYPE] = PROPERTY_TYPE,
    [BIT_USER_ID] = PROPERTY_USER_ID,
    [BIT_APP_ID] = PROPERTY_APP_ID,
    [BIT_CLUSTER_ID] = PROPERTY_CLUSTER_ID,
};
