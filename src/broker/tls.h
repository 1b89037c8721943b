#pragma once

#include "broker/library.h"
#include "onceward/config/config.h"

#include <stdbool.h>

struct fault;
struct ssl_st;

/* TLS for one connection being made. It must live until tls_finish. */
struct tls {
    amqp_socket_t *socket;
    const char *host; /* what the certificate must be for */
    bool host_is_ip;
    struct ssl_st *ssl; /* of the latest attempt */
    char error[256];    /* what was wrong with the certificate, empty: nothing */
};

/* Makes the socket of the connection a TLS one: TLS 1.2 or newer, the server's certificate checked against
 * the CAs and for the host (name or IP address) unless verify is off, our certificate where there is one. */
int tls_start(struct tls *t, amqp_connection_state_t connection, const char *host, const struct config_tls *c,
              struct fault *f);

/* The reason why opening failed, in words; NULL: TLS has none to give. Valid until the next attempt. */
const char *tls_error(struct tls *t);

/* The connection stands: takes the hooks out again and answers the session. */
struct ssl_st *tls_finish(struct tls *t);
