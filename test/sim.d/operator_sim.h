#pragma once

#include "world.h"

/* An operator, who retries some held messages and gives up the others. */

/* For once per virtual second. */
void operator_second(struct world *w);

/* Passes the operator's commands to a sidecar, as its presence call does. */
void operator_tells(struct world *w, struct sidecar *s);
