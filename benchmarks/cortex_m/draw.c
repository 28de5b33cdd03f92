/* The instructions of one draw of the exported network, by the timer of the example's board. */
#include "board.h"
#include "network.h"
#include "network_test_data.h"
#include "number.h"

int main(void) {
    static network_output output[NETWORK_CODES];
    uint32_t before;
    int wrong = network_init(0u);
    before = board_ticks();
    wrong += network_draw(recorded_inputs[0], NETWORK_INPUT_CODES, output, NETWORK_CODES);
    write_number((uint64_t)board_ticks_since(before) * BOARD_INSTRUCTIONS_A_TICK);
    return wrong;
}
