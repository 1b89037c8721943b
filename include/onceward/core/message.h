#pragma once

#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

/* An AMQP 0-9-1 message, independent of any library. The broker adapter creates it; all other modules read
 * it.
 *
 * A message has one owner, from message_new() to message_free(). Its arena holds everything it points to,
 * except the body, which can be freed earlier. */

/* AMQP 0-9-1 field kinds, by the letter that RabbitMQ uses on the wire
 * (https://www.rabbitmq.com/amqp-0-9-1-errata.html, section 3). */
enum field_kind {
    FIELD_BOOL = 't',
    FIELD_I8 = 'b',
    FIELD_U8 = 'B',
    FIELD_I16 = 's',
    FIELD_U16 = 'u',
    FIELD_I32 = 'I',
    FIELD_U32 = 'i',
    FIELD_I64 = 'l',
    FIELD_U64 = 'L',
    FIELD_F32 = 'f',
    FIELD_F64 = 'd',
    FIELD_DECIMAL = 'D',
    FIELD_STRING = 'S',
    FIELD_BYTES = 'x',
    FIELD_ARRAY = 'A',
    FIELD_TIMESTAMP = 'T',
    FIELD_TABLE = 'F',
    FIELD_VOID = 'V',
};

struct field {
    struct slice name; /* empty inside an array */
    enum field_kind kind;
    union {
        bool boolean;
        int64_t i;  /* b s I l */
        uint64_t u; /* B u i L, and T: seconds since 1970 */
        double d;   /* f d */
        struct {
            uint8_t decimals;
            uint32_t value;
        } decimal;
        struct slice bytes; /* S x */
        struct {
            struct field *items;
            size_t n;
        } children; /* A F */
    };
};

/* The string properties of AMQP 0-9-1's basic class; the adapter knows their order in the property flags. */
enum property {
    PROPERTY_CONTENT_TYPE,
    PROPERTY_CONTENT_ENCODING,
    PROPERTY_CORRELATION_ID,
    PROPERTY_REPLY_TO,
    PROPERTY_EXPIRATION,
    PROPERTY_MESSAGE_ID,
    PROPERTY_TYPE,
    PROPERTY_USER_ID,
    PROPERTY_APP_ID,
    PROPERTY_CLUSTER_ID,
    N_PROPERTIES
};

struct message {
    struct slice properties[N_PROPERTIES]; /* data NULL: absent */
    bool has_delivery_mode, has_priority, has_timestamp;
    uint8_t delivery_mode, priority;
    uint64_t timestamp; /* seconds since 1970 */
    struct field *headers;
    size_t n_headers;
    struct slice exchange, routing_key;
    /* Property flags and property list as received, headers included (AMQP 0-9-1, section 4.2.6.1), without
     * any loss. data NULL: the message did not come from a broker. */
    struct slice content_header;
    bool redelivered;
    char *body; /* owned; NULL when body_len is 0 */
    size_t body_len;
    struct message_block *arena;
};

/* Makes an empty message. */
struct message *message_new(void);

/* NULL is allowed. */
void message_free(struct message *m);

/* Allocates memory that is freed with the message; zeroed, aligned for any type. */
void *message_alloc(struct message *m, size_t size);

/* Copies the bytes into the message's arena. */
struct slice message_keep(struct message *m, const void *data, size_t len);

/* Memory of the message beyond that of an empty one: the body, and the blocks of a grown arena. */
size_t message_bytes(const struct message *m);

/* "content_type" and so on, as in the AMQP specification and in the configuration's property:<name>. */
const char *property_name(enum property p);

/* Finds the property of that name; -1: none. */
int property_find(struct slice name);

/* Adds the names of the message's properties and of at most that many headers: "the properties type,
 * timestamp and the headers x-id, region and 3 more". No values; characters that act on a terminal are
 * escaped. */
void message_add_names(const struct message *m, size_t most_headers, struct buf *out);

/* Finds the header of that name at the top level, or NULL. */
const struct field *message_header(const struct message *m, struct slice name);

/* Number of times that the broker dead-lettered the message: the sum of the counts in x-death
 * (https://www.rabbitmq.com/docs/dlx). */
int64_t message_deaths(const struct message *m);

/* Was the message dead-lettered from that queue, for any reason? */
bool message_was_in(const struct message *m, struct slice queue);

/* The same sum for rejections by one queue only. More than 0: a dead-letter exchange brought the message back. */
int64_t message_rejections(const struct message *m, struct slice queue);

/* Number of earlier deliveries by x-delivery-count (quorum queues); 0: absent. */
int64_t message_delivery_count(const struct message *m);

enum {
    FIELD_DEPTH_MAX = 100
}; /* levels of nesting written; deeper arrays and tables become {"!deep": null} */

/* JSON of a header table (an object), for people and applications. base64 is the form with padding and "+/".
 *
 * natural: booleans, integers, floats, strings, arrays, tables and null map to their JSON kinds. A tag stands for a
 * kind that JSON lacks: {"!bytes": base64}, {"!timestamp": seconds}, {"!decimal": "1.23"}, {"!double": "NaN"}.
 *
 * exact (for dead letters, so that a redrive restores every kind): also tags every value whose kind a reader could not
 * tell from the JSON with its kind's letter, {"!l": 5}.
 * - Untagged integers are I when they fit 32 bits signed, else l; untagged floats are d; untagged strings are S.
 * - A string that is not text for PostgreSQL (invalid UTF-8 or NUL) is {"!S": base64}.
 * - {"!names": [[base64 name, value], …]} has the names that are not text, those that start with "!", and the second
 *   and later values of a name. So {"!x": …} is always a tag.
 * - Integers (L, and the seconds of a timestamp) above INT64_MAX are decimal strings inside their tag: {"!L":
 *   "18446744073709551615"}. A non-finite f is {"!f": "NaN"}. */
void fields_to_json(struct buf *out, const struct field *fields, size_t n, bool exact);

/* JSON object of the properties that are present, by their AMQP names; a string that is not text is {"!S":
 * base64}; delivery_mode, priority and timestamp are numbers (a timestamp above INT64_MAX is a decimal
 * string). */
void properties_to_json(struct buf *out, const struct message *m);

/* Is it a header of an earlier journey that would act on the next one? A high delivery count looks like the broker's
 * limit; CC and BCC make the broker send copies to other queues. */
bool header_is_spent(struct slice name);
