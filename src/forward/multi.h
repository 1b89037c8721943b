#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

struct fault;
struct wait;

/* libcurl's multi handle on the wait: its sockets are watched, its timer is kept here. Socket events and
 * multi_turn drive it. Callers get finished transfers from multi_next, never by a callback. */
struct multi {
    CURLM *curl;
    struct wait *wait;
    int64_t due_ms; /* time of the next multi_turn; INT64_MAX: never */
    bool was_turned;
};

/* The purpose of a libcurl handle; a member of the handle's owner. */
struct transfer {
    enum transfer_kind { TRANSFER_CONNECT, TRANSFER_PROBE } kind;
};

/* wait must outlive m. -1: f says why; multi_deinit is needed even then. */
int multi_init(struct multi *m, struct wait *wait, struct fault *f);

/* For after the removal of all its handles. */
void multi_deinit(struct multi *m);

/* Starts a handle. t must stay until the handle is removed from m->curl. -1: f says why. */
int multi_add(struct multi *m, CURL *easy, struct transfer *t, struct fault *f);

/* Drives libcurl's timer, at due_ms. Does nothing before that. */
void multi_turn(struct multi *m, int64_t now_ms);

/* Next finished transfer, with its result in *ret_code. Its handle is still in m->curl. NULL: none. */
struct transfer *multi_next(struct multi *m, CURLcode *ret_code);
