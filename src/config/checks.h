#pragma once

#include "onceward/base/slice.h"

/* Checks of a text beyond its length. NULL: valid; else the expected form. No result repeats the text, which may be a
 * secret. */

/* Consumer name. "onceward-outbox" is reserved for the outbox. */
const char *check_consumer(const char *text);
const char *check_queue_name(const char *text); /* also checks a range in it */
const char *check_broker_url(const char *text);
const char *check_host(const char *text);
const char *check_database_url(const char *text);
/* Numeric address with its port. */
const char *check_listen(const char *text);

const char *check_http_url(const char *text);
const char *check_socket_path(const char *text);

/* Field value of HTTP (RFC 9110, 5.5) without bytes that could end it. */
const char *check_field_value(const char *text);

/* Valid Content-Type value. */
const char *check_media_type(const char *text);

/* Field name (RFC 9110, 5.1) other than those that this program writes. */
const char *check_field_name(const char *text);

/* Writes the vhost of an AMQP URL, percent-decoded, into out (at least 256 bytes); "/" when the URL has none. */
void broker_url_vhost(const char *url, char *out, size_t size);
