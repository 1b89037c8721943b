#pragma once

#include "forward/multi.h"
#include "forward/target.h"
#include "onceward/base/list.h"
#include "onceward/forward/forward.h"

#include <curl/curl.h>
#include <stdbool.h>

struct config_tls;

/* The readiness probe of an application: a GET, or a connect alone, on the multi handle of all. It never
 * takes a connection of the forwards and never leaves one to them: the test is whether a new one can be made.
 * At most one at a time. */
struct probe {
    struct transfer transfer;
    struct link link; /* for its owner, while its result was not told */
    CURL *easy;       /* NULL: none was asked for yet */
    struct target target;
    struct curl_slist *headers;
    size_t n_bytes;
    bool get, running, begun;
    enum forward_probe_result result;
    int status;
    char error[512];
    char curl_error[CURL_ERROR_SIZE];
};

/* What is asked. */
struct probe_question {
    const char *ready_url;   /* NULL: a connect to url */
    const char *url;         /* where requests go */
    const char *unix_socket; /* of url; also of ready_url when that has the same host and port; NULL: TCP */
    const struct config_tls *tls;
    int64_t connect_timeout_ms;
};

/* Begins, with the answers of *question, which must stay the same. False: not even that; result and error say
 * why. */
bool probe_start(struct probe *p, struct multi *m, const struct probe_question *question);

/* libcurl is done with it: result, status and error say how it ended. */
void probe_end(struct probe *p, struct multi *m, CURLcode code);

void probe_deinit(struct probe *p, struct multi *m);
