/* Recorded inputs, seed and answers: gives 0 where this machine gives the same bits as the reference. */
#include <stdio.h>

#include "network.h"
#include "network_test_data.h"

static int failures = 0;

static void expect(int holds, const char *what) {
    if (!holds) {
        printf("network: %s differs from the reference\n", what);
        failures++;
    }
}

static void test_refusals(void) {
    network_output output[NETWORK_CODES];
    int32_t mean[NETWORK_OUTPUTS];
    int64_t variance[NETWORK_OUTPUTS], entropy;
    const network_input *x = recorded_inputs[0];
    expect(network_draw(x, NETWORK_INPUT_CODES, output, NETWORK_CODES) == NETWORK_UNREADY, "the answer before init");
    expect(network_seek(0u, 0u) == NETWORK_UNREADY, "seek before init");
    expect(network_init((uint64_t)1 << 63) == NETWORK_SEED, "the answer to a seed of 2^63");
    expect(network_init(QB_RECORDED_SEED) == NETWORK_OK, "init");
    expect(network_draw(NULL, NETWORK_INPUT_CODES, output, NETWORK_CODES) == NETWORK_NULL, "no input");
    expect(network_draw(x, NETWORK_INPUT_CODES, NULL, NETWORK_CODES) == NETWORK_NULL, "no output");
    expect(network_draw(x, NETWORK_INPUT_CODES + 1u, output, NETWORK_CODES) == NETWORK_SIZE, "a long input");
    expect(network_draw(x, NETWORK_INPUT_CODES, output, 0u) == NETWORK_SIZE, "a short output");
    expect(network_predict(x, NETWORK_INPUT_CODES, 0u, mean, variance, &entropy, NETWORK_OUTPUTS) == NETWORK_DRAWS,
           "no draws");
    expect(network_predict(x, NETWORK_INPUT_CODES, NETWORK_MOST_DRAWS + 1u, mean, variance, &entropy,
                           NETWORK_OUTPUTS) == NETWORK_DRAWS,
           "too many draws");
    expect(network_predict(x, NETWORK_INPUT_CODES, 1u, NULL, variance, &entropy, NETWORK_OUTPUTS) == NETWORK_NULL,
           "no mean");
    expect(network_predict(x, NETWORK_INPUT_CODES, 1u, mean, variance, &entropy, NETWORK_OUTPUTS + 1u) ==
               NETWORK_SIZE,
           "a long mean");
}

static void test_draws(void) {
    network_output output[NETWORK_CODES];
    uint32_t row, draw, i;
    for (row = 0u; row < QB_RECORDED_ROWS; row++) {
        expect(network_seek(row, 0u) == NETWORK_OK, "seek");
        for (draw = 0u; draw < QB_RECORDED_DRAWS; draw++) {
            int same = network_draw(recorded_inputs[row], NETWORK_INPUT_CODES, output, NETWORK_CODES) == NETWORK_OK;
            for (i = 0u; i < NETWORK_CODES; i++) {
                same = same && output[i] == recorded_outputs[row][draw][i];
            }
            expect(same, "a draw");
        }
    }
}

static void test_predictions(void) {
    int32_t mean[NETWORK_OUTPUTS];
    int64_t variance[NETWORK_OUTPUTS], entropy;
    uint32_t row, i;
    expect(network_init(QB_RECORDED_SEED) == NETWORK_OK, "init");
    for (row = 0u; row < QB_RECORDED_ROWS; row++) {
        int same = network_predict(recorded_inputs[row], NETWORK_INPUT_CODES, QB_RECORDED_DRAWS, mean, variance,
                                   &entropy, NETWORK_OUTPUTS) == NETWORK_OK;
        same = same && entropy == recorded_entropy[row];
        for (i = 0u; i < NETWORK_OUTPUTS; i++) {
            same = same && mean[i] == recorded_mean[row][i] && variance[i] == recorded_variance[row][i];
        }
        expect(same, "a prediction");
    }
}

#ifdef NETWORK_FLOAT
static void test_quantization(void) {
    network_input codes[NETWORK_INPUT_CODES];
    uint32_t row, i;
    for (row = 0u; row < QB_RECORDED_ROWS; row++) {
        int same = network_quantize(recorded_raw[row], NETWORK_INPUTS, codes, NETWORK_INPUT_CODES) == NETWORK_OK;
        for (i = 0u; i < NETWORK_INPUT_CODES; i++) {
            same = same && codes[i] == recorded_inputs[row][i];
        }
        expect(same, "an input's code");
    }
}
#endif

int main(void) {
    test_refusals();
    test_draws();
    test_predictions();
#ifdef NETWORK_FLOAT
    test_quantization();
#endif
    printf(failures ? "network: FAILED\n" : "network: the same bits as the reference\n");
    return failures != 0;
}
