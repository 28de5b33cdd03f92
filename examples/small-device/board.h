/* What the example needs of a board: a light, a line of text, and a count of instructions.
 *
 * This board is Arm's MPS2 with a Cortex-M4 (image AN386), as QEMU plays it. For another board, write these few
 * functions and the linker script anew; nothing else knows where it runs.
 */
#ifndef BOARD_H
#define BOARD_H

#include <stdint.h>

void board_light(uint32_t on);
void board_write(const char *text);
/* A timer of 24 bits. QEMU with -icount shift=0 passes one instruction a nanosecond, and it ticks every 40. */
uint32_t board_ticks(void);
uint32_t board_ticks_since(uint32_t before);
#define BOARD_INSTRUCTIONS_A_TICK 40u
void board_exit(int code);

#endif
