#pragma once

#include "broker/library.h"
#include "onceward/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct fault;
struct ssl_st;

/* A connection that is logged in: frames in and out through buffers of ours. The library decodes the methods
 * that come in.
 *
 * After the login the library writes nothing any more: its heartbeats are switched off, and no function of it
 * that sends is called. Everything goes to `out` as whole frames and from there to the socket as far as it
 * takes them, so nothing ever blocks, a partial write can be followed by nothing but its own rest, and many
 * small frames cost one system call. Frames are not read by the library either, which keeps pages of the size
 * of a frame for every channel: here all channels share `in` and one small pool. */
struct wire {
    amqp_connection_state_t connection;
    struct ssl_st *ssl; /* the library's; NULL: plain TCP */
    int fd;
    bool is_lost;
    struct buf out;
    size_t n_sent;        /* of out */
    struct buf in;        /* received: whole frames and the start of one */
    size_t n_read;        /* of in */
    amqp_pool_t pool;     /* of the latest method */
    bool is_in_library;   /* the start of a frame was read there, with the login: so its rest is, too */
    int library_channel;  /* of the latest frame from there; -1: none */
    int64_t heartbeat_ms; /* as agreed; 0: none */
    int64_t sent_ms, received_ms;
    size_t frame_max;
};

/* Takes over a connection after its login and its blocking calls. */
void wire_init(struct wire *w, amqp_connection_state_t connection, struct ssl_st *ssl);

/* Closes the socket and frees everything. */
void wire_deinit(struct wire *w);

/* Bytes that the socket has not taken yet. */
static inline size_t wire_pending(const struct wire *w)
{
    return w->out.len - w->n_sent;
}

/* Appends a method. Its fields must be checked: a short string has at most 255 bytes. */
void wire_put_method(struct wire *w, uint16_t channel, amqp_method_number_t id, void *decoded);

/* Appends basic.ack, basic.nack or basic.reject: they are alike, a tag and one byte of flags. */
void wire_put_settle(struct wire *w, uint16_t channel, amqp_method_number_t id, uint64_t tag, uint8_t flags);

/* Appends a frame of any type. */
void wire_put_frame(struct wire *w, uint8_t type, uint16_t channel, struct slice payload);

/* Sends what the socket takes now. 0, or -1: lost. */
int wire_flush(struct wire *w, struct fault *f);

/* 1: a frame, good until the next call; 0: none now; -1: lost. Of a content header `raw` has the property
 * flags and list, and nothing is decoded. */
int wire_read(struct wire *w, amqp_frame_t *frame, struct fault *f);

/* Is a received frame still in memory, where polling the descriptor cannot see it? */
bool wire_has_input(const struct wire *w);

/* Sends heartbeats and notices when the other side's stay away. 0, or -1: lost. */
int wire_tick(struct wire *w, struct fault *f);

/* Waits until there is something to read, or to write where something is pending. 0: it is so, or not before
 * the deadline. For commands only. */
void wire_wait(struct wire *w, int64_t deadline_ms);

/* Fills a fault from a close method's code and text. Answers -1. */
int fault_set_close(struct fault *f, const char *what, uint16_t code, amqp_bytes_t text);

/* The same from an answer of a blocking call of the library. 0: it was no error. */
int fault_set_reply(struct fault *f, const char *what, amqp_rpc_reply_t reply);
