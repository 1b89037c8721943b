/* TLS settings that rabbitmq-c lacks, made on its SSL_CTX.
 *
 *   - The library opens one numeric address at a time, so the name for SNI and for the certificate is
 *     set here. OpenSSL checks the name or IP address during the handshake; the library's own check
 *     does not support addresses.
 *   - The session is recorded, since writing bypasses the library.
 *
 * Used by the connecting thread only; tls_finish removes every hook. */

#include "broker/tls.h"

#include "onceward/base/fault.h"
#include "onceward/base/mem.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#if AMQP_VERSION < AMQP_VERSION_CODE(0, 13, 0, 0)
static void keep_openssl(void)
{
    /* Other libraries use OpenSSL too, and it initialises itself. */
    amqp_set_initialize_ssl_library(0);
}
#endif

static void handshake_starts(const SSL *ssl, int where, int value)
{
    struct tls *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));

    (void)value;
    if (!t || !(where & SSL_CB_HANDSHAKE_START))
        return;
    t->ssl = (SSL *)(uintptr_t)ssl;
    /* SNI carries names only (RFC 6066, section 3). */
    if (t->host_is_ip)
        SSL_set_tlsext_host_name(t->ssl, NULL);
    else
        SSL_set_tlsext_host_name(t->ssl, t->host);
}

static int certificate_checked(int is_good, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct tls *t = ssl ? SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)) : NULL;

    if (!is_good && t && !t->error[0])
        snprintf(t->error, sizeof(t->error), "the certificate is not accepted: %s",
                 X509_verify_cert_error_string(X509_STORE_CTX_get_error(store)));
    return is_good;
}

/* Refuses a key with a passphrase; OpenSSL's default would ask on the terminal. */
static int no_passphrase(char *out, int size, int writing, void *data)
{
    (void)out, (void)size, (void)writing, (void)data;
    return 0;
}

static int fault_set_tls(struct fault *f, const char *what, const char *file)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return fault_set(f, "%s %s: %s", what, file, reason ? reason : "not readable");
}

static int certificates_load(SSL_CTX *ctx, const struct config_tls *c, struct fault *f)
{
    ERR_clear_error();
    if (c->ca_file && SSL_CTX_load_verify_locations(ctx, c->ca_file, NULL) != 1)
        return fault_set_tls(f, "loading the CA certificates from", c->ca_file);
    if (!c->ca_file && SSL_CTX_set_default_verify_paths(ctx) != 1)
        return fault_set_tls(f, "loading the CA certificates from", "the system's store");
    if (!c->cert_file)
        return 0;
    const char *key = c->key_file ? c->key_file : c->cert_file;
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    if (SSL_CTX_use_certificate_chain_file(ctx, c->cert_file) != 1)
        return fault_set_tls(f, "loading the client certificate from", c->cert_file);
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        return fault_set_tls(f, "loading the client's key from", key);
    return 0;
}

static bool text_is_ip(const char *text)
{
    unsigned char address[16];

    return inet_pton(AF_INET, text, address) == 1 || inet_pton(AF_INET6, text, address) == 1;
}

int tls_start(struct tls *t, amqp_connection_state_t connection, const char *host, const struct config_tls *c,
              struct fault *f)
{
#if AMQP_VERSION < AMQP_VERSION_CODE(0, 13, 0, 0)
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, keep_openssl);
#endif
    *t = (struct tls){.host = host, .host_is_ip = text_is_ip(host)};
    t->socket = amqp_ssl_socket_new(connection);
    if (!t->socket)
        return fault_set(f, "no TLS socket could be made");
    SSL_CTX *ctx = amqp_ssl_socket_get_context(t->socket);
    amqp_ssl_socket_set_verify_hostname(t->socket, 0);
    amqp_ssl_socket_set_verify_peer(t->socket, c->verify);
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* The output buffer may move between two tries. */
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_app_data(ctx, t);
    SSL_CTX_set_info_callback(ctx, handshake_starts);
    SSL_CTX_set_verify(ctx, c->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE,
                       c->verify ? certificate_checked : NULL);
    if (c->verify) {
        X509_VERIFY_PARAM *param = SSL_CTX_get0_param(ctx);
        X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        int ok = t->host_is_ip ? X509_VERIFY_PARAM_set1_ip_asc(param, host)
                               : X509_VERIFY_PARAM_set1_host(param, host, 0);
        if (ok != 1)
            return fault_set(f, "the host %s cannot be checked against a certificate", host);
    }
    return certificates_load(ctx, c, f);
}

const char *tls_error(struct tls *t)
{
    if (t->error[0])
        return t->error;
    return ERR_reason_error_string(ERR_peek_last_error());
}

struct ssl_st *tls_finish(struct tls *t)
{
    SSL_CTX *ctx = amqp_ssl_socket_get_context(t->socket);

    SSL_CTX_set_info_callback(ctx, NULL);
    SSL_CTX_set_app_data(ctx, NULL);
    return t->ssl;
}
