#pragma once

#include "onceward/inbox/admin.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct buf;
struct table;

/* The part of `status` about replicas. */
void fleet_print(const struct fleet *f, FILE *out);
void fleet_add_json(const struct fleet *f, struct buf *out); /* "replicas":[...],"levers":[...] */

/* Adds "INSTANCE (HOST)": people know the names of pods, rows have UIDs. host: "" or NULL if unknown. instance may
 * end in "/NUMBER"; a cell for NULL is empty. */
void fleet_add_name(struct buf *out, const char *instance, const char *host);
void fleet_table_name(struct table *t, const char *instance, const char *host);

/* Adds an array with one object per row. Keys are the names of the columns; those that begin with _ are left out. */
void json_rows_add(struct buf *out, const char *before, const PGresult *r);
