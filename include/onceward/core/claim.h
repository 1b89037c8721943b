#pragma once

#include "onceward/base/slice.h"
#include "onceward/core/outcome.h"

#include <stdbool.h>
#include <stdint.h>

/* Knowledge about the row: has it this delivery's token, and the fingerprint of its body? */
enum row_claim {
    CLAIM_NONE,    /* neither is known */
    CLAIM_OFFERED, /* the token may be in the row */
    CLAIM_HELD,    /* both */
    CLAIM_ENDED,   /* only the fingerprint: failed, released, taken over */
};

/* The part of an answer that concerns one member. */
struct member_answer {
    enum verdict verdict;
    int64_t retry_after_ms;
    struct slice body; /* to be stored with the completion */
};

/* The row of a delivery's id, as far as the delivery knows it: the claim, the attempts, and the application's answer
 * while the row must still be read.
 *
 * A claim begins when the delivery leads its id, or becomes a dead letter, which needs a token. It ends with the
 * delivery. A delivery that only follows another, waits for room, or is rejected or requeued on arrival has none.
 * life_apply asserts that every operation on a row has one. */
struct claim {
    uint8_t token[16]; /* filled in by the shell for an action with new_token */
    enum row_claim of_row;
    bool alone;     /* claimed for quarantine */
    bool trial;     /* claimed while the circuit breaker was on */
    bool looked;    /* a lookup was made while it waited for a slot */
    bool is_behind; /* claimed and sent with the previous message of its key, which its token names */
    int attempt;    /* without takeovers */
    int crashes, takeovers;
    int unproven_step;
    int64_t unproven_at_ms; /* this side's clock; -1: never */
    int batch_cap;          /* size of its next request, since a larger one failed; 0: as configured */
    int next_cap;           /* of the request after this one; 0: unchanged */
    uint64_t
        failed_with; /* request whose failure capped it: its members share requests only with each other */
    uint64_t group;  /* quarantined together; 0: none */
    uint32_t slot_units;        /* share of a slot, from its claim on */
    int n_reclaims;             /* new windows for one attempt, before it is forwarded with a short one */
    int64_t window_ends_ms;     /* this side's clock, measured before the claim was sent */
    int64_t tried_ms;           /* time of the last forward; 0: never */
    int64_t locked_since_ms;    /* the row is locked since then; 0: it is not, as far as is known */
    int n_given_back;           /* consecutive releases without a charge */
    int n_refused;              /* consecutive answers 429 and 503 to requests with several messages, */
    uint64_t n_succeeded;       /* and the application's successes before the first of these requests */
    int64_t accepted_until_ms;  /* 202: the row is read again until then; 0: not accepted */
    struct member_answer *kept; /* answer that arrived while the window was asked about; NULL: none. Owned */
};
