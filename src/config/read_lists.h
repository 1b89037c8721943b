#pragma once

#include "config/read.h"

/* Reads a string's text with ${VAR} expanded, appended to out. -1: reported. */
int read_string(struct reading *r, const char *path, json_t *value, struct buf *out);

/* Reads the value of a key of type HEADERS, IDENTITIES, STATUSES or NAMES. False: reported. */
bool read_list(struct reading *r, const struct key *k, const char *path, json_t *value);
