#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/slice.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct config_queue;
struct fault;
struct header_block;

/* The common parts of a queue's request heads. */
struct request_form {
    const struct config_queue *q;
    struct buf prefix, suffix; /* the beginning and the end of every head */
    struct slice *replaced;    /* names of configured fields, which replace those of the message */
    size_t n_replaced;
    struct buf authorization; /* the whole line; empty: none */
    struct stat authorization_stat;
    int64_t authorization_looked_ms;
};

/* q must outlive form. -1: f says what cannot be sent; request_form_deinit is needed even then. */
int request_form_init(struct request_form *form, const struct config_queue *q, const char *path,
                      const char *host, struct fault *f);
void request_form_deinit(struct request_form *form);

/* For a queue with an Authorization file: reads it again when it has changed, at most once a second. */
void request_form_refresh(struct request_form *form);

/* Writes a request's head into out, which is reset first. */
void request_write(const struct request_form *form, struct buf *out, const struct header_block *b,
                   size_t body_len);
