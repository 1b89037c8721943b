#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/slice.h"

#include <stdbool.h>
#include <stdint.h>

/* One HTTP/1.1 response to a POST, read piece by piece as it comes (RFC 9112). Pure: bytes in, no I/O, no
 * clock.
 *
 * Interim responses (1xx) are passed over. 101 was not asked for, so it is the end. What is no HTTP/1.x makes
 * the reply bad; so does a length that is none, or two that differ, since nobody could tell where the next
 * response begins. Transfer-Encoding outranks Content-Length. A line may end in LF alone. */

enum {
    REPLY_HEAD_MAX = 64 * 1024, /* bytes of all heads of one reply: interim ones, the final one, trailers */
    REPLY_LINE_MAX = 4096,      /* of a chunk's size line */
    REPLY_RETRY_AFTER_MAX = 64, /* a longer value is not well-formed */
};

enum reply_state {
    REPLY_STATUS,     /* at the start of a status line */
    REPLY_FIELDS,     /* in the fields of a head */
    REPLY_LENGTH,     /* in a body of known length */
    REPLY_CHUNK_SIZE, /* at a chunk's size line */
    REPLY_CHUNK,      /* in a chunk */
    REPLY_CHUNK_END,  /* at the line end behind a chunk */
    REPLY_TRAILERS,   /* behind the last chunk */
    REPLY_TO_CLOSE,   /* in a body that the end of the connection ends */
    REPLY_WHOLE,      /* nothing more comes */
    REPLY_TOO_LONG,   /* the head passed its bound */
    REPLY_BAD,        /* not HTTP; error says why */
};

struct reply {
    enum reply_state state;
    int status;    /* of the latest status line; 0: none yet */
    bool final;    /* the head of the final response is whole */
    bool keep;     /* the connection may be used again once the reply is whole */
    bool begun;    /* at least one byte came */
    bool chunked;  /* what the fields of this head said */
    bool to_close; /* a transfer coding that is not chunked */
    bool closing;  /* Connection: close */
    bool has_length, has_batch;
    uint64_t left;                           /* bytes that the body or the chunk still has */
    size_t n_head;                           /* bytes of heads so far */
    char retry_after[REPLY_RETRY_AFTER_MAX]; /* the value, NUL-terminated; empty: none, or too long */
    int64_t batch;                           /* Onceward-Batch; -1: none, or no number */
    const char *error;                       /* static; when bad */
    struct buf line;                         /* the part of a line that came so far */
};

/* Ready for the next response. {0} is not: call this first. */
void reply_reset(struct reply *r);

void reply_deinit(struct reply *r);

/* Takes bytes as they came and answers how many were used; call again with the rest. *body is the part of
 * them that is body, possibly empty. Uses nothing once the reply has ended (see reply_has_ended), and at
 * least one byte before. */
size_t reply_feed(struct reply *r, const char *data, size_t len, struct slice *body);

/* The connection was closed by the other side: a body that goes on to the close is whole now. */
void reply_close(struct reply *r);

static inline bool reply_has_ended(const struct reply *r)
{
    return r->state >= REPLY_WHOLE;
}
