#pragma once

/* The headers of rabbitmq-c, in one place: version 0.12 moved them into a folder of their own. Only src/broker
 * includes this file. */

#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/framing.h>
#include <rabbitmq-c/ssl_socket.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#endif

#include "onceward/base/slice.h"

/* Casts const away: the library never writes to these bytes. */
static inline amqp_bytes_t bytes_of_slice(struct slice s)
{
    return (amqp_bytes_t){s.len, (void *)(uintptr_t)s.data};
}
