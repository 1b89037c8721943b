/* Checks of single texts. They are light: the libraries that use the texts decide. Pure. */

#include "config/checks.h"

#include "onceward/base/ip_address.h"
#include "onceward/config/pattern.h"
#include "onceward/core/media_type.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Has the text no white space and no control characters, and two hex digits other than 00 behind every %? */
static bool is_url_text(const char *text)
{
    for (const char *p = text; *p; p++) {
        if ((unsigned char)*p <= ' ' || *p == 0x7F)
            return false;
        if (*p == '%' && (!is_hex(p[1]) || !is_hex(p[2]) || (p[1] == '0' && p[2] == '0')))
            return false;
    }
    return true;
}

static bool is_port(struct slice port)
{
    unsigned value = 0;

    if (!port.len || port.len > 5)
        return false;
    for (size_t i = 0; i < port.len; i++) {
        if (port.data[i] < '0' || port.data[i] > '9')
            return false;
        value = value * 10 + (unsigned)(port.data[i] - '0');
    }
    return value >= 1 && value <= 65535;
}

/* Is it host, host:port, [::1] or [::1]:port? */
static bool is_host_and_port(struct slice s)
{
    size_t host = 0;

    if (s.len && s.data[0] == '[') {
        const char *close = memchr(s.data, ']', s.len);

        if (!close || close == s.data + 1)
            return false;
        host = (size_t)(close - s.data) + 1;
    } else {
        while (host < s.len && s.data[host] != ':')
            host++;
    }
    if (!host)
        return false;
    if (host == s.len)
        return true;
    return s.data[host] == ':' && is_port((struct slice){s.data + host + 1, s.len - host - 1});
}

/* Splits off the part between :// and the next / ? or #. False: the scheme is neither of the two. */
static bool split_url(const char *text, const char *plain, const char *secure, struct slice *authority,
                      const char **rest)
{
    const char *colon = strstr(text, "://");
    size_t len = colon ? (size_t)(colon - text) : 0;

    if (!colon || !((len == strlen(plain) && !strncasecmp(text, plain, len)) ||
                    (len == strlen(secure) && !strncasecmp(text, secure, len))))
        return false;
    const char *start = colon + 3;
    *authority = (struct slice){start, strcspn(start, "/?#")};
    *rest = start + authority->len;
    return true;
}

static struct slice after_last_at(struct slice authority)
{
    const char *at = memrchr(authority.data, '@', authority.len);

    if (!at)
        return authority;
    return (struct slice){at + 1, authority.len - (size_t)(at + 1 - authority.data)};
}

const char *check_broker_url(const char *text)
{
    struct slice authority;
    const char *rest;

    if (!split_url(text, "amqp", "amqps", &authority, &rest))
        return "a URL that starts with amqp:// or amqps://";
    if (!is_url_text(text))
        return "a URL without white space, in which % stands before two hex digits (or use broker.user and "
               "broker.password)";
    struct slice host = after_last_at(authority);
    if (authority.len > host.len + 1 && memchr(authority.data, '@', authority.len - host.len - 1))
        return "one @ in the URL (percent-encode those of the password, or use broker.password)";
    if (strchr(rest, '@'))
        return "no @ behind a /, ? or # in the URL (percent-encode those of the password, or use broker.password)";
    if (!is_host_and_port(host))
        return "a host, and after a : a port from 1 to 65535, in the URL";
    if (strpbrk(rest, "?#") || (*rest && strchr(rest + 1, '/')))
        return "nothing behind the vhost in the URL (a / inside the vhost is written %2F)";
    return NULL;
}

const char *check_host(const char *text)
{
    struct in6_addr address;
    char six[INET6_ADDRSTRLEN + 2] = "";
    size_t len = strlen(text);
    bool in_brackets = text[0] == '[' && text[len - 1] == ']';

    if (len < sizeof(six))
        snprintf(six, sizeof(six), "%.*s", (int)(in_brackets ? len - 2 : len), text + in_brackets);
    if (inet_pton(AF_INET6, six, &address) == 1)
        return NULL;
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7F || strchr(":/?#@%[]", *p))
            return "the name or address of a server, without a scheme, a user and a port (broker.port)";
    return NULL;
}

