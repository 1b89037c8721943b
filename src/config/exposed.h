#pragma once

#include "config/cross.h"

/* Warnings about data that others can read or change on the way. Nothing is refused. */

/* Does this text of the file contain a password, or the value of the Authorization field? A broker's URL with
 * RabbitMQ's default user and password (guest, accepted only from its own machine) does not count. */
bool exposed_is_secret(const struct key *k, const char *text);

/* The same for a configured request field, by its name. */
bool exposed_is_secret_field(const char *name);

/* Checks the connections to broker, database and application. database_is_open: the result of the check of
 * database.url. */
void exposed_check_root(const struct reading *root, bool database_is_open);
void exposed_check_queue(const struct queue_reading *q);

/* Checks the file's mode, for regular files only. */
void exposed_check_file(struct config_report *report, const char *path, bool holds_secrets);
