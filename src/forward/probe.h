#pragma once

#include "forward/multi.h"
#include "forward/target.h"
#include "onceward/base/list.h"
#include "onceward/forward/forward.h"

#include <curl/curl.h>
#include <stdbool.h>

struct config_tls;

/* The readiness probe of an application: a GET, or only a connect, on the common multi handle. It uses a
 * connection of its own, since it tests whether a new one can be made. At most one at a time. */
struct probe {
    struct transfer transfer;
    struct link link; /* for the owner, until the result was returned */
    CURL *easy;       /* NULL: no probe yet */
    struct target target;
    struct curl_slist *headers;
    size_t n_bytes;
    bool get, running, begun;
    enum forward_probe_result result;
    int status;
    char error[512];
    char curl_error[CURL_ERROR_SIZE];
};

/* The target of a probe. */
struct probe_question {
    const char *ready_url;   /* NULL: a connect to url */
    const char *url;         /* of the requests */
    const char *unix_socket; /* for url, and for ready_url if that has the same host and port; NULL: TCP */
    const struct config_tls *tls;
    int64_t connect_timeout_ms;
};

/* Starts a probe. *question must not change during the life of p. False: the probe could not start; result and error
 * say why. */
bool probe_start(struct probe *p, struct multi *m, const struct probe_question *question);

/* Ends a probe that libcurl has finished: sets result, status and error. */
void probe_end(struct probe *p, struct multi *m, CURLcode code);

void probe_deinit(struct probe *p, struct multi *m);
