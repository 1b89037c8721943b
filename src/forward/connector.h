#pragma once

#include "forward/multi.h"
#include "onceward/base/list.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

struct config_tls;
struct fault;
struct target;

/* A libcurl handle that makes connections: name resolution, connect, TLS, the Unix socket. Once the
 * connection is there, a plain one is taken from it, and it is free again; one with TLS stays with its
 * connection. */
struct connector {
    struct transfer transfer;
    struct multi *multi;
    struct application *application; /* whose it is; opaque here */
    struct link link; /* in its application's connecting or spare; with TLS in neither once connected */
    CURL *easy;
    bool is_tls;
    int taken; /* the socket that libcurl must not close; -1: none */
    char error[CURL_ERROR_SIZE];
};

/* t and tls must outlive it. NULL: f says why. The caller owns it (connector_free). */
struct connector *connector_new(struct multi *m, struct application *application, const struct target *t,
                                const struct config_tls *tls, int64_t connect_timeout_ms, struct fault *f);

/* With the connection that it made, where that is still its own. */
void connector_free(struct connector *k);

/* Begins to make a connection. -1: f says why not. */
int connector_start(struct connector *k, struct fault *f);

/* libcurl is done with it: with what result, multi_next has told. */
void connector_stop(struct connector *k);

/* The connection that it has made: its socket; a plain one belongs to the caller from now on. -1: libcurl has
 * lost it. */
int connector_take(struct connector *k);

/* Why it made no connection, as an errno; 0: for another reason. */
int connector_errno(const struct connector *k);
