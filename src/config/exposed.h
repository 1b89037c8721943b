#pragma once

#include "config/cross.h"

/* Warnings of what others can read, or change, on the way. None of them refuses anything. */

/* Does this text of the file give something away: a password, or the value of the Authorization field? The
 * URL of a broker with the user and password that every RabbitMQ has (guest, from its own machine only) does
 * not. */
bool exposed_is_secret(const struct key *k, const char *text);

/* The same of a field that is added to requests, by its name. */
bool exposed_is_secret_field(const char *name);

/* The ways to broker, database and application. database_is_open: the check of database.url said so. */
void exposed_check_root(const struct reading *root, bool database_is_open);
void exposed_check_queue(const struct queue_reading *q);

/* The file's mode. Nothing is said of what is no regular file. */
void exposed_check_file(struct config_report *report, const char *path, bool holds_secrets);
