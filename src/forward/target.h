#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

struct config_tls;
struct fault;

/* The destination of a URL, and its name in messages. */
struct target {
    char *url;
    const char *unix_socket; /* NULL: TCP; belongs to the configuration */
    char *name;              /* "127.0.0.1:8080", or the socket's path */
    char *host;              /* the Host field */
    char *path;              /* includes the query */
    bool tls;
};

/* unix_socket (may be NULL) must outlive *t. -1: f says what is wrong with the URL, and nothing needs to be
 * freed. */
int target_init(struct target *t, const char *url, const char *unix_socket, struct fault *f);
void target_deinit(struct target *t);

/* Do both lead to the same listener? Scheme, host and port, or the Unix socket, must be equal; with https also the
 * host name, which the certificate contains. */
bool target_is_same(const struct target *a, const struct target *b);

/* Compares scheme, host and port only. */
bool target_same_host(const char *url_a, const char *url_b);

/* Sets the common options of all libcurl handles. error (CURL_ERROR_SIZE bytes), *t and *tls must outlive the
 * handle. -1: libcurl refused an option, f says which. */
int transfer_setup(CURL *easy, const struct target *t, const struct config_tls *tls,
                   int64_t connect_timeout_ms, char *error, struct fault *f);

/* Writes why no connection was made, in readable form. error: libcurl's own text. */
void connect_text(char *out, size_t size, const struct target *t, CURL *easy, CURLcode code,
                  const char *error);
