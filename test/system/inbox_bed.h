#pragma once

#include "../unit/cmocka_all.h"

#include "onceward/base/fault.h"
#include "onceward/config/config.h"
#include "onceward/inbox/inbox.h"

#include <libpq-fe.h>

/* The bed of the inbox's tests: a database, a connection of the adapter to it, items and their answers. */

enum { BED_MAX_ITEMS = 1024, BED_MAX_ROWS = 4096, BED_MAX_QUEUES = 4 };

struct answers {
    size_t n;
    struct inbox_row rows[BED_MAX_ROWS];
    char details[BED_MAX_ROWS][1100], ids[BED_MAX_ROWS][24];
};

struct bed {
    char name[64]; /* of the database */
    PGconn *sql;   /* the test's own connection to it */
    char text[1200];
    struct config_database database;
    struct inbox_queue
        queues[BED_MAX_QUEUES]; /* named driver, driver1, ...: n_queues of them, one by default */
    size_t n_queues;
    struct inbox_self self;
    struct inbox *inbox;
    struct fault fault;
    size_t n;
    struct inbox_item items[BED_MAX_ITEMS];
    char ids[BED_MAX_ITEMS][24];
    struct answers answers;
};

int bed_group_setup(void **state);
int bed_group_teardown(void **state);
int bed_setup(void **state);
int bed_teardown(void **state);

/* Connects the adapter, which must succeed. bed_try: returns the result of inbox_attempt_take; bed_job: only
 * starts it. */
void bed_connect(struct bed *b);
int bed_try(struct bed *b);
struct job *bed_job(struct bed *b);
void bed_disconnect(struct bed *b);

/* n items with ids id-0000, id-0001, ..., refs 0, 1, ..., in an unsorted order, with new tokens. */
void items_make(struct bed *b, size_t n);
const char *token_hex(const struct inbox_item *item);

/* Submits all items, and drops earlier answers if nothing else is in flight. */
void bed_submit(struct bed *b, enum inbox_op op);

/* Waits until exactly n answers have arrived in total. */
const struct answers *bed_collect(struct bed *b, size_t n);

/* Takes available answers, and waits a moment if there are none. 0; -1: lost. */
int bed_wait(struct bed *b);

/* The only answer for the item with this ref. */
const struct inbox_row *bed_row(struct bed *b, uint64_t ref);
const struct inbox_row *bed_row_of(struct bed *b, uint64_t ref, enum inbox_op op);
const char *bed_detail(struct bed *b, uint64_t ref);

/* Runs on the test's own connection. */
void bed_sql(struct bed *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *bed_text(struct bed *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bed_until(struct bed *b, const char *condition);
