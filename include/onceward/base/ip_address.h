#pragma once

#include <stdbool.h>
#include <sys/socket.h>

/* A listening address such as "127.0.0.1:9464" or "[::1]:9464". Numeric only: names are not looked up. Pure. */
struct ip_address {
    struct sockaddr_storage storage;
    socklen_t len;
};

/* False: the text is no such address, and ret is undefined. Port 0 is refused. */
bool ip_address_parse(const char *text, struct ip_address *ret);
