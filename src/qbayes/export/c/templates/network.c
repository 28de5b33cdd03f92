/* What network.h promises. The constants, the memory and the order of the ops are in network_data.h. */
#include "network.h"

#include "qb_elementwise.h"
#include "qb_move.h"
#include "qb_noise.h"
#include "qb_pool.h"
#include "qb_statistics.h"
#include "qb_weighted.h"

#include "network_data.h"

static struct {
    uint64_t seed;
    uint32_t row, draw;
    uint32_t ready;
} state;

int network_init(uint64_t seed) {
    if (seed >> 63 != 0u) {
        return NETWORK_SEED;
    }
    state.seed = seed;
    state.row = 0u;
    state.draw = 0u;
    state.ready = 1u;
    return NETWORK_OK;
}

int network_seek(uint32_t row, uint32_t draw) {
    if (!state.ready) {
        return NETWORK_UNREADY;
    }
    state.row = row;
    state.draw = draw;
    return NETWORK_OK;
}

/* A code above the grid would be read behind the end of a table: none gets in. */
static int qb_checked_input(const network_input *input, size_t input_codes) {
    if (!state.ready) {
        return NETWORK_UNREADY;
    }
    if (!input) {
        return NETWORK_NULL;
    }
    if (input_codes != NETWORK_INPUT_CODES) {
        return NETWORK_SIZE;
    }
#if NETWORK_CHECK_CODES
    {
        size_t i;
        for (i = 0u; i < NETWORK_INPUT_CODES; i++) {
            if (input[i] > NETWORK_INPUT_TOP) {
                return NETWORK_CODE;
            }
        }
    }
#endif
    return NETWORK_OK;
}

static const network_input *of_member(const network_input *input, uint32_t member) {
    return input + (size_t)grid_of_member[member] * NETWORK_INPUTS;
}

int network_draw(const network_input *input, size_t input_codes, network_output *output, size_t output_codes) {
    uint32_t member = state.draw % NETWORK_MEMBERS, i;
    qb_noise noise;
    int wrong = qb_checked_input(input, input_codes);
    if (wrong) {
        return wrong;
    }
    if (!output) {
        return NETWORK_NULL;
    }
    if (output_codes != NETWORK_CODES) {
        return NETWORK_SIZE;
    }
    noise.seed = state.seed;
    noise.draw = state.draw;
    noise.row = state.row;
    qb_run_shared(member, of_member(input, member));
    qb_run_draw(member, of_member(input, member), &noise);
    read_answers();
    for (i = 0u; i < NETWORK_CODES; i++) {
        output[i] = (network_output)arena.answers[i];
    }
    state.draw++;
    return NETWORK_OK;
}

/* Adds the answers of one draw to the sums. */
static void add_answers(uint32_t member) {
#if NETWORK_CLASSIFIER
    qb_add_softmax(arena.answers, NETWORK_OUTPUTS, exp_table[member], exp_entries[member], arena.sums,
                   arena.squares);
#else
    uint32_t i;
    for (i = 0u; i < NETWORK_OUTPUTS; i++) {
        int64_t centred = (int64_t)arena.answers[i] - mean_zero[member];
        int64_t z = qb_shifted(centred * mean_multiplier[member], mean_shift[member]);
        arena.sums[i] += z;
        arena.squares[i] += z * z;
#if NETWORK_LEARNT_NOISE
        {
            int64_t code = (int64_t)arena.answers[NETWORK_OUTPUTS + i] - noise_zero[member];
            int64_t t = qb_shifted(code * noise_multiplier[member], noise_shift[member]);
            arena.noise[i] += qb_power(t + (int64_t)NETWORK_VARIANCE_BITS * QB_ONE, power_table);
        }
#else
        arena.noise[i] += noise_variance[member][i];
#endif
    }
#endif
}

static void finish(uint32_t draws, int32_t *mean, int64_t *variance, int64_t *entropy) {
    int64_t total = 0;
    uint32_t i;
    for (i = 0u; i < NETWORK_OUTPUTS; i++) {
        mean[i] = (int32_t)qb_mean(arena.sums[i], draws);
#if NETWORK_CLASSIFIER
        variance[i] = qb_variance(arena.sums[i], arena.squares[i], draws, 48u - NETWORK_VARIANCE_BITS);
        total += qb_entropy_term(mean[i], log_table);
#else
        variance[i] = qb_variance(arena.sums[i], arena.squares[i], draws, 0u) + qb_mean(arena.noise[i], draws);
        total += QB_LN_2PIE - (int64_t)NETWORK_VARIANCE_BITS * QB_LN2 +
                 qb_logarithm((uint64_t)(variance[i] > 1 ? variance[i] : 1), log_table);
#endif
    }
#if NETWORK_CLASSIFIER
    *entropy = qb_floor_divided(total + QB_ONE / 2, QB_ONE);
#else
    *entropy = qb_floor_divided(total + 1, 2);
#endif
}

