#include "measured.h"
int measured_run(const char *name)
{
    (void)name;
    return 0;
}
bool measured_catches(struct outcome *ret)
{
    (void)ret;
    return false;
}
