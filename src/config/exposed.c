/* Warnings about exposed secrets and connections: a file that every user may read, a connection without TLS to
 * another machine. Both may be intended: a mesh may encrypt, or the machine may have no other users. */

#include "config/exposed.h"

#include "config/checks.h"
#include "config/report.h"

#include <arpa/inet.h>
#include <strings.h>
#include <sys/stat.h>

/* --- secrets --- */

/* User information of a URL; may be empty. */
static struct slice user_info(const char *url)
{
    const char *start = strstr(url, "://");
    size_t len = start ? strcspn(start + 3, "/?#") : 0;
    const char *at = start ? memrchr(start + 3, '@', len) : NULL;

    return at ? (struct slice){start + 3, (size_t)(at - start - 3)} : (struct slice){0};
}

bool exposed_is_secret(const struct key *k, const char *text)
{
    struct slice user = user_info(text);
    bool has_password = user.len && memchr(user.data, ':', user.len);

    if (k == key_find(SCOPE_ROOT, SLICE("broker.url")))
        return has_password && !slice_equal(user, SLICE("guest:guest"));
    if (k == key_find(SCOPE_ROOT, SLICE("database.url")))
        return has_password || strstr(text, "password");
    if (k == key_find(SCOPE_ROOT, SLICE("broker.password")) ||
        k == key_find(SCOPE_ROOT, SLICE("database.password")) ||
        k == key_find(SCOPE_QUEUE, SLICE("forward.authorization")))
        return *text;
    return false;
}

bool exposed_is_secret_field(const char *name)
{
    static const char *const words[] = {"auth",     "cookie", "credential", "key",       "passwd",
                                        "password", "secret", "session",    "signature", "token"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasestr(name, words[i]))
            return true;
    return false;
}

/* --- hosts --- */

bool config_host_is_local(const char *host)
{
    struct in6_addr six;
    struct in_addr four;
    size_t len = strlen(host);

    if (len && host[len - 1] == '.')
        len--;
    if ((len == 9 && !strncasecmp(host, "localhost", 9)) ||
        (len > 10 && !strncasecmp(host + len - 10, ".localhost", 10)))
        return true;
    if (inet_pton(AF_INET, host, &four) == 1)
        return (ntohl(four.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

/* Does a checked URL lead to this machine? */
static bool url_is_local(const char *url)
{
    const char *start = strstr(url, "://") + 3, *end = start + strcspn(start, "/?#");
    const char *at = memrchr(start, '@', (size_t)(end - start));
    char host[256];

    start = at ? at + 1 : start;
    size_t len = *start == '[' ? strcspn(++start, "]") : strcspn(start, ":/?#");
    if (len >= sizeof(host))
        return false;
    memcpy(host, start, len);
    host[len] = '\0';
    return config_host_is_local(host);
}

static bool starts_with(const char *text, const char *start)
{
    return !strncasecmp(text, start, strlen(start));
}

void exposed_check_root(const struct reading *root, bool database_is_open)
{
    const struct config *c = root->target;
    const char *url = c->broker.url.value;

    if (url && starts_with(url, "amqp:") && !url_is_local(url))
        cross_report(root, true, reading_is_set(root, "broker.host") ? "broker.host" : "broker.url", NULL,
                     "has no TLS, and the broker is on another machine: anyone on the network path can "
                     "read and change user, password and messages; amqps:// encrypts");
    if (database_is_open)
        cross_report(
            root, true, "database.url", NULL,
            "has no sslmode, and the database is on another machine: libpq then uses TLS if the server "
            "offers it, and checks no certificate; sslmode=verify-full with sslrootcert does");
}

void exposed_check_queue(const struct queue_reading *q)
{
    const struct config_forward *w = &q->queue.forward;
    const char *blamed = w->authorization.value ? "forward.authorization" : NULL;

    for (size_t i = 0; i < w->n_headers && !blamed; i++)
        if (exposed_is_secret_field(w->headers[i].name))
            blamed = "forward.headers";
    if (blamed && w->url && !w->unix_socket && starts_with(w->url, "http:") && !url_is_local(w->url))
        cross_report(
            &q->reading, true, blamed, "forward.url",
            "is sent without TLS to another machine: anyone on the network path can read it; https:// "
            "encrypts");
}

/* --- the file --- */

void exposed_check_file(struct config_report *report, const char *path, bool holds_secrets)
{
    struct stat st;

    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return;
    if (st.st_mode & S_IWOTH)
        report_warning(report, "", "%.200s can be written by every user of this machine (mode %04o)", path,
                       (unsigned)st.st_mode & 07777);
    else if (holds_secrets && (st.st_mode & S_IROTH))
        report_warning(
            report, "",
            "%.200s holds passwords and can be read by every user of this machine (mode %04o): give them "
            "by K_file, such as password_file, or change the mode",
            path, (unsigned)st.st_mode & 07777);
}
