#pragma once

struct fault;

/* A queue, and the one that has its consumer name. */
struct registration {
    const char *consumer, *queue, *vhost; /* vhost NULL: not known */
    const char *other_queue, *other_vhost;
};

/* Why the queue is refused and what to do about it, in words that `run` and `check` share. */
void registration_refuse(const struct registration *r, struct fault *f);
