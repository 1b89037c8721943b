/* Loaded before the C library: counts allocations, system calls of sockets and round trips of libpq into the
 * file that BENCH_COUNTS names (mapped, so that it can be read while the program runs). The order is known to
 * lib/counts.py.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ALLOCATIONS, FREES, WRITES, READS, WAITS, SYNCS, QUERIES, N_COUNTS };

static _Atomic uint64_t nowhere[N_COUNTS];
static _Atomic uint64_t *counts = nowhere;

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

__attribute__((constructor)) static void open_counts(void)
{
    const char *path = getenv("BENCH_COUNTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (map != MAP_FAILED)
        counts = map;
}

static void count(int what)
{
    atomic_fetch_add_explicit(counts + what, 1, memory_order_relaxed);
}

void *malloc(size_t n)
{
    count(ALLOCATIONS);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count(ALLOCATIONS);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count(ALLOCATIONS);
    return __libc_realloc(p, n);
}

void free(void *p)
{
    if (p)
        count(FREES);
    __libc_free(p);
}

#define COUNTED(what, type, name, parameters, arguments)                                                     \
    type name parameters                                                                                     \
    {                                                                                                        \
        static type(*real) parameters;                                                                       \
        if (!real)                                                                                           \
            real = (type(*) parameters)dlsym(RTLD_NEXT, #name);                                              \
        count(what);                                                                                         \
        return real arguments;                                                                               \
    }

COUNTED(WRITES, ssize_t, send, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags))
COUNTED(WRITES, ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
COUNTED(WRITES, ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n))
COUNTED(WRITES, ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n))
COUNTED(READS, ssize_t, recv, (int fd, void *p, size_t n, int flags), (fd, p, n, flags))
COUNTED(READS, ssize_t, read, (int fd, void *p, size_t n), (fd, p, n))
COUNTED(WAITS, int, poll, (struct pollfd * p, nfds_t n, int ms), (p, n, ms))
COUNTED(WAITS, int, epoll_wait, (int fd, struct epoll_event *e, int n, int ms), (fd, e, n, ms))
COUNTED(WAITS, int, epoll_pwait, (int fd, struct epoll_event *e, int n, int ms, const sigset_t *s),
        (fd, e, n, ms, s))
COUNTED(SYNCS, int, PQpipelineSync, (void *connection), (connection))
COUNTED(QUERIES, int, PQsendQueryPrepared,
        (void *c, const char *s, int n, const char *const *v, const int *l, const int *f, int r),
        (c, s, n, v, l, f, r))
