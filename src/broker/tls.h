#pragma once

#include "broker/library.h"
#include "onceward/config/config.h"

#include <stdbool.h>

struct fault;
struct ssl_st;

/* TLS settings of one connection attempt. They must live until tls_finish. */
struct tls {
    amqp_socket_t *socket;
    const char *host; /* name that the certificate must have */
    bool host_is_ip;
    struct ssl_st *ssl; /* of the latest attempt */
    char error[256];    /* why the certificate was refused; empty: it was not */
};

/* Gives the connection a TLS socket: TLS 1.2 or newer; the server's certificate is checked against the CAs
 * and the host (name or IP address) unless verify is off; our certificate is sent if configured. */
int tls_start(struct tls *t, amqp_connection_state_t connection, const char *host, const struct config_tls *c,
              struct fault *f);

/* Reason why opening failed, in readable form. NULL: not because of TLS. Valid until the next attempt. */
const char *tls_error(struct tls *t);

/* Removes the hooks from an established connection and returns its session. */
struct ssl_st *tls_finish(struct tls *t);
