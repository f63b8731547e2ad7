/* What startup.c offers, and what it calls. */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

int board_main(void);
int32_t semihost(int32_t operation, const void *argument);
void say(const char *text);
void say_number(uint32_t value);
int transfer(const char *name, int mode, void *data, uint32_t bytes);
void paint_stack(void);
uint32_t stack_used(void);

#endif
