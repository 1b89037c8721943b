#pragma once

#include <stdbool.h>
#include <sys/socket.h>

/* An address to listen on, as "127.0.0.1:9464" or "[::1]:9464". Numeric only: no name is looked up. Pure. */
struct ip_address {
    struct sockaddr_storage storage;
    socklen_t len;
};

/* false: the text is no such address, and ret is undefined. Port 0 is none. */
bool ip_address_parse(const char *text, struct ip_address *ret);
