/* onceward migrate: brings the schema up to date, and says what it did. */

#include "command/common.h"
#include "onceward/inbox/admin.h"

#include <getopt.h>

static const char help[] =
    "usage: onceward migrate --config FILE [--database URL]\n"
    "Brings the schema `onceward` in the configured database up to date: makes it where there is none, runs "
    "the migrations\n"
    "that are missing, replaces the functions, and makes the roles onceward_sidecar and onceward_app, which "
    "cannot log in\n"
    "themselves: give the sidecar and the application logins that are IN ROLE of them.\n"
    "Safe to run again, by several at once, and while sidecars run.\n"
    "  --database URL   the same database by another login: the sidecar's own may not do this. A password is "
    "better given\n"
    "                   in PGPASSWORD or in ~/.pgpass\n"
    "The login must own the schema, or the first time may CREATE in the database (its owner may). Where it "
    "may not make\n"
    "roles (CREATEROLE), the statements for an administrator are printed, and it has succeeded all the "
    "same.\n";

struct migrate_options {
    const char *config, *database;
};

/* -1: go on; else the exit status. */
static int read_options(int argc, char **argv, struct migrate_options *o)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"database", required_argument, NULL, 'd'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct fault f = {0};
    int option;

    while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        if (option == 'c') {
            o->config = optarg;
        } else if (option == 'd') {
            o->database = optarg;
        } else {
            if (option != 'h')
                return command_see_help(argv[0]);
            fputs(help, stdout);
            return STATUS_DONE;
        }
    }
    if (command_config_named(argc, argv, &o->config) == 0) {
        if (!o->database || admin_check_url(o->database, &f) >= 0)
            return -1;
        fprintf(stderr, "onceward migrate: --database: %s\n", f.text);
    }
    return command_see_help(argv[0]);
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
        printf("-- %s: the schema onceward was made, version %d\n", admin_where(a), to);
    } else if (from < to) {
        printf("-- %s: the schema onceward was brought from version %d to %d\n", admin_where(a), from, to);
    } else {
        printf("-- %s: the schema onceward is at version %d\n", admin_where(a), to);
    }
    admin_close(a);
    return status;
}

int command_migrate(int argc, char **argv)
{
    struct migrate_options o = {0};
    int status = read_options(argc, argv, &o);
    struct config *c;

    if (status >= 0)
        return status;
    c = command_config(o.config);
    if (!c)
        return STATUS_USAGE;
    struct config_database database = c->database;

    if (o.database) {
        database.url = (struct config_text){.value = (char *)o.database};
        database.password = (struct config_text){0};
    }
    status = migrate(&database);
    config_free(c);
    return status;
}
