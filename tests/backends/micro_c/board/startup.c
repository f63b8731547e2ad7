/* Start-up for a Cortex-M board under QEMU: the FPU on, then newlib's start with semihosting. */
#include <stdint.h>

extern uint32_t stack_top[];
void _start(void);

static void reset(void)
{
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: access to the FPU */
    __asm__ volatile("dsb\n isb" ::: "memory");
    _start();
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
