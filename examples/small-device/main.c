/* A board that knows when it does not know: the light is steady where the network is sure, and blinks where its
 * draws disagree. The input is a recorded one; a real board would read its sensor into `codes`. */
#include "board.h"
#include "network.h"
#include "network_test_data.h"

#define DRAWS 20u
/* An entropy above half a nat counts as doubt, in units of 2^-24. */
#define DOUBT ((int64_t)1 << (NETWORK_ENTROPY_BITS - 1))
#define BLINKS 6u
#define PAUSE 200000u

static void write_number(const char *label, int64_t number) {
    char text[24];
    uint32_t at = sizeof text - 1u;
    uint64_t rest = number < 0 ? (uint64_t)0 - (uint64_t)number : (uint64_t)number;
    text[at] = '\0';
    do {
        text[--at] = (char)('0' + (char)(rest % 10u));
        rest /= 10u;
    } while (rest != 0u);
    if (number < 0) {
        text[--at] = '-';
    }
    board_write(label);
    board_write(text + at);
    board_write("\n");
}

static void blink(uint32_t times) {
    volatile uint32_t pause;
    uint32_t i;
    for (i = 0u; i < 2u * times; i++) {
        board_light(i & 1u);
        for (pause = 0u; pause < PAUSE; pause++) {
        }
    }
}

/* Instructions of one draw, from the board's timer. */
static void measure(const network_input *codes) {
    static network_output output[NETWORK_CODES];
    uint32_t before = board_ticks();
    (void)network_draw(codes, NETWORK_INPUT_CODES, output, NETWORK_CODES);
    write_number("instructions of a draw: ", (int64_t)board_ticks_since(before) * BOARD_INSTRUCTIONS_A_TICK);
}

int main(void) {
    static int32_t mean[NETWORK_OUTPUTS];
    static int64_t variance[NETWORK_OUTPUTS];
    int64_t entropy = 0;
    uint32_t best = 0u, i;
    const network_input *codes = recorded_inputs[0];
    if (network_init(QB_RECORDED_SEED) != NETWORK_OK ||
        network_predict(codes, NETWORK_INPUT_CODES, DRAWS, mean, variance, &entropy, NETWORK_OUTPUTS) != NETWORK_OK) {
        return 1;
    }
    for (i = 1u; i < NETWORK_OUTPUTS; i++) {
        best = mean[i] > mean[best] ? i : best;
    }
    write_number("answer: ", (int64_t)best);
    write_number("probability in 1/1000: ", (int64_t)mean[best] * 1000 >> NETWORK_MEAN_BITS);
    write_number("entropy in 1/1000 nats: ", entropy * 1000 >> NETWORK_ENTROPY_BITS);
    measure(codes);
    board_light(1u);
    if (entropy > DOUBT) {
        blink(BLINKS);
    }
    return 0;
}