const char *check_listen(const char *text)
{
    struct ip_address address;

    return ip_address_parse(text, &address)
               ? NULL
               : "an address and a port, as 127.0.0.1:9464, 0.0.0.0:9464 or [::1]:9464";
}

const char *check_http_url(const char *text)
{
    struct slice authority;
    const char *rest;

    if (!split_url(text, "http", "https", &authority, &rest))
        return "a URL that starts with http:// or https://";
    if (!is_url_text(text))
        return "a URL without white space, in which % stands before two hex digits";
    if (memchr(authority.data, '@', authority.len))
        return "a URL without a user or password (use forward.authorization)";
    if (!is_host_and_port(authority))
        return "a host, and after a : a port from 1 to 65535, in the URL";
    return strchr(rest, '#') ? "a URL without a fragment" : NULL;
}

const char *check_database_url(const char *text)
{
    struct slice authority;
    const char *rest;

    if (split_url(text, "postgres", "postgresql", &authority, &rest))
        return is_url_text(text) ? NULL
                                 : "a URL without white space, in which % stands before two hex digits (or "
                                   "use database.password)";
    if (strstr(text, "://") && (!strchr(text, '=') || strstr(text, "://") < strchr(text, '=')))
        return "a URL that starts with postgres:// or postgresql://";
    return strchr(text, '=') && text[0] != '=' ? NULL
                                               : "a URL that starts with postgres:// or postgresql://, or "
                                                 "keywords and values such as \"host=db dbname=app\"";
}

const char *check_socket_path(const char *text)
{
    return text[0] == '/' ? NULL : "an absolute path";
}

const char *check_field_value(const char *text)
{
    for (const char *p = text; *p; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7F)
            return "a field value without line ends and other control characters";
    size_t len = strlen(text);
    if (len && (strchr(" \t", text[0]) || strchr(" \t", text[len - 1])))
        return "a field value without white space at its ends";
    return NULL;
}

const char *check_media_type(const char *text)
{
    return media_type_is_valid(slice_of(text)) ? NULL : "a media type, such as application/json";
}

const char *check_field_name(const char *text)
{
    static const char *const own[] = {
        "Idempotency-Key",   "Content-Length",
        "Content-Type",      "Content-Encoding",
        "Transfer-Encoding", "Host",
        "Connection",        "Expect",
        "Upgrade",           "TE",
        "Trailer",           "traceparent",
        "tracestate",
    };
    static const char *const families[] = {"Onceward-", "Amqp-", "ce-"};

    if (!*text ||
        text[strspn(text, "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")])
        return "a field name of letters, digits and !#$%&'*+-.^_`|~";
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (!strcasecmp(text, own[i]))
            return "another name: this field is written by onceward itself";
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (!strncasecmp(text, families[i], strlen(families[i])))
            return "another name: fields that start with Onceward-, Amqp- and ce- are written by onceward "
                   "itself";
    return NULL;
}

static int hex_value(char c)
{
    return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

void broker_url_vhost(const char *url, char *out, size_t size)
{
    const char *start = strstr(url, "://");
    const char *slash = start ? strchr(start + 3, '/') : NULL;
    size_t n = 0;

    if (!slash || !slash[1])
        slash = "//";
    for (const char *p = slash + 1; *p && n + 1 < size; p++) {
        out[n] = *p;
        if (*p == '%' && is_hex(p[1]) && is_hex(p[2])) {
            out[n] = (char)(hex_value(p[1]) << 4 | hex_value(p[2]));
            p += 2;
        }
        n++;
    }
    out[n] = '\0';
}

const char *check_consumer(const char *text)
{
    if (!strncmp(text, "onceward-try.", 13))
        return "another name: `onceward try` deletes the rows of consumers that begin with onceward-try.";
    return strcmp(text, "onceward-outbox") ? NULL : "another name: this one is the outbox's";
}

const char *check_queue_name(const char *text)
{
    struct pattern p;
    const char *wrong;

    pattern_read(text, &p, &wrong);
    return wrong;
}
