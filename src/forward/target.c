/* The destination of requests: the parts of the URL, the common options of all libcurl handles, and readable reasons
 * why libcurl made no connection. Stateless. */

#include "forward/target.h"

#include "onceward/base/buf.h"
#include "onceward/base/fault.h"
#include "onceward/base/mem.h"
#include "onceward/config/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Copies a part of a URL. NULL: the URL has none. */
static char *part_of(CURLU *u, CURLUPart which, unsigned flags)
{
    char *text = NULL, *copy;

    if (curl_url_get(u, which, &text, flags) != CURLUE_OK || !text)
        return NULL;
    copy = mem_copy(text, strlen(text));
    curl_free(text);
    return copy;
}

static char *name_of(CURLU *u)
{
    struct buf name = {0};
    char *host = part_of(u, CURLUPART_HOST, 0), *port = part_of(u, CURLUPART_PORT, CURLU_DEFAULT_PORT);

    buf_printf(&name, "%s:%s", host ? host : "", port ? port : "");
    free(host);
    free(port);
    buf_text(&name);
    return name.data;
}

/* The Host field, without the scheme's default port (RFC 9110, section 7.2). */
static char *host_of(CURLU *u)
{
    struct buf name = {0};
    char *host = part_of(u, CURLUPART_HOST, 0), *port = part_of(u, CURLUPART_PORT, CURLU_NO_DEFAULT_PORT);

    buf_printf(&name, "%s%s%s", host ? host : "", port ? ":" : "", port ? port : "");
    free(host);
    free(port);
    buf_text(&name);
    return name.data;
}

static char *path_of(CURLU *u)
{
    struct buf name = {0};
    char *path = part_of(u, CURLUPART_PATH, 0), *query = part_of(u, CURLUPART_QUERY, 0);

    buf_printf(&name, "%s%s%s", path ? path : "/", query ? "?" : "", query ? query : "");
    free(path);
    free(query);
    buf_text(&name);
    return name.data;
}

int target_init(struct target *t, const char *url, const char *unix_socket, struct fault *f)
{
    CURLU *u = curl_url();
    CURLUcode code = u ? curl_url_set(u, CURLUPART_URL, url, 0) : CURLUE_OUT_OF_MEMORY;
    char *scheme = code == CURLUE_OK ? part_of(u, CURLUPART_SCHEME, 0) : NULL;
    int r = 0;

    if (code != CURLUE_OK)
        r = fault_set(f, "the URL: %s", curl_url_strerror(code));
    else if (!scheme || (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
        r = fault_set(f, "the URL is neither http nor https");
    else if (unix_socket && strlen(unix_socket) >= sizeof(((struct sockaddr_un *)0)->sun_path))
        r = fault_set(f, "the path of the Unix socket is longer than %zu bytes: %s",
                      sizeof(((struct sockaddr_un *)0)->sun_path) - 1, unix_socket);
    else
        *t = (struct target){.url = mem_copy(url, strlen(url)),
                             .unix_socket = unix_socket,
                             .name = unix_socket ? mem_copy(unix_socket, strlen(unix_socket)) : name_of(u),
                             .host = host_of(u),
                             .path = path_of(u),
                             .tls = strcmp(scheme, "https") == 0};
    free(scheme);
    curl_url_cleanup(u);
    return r;
}

void target_deinit(struct target *t)
{
    mem_clear(&t->url);
    mem_clear(&t->name);
    mem_clear(&t->host);
    mem_clear(&t->path);
}

bool target_is_same(const struct target *a, const struct target *b)
{
    if (a->tls != b->tls || !a->unix_socket != !b->unix_socket)
        return false;
    if (!a->unix_socket)
        return strcasecmp(a->name, b->name) == 0;
    return strcmp(a->unix_socket, b->unix_socket) == 0 && (!a->tls || strcasecmp(a->host, b->host) == 0);
}

bool target_same_host(const char *url_a, const char *url_b)
{
    struct target a = {0}, b = {0};
    struct fault ignored;
    bool same = target_init(&a, url_a, NULL, &ignored) == 0 && target_init(&b, url_b, NULL, &ignored) == 0 &&
                target_is_same(&a, &b);

    target_deinit(&a);
    target_deinit(&b);
    return same;
}

#define SET(option, value)                                                                                   \
    do {                                                                                                     \
        CURLcode set_code = curl_easy_setopt(easy, option, value);                                           \
        if (set_code != CURLE_OK)                                                                            \
            return fault_set(f, "libcurl refuses " #option ": %s", curl_easy_strerror(set_code));            \
    } while (0)

static int tls_setup(CURL *easy, const struct config_tls *tls, struct fault *f)
{
    SET(CURLOPT_SSL_VERIFYPEER, tls->verify ? 1L : 0L);
    SET(CURLOPT_SSL_VERIFYHOST, tls->verify ? 2L : 0L);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_CA_CACHE_TIMEOUT, 0L); /* a replaced file counts from the next connection on */
    if (tls->ca_file) {
        SET(CURLOPT_CAINFO, tls->ca_file);
        SET(CURLOPT_CAPATH, NULL); /* trust only this file, not the system's store */
    }
    if (tls->cert_file)
        SET(CURLOPT_SSLCERT, tls->cert_file);
    if (tls->key_file)
        SET(CURLOPT_SSLKEY, tls->key_file);
    return 0;
}

int transfer_setup(CURL *easy, const struct target *t, const struct config_tls *tls,
                   int64_t connect_timeout_ms, char *error, struct fault *f)
{
    SET(CURLOPT_ERRORBUFFER, error);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_QUICK_EXIT, 1L); /* do not wait for a name server when the handle is freed */
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_URL, t->url);
    if (t->unix_socket)
        SET(CURLOPT_UNIX_SOCKET_PATH, t->unix_socket);
    SET(CURLOPT_PROXY, ""); /* ignore the environment's proxies */
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_USERAGENT, "onceward/" ONCEWARD_VERSION);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)connect_timeout_ms);
    return t->tls ? tls_setup(easy, tls, f) : 0;
}

/* libcurl does not report why it got no socket, for the connection or for the name lookup. A socket opened
 * here fails for the same reason. */
static int socket_errno(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

void connect_text(char *out, size_t size, const struct target *t, CURL *easy, CURLcode code,
                  const char *error)
{
    long os_errno = 0;

    curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &os_errno);
    if (code == CURLE_OPERATION_TIMEDOUT || code == CURLE_ABORTED_BY_CALLBACK)
        snprintf(out, size, "no connection to %s in time", t->name);
    else if (!os_errno && (os_errno = socket_errno()))
        snprintf(out, size, "cannot connect to %s: %s", t->name, strerror((int)os_errno));
    else if (code == CURLE_COULDNT_RESOLVE_HOST)
        snprintf(out, size, "the name of %s cannot be resolved", t->name);
    else if (code == CURLE_COULDNT_CONNECT && os_errno == ECONNREFUSED)
        snprintf(out, size, "connection refused by %s", t->name);
    else if (code == CURLE_COULDNT_CONNECT && os_errno)
        snprintf(out, size, "cannot connect to %s: %s", t->name, strerror((int)os_errno));
    else
        snprintf(out, size, "cannot connect to %s: %s", t->name, error[0] ? error : curl_easy_strerror(code));
}
