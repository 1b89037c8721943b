#pragma once

#include "world.h"

/* An operator, who decides about held messages: some are tried again, the others are given up. */

/* Call it once per virtual second. */
void operator_second(struct world *w);

/* A sidecar's presence call reads the operator's commands. */
void operator_tells(struct world *w, struct sidecar *s);
