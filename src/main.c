#include "onceward/base/failpoint.h"
#include "onceward/command/command.h"

#include <fcntl.h>
#include <unistd.h>

/* If standard input, output or error is missing, the next file or socket would take its number, and output
 * would go there. Each is opened the wrong way round, so that using it still fails. */
static void fill_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(1);
}

int main(int argc, char **argv)
{
    fill_standard_files();
    FAILPOINT_INIT();
    return command_main(argc, argv);
}
