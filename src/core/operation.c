/* The table of operations. */
#include "onceward/core/operation.h"

static const struct operation_info infos[N_OPERATIONS] = {
#define OPERATION(id, name, link, out, idle, begins, failpoint, sentence)                                    \
    [OP_##id] = {name, LINK_##link, out, idle, begins, FAILPOINT_##failpoint, sentence},
#include "onceward/core/terms/operations.def"
};

const struct operation_info *operation_info(enum operation op)
{
    return &infos[op];
}
