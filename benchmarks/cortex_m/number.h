#ifndef NUMBER_H
#define NUMBER_H

#include "board.h"

static inline void write_number(uint64_t number) {
    char text[24];
    uint32_t at = sizeof text - 1u;
    text[at] = '\0';
    do {
        text[--at] = (char)('0' + (char)(number % 10u));
        number /= 10u;
    } while (number != 0u);
    board_write(text + at);
    board_write("\n");
}

#endif
