/* The test of a bundle as firmware: newlib's stdio goes by semihosting to QEMU's standard output. */
#include "board.h"

#include <stdio.h>

void initialise_monitor_handles(void);
int main(void);

int board_main(void)
{
    int status;
    initialise_monitor_handles();
    status = main();
    fflush(stdout);
    return status;
}
