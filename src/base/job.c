/* A job. The thread and the waiting side share one block; the last one to finish frees it.
 *
 * Each ending thread joins the one that ended before it, and job_wait_all joins the last one. So no thread is left
 * behind, and the libraries' per-thread data is freed before the process ends. */
#include "onceward/base/job.h"

#include "onceward/base/clock.h"
#include "onceward/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { RUNNING, ENDED, ABANDONED };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    size_t n;
    pthread_t last; /* ended, not joined yet */
    bool has_last;
} running = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

static void running_add(int by)
{
    pthread_mutex_lock(&running.lock);
    running.n += (size_t)by;
    pthread_cond_broadcast(&running.ended);
    pthread_mutex_unlock(&running.lock);
}

static void last_join(bool is_self)
{
    pthread_mutex_lock(&running.lock);
    pthread_t last = running.last;
    bool has_last = running.has_last;
    running.last = pthread_self();
    running.has_last = is_self;
    pthread_mutex_unlock(&running.lock);
    if (has_last)
        pthread_join(last, NULL);
}

struct job {
    void *(*run)(void *);
    void (*drop)(void *);
    void *arg, *result;
    int fd;
    atomic_int state;
};

static void job_free(struct job *j)
{
    close(j->fd);
    free(j);
}

static void *job_main(void *p)
{
    struct job *j = p;
    int expected = RUNNING;

    j->result = j->run(j->arg);
    if (!atomic_compare_exchange_strong(&j->state, &expected, ENDED)) {
        j->drop(j->result);
        job_free(j);
        return NULL;
    }
    /* From here on the other side may take and free the job at any time; only the descriptor number still belongs to
     * this thread. */
    return NULL;
}

struct job_start_info {
    struct job *job;
    int wake;
};

static void *job_thread(void *p)
{
    struct job_start_info info = *(struct job_start_info *)p;

    free(p);
    job_main(info.job);
    uint64_t one = 1;
    if (write(info.wake, &one, sizeof(one)) < 0)
        one = 0; /* the job was abandoned */
    close(info.wake);
    last_join(true);
    running_add(-1);
    return NULL;
}

struct job *job_start(void *(*run)(void *arg), void (*drop)(void *result), void *arg)
{
    struct job *j = mem_zalloc(1, sizeof(*j));
    struct job_start_info *info = mem_zalloc(1, sizeof(*info));
    pthread_attr_t attr;
    pthread_t thread;
    int failed;

    *j = (struct job){.run = run, .drop = drop, .arg = arg};
    atomic_init(&j->state, RUNNING);
    j->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    info->job = j;
    info->wake =
        j->fd < 0 ? -1 : dup(j->fd); /* the thread's own copy, so that it never writes to a reused number */
    if (info->wake < 0)
        goto no;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 8 << 20);
    running_add(1);
    failed = pthread_create(&thread, &attr, job_thread, info);
    pthread_attr_destroy(&attr);
    if (!failed)
        return j;
    running_add(-1);
    errno = failed;
no:
    failed = errno;
    if (info->wake >= 0)
        close(info->wake);
    if (j->fd >= 0)
        close(j->fd);
    free(info);
    free(j);
    errno = failed;
    return NULL;
}

int job_fd(const struct job *j)
{
    return j->fd;
}

bool job_take(struct job *j, void **result)
{
    if (atomic_load(&j->state) != ENDED)
        return false;
    *result = j->result;
    job_free(j);
    return true;
}

void job_abandon(struct job *j)
{
    int expected = RUNNING;

    if (atomic_compare_exchange_strong(&j->state, &expected, ABANDONED))
        return;
    j->drop(j->result);
    job_free(j);
}

bool job_wait_all(int timeout_ms)
{
    struct timespec until = clock_until(timeout_ms);

    pthread_mutex_lock(&running.lock);
    while (running.n && pthread_cond_clockwait(&running.ended, &running.lock, CLOCK_MONOTONIC, &until) == 0)
        continue;
    bool all = running.n == 0;
    pthread_mutex_unlock(&running.lock);
    if (all)
        last_join(false);
    return all;
}
