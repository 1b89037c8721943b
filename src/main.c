#include "onceward/base/failpoint.h"
#include "onceward/command/command.h"

int main(int argc, char **argv)
{
    FAILPOINT_INIT();
    return command_main(argc, argv);
}
