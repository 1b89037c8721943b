#pragma once

#include "core/life.h"
#include "core/notes.h"

/* Renewal: a quorum queue drops a message that it delivered too often. Before that a copy is published to the
 * same queue, which counts the copy's deliveries from 0, and the old delivery is acked. The inbox lets one
 * of the two through. Private to the core.
 *
 *   arrival near the limit ─▶ RENEW: the row counts it, unless it is completed, dead, or its token lives
 *                                │
 *   a return ────────────────────┴▶ PUBLISH: mandatory, confirmed ─▶ ack
 *
 * A confirmed copy is in the queue. An unconfirmed one may be there; the message is then in the queue twice,
 * and the inbox stops one of the two. Returns because of max_hold or a drain are not counted: time bounds
 * them. */

/* Must a renewal precede the claim? */
bool renewal_is_next(const struct queue *q, const struct delivery *d);

/* Next row that counts a renewal, or next copy. False: none now. */
bool next_renewal(struct queue *q, int64_t now_ms, unsigned can, struct action *ret);

/* Ends the pause for a message that is renewed again and again, and tries a refused permission again. */
void renewals_time(struct queue *q, int64_t now_ms);

struct step row_of_renew(struct queue *q, int64_t now_ms, struct delivery *d, const struct row *r);
