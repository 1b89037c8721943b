/* The table of operations. */
#include "onceward/core/operation.h"

static const struct operation_info infos[N_OPERATIONS] = {
#define OPERATION(id, name, link, idle, failpoint)                                                           \
    [OP_##id] = {name, LINK_##link, idle, FAILPOINT_##failpoint},
#include "onceward/core/terms/operations.def"
};

const struct operation_info *operation_info(enum operation op)
{
    return &infos[op];
}
