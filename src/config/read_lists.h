#pragma once

#include "config/read.h"

/* Appends a string's text to out, with ${VAR} expanded. -1: a fault was reported. */
int read_string(struct reading *r, const char *path, json_t *value, struct buf *out);

/* Reads the value of a key of type HEADERS, IDENTITIES, STATUSES or NAMES. False: a fault was reported. */
bool read_list(struct reading *r, const struct key *k, const char *path, json_t *value);
