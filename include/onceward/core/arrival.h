#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/delivery_copy.h"
#include "onceward/core/keys.h"
#include "onceward/core/message.h"
#include "onceward/core/reasons.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A message as it arrived. The shell fills it in; from queue_delivered on, its delivery owns it and reads it. Two
 * fields change later: the message is freed once its body is not needed, and with `on_body_mismatch: duplicate` the
 * fingerprint becomes that of the body that came first. */
struct arrival {
    struct delivery_copy copy;
    struct message *message; /* owned. NULL: its body was skipped (too large, or no room), or freed since */
    int64_t received_ms;     /* time of queue_delivered */
    enum dead_reason no_id;  /* DEAD_NONE: the id is valid; otherwise the fault */
    bool has_key;            /* ordered queue: the message has a key */
    bool was_here;           /* message_was_in this queue */
    uint8_t key[KEY_BYTES];
    uint8_t fingerprint[16];
    size_t id_len;
    char id[]; /* with a NUL behind it */
};

/* Everything but the id is zero, and no_id is DEAD_NONE. */
struct arrival *arrival_new(struct slice id);

/* Frees its message as well. */
void arrival_free(struct arrival *a);
