#pragma once

#include "plan.h"
#include "world.h"

/* Lets a fault of the plan begin; its end follows by itself. */
void fault_begins(struct world *w, const struct plan_fault *f);
