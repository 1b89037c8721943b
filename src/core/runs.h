#pragma once

#include "onceward/core/queue.h"

/* A run: the first message of a key and those behind it in its line, which are claimed together and go to the
 * application in one request, in the order of the line. Each token but the first names the message before it, and the
 * inbox completes none before that one. Only with batches. Private to the core. */

/* Message behind d in its line. NULL: none. */
struct delivery *runs_next_in_line(const struct delivery *d);

/* Message behind d in its line, if both are claimed and wait for their request. NULL: none. */
struct delivery *runs_behind(const struct delivery *d);

/* Number of messages in the run that begins with d, which is ready. */
size_t runs_len(const struct delivery *d);

enum run_place {
    RUN_FIRST,  /* may be the first of its key in a request */
    RUN_WAITS,  /* goes with the one before it, or is the first and one behind it is being claimed */
    RUN_BROKEN, /* the message before it is no longer ready: the claim is useless */
};

/* Place of d, which is claimed and waits for its request. */
enum run_place runs_place(const struct delivery *d);

/* Was d sent behind another message of its key that has not ended since? Then d was not attempted, unless its row is
 * completed. */
bool runs_was_not_attempted(const struct delivery *d);

/* d was not attempted: it is sent again like a new message. */
void runs_forget_try(struct delivery *d);
