#pragma once

#include "onceward/base/buf.h"
#include "onceward/base/slice.h"

#include <stdbool.h>

/* The requests for the metrics page, and the text format of Prometheus (version 0.0.4). Pure: bytes in, bytes
 * out. */

enum { SCRAPE_MAX = 4096 /* bytes of a request's head */ };

enum scrape {
    SCRAPE_PARTIAL, /* the head is not complete */
    SCRAPE_PAGE,    /* GET /metrics, with any query */
    SCRAPE_HEAD,    /* HEAD /metrics */
    SCRAPE_NOT_FOUND,
    SCRAPE_NOT_ALLOWED, /* a method other than GET and HEAD */
    SCRAPE_TOO_LONG,
    SCRAPE_BAD, /* not HTTP/1.x */
    N_SCRAPES
};

/* Classifies all bytes received on a connection so far. More bytes change the answer only after
 * SCRAPE_PARTIAL. */
enum scrape scrape_judge(struct slice bytes);

/* Writes the response, without a body unless `page` was requested. Not for SCRAPE_PARTIAL. */
void scrape_answer(enum scrape scrape, struct slice page, struct buf *ret);

/* Adds the lines before the samples of a metric. */
void prometheus_family(struct buf *b, const char *name, const char *type, const char *help);

/* Adds a label's value in quotes. */
void prometheus_label(struct buf *b, struct slice value);
