/* The application that several queues of one process may forward to, and the right to be alone with it.
 *
 * The only thing that workers share beside the configuration and the log: when an application died, it must
 * be seen which request kills it, also when its neighbours came from other queues. A suspect takes the
 * application for itself: it takes the place, the other workers begin nothing from then on, and it is sent
 * when what they have out has ended. Atomics only: a worker counts itself in before it looks whether somebody
 * is alone, and a suspect takes the place before it looks whether anybody is in, so at least one of the two
 * sees the other. One that waits with the place in its hands waits for requests only, never for another's
 * place: two of them cannot wait for each other. */
#include "worker.h"

#include "onceward/base/mem.h"

#include <stdio.h>
#include <stdlib.h>

struct target {
    struct target *next;
    char *address; /* the Unix socket, or scheme, host and port */
    size_t n_users;
    _Atomic uint64_t n_out, n_forwards;
    _Atomic uint64_t n_deaths, proven_after; /* deaths; the last of them after which it was seen alive */
    struct worker *_Atomic alone;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct target *first;

static char *address_of(const struct config_forward *f)
{
    const char *host = strstr(f->url, "://");

    if (f->unix_socket)
        return mem_copy(f->unix_socket, strlen(f->unix_socket));
    host = host ? host + 3 : f->url;
    return mem_copy(f->url, (size_t)(host - f->url) + strcspn(host, "/?#"));
}

void worker_join_target(struct worker *w)
{
    char *address = address_of(&w->q->forward);
    struct target *t;

    pthread_mutex_lock(&lock);
    for (t = first; t && strcmp(t->address, address) != 0; t = t->next)
        continue;
    if (!t) {
        t = mem_zalloc(1, sizeof(*t));
        t->address = address;
        t->next = first;
        first = t;
    } else {
        free(address);
    }
    t->n_users++;
    w->target = t;
    pthread_mutex_unlock(&lock);
}

void worker_leave_target(struct worker *w)
{
    struct target **at = &first, *t = w->target;

    if (!t)
        return;
    target_give_place(w);
    atomic_fetch_sub(&t->n_out, w->n_in_target);
    pthread_mutex_lock(&lock);
    if (--t->n_users == 0) {
        while (*at != t)
            at = &(*at)->next;
        *at = t->next;
        free(t->address);
        free(t);
    }
    pthread_mutex_unlock(&lock);
}

bool target_is_free(const struct worker *w)
{
    struct worker *alone = atomic_load(&w->target->alone);

    return !alone || alone == w;
}

bool target_enter(struct worker *w, struct delivery *d)
{
    uint64_t others = atomic_fetch_add(&w->target->n_out, 1);

    if (!target_is_free(w)) {
        atomic_fetch_sub(&w->target->n_out, 1);
        return false;
    }
    w->n_in_target++;
    d->alone = others == 0;
    d->n_th_forward = atomic_fetch_add(&w->target->n_forwards, 1) + 1;
    d->n_deaths_before = target_deaths(w);
    return true;
}

void target_leave(struct worker *w)
{
    w->n_in_target--;
    atomic_fetch_sub(&w->target->n_out, 1);
}

bool target_was_alone(const struct worker *w, const struct delivery *d)
{
    return d->alone && atomic_load(&w->target->n_forwards) == d->n_th_forward;
}

void target_died(struct worker *w)
{
    atomic_fetch_add(&w->target->n_deaths, 1);
}

uint64_t target_deaths(const struct worker *w)
{
    return atomic_load(&w->target->n_deaths);
}

void target_prove(struct worker *w, uint64_t after_deaths)
{
    uint64_t known = atomic_load(&w->target->proven_after);

    while (known < after_deaths &&
           !atomic_compare_exchange_weak(&w->target->proven_after, &known, after_deaths))
        continue;
}

uint64_t target_proven(const struct worker *w)
{
    return atomic_load(&w->target->proven_after);
}

bool target_take_place(struct worker *w)
{
    struct worker *nobody = NULL;

    if (atomic_compare_exchange_strong(&w->target->alone, &nobody, w))
        w->place_since_ms = w->now_ms;
    return !nobody || nobody == w;
}

void target_give_place(struct worker *w)
{
    struct worker *me = w;

    atomic_compare_exchange_strong(&w->target->alone, &me, NULL);
}

bool target_is_quiet(const struct worker *w)
{
    return atomic_load(&w->target->n_out) == 0;
}

uint64_t target_forwards(const struct worker *w)
{
    return atomic_load(&w->target->n_forwards);
}

/* Under the lock: who leaves gives its place back first, and waits here before it is freed. */
void target_who_is_alone(const struct worker *w, char *name, size_t size)
{
    pthread_mutex_lock(&lock);
    struct worker *alone = atomic_load(&w->target->alone);
    snprintf(name, size, "%s", alone && alone != w ? alone->q->name : "");
    pthread_mutex_unlock(&lock);
}
