#pragma once

#include "onceward/core/queue.h"

/* A run: the first message of a key and those behind it in its line, which are claimed together and go to the
 * application in one request, in the order of the line. Each but the first has a token that names the message before
 * it, and the inbox completes none before that one. Only with batches. Private to the core. */

/* The one behind d in its line; NULL: none. */
struct delivery *runs_next_in_line(const struct delivery *d);

/* The one behind d in its line, if both are claimed and wait for their request; NULL: none. */
struct delivery *runs_behind(const struct delivery *d);

/* Messages of the run that begins with d, which is ready. */
size_t runs_len(const struct delivery *d);

enum run_place {
    RUN_FIRST, /* may be the first of its key in a request */
    RUN_WAITS, /* goes with the one before it; or is the first, and the claim of one behind it is under way */
    RUN_BROKEN, /* the one before it is not ready any more: its claim is useless */
};

/* d is claimed, and waits for its request. */
enum run_place runs_place(const struct delivery *d);

/* Was d sent behind another message of its key, which has not ended since? Then d was not attempted, unless its row is
 * completed. */
bool runs_was_not_attempted(const struct delivery *d);

/* d was not attempted: it goes again like a message that was never sent. */
void runs_forget_try(struct delivery *d);
