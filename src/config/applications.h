#pragma once

#include "config/cross.h"

/* Reports queues of one application that would have it reached, or asked, in two ways. */
void applications_check(const struct queue_reading *queues, size_t n);
