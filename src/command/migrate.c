/* onceward migrate: brings the schema up to date and prints the changes. */

#include "command/common.h"
#include "onceward/inbox/admin.h"

#include <stdlib.h>

struct migrate_options {
    const char *config;
    struct config_text database;
};

static bool is_database_named(const struct migrate_options *o)
{
    return o->database.value || o->database.file;
}

/* Checks the URL before connecting. -1: valid; else the exit status. */
static int check_database(const struct config_text *database)
{
    struct fault f = {0};
    char *url;

    if (config_text_read(database, &url, &f)) {
        fprintf(stderr, "onceward migrate: --database-file: %s\n", f.text);
        return STATUS_USAGE;
    }
    bool good = admin_check_url(url, &f) >= 0;

    free(url);
    if (good)
        return -1;
    return command_wrong("migrate", "--database%s: %s", database->file ? "-file" : "", f.text);
}

static int migrate(const struct config_database *c)
{
    int from, to, status = STATUS_DONE;
    struct fault f = {0};
    struct admin *a;

    if (admin_open(c, ADMIN_WRITES, &a, &f))
        return command_fail(&f);
    if (admin_migrate(a, stdout, &from, &to, &f)) {
        fprintf(stderr, "onceward: %s: the schema was left as it was: %s\n", admin_where(a), f.text);
        status = STATUS_FAILED;
    } else if (from == 0) {
        printf("-- %s: the schema onceward was created, version %d\n", admin_where(a), to);
    } else if (from < to) {
        printf("-- %s: the schema onceward was updated from version %d to %d\n", admin_where(a), from, to);
    } else {
        printf("-- %s: the schema onceward is at version %d\n", admin_where(a), to);
    }
    admin_close(a);
    return status;
}

static int migrate_run(void *options)
{
    const struct migrate_options *o = options;
    struct config *c;
    int status;

    if (!o->config && !is_database_named(o))
        return command_wrong("migrate",
                             "--config FILE is missing, and neither --database nor ONCEWARD_CONFIG is set");
    if (is_database_named(o) && (status = check_database(&o->database)) >= 0)
        return status;
    c = o->config ? command_config(o->config) : config_defaults();
    if (!c)
        return STATUS_USAGE;
    struct config_database database = c->database;

    if (is_database_named(o)) {
        database.url = o->database;
        database.password = (struct config_text){0};
    }
    status = migrate(&database);
    config_free(c);
    return status;
}

#define OPTIONS struct migrate_options

static const struct command_option migrate_options[] = {
    CONFIG_OPTION(),
    {"database", "URL",
     "the database, with a login that owns the schema; the sidecar's login lacks the rights. Give its "
     "password in PGPASSWORD or ~/.pgpass rather than in the URL",
     OPTION(TEXT, database.value)},
    {"database-file", "FILE", "the same, with the URL and its password in a file",
     OPTION(FILE, database.file), OPTION_OR},
    {0},
};

const struct command migrate_command = {
    .name = "migrate",
    .does = "bring the database schema up to date",
    .about =
        "Brings the schema `onceward` in the database up to date: creates it if it is missing, runs the "
        "missing migrations, replaces the "
        "functions, and creates the roles onceward_sidecar and onceward_app. These two cannot log in: "
        "grant them to the login of the "
        "sidecar and to that of the application. Safe to run again, several times at once, and while "
        "sidecars run.\n"
        "The configuration names the database; with --database or --database-file only its timeouts apply.",
    .after =
        "The login must own the schema. For the first run it needs CREATE in the database, which the "
        "database's owner has. If it may not "
        "create roles (CREATEROLE), the command prints the statements for an administrator and ends with "
        "status 0.",
    .options = migrate_options,
    .size = sizeof(struct migrate_options),
    .run = migrate_run,
};
