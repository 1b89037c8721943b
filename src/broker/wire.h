#pragma once

#include "broker/library.h"
#include "onceward/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct fault;
struct ssl_st;

/* A connection that is logged in: frames in and out through our own buffers. rabbitmq-c only decodes incoming methods.
 *
 * After the login the library writes nothing: its heartbeats are off, and its sending functions are not called.
 * Complete frames are appended to `out`, and the socket takes as much as it can. So nothing blocks, a partial write
 * is always continued with its own rest, and many small frames cost one system call. The library does not read frames
 * either, because it keeps frame-sized pages for every channel: here all channels share `in` and one small pool. */
struct wire {
    amqp_connection_state_t connection;
    struct ssl_st *ssl; /* owned by the library; NULL: plain TCP */
    int fd;
    bool is_lost;
    struct buf out;
    size_t n_sent;        /* of out */
    struct buf in;        /* received: complete frames and the start of the next */
    size_t n_read;        /* of in */
    amqp_pool_t pool;     /* of the latest method */
    bool is_in_library;   /* the library has read the start of a frame during the login, and must read the
                             rest */
    int library_channel;  /* channel of the library's latest frame; -1: none */
    int64_t heartbeat_ms; /* as agreed; 0: none */
    int64_t sent_ms, received_ms;
    size_t frame_max;
};

/* Takes over a connection after the login and the library's blocking calls. */
void wire_init(struct wire *w, amqp_connection_state_t connection, struct ssl_st *ssl);

/* Closes the socket and frees everything. */
void wire_deinit(struct wire *w);

/* Bytes that the socket has not taken yet. */
size_t wire_pending(const struct wire *w);

/* Appends a method. The caller checks its fields: a short string has at most 255 bytes. */
void wire_put_method(struct wire *w, uint16_t channel, amqp_method_number_t id, void *decoded);

/* Appends basic.ack, basic.nack or basic.reject, which have the same form: a tag and one byte of flags. */
void wire_put_settle(struct wire *w, uint16_t channel, amqp_method_number_t id, uint64_t tag, uint8_t flags);

/* Appends a frame of any type. */
void wire_put_frame(struct wire *w, uint8_t type, uint16_t channel, struct slice payload);

/* Sends as much as the socket takes. 0, or -1: lost. */
int wire_flush(struct wire *w, struct fault *f);

/* Reads a frame. 1: valid until the next call; 0: none now; -1: lost. For a content header, `raw` has the encoded
 * property flags and list. */
int wire_read(struct wire *w, amqp_frame_t *frame, struct fault *f);

/* Is a received frame still in memory, where polling the descriptor cannot see it? */
bool wire_has_input(const struct wire *w);

/* Sends heartbeats, and detects missing heartbeats of the other side. 0, or -1: lost. */
int wire_tick(struct wire *w, struct fault *f);

/* Waits until there is input, or room for pending output, or the deadline has passed. 0 in each case. For
 * commands only. */
void wire_wait(struct wire *w, int64_t deadline_ms);

/* Fills a fault from a close method's code and text. Returns -1. */
int fault_set_close(struct fault *f, const char *what, uint16_t code, amqp_bytes_t text);

/* The same from the result of a blocking library call. 0: it succeeded. */
int fault_set_reply(struct fault *f, const char *what, amqp_rpc_reply_t reply);
