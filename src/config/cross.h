#pragma once

#include "config/origin.h"
#include "onceward/config/config.h"

/* Checks across keys, after every key was read alone. */

struct queue_reading {
    struct reading reading;
    struct config_queue queue;
    char *path; /* "queues.payments" */
};

/* check may be NULL. */
void cross_check_root(const struct reading *root, config_database_check *check);
void cross_check_queue(const struct reading *root, const struct queue_reading *q);
void cross_check_queues(const struct reading *root, const struct queue_reading *queues, size_t n);
