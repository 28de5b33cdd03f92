/* The recorded draws and predictions on the board, bit for bit: exits with the number of differences. */
#include "board.h"
#include "network.h"
#include "network_test_data.h"

static network_output output[NETWORK_CODES];
static int32_t mean[NETWORK_OUTPUTS];
static int64_t variance[NETWORK_OUTPUTS];

static int differing_draws(void) {
    int found = 0;
    uint32_t row, draw, i;
    for (row = 0u; row < QB_RECORDED_ROWS; row++) {
        found += network_seek(row, 0u) != NETWORK_OK;
        for (draw = 0u; draw < QB_RECORDED_DRAWS; draw++) {
            found += network_draw(recorded_inputs[row], NETWORK_INPUT_CODES, output, NETWORK_CODES) != NETWORK_OK;
            for (i = 0u; i < NETWORK_CODES; i++) {
                found += output[i] != recorded_outputs[row][draw][i];
            }
        }
    }
    return found;
}

static int differing_predictions(void) {
    int found = 0;
    int64_t entropy = 0;
    uint32_t row, i;
    for (row = 0u; row < QB_RECORDED_ROWS; row++) {
        found += network_predict(recorded_inputs[row], NETWORK_INPUT_CODES, QB_RECORDED_DRAWS, mean, variance, &entropy,
                                 NETWORK_OUTPUTS) != NETWORK_OK;
        found += entropy != recorded_entropy[row];
        for (i = 0u; i < NETWORK_OUTPUTS; i++) {
            found += mean[i] != recorded_mean[row][i];
            found += variance[i] != recorded_variance[row][i];
        }
    }
    return found;
}

int main(void) {
    int found = network_init(QB_RECORDED_SEED) != NETWORK_OK;
    found += differing_draws();
    found += network_init(QB_RECORDED_SEED) != NETWORK_OK;
    found += differing_predictions();
    board_write(found ? "bits differ\n" : "the same bits as the reference\n");
    return found > 90 ? 90 : found;
}
