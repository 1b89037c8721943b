#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

struct fault;
struct wait;

/* libcurl's multi handle on the wait: its sockets are watched, its timer is kept here. It is turned by what
 * happens on its sockets and by multi_turn, and tells what has ended by multi_next, never by a call. */
struct multi {
    CURLM *curl;
    struct wait *wait;
    int64_t due_ms; /* when multi_turn is to be called; INT64_MAX: not */
    bool was_turned;
};

/* What is done by a handle of libcurl: part of whoever owns the handle. */
struct transfer {
    enum transfer_kind { TRANSFER_CONNECT, TRANSFER_PROBE } kind;
};

/* -1: f says why; call multi_deinit all the same. wait must outlive it. */
int multi_init(struct multi *m, struct wait *wait, struct fault *f);

/* After all its handles. */
void multi_deinit(struct multi *m);

/* Starts a handle. t must stay until the handle was removed from m->curl. -1: f says why. */
int multi_add(struct multi *m, CURL *easy, struct transfer *t, struct fault *f);

/* At due_ms, and when it is not due: nothing. */
void multi_turn(struct multi *m, int64_t now_ms);

/* What has ended, one by one: its result in *ret_code. Its handle is still in m->curl. NULL: nothing more. */
struct transfer *multi_next(struct multi *m, CURLcode *ret_code);
