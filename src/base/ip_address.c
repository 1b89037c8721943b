/* Numeric addresses with a port. */

#include "onceward/base/ip_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* Parses a port, 1..65535, digits only; 0: not a port. */
static int port_of(const char *text)
{
    size_t len = strlen(text);
    long port = len >= 1 && len <= 5 && strspn(text, "0123456789") == len ? strtol(text, NULL, 10) : 0;

    return port <= 65535 ? (int)port : 0;
}

bool ip_address_parse(const char *text, struct ip_address *ret)
{
    const char *colon = strrchr(text, ':');
    char host[INET6_ADDRSTRLEN];
    bool is_six = text[0] == '[' && colon && colon > text + 1 && colon[-1] == ']';
    size_t len = colon ? (size_t)(colon - text) - (is_six ? 2 : 0) : 0;
    int port = colon ? port_of(colon + 1) : 0;

    if (!port || !len || len >= sizeof(host))
        return false;
    memcpy(host, text + is_six, len);
    host[len] = '\0';
    *ret = (struct ip_address){0};
    if (is_six) {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)&ret->storage;

        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)port);
        ret->len = sizeof(*six);
        return inet_pton(AF_INET6, host, &six->sin6_addr) == 1;
    }
    struct sockaddr_in *four = (struct sockaddr_in *)&ret->storage;

    four->sin_family = AF_INET;
    four->sin_port = htons((uint16_t)port);
    ret->len = sizeof(*four);
    return inet_pton(AF_INET, host, &four->sin_addr) == 1;
}
