#pragma once

#include <stdbool.h>

struct fault;

/* The parts of an amqp:// or amqps:// URL (https://www.rabbitmq.com/docs/uri-spec), percent-decoded. */
struct address {
    bool tls;
    char *user, *password; /* guest and guest when the URL has none */
    char *host;            /* localhost when empty; an IPv6 address without its brackets */
    int port;
    char *vhost; /* "/" when the path is missing or empty */
};

/* Parses the URL. 0, or -1: malformed. The fault never repeats the URL, which may hold a password. */
int address_parse(const char *url, struct address *ret_address, struct fault *f);

void address_deinit(struct address *a);
