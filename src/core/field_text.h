#pragma once

#include "onceward/core/message.h"

#include <stdbool.h>
#include <stdint.h>

struct buf;

/* AMQP field values as text: shared by the JSON, the HTTP headers and the message id. */

/* The value of an integer of any kind, saturated at INT64_MAX. False: not an integer (a timestamp is not). */
bool field_integer(const struct field *f, int64_t *value);

/* Appends a scalar as text: strings and bytes unchanged, numbers in decimal, booleans true or false, a
 * timestamp as seconds. False: an array, a table or void, which have no such text. */
bool field_add_text(struct buf *out, const struct field *f);

/* The shortest decimal that reads back as the same number, always with a point or an exponent. single: as a
 * float. Otherwise "NaN", "Infinity" or "-Infinity". */
void add_double(struct buf *out, double value, bool single);

/* value / 10^decimals, with exactly that many digits behind the point. */
void add_decimal(struct buf *out, uint32_t value, uint8_t decimals);

/* base64 with padding (RFC 4648, section 4). */
void add_base64(struct buf *out, struct slice s);
