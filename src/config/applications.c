/* Queues that forward to one application: the listener behind one authority of forward.url. They share its
 * connections, its probe and its health, so all of them must have the same settings of connections and probes. */

#include "config/applications.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct authority {
    struct slice host; /* in the URL's own case */
    int port;
};

/* Requires a checked URL. */
static struct authority authority_of(const char *url)
{
    const char *host = strstr(url, "://") + 3;
    size_t len = strcspn(host, "/?#"), name = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/?#");
    int port = strncasecmp(url, "https:", 6) == 0 ? 443 : 80;

    if (name < len)
        sscanf(host + name, ":%5d", &port);
    return (struct authority){{host, name}, port};
}

static bool is_same(struct authority a, struct authority b)
{
    return a.port == b.port && a.host.len == b.host.len && !strncasecmp(a.host.data, b.host.data, a.host.len);
}

static void compare(const struct queue_reading *first, const struct queue_reading *second,
                    struct authority at)
{
    static const char *const paths[] = {"forward.unix_socket",   "ready.url",
                                        "ready.interval",        "forward.tls.ca_file",
                                        "forward.tls.cert_file", "forward.tls.key_file",
                                        "forward.tls.verify"};
    enum { N_WITHOUT_TLS = 3 };
    bool is_tls = strncasecmp(second->queue.forward.url, "https:", 6) == 0;

    for (size_t i = 0; i < (is_tls ? sizeof paths / sizeof *paths : N_WITHOUT_TLS); i++) {
        const struct key *k = key_find(SCOPE_QUEUE, slice_of(paths[i]));

        if (key_is_same(k, &first->queue, &second->queue) ||
            reading_origin(&first->reading, paths[i]) == ORIGIN_BAD)
            continue;
        cross_report(
            &second->reading, false, paths[i], NULL,
            "differs from that of %s, which sends to the same application (%.*s, port %d); expected the same",
            first->path, (int)at.host.len, at.host.data, at.port);
    }
}

void applications_check(const struct queue_reading *queues, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!queues[i].queue.forward.url)
            continue;
        struct authority at = authority_of(queues[i].queue.forward.url);

        for (size_t k = 0; k < i; k++) {
            const char *url = queues[k].queue.forward.url;

            if (!url || !is_same(authority_of(url), at))
                continue;
            compare(&queues[k], &queues[i], at);
            break; /* comparing with the first queue is enough */
        }
    }
}
