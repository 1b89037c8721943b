#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/message.h"

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct fault;

/* The message id: its sources and its form. */

enum { MESSAGE_ID_MAX = 255 }; /* bytes */

enum identity_kind {
    IDENTITY_PROPERTY, /* property:<name> */
    IDENTITY_HEADER,   /* header:<name>: scalar AMQP header; integers in decimal, booleans true/false. Arrays,
                          tables and   void are no id: it counts as absent */
    IDENTITY_JSON,     /* json:<pointer>, RFC 6901; bodies up to 256 KiB; strings, integers, booleans */
    IDENTITY_CLOUDEVENTS, /* <source>/<id>, each percent-encoded, of the headers cloudEvents:… or
                             cloudEvents_…; both needed */
    IDENTITY_BODY_SHA256, /* lower-case hex */
    IDENTITY_JOIN, /* several, all needed, joined with "/" after percent-encoding each; empty when one of them
                      is */
    IDENTITY_ROUTING_KEY, /* routing_key: for order keys only, since it may differ among copies of one id */
};

struct identity_source {
    enum identity_kind kind;
    struct slice name; /* property, header or JSON pointer */
    struct identity_source *parts;
    size_t n_parts;
};

/* Parses "property:message_id" and so on. 0, or -1 with a fault that names the expected form. The source's name
 * points into text. */
int identity_parse(struct slice text, struct identity_source *out, struct fault *f);

/* Appends the source as the configuration writes it, with " + " between the parts of a joined one. */
void identity_source_add(struct buf *out, const struct identity_source *source);

/* The sources, joined by ", ". Owned by the caller. */
char *identity_sources_text(const struct identity_source *sources, size_t n);

/* Finds a value in a JSON body (config/json.h has the only implementation). 0: *out holds the scalar as text;
 * 1: absent. */
typedef int identity_json_fn(struct slice body, struct slice pointer, struct buf *out);

enum identity_result {
    IDENTITY_FOUND,
    IDENTITY_MISSING, /* no source has a value */
    IDENTITY_EMPTY,   /* present and empty */
    IDENTITY_LONG,    /* over MESSAGE_ID_MAX bytes */
    IDENTITY_BINARY,  /* NUL or invalid UTF-8, which PostgreSQL's text cannot hold */
};

/* Tries the sources in order. The first one that is present decides, even if its value is unusable: a fallback would
 * give one message two identities. *id receives the bytes found, also unusable ones. f names the source and the
 * fault. */
enum identity_result identity_find(const struct identity_source *sources, size_t n, const struct message *m,
                                   identity_json_fn *json, struct buf *id, struct fault *f);

/* Digest of the order key from the first source that has one, of any length. False: none has. room: the caller's
 * buffer, overwritten. */
bool key_make(const struct identity_source *sources, size_t n, const struct message *m,
              identity_json_fn *json, struct buf *room, uint8_t out[16]);

/* Reports why key_make has found no key. */
void key_missing(const struct identity_source *sources, size_t n, struct fault *f);

/* The first 16 bytes of SHA-256 of the body. */
void fingerprint_make(const void *body, size_t len, uint8_t out[16]);
