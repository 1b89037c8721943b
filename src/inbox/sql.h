#pragma once

#include <stddef.h>

/* The files of sql/, compiled into the program. Sorted by name. */

struct sql_file {
    const char *name; /* "0001_schema.sql", "functions/complete.sql", "queries/status_reasons.sql",
                         "roles_create.sql" */
    const char *text;
};

extern const struct sql_file sql_files[];
extern const size_t n_sql_files;

/* Number of a migration file; 0: another file. */
int sql_file_version(const struct sql_file *file);

/* Finds the file of that name, or NULL. */
const struct sql_file *sql_file_find(const char *name);

/* Text of queries/NAME.sql, which must exist. */
const char *sql_query(const char *name);

/* This program's version of the schema: the number of its newest migration. */
int sql_newest(void);
