/* onceward migrate: brings the schema up to date, and says what it did. */

#include "command/common.h"
#include "onceward/inbox/admin.h"

static const char help[] =
    "usage: onceward migrate --config FILE\n"
    "Brings the schema `onceward` in the configured database up to date: makes it where there is none, runs "
    "the migrations\n"
    "that are missing, replaces the functions, and makes the roles onceward_sidecar and onceward_app. Where "
    "the login may not\n"
    "make roles, it prints the statements for an administrator, and has succeeded all the same.\n"
    "Safe to run again, by several at once, and while sidecars run. The login must own the schema, or may "
    "create it.\n";

int command_migrate(int argc, char **argv)
{
    const char *path = NULL;
    int from, to, status = command_parse(argc, argv, help, NULL, &path, NULL);
    struct fault f = {0};
    struct config *c;
    struct admin *a;

    if (status >= 0)
        return status;
    status = command_open(path, &c, &a);
    if (status)
        return status;
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
    command_close(c, a);
    return status;
}
