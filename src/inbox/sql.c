/* Lookups in the table of the compiled-in files. Any thread. */

#include "inbox/sql.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

int sql_file_version(const struct sql_file *file)
{
    int version = 0;

    if (strlen(file->name) < 5 || file->name[4] != '_')
        return 0;
    for (int i = 0; i < 4; i++) {
        if (file->name[i] < '0' || file->name[i] > '9')
            return 0;
        version = version * 10 + (file->name[i] - '0');
    }
    return version;
}

const struct sql_file *sql_file_find(const char *name)
{
    for (size_t i = 0; i < n_sql_files; i++)
        if (strcmp(sql_files[i].name, name) == 0)
            return &sql_files[i];
    return NULL;
}

const char *sql_query(const char *name)
{
    char path[64];

    snprintf(path, sizeof(path), "queries/%s.sql", name);
    const struct sql_file *file = sql_file_find(path);

    assert(file);
    return file->text;
}

int sql_newest(void)
{
    int newest = 0;

    for (size_t i = 0; i < n_sql_files; i++)
        if (sql_file_version(&sql_files[i]) > newest)
            newest = sql_file_version(&sql_files[i]);
    return newest;
}
