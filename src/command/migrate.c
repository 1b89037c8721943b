/* onceward migrate: brings the schema up to date and prints what it did. */

#include "command/common.h"
#include "onceward/inbox/admin.h"

#include <getopt.h>
#include <stdlib.h>

static const char help[] =
    "usage: onceward migrate --config FILE | --database URL | --database-file FILE\n"
    "Brings the schema `onceward` in the database up to date: creates it if it is missing, runs the missing migrations,\n"
    "replaces the functions, and creates the roles onceward_sidecar and onceward_app. These two cannot log in: grant them\n"
    "to the login of the sidecar and to that of the application.\n"
    "Safe to run again, several times at once, and while sidecars run.\n"
    "  --database URL        the database, with a login that owns the schema; the sidecar's login has not enough rights.\n"
    "                        Better give its password in PGPASSWORD or in ~/.pgpass\n"
    "  --database-file FILE  the same, with the URL and its password in a file\n"
    "  --config FILE         the configuration that names the database; beside one of the others only its timeouts count\n"
    "The login must own the schema. For the first run it needs CREATE in the database, which the database's owner has. If\n"
    "it may not create roles (CREATEROLE), the command prints the statements for an administrator and ends with status 0.\n";

struct migrate_options {
    const char *config;
    struct config_text database;
};

static bool is_database_named(const struct migrate_options *o)
{
    return o->database.value || o->database.file;
}

/* Checks the URL before connecting. -1: good; else the exit status. */
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
    fprintf(stderr, "onceward migrate: --database%s: %s\n", database->file ? "-file" : "", f.text);
    return command_see_help("migrate");
}

/* -1: continue; else the exit status. */
static int read_options(int argc, char **argv, struct migrate_options *o)
{
    static const struct option options[] = {{"config", required_argument, NULL, 'c'},
                                            {"database", required_argument, NULL, 'd'},
                                            {"database-file", required_argument, NULL, 'f'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    int option;

    while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
        if (option == 'c') {
            o->config = optarg;
        } else if (option == 'd') {
            o->database = (struct config_text){.value = optarg};
        } else if (option == 'f') {
            o->database = (struct config_text){.file = optarg};
        } else {
            if (option != 'h')
                return command_see_help(argv[0]);
            fputs(help, stdout);
            return STATUS_DONE;
        }
    }
    o->config = command_config_default(o->config);
    if ((o->config || !is_database_named(o) || optind < argc) && command_config_named(argc, argv, &o->config))
        return command_see_help(argv[0]);
    return is_database_named(o) ? check_database(&o->database) : -1;
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
    c = o.config ? command_config(o.config) : config_defaults();
    if (!c)
        return STATUS_USAGE;
    struct config_database database = c->database;

    if (is_database_named(&o)) {
        database.url = o.database;
        database.password = (struct config_text){0};
    }
    status = migrate(&database);
    config_free(c);
    return status;
}
