#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

struct config_tls;
struct fault;

/* Where a URL leads, and how it is called in messages. */
struct target {
    char *url;
    const char *unix_socket; /* NULL: TCP; the configuration's */
    char *name;              /* "127.0.0.1:8080", or the socket's path */
    char *host;              /* the Host field */
    char *path;              /* with the query */
    bool tls;
};

/* unix_socket (may be NULL) must outlive *t. -1: f says what is wrong with the URL; nothing to free then. */
int target_init(struct target *t, const char *url, const char *unix_socket, struct fault *f);
void target_deinit(struct target *t);

/* Does the same listener answer at both: scheme, host and port, or the Unix socket, and with https the host's
 * name, which the certificate bears? */
bool target_is_same(const struct target *a, const struct target *b);

/* Scheme, host and port alone. */
bool target_same_host(const char *url_a, const char *url_b);

/* What every handle of libcurl has in common. error: CURL_ERROR_SIZE bytes that outlive the handle, as *t and
 * *tls do. -1: libcurl refused an option, f says which. */
int transfer_setup(CURL *easy, const struct target *t, const struct config_tls *tls,
                   int64_t connect_timeout_ms, char *error, struct fault *f);

/* Why no connection was made, in words. error: what libcurl wrote there. */
void connect_text(char *out, size_t size, const struct target *t, CURL *easy, CURLcode code,
                  const char *error);
