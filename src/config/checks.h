#pragma once

#include "onceward/base/slice.h"

/* What a text of the configuration must look like beyond its length. NULL: it is fine; else what was
 * expected. None of them repeats the text: it may be a secret. */

/* "onceward-outbox" is the outbox's. */
const char *check_consumer(const char *text);
const char *check_queue_name(const char *text); /* a range in it is well-formed */
const char *check_broker_url(const char *text);
const char *check_host(const char *text);
const char *check_database_url(const char *text);
/* A numeric address with its port. */
const char *check_listen(const char *text);

const char *check_http_url(const char *text);
const char *check_socket_path(const char *text);

/* A field value of HTTP (RFC 9110, 5.5) without bytes that could end it. */
const char *check_field_value(const char *text);

/* What may stand in a Content-Type field. */
const char *check_media_type(const char *text);

/* A field name (RFC 9110, 5.1) that this program does not write itself. */
const char *check_field_name(const char *text);

/* The vhost that an AMQP URL names, percent-decoded into out (of at least 256 bytes); "/" when it names none.
 */
void broker_url_vhost(const char *url, char *out, size_t size);
