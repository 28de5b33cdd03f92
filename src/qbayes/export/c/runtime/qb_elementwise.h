/* Ops on elements: sums, products, factors by channel, tables. Inputs and output may share their memory where
 * they have the same shape. */
#ifndef QB_ELEMENTWISE_H
#define QB_ELEMENTWISE_H

#include "qb_move.h"

#define QB_MOST_INPUTS 16u

/* The numbers of one member. */
typedef struct {
    const int32_t *multipliers;
    const uint32_t *zeros; /* of each input */
    uint32_t shift, zero_out, low, high;
} qb_scaling;

/* q_o = clamp(Z_o + round(sum_i (q_i - Z_i) m_i / 2^s), low, high): Add, Rescale and each part of a Concat. */
static inline void qb_sum(const qb_walk *walk, const qb_scaling *numbers, const uint8_t *const *in, uint8_t *out) {
    uint32_t at[QB_MOST_AXES] = {0u};
    size_t to = 0u, from[QB_MOST_INPUTS] = {0u};
    uint32_t last = walk->axes - 1u, i, k;
    do {
        for (k = 0u; k < walk->lengths[last]; k++) {
            int64_t total = 0;
            for (i = 0u; i < walk->inputs; i++) {
                size_t place = from[i] + (size_t)walk->in[last * walk->inputs + i] * k;
                total += ((int64_t)in[i][place] - numbers->zeros[i]) * numbers->multipliers[i];
            }
            out[to + (size_t)walk->out[last] * k] = (uint8_t)qb_requantised(
                total, numbers->shift, numbers->zero_out, numbers->low, numbers->high);
        }
    } while (qb_next_line(walk, at, &to, from));
}

/* q_o = clamp(Z_o + round((q_a - Z_a)(q_b - Z_b) m / 2^s), low, high). */
static inline void qb_product(const qb_walk *walk, const qb_scaling *numbers, const uint8_t *a, const uint8_t *b,
                              uint8_t *out) {
    uint32_t at[QB_MOST_AXES] = {0u};
    size_t to = 0u, from[2] = {0u, 0u};
    uint32_t last = walk->axes - 1u, k;
    do {
        for (k = 0u; k < walk->lengths[last]; k++) {
            int64_t one = (int64_t)a[from[0] + (size_t)walk->in[2u * last] * k] - numbers->zeros[0];
            int64_t two = (int64_t)b[from[1] + (size_t)walk->in[2u * last + 1u] * k] - numbers->zeros[1];
            out[to + (size_t)walk->out[last] * k] = (uint8_t)qb_requantised(
                one * two * numbers->multipliers[0], numbers->shift, numbers->zero_out, numbers->low, numbers->high);
        }
    } while (qb_next_line(walk, at, &to, from));
}

/* q_o = clamp(Z_o + round(((q - Z) m_c + o_c) / 2^s), low, high), with `inner` elements a channel. */
static inline void qb_affine(uint32_t channels, uint32_t inner, const qb_scaling *numbers, const int32_t *offset,
                             const uint8_t *in, uint8_t *out) {
    uint32_t channel, k;
    for (channel = 0u; channel < channels; channel++, in += inner, out += inner) {
        for (k = 0u; k < inner; k++) {
            int64_t total = ((int64_t)in[k] - numbers->zeros[0]) * numbers->multipliers[channel] + offset[channel];
            out[k] =
                (uint8_t)qb_requantised(total, numbers->shift, numbers->zero_out, numbers->low, numbers->high);
        }
    }
}

static inline void qb_lookup(const uint8_t *table, uint32_t count, const uint8_t *in, uint8_t *out) {
    uint32_t k;
    for (k = 0u; k < count; k++) {
        out[k] = table[in[k]];
    }
}

#endif
