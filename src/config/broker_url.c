/* The broker's address: a URL, or host, port and vhost, as Kubernetes operators write them into secrets. This file
 * makes the URL from the parts, so that connecting needs only a URL. */

#include "config/broker_url.h"

#include "config/arena.h"
#include "config/cross.h"
#include "config/report.h"
#include "onceward/base/buf.h"

static bool is_tls(const struct reading *root)
{
    static const char *const names[] = {"broker.tls.ca_file", "broker.tls.cert_file", "broker.tls.key_file",
                                        "broker.tls.verify"};
    const struct config *c = root->target;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (reading_is_set(root, names[i]))
            return true;
    return c->broker.port == 5671;
}

static char *make_url(const struct reading *root)
{
    const struct config *c = root->target;
    const char *host = c->broker.host;
    bool six = strchr(host, ':') && *host != '[', tls = is_tls(root);
    struct buf url = {0};

    buf_printf(&url, "%s://%s%s%s:%d/", tls ? "amqps" : "amqp", six ? "[" : "", host, six ? "]" : "",
               c->broker.port ? c->broker.port
               : tls          ? 5671
                              : 5672);
    buf_add_percent(&url, slice_of(c->broker.vhost ? c->broker.vhost : "/"));
    char *copy = arena_copy(c->arena, url.data, url.len);
    buf_deinit(&url);
    return copy;
}

/* Refuses keys beside a URL that contains the same. */
static void refuse_beside_url(const struct reading *root, const char *path)
{
    if (reading_is_set(root, path))
        cross_report(root, false, path, NULL,
                     "given together with broker.url; expected it in the URL, or broker.host instead of "
                     "the URL");
}

void broker_url_settle(const struct reading *root)
{
    struct config *c = root->target;
    bool has_url = reading_origin(root, "broker.url") != ORIGIN_NONE,
         has_host = reading_origin(root, "broker.host") != ORIGIN_NONE;

    if (!has_url && !has_host)
        report_error(root->report, "broker.url",
                     "missing; expected a URL that starts with amqp:// or amqps://, or broker.host");
    if (has_url && has_host)
        cross_report(root, false, "broker.host", "broker.url",
                     "given together with broker.url; expected only one of the two");
    if (has_url && !has_host) {
        refuse_beside_url(root, "broker.port");
        refuse_beside_url(root, "broker.vhost");
    }
    if (reading_is_set(root, "broker.url"))
        c->broker.url = c->broker.given_url;
    else if (reading_is_set(root, "broker.host") && reading_origin(root, "broker.port") != ORIGIN_BAD &&
             reading_origin(root, "broker.vhost") != ORIGIN_BAD)
        c->broker.url.value = make_url(root);
}
