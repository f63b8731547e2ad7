/* The test of a bundle as firmware: stdio goes by semihosting to QEMU's standard output. */
#include "board.h"

#include <stdio.h>

#ifdef __PICOLIBC__
#define initialise_monitor_handles() ((void)0)
#else
void initialise_monitor_handles(void); /* newlib's */
#endif
int main(void);

int board_main(void)
{
    int status;
    initialise_monitor_handles();
    status = main();
    fflush(stdout);
    return status;
}
