#pragma once

#include "onceward/base/fault.h"
#include "onceward/base/job.h"
#include "onceward/base/wait.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sidecar;

/* A connection that is restored indefinitely, with full jitter: to a broker or to the database. */
struct dial {
    const char *peer;  /* "broker", "database": for the log */
    const char *vhost; /* of a broker; NULL */
    struct job *job;
    struct watch watch;  /* of the job */
    int64_t at_ms;       /* time of the next attempt */
    int64_t deadline_ms; /* of the job */
    int n_failures;
    int64_t since_ms; /* start of the time without a connection */
    int64_t up_ms;    /* start of the connection */
    bool was_up;
    uint64_t n_reconnects;
    char reason[256]; /* latest failure */
    bool is_refused;  /* the peer refused the login or its permissions, which time alone does not change */
};

/* Must a connection be started? */
bool dial_is_due(const struct sidecar *s, const struct dial *d);
void dial_began(struct sidecar *s, struct dial *d, struct job *job, int64_t most_ms);
/* Has the job ended? Then *result is its result. A job far beyond its deadline is abandoned, and counts as failed. */
bool dial_result(struct sidecar *s, struct dial *d, void **result);
void dial_failed(struct sidecar *s, struct dial *d,
                 const char *reason); /* logs, and schedules the next attempt */
void dial_fault(struct sidecar *s, struct dial *d,
                const struct fault *f);                              /* the same, for an attempt to connect */
void dial_later(struct sidecar *s, struct dial *d, int64_t wait_ms); /* the same, without a log line */
void dial_succeeded(struct sidecar *s, struct dial *d, const char *version);
void dial_time(struct sidecar *s,
               struct dial *d); /* for once in a while: a lasting connection resets the count of failures */
void dial_deinit(struct sidecar *s, struct dial *d);
