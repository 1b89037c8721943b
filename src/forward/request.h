#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/slice.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct config_queue;
struct fault;
struct header_block;

/* What the heads of a queue's requests have in common. */
struct request_form {
    const struct config_queue *q;
    struct buf prefix, suffix; /* of every head */
    struct slice *replaced;    /* names of configured fields, which take the place of the message's */
    size_t n_replaced;
    struct buf authorization; /* the whole line; empty: none */
    struct stat authorization_stat;
    int64_t authorization_looked_ms;
};

/* q must outlive it. -1: f says what cannot be sent; call request_form_deinit all the same. */
int request_form_init(struct request_form *form, const struct config_queue *q, const char *path,
                      const char *host, struct fault *f);
void request_form_deinit(struct request_form *form);

/* Reads the Authorization file again when it was replaced, at most once a second. */
void request_form_refresh(struct request_form *form);

/* The head of a request into out, which is reset first. */
void request_write(const struct request_form *form, struct buf *out, const struct header_block *b,
                   size_t body_len);