int network_predict(const network_input *input, size_t input_codes, uint32_t draws, int32_t *mean,
                    int64_t *variance, int64_t *entropy, size_t outputs) {
    uint32_t member;
    qb_noise noise;
    int wrong = qb_checked_input(input, input_codes);
    if (wrong) {
        return wrong;
    }
    if (!mean || !variance || !entropy) {
        return NETWORK_NULL;
    }
    if (outputs != NETWORK_OUTPUTS) {
        return NETWORK_SIZE;
    }
    if (draws == 0u || draws > NETWORK_MOST_DRAWS) {
        return NETWORK_DRAWS;
    }
    noise.seed = state.seed;
    noise.row = state.row;
    memset(arena.sums, 0, sizeof arena.sums);
    memset(arena.squares, 0, sizeof arena.squares);
#if !NETWORK_CLASSIFIER
    memset(arena.noise, 0, sizeof arena.noise);
#endif
    /* What no noise reaches is computed once for all draws of a member. */
    for (member = 0u; member < NETWORK_MEMBERS && member < draws; member++) {
        qb_run_shared(member, of_member(input, member));
        for (noise.draw = member; noise.draw < draws; noise.draw += NETWORK_MEMBERS) {
            qb_run_draw(member, of_member(input, member), &noise);
            read_answers();
            add_answers(member);
        }
    }
    finish(draws, mean, variance, entropy);
    state.row++;
    state.draw = 0u;
    return NETWORK_OK;
}

#ifdef NETWORK_FLOAT
/* round(v) to the nearest whole number, ties to even, for |v| < 2^30. */
static int32_t rounded(float v) {
    int32_t whole = (int32_t)v;
    float rest = v - (float)whole;
    if (rest > 0.5f || (rest == 0.5f && (whole & 1) != 0)) {
        return whole + 1;
    }
    if (rest < -0.5f || (rest == -0.5f && (whole & 1) != 0)) {
        return whole - 1;
    }
    return whole;
}

int network_quantize(const float *raw, size_t inputs, network_input *codes, size_t input_codes) {
    uint32_t grid, i;
    if (!raw || !codes) {
        return NETWORK_NULL;
    }
    if (inputs != NETWORK_INPUTS || input_codes != NETWORK_INPUT_CODES) {
        return NETWORK_SIZE;
    }
    for (i = 0u; i < NETWORK_INPUTS; i++) {
        uint32_t channel = i / (NETWORK_INPUTS / NETWORK_INPUT_CHANNELS);
        float z = (raw[i] - input_mean[channel]) / input_std[channel];
        if (!(z - z == 0.0f)) {
            return NETWORK_VALUE;
        }
        for (grid = 0u; grid < NETWORK_GRIDS; grid++) {
            float steps = z / input_scale[grid];
            float low = -(float)input_zero[grid], high = (float)(NETWORK_INPUT_TOP - input_zero[grid]);
            steps = steps < low ? low : steps;
            steps = steps > high ? high : steps;
            codes[(size_t)grid * NETWORK_INPUTS + i] =
                (network_input)(rounded(steps) + (int32_t)input_zero[grid]);
        }
    }
    return NETWORK_OK;
}

int network_predict_float(const network_input *input, size_t input_codes, uint32_t draws, float *mean,
                          float *variance, float *entropy, size_t outputs) {
    static int32_t whole_mean[NETWORK_OUTPUTS];
    static int64_t whole_variance[NETWORK_OUTPUTS];
    int64_t whole_entropy = 0;
    uint32_t i;
    int wrong;
    if (!mean || !variance || !entropy) {
        return NETWORK_NULL;
    }
    wrong = network_predict(input, input_codes, draws, whole_mean, whole_variance, &whole_entropy, outputs);
    if (wrong) {
        return wrong;
    }
    *entropy = (float)whole_entropy / 16777216.0f;
    for (i = 0u; i < NETWORK_OUTPUTS; i++) {
#if NETWORK_CLASSIFIER
        mean[i] = (float)whole_mean[i] * mean_unit;
        variance[i] = (float)whole_variance[i] * variance_unit;
#else
        uint32_t target = i / (NETWORK_OUTPUTS / NETWORK_TARGETS);
        mean[i] = (float)whole_mean[i] * mean_unit * target_std[target] + target_mean[target];
        /* twice, one after the other: the square of a unit may leave float. */
        variance[i] = (float)whole_variance[i] * mean_unit * target_std[target] * mean_unit * target_std[target];
        *entropy += target_log_std[target];
#endif
    }
    return NETWORK_OK;
}
#endif
