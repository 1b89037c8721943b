#pragma once

#include "forward/multi.h"
#include "onceward/base/list.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

struct config_tls;
struct fault;
struct target;

/* A libcurl handle that makes connections: name resolution, connect, TLS, the Unix socket. A plain connection
 * is taken out of the handle, which is then free again; a TLS connection keeps its handle. */
struct connector {
    struct transfer transfer;
    struct multi *multi;
    struct application *application; /* its application; opaque here */
    struct link link; /* in its application's connecting or spare; a connected one with TLS in neither */
    CURL *easy;
    bool is_tls;
    int taken; /* socket that libcurl must not close; -1: none */
    char error[CURL_ERROR_SIZE];
};

/* t and tls must outlive the connector. NULL: f says why. The caller owns it (connector_free). */
struct connector *connector_new(struct multi *m, struct application *application, const struct target *t,
                                const struct config_tls *tls, int64_t connect_timeout_ms, struct fault *f);

/* Frees the connector and its connection, unless that was taken. */
void connector_free(struct connector *k);

/* Starts to make a connection. -1: f says why not. */
int connector_start(struct connector *k, struct fault *f);

/* Takes the handle from libcurl after multi_next has returned its result. */
void connector_stop(struct connector *k);

/* Takes the socket of the finished connection. A plain one belongs to the caller from now on. -1: libcurl has lost
 * it. */
int connector_take(struct connector *k);

/* The errno of a failed connection; 0: it failed for another reason. */
int connector_errno(const struct connector *k);
