#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>

/* An HTTP/1.1 response to a POST, read piece by piece as it arrives (RFC 9112). Pure: bytes in, no I/O, no
 * clock.
 *
 * Interim responses (1xx) are skipped: a long job may send one a second. 101 was not requested, so it ends the reply.
 * Bytes that are not HTTP/1.x make the reply bad; so do a malformed length and two different ones, because the start
 * of the next response would be unknown. Transfer-Encoding outranks Content-Length. A line may end in LF alone. */

enum {
    REPLY_HEAD_MAX = 64 * 1024, /* bytes of an interim head, and of the final one with its trailers */
    REPLY_INTERIM_MAX = 16 * 1024 * 1024, /* bytes of all interim heads of one reply */
    REPLY_LINE_MAX = 4096,                /* of a chunk's size line, in bytes */
    REPLY_RETRY_AFTER_MAX = 64,           /* a longer value counts as malformed */
};

enum reply_state {
    REPLY_STATUS,     /* expects a status line */
    REPLY_FIELDS,     /* expects a field of a head */
    REPLY_LENGTH,     /* in a body with a length */
    REPLY_CHUNK_SIZE, /* expects a chunk's size line */
    REPLY_CHUNK,      /* in a chunk */
    REPLY_CHUNK_END,  /* expects the line end behind a chunk */
    REPLY_TRAILERS,   /* behind the last chunk */
    REPLY_TO_CLOSE,   /* in a body that ends with the connection */
    REPLY_WHOLE,      /* complete */
    REPLY_TOO_LONG,   /* the head exceeded its bound */
    REPLY_BAD,        /* not HTTP; error says why */
};

struct reply {
    enum reply_state state;
    int status;    /* of the latest status line; 0: none yet */
    bool final;    /* the final response's head is complete */
    bool keep;     /* the connection can be used again after the reply */
    bool begun;    /* at least one byte came */
    bool chunked;  /* according to this head's fields */
    bool to_close; /* a transfer coding other than chunked is used */
    bool closing;  /* Connection: close */
    bool at_close; /* the body had no length, and ended with the connection */
    bool has_length, has_batch;
    uint64_t left;                           /* bytes left of the body or the chunk */
    size_t n_head;                           /* bytes of this head and its trailers so far */
    size_t n_interim;                        /* bytes of the interim heads before it */
    char retry_after[REPLY_RETRY_AFTER_MAX]; /* the value, NUL-terminated; empty: none, or too long */
    int64_t batch;                           /* Onceward-Batch; -1: absent, or no number */
    const char *error;                       /* static; for REPLY_BAD */
    struct buf line;                         /* the start of an incomplete line */
};

/* Prepares for the next response. {0} is not ready: call this first. */
void reply_reset(struct reply *r);

void reply_deinit(struct reply *r);

/* Takes received bytes and returns the number of bytes used; to be called again with the rest. *body is their part
 * that belongs to the body, possibly empty. Uses at least one byte before the reply has ended (see reply_has_ended),
 * none afterwards. */
size_t reply_feed(struct reply *r, const char *data, size_t len, struct slice *body);

/* The other side closed the connection: a body without a length is now complete. */
void reply_close(struct reply *r);

bool reply_has_ended(const struct reply *r);
