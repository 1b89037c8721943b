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

const char *wait_name(enum wait_reason w)
{
    static const char *const names[N_WAITS] = {
        [WAIT_NONE] = "none",           [WAIT_DUE] = "due",           [WAIT_HELD] = "held",
        [WAIT_LOCKED] = "locked",       [WAIT_WATCHING] = "watching", [WAIT_AGAIN] = "again",
        [WAIT_FOLLOWING] = "following", [WAIT_ROOM] = "room",         [WAIT_CIRCLING] = "circling",
        [WAIT_BRAKE] = "brake",
    };

    return names[w];
}
