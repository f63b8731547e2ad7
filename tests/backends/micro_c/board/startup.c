/* Start-up for a Cortex-M board under QEMU: FPU and vectors on, then main, with semihosting. newlib's
 * own start would take the heap where the debugger says, which is wrong for some boards. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern uint32_t stack_top[];
extern char __bss_start__[], __bss_end__[];
void initialise_monitor_handles(void);
int main(void);

static void reset(void)
{
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: access to FPU and vectors */
    __asm__ volatile("dsb\n isb" ::: "memory");
    memset(__bss_start__, 0, (size_t)(__bss_end__ - __bss_start__));
    initialise_monitor_handles();
    const int status = main();
    fflush(stdout);
    _exit(status);
}

static void fault(void)
{
    static const uint32_t status[2] = {0x20026, 99}; /* ADP_Stopped_ApplicationExit */
    register uint32_t operation __asm__("r0") = 0x20;
    register const uint32_t *argument __asm__("r1") = status;
    __asm__ volatile("bkpt 0xab" : : "r"(operation), "r"(argument) : "memory");
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
    (void *)fault, 0, 0, 0, 0, (void *)fault, 0, 0, (void *)fault, (void *)fault,
};
