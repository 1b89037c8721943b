#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What may go back to the broker. A return is dear: quorum queues count it, and drop what was delivered too
 * often; bounded queues drop at the head. A value. */

enum queue_kind { KIND_UNKNOWN, KIND_CLASSIC, KIND_QUORUM };

enum { LIMIT_UNKNOWN = -1, LIMIT_NONE = 0, LIMIT_SINCE_4 = 20 };

struct returns {
    enum queue_kind kind;
    int configured;   /* queues.<name>.delivery_limit, else broker.delivery_limit; LIMIT_UNKNOWN: neither */
    int server_major; /* of the broker's version; 0: not known yet */
    bool told;        /* that a delivery limit may exist that nobody has told */
};

/* The limit as far as it is known: LIMIT_UNKNOWN, LIMIT_NONE (a classic queue), or a number of deliveries. */
int returns_limit(const struct returns *r);

/* How often it was delivered before, as far as that is believed: x-delivery-count means something on quorum
 * queues only. */
int64_t returns_count(const struct returns *r, int64_t delivery_count);

/* From how many deliveries before it on a message is near the limit, if its queue counts; INT64_MAX: never.
 */
int64_t returns_near_count(const struct returns *r);

/* Is it near the limit: not to be returned any more, and stored whole when it arrives so? */
bool returns_is_near(const struct returns *r, int64_t delivery_count);

/* So near that a holder which ends twice more would lose it: it is stored whole even while its row is at work
 * elsewhere. Where nobody has told the limit, that is so as soon as it is near. */
bool returns_is_last(const struct returns *r, int64_t delivery_count);

/* Does the broker put what is returned behind what waits? RabbitMQ before 4.3 does on quorum queues without a
 * delivery limit. (Where nobody has told one there may be none.) Elsewhere it comes right back. */
bool returns_go_behind(const struct returns *r);

/* To be told once: a count came from a queue whose limit nobody has told. */
bool returns_limit_is_missing(struct returns *r, int64_t delivery_count);
