#pragma once

#include "config/cross.h"

/* Reports queues of one application with different settings of its connections or probes. */
void applications_check(const struct queue_reading *queues, size_t n);
