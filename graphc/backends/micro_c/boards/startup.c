/* Start-up of a Cortex-M or a RISC-V under QEMU: vectors, FPU and vectors on, memory, then board_main.
 *
 * What board_main returns is the exit status of QEMU, by semihosting.
 */
#include "board.h"

extern uint32_t data_start[], data_end[], data_load[], bss_start[], bss_end[];
extern uint32_t stack_limit[], stack_top[];

#define PAINT 0xc5c5c5c5u

#ifdef __riscv
int32_t semihost(int32_t operation, const void *argument)
{
    register int32_t a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = argument;
    __asm__ volatile(".balign 16\n .option push\n .option norvc\n"
                     " slli zero, zero, 0x1f\n ebreak\n srai zero, zero, 7\n .option pop"
                     : "+r"(a0) : "r"(a1) : "memory");
    return a0;
}
#else
int32_t semihost(int32_t operation, const void *argument)
{
    register int32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}
#endif

void say(const char *text)
{
    semihost(4, text); /* SYS_WRITE0 */
}

void say_number(uint32_t value)
{
    char text[9];
    int digit;
    for (digit = 0; digit < 8; ++digit) {
        text[digit] = "0123456789abcdef"[(value >> (28 - 4 * digit)) & 15u];
    }
    text[8] = 0;
    say(text);
}

/* Reads (mode 1) or writes (mode 5) a whole file; whether that went well. */
int transfer(const char *name, int mode, void *data, uint32_t bytes)
{
    uint32_t length = 0;
    uintptr_t open[3], move[3];
    int32_t file, left;
    while (name[length] != 0) {
        ++length;
    }
    open[0] = (uintptr_t)name;
    open[1] = (uintptr_t)mode;
    open[2] = length;
    file = semihost(1, open); /* SYS_OPEN */
    if (file < 0) {
        return 0;
    }
    move[0] = (uintptr_t)file;
    move[1] = (uintptr_t)data;
    move[2] = bytes;
    left = bytes == 0u ? 0 : semihost(mode == 1 ? 6 : 5, move); /* SYS_READ, SYS_WRITE */
    semihost(2, move);                                          /* SYS_CLOSE */
    return left == 0;
}

static void leave(uint32_t status)
{
    uint32_t block[2];
    block[0] = 0x20026u; /* ADP_Stopped_ApplicationExit */
    block[1] = status;
    semihost(0x20, block);
    for (;;) {
    }
}

static __attribute__((used)) void fault(void)
{
    say("FAULT\n");
    leave(99);
}

/* Bytes of stack below here that have been written since paint_stack. */
uint32_t stack_used(void)
{
    uint32_t *at = stack_limit;
    while (*at == PAINT) {
        ++at;
    }
    return (uint32_t)((uintptr_t)__builtin_frame_address(0) - (uintptr_t)at);
}

void paint_stack(void)
{
    volatile uint32_t *at;
    uint32_t *const here = (uint32_t *)__builtin_frame_address(0) - 16;
    for (at = stack_limit; at < here; ++at) {
        *at = PAINT;
    }
}

static void processor(void)
{
#ifndef __riscv
    *(volatile uint32_t *)0xe000ed88u |= 0xfu << 20; /* CPACR: FPU and MVE */
    *(volatile uint32_t *)0xe000ed14u |= 3u << 18;   /* CCR: loops and branches of v8.1-M */
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
}

static __attribute__((used)) void reset(void)
{
    uint32_t *to;
    const uint32_t *from = data_load;
    processor();
    for (to = data_start; to < data_end; ++to) {
        *to = *from++;
    }
    for (to = bss_start; to < bss_end; ++to) {
        *to = 0;
    }
    leave((uint32_t)board_main());
}

#ifdef __riscv
__asm__(".section .vectors, \"ax\"\n"
        " .option arch, +zicsr\n la sp, stack_top\n la tp, thread_data\n la t0, trap\n"
        " csrw mtvec, t0\n tail reset\n"
        " .balign 4\ntrap:\n tail fault\n .text");
#else
__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
    (void *)fault, (void *)fault, 0, 0, 0, (void *)fault, (void *)fault, 0, (void *)fault,
    (void *)fault,
};
#endif
