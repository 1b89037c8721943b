#pragma once

#include "core/life.h"
#include "core/notes.h"

/* Renewal: a quorum queue drops what it delivered too often. Before that a copy of the message is published to
 * its own queue, which counts the copy's deliveries from 0, and the old delivery is acked. The inbox lets one
 * of the two through. Private to the core.
 *
 *   arrival near the limit ─▶ RENEW: the row counts it, unless it is completed, dead, or its token lives
 *                                │
 *   what would be returned ──────┴▶ PUBLISH: mandatory, confirmed ─▶ ack
 *
 * A copy that a confirm follows is in the queue; one that none follows may be there, and the message
 * is then there twice, which the inbox stops. Nothing that is returned because of max_hold or a drain is
 * counted: time bounds that. */

/* Must a renewal precede its claim? */
bool renewal_is_next(const struct queue *q, const struct delivery *d);

/* The next row that counts a renewal, or the next copy. False: none now. */
bool next_renewal(struct queue *q, int64_t now_ms, unsigned can, struct action *ret);

/* Ends the pause for a message that is renewed again and again, and tries a refused permission again. */
void renewals_time(struct queue *q, int64_t now_ms);

struct step row_of_renew(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
