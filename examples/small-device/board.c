/* Start-up and the few devices of the MPS2 (AN386). Text and exit go through semihosting, which a debugger or
 * QEMU answers; without either, drop board_write and board_exit. */
#include "board.h"

#include <string.h>

extern uint32_t stack_top, data_start, data_end, data_in_flash, bss_start, bss_end;
int main(void);

#define SYSTICK ((volatile uint32_t *)0xE000E010u) /* control, reload, current */
#define LIGHTS (*(volatile uint32_t *)0x40028000u)
#define TICKS 0xFFFFFFu

static void start(void) {
    uint32_t *from = &data_in_flash, *to;
    for (to = &data_start; to < &data_end; to++) {
        *to = *from++;
    }
    for (to = &bss_start; to < &bss_end; to++) {
        *to = 0u;
    }
    SYSTICK[1] = TICKS;
    SYSTICK[2] = 0u;
    SYSTICK[0] = 5u; /* the processor's clock, no interrupt */
    board_exit(main());
}

/* A fault ends the program with a code of its own. */
static void fault(void) {
    board_exit(99);
}

__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {
    (void (*)(void)) & stack_top, start, fault, fault, fault, fault, fault};

static int semihosting(int call, const void *argument) {
    register int r0 __asm__("r0") = call;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void board_write(const char *text) {
    semihosting(0x04, text);
}

void board_exit(int code) {
    uint32_t reason[2];
    reason[0] = 0x20026u; /* the application has ended */
    reason[1] = (uint32_t)code;
    semihosting(0x20, reason);
    for (;;) {
    }
}

void board_light(uint32_t on) {
    LIGHTS = on;
}

uint32_t board_ticks(void) {
    return TICKS - SYSTICK[2];
}

uint32_t board_ticks_since(uint32_t before) {
    return (board_ticks() - before) & TICKS;
}
