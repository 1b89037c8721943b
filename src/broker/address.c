/* Takes a broker URL apart. rabbitmq-c's parser refuses percent-encoded bytes above 127, hence passwords in UTF-8,
 * and makes an empty path the virtual host "". Pure; any thread. */

#include "broker/address.h"

#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/base/slice.h"
#include "onceward/broker/broker.h"

#include <stdlib.h>
#include <string.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes percent-encoded text. NULL: malformed, or with a NUL inside. */
static char *percent_decode(struct slice s)
{
    char *text = mem_copy(s.data, s.len), *out = text;

    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];
        if (c == '%') {
            int high = s.len - i > 2 ? hex_digit(s.data[i + 1]) : -1;
            int low = high < 0 ? -1 : hex_digit(s.data[i + 2]);
            if (low < 0 || !(c = (char)(high << 4 | low))) {
                free(text);
                return NULL;
            }
            i += 2;
        }
        *out++ = c;
    }
    *out = '\0';
    return text;
}

static int port_parse(struct slice s, int *ret_port)
{
    int port = 0;

    if (s.len == 0 || s.len > 5)
        return 1;
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] < '0' || s.data[i] > '9')
            return 1;
        port = port * 10 + (s.data[i] - '0');
    }
    if (port < 1 || port > 65535)
        return 1;
    *ret_port = port;
    return 0;
}

/* Parses the part between user information and path. */
static int host_parse(struct slice s, struct address *a, struct fault *f)
{
    const char *host = s.data, *colon;
    size_t len = s.len;

    if (len && host[0] == '[') {
        const char *end = memchr(host, ']', len);
        if (!end)
            return fault_set(f, "the broker's URL has an IPv6 address without its ]");
        size_t behind = len - (size_t)(end + 1 - host);
        if (behind && end[1] != ':')
            return fault_set(f, "the broker's URL has something other than a port behind its IPv6 address");
        colon = behind ? end + 1 : NULL;
        host++;
        len = (size_t)(end - host);
    } else {
        colon = memchr(host, ':', len);
        if (colon)
            len = (size_t)(colon - host);
    }
    if (colon) {
        struct slice port = {colon + 1, (size_t)(s.data + s.len - colon - 1)};
        if (port_parse(port, &a->port))
            return fault_set(f, "the port in the broker's URL is not a number from 1 to 65535");
    }
    a->host = len ? percent_decode((struct slice){host, len}) : mem_copy("localhost", 9);
    return a->host ? 0 : fault_set(f, "the host in the broker's URL is not well-formed");
}

static int user_parse(struct slice s, struct address *a, struct fault *f)
{
    const char *colon = memchr(s.data, ':', s.len);
    size_t len = colon ? (size_t)(colon - s.data) : s.len;

    a->user = percent_decode((struct slice){s.data, len});
    if (!a->user)
        return fault_set(f, "the user in the broker's URL is not well-formed (percent-encoding)");
    if (!colon)
        return 0;
    a->password = percent_decode((struct slice){colon + 1, s.len - len - 1});
    return a->password
               ? 0
               : fault_set(f, "the password in the broker's URL is not well-formed (percent-encoding)");
}

static int parts_parse(const char *rest, struct address *a, struct fault *f)
{
    size_t len = strcspn(rest, "/?#");
    const char *path = rest + len;
    const char *at = memrchr(rest, '@', len);

    if (strcspn(path, "?#") != strlen(path))
        return fault_set(
            f, "the broker's URL has a query or fragment; such settings are keys of the configuration");
    if (at && user_parse((struct slice){rest, (size_t)(at - rest)}, a, f))
        return -1;
    const char *host = at ? at + 1 : rest;
    if (host_parse((struct slice){host, (size_t)(rest + len - host)}, a, f))
        return -1;
    if (path[0] == '/' && path[1]) {
        path++;
        if (strchr(path, '/'))
            return fault_set(f, "the virtual host in the broker's URL has a bare /; write it as %%2F");
        a->vhost = percent_decode(slice_of(path));
        if (!a->vhost)
            return fault_set(f, "the virtual host in the broker's URL is not well-formed (percent-encoding)");
    }
    return 0;
}

int address_parse(const char *url, struct address *ret_address, struct fault *f)
{
    struct address a = {0};

    if (!strncasecmp(url, "amqp://", 7)) {
        a.port = 5672;
    } else if (!strncasecmp(url, "amqps://", 8)) {
        a.port = 5671;
        a.tls = true;
    } else {
        return fault_set(f, "the broker's URL does not start with amqp:// or amqps://");
    }
    if (parts_parse(url + (a.tls ? 8 : 7), &a, f)) {
        address_deinit(&a);
        return -1;
    }
    if (!a.user)
        a.user = mem_copy("guest", 5);
    if (!a.password)
        a.password = mem_copy("guest", 5);
    if (!a.vhost)
        a.vhost = mem_copy("/", 1);
    *ret_address = a;
    return 0;
}

void address_deinit(struct address *a)
{
    if (a->password)
        explicit_bzero(a->password, strlen(a->password));
    mem_clear(&a->user);
    mem_clear(&a->password);
    mem_clear(&a->host);
    mem_clear(&a->vhost);
}

int broker_vhost(const struct config_broker *c, const struct config_queue *q, char **ret, struct fault *f)
{
    struct address a = {0};
    char *url = NULL;

    if (q->vhost) {
        *ret = mem_copy(q->vhost, strlen(q->vhost));
        return 0;
    }
    if (config_text_read(&c->url, &url, f))
        return -1;
    int r = address_parse(url ? url : "", &a, f);
    if (!r)
        *ret = mem_copy(a.vhost, strlen(a.vhost));
    address_deinit(&a);
    free(url);
    return r;
}
