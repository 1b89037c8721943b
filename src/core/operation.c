/* The table of operations. */
#include "onceward/core/operation.h"

const struct operation_info operation_infos[N_OPERATIONS] = {
#define OPERATION(id, name, link, idle, failpoint)                                                           \
    [OP_##id] = {name, LINK_##link, idle, FAILPOINT_##failpoint},
#include "onceward/core/terms/operations.def"
};
