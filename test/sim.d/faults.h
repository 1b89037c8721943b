#pragma once

#include "plan.h"
#include "world.h"

/* Starts a fault of the plan; its end is scheduled. */
void fault_begins(struct world *w, const struct plan_fault *f);
