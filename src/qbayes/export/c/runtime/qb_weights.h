/* Weights: points or Gaussians of n bits, unpacked or drawn one output channel (a row) at a time.
 *
 *     n = clamp(round(sigma e m / 2^s), low, high),  e the integer Gaussian of the element
 *     one grid:    w = clamp(mean + n, low, high)
 *     two grids:   mean and n apart, each with its own sum
 *     mixed:       w = clamp(Z_w + round(((mean - Z_mean) m_a + n m_b) / 2^s), low, high)
 *
 * A bias with noise is b + round(sigma_b e m / 2^s), with e from a site of its own.
 */
#ifndef QB_WEIGHTS_H
#define QB_WEIGHTS_H

#include "qb_noise.h"

enum { QB_MIXED = 0, QB_ONE_GRID = 1, QB_TWO_GRIDS = 2, QB_POINT = 3 };

/* What all members share. Rows are packed one by one, each from a byte of its own. */
typedef struct {
    uint32_t row;         /* weights of one output channel */
    uint32_t row_bytes;   /* of a packed row of weights or means */
    uint32_t sigma_bytes; /* of a packed row of deviations */
    uint32_t site, bias_site;
    int32_t low, high;
    const int8_t *epsilon; /* upper half of the table of the integer Gaussian */
    uint8_t kind, bits, sigma_bits, noisy_bias;
} qb_weights;

/* What belongs to one member. Pointers that its kind of weights does not need are NULL. */
typedef struct {
    const uint8_t *codes; /* weights, or means */
    const uint8_t *sigma;
    const int32_t *noise_multiplier;
    const uint8_t *noise_shift;
    const int32_t *bias;
    const uint8_t *bias_sigma;
    const int32_t *bias_multiplier;
    const uint8_t *bias_shift;
    const int32_t *multiplier;
    const int32_t *second_multiplier;
    const uint8_t *shift;
    const int8_t *weight_zero;
    uint32_t scale_step; /* 1: a multiplier for each channel; 0: one for all */
    uint32_t zero_step;  /* the same of weight_zero */
    int32_t mean_zero, mix_mean, mix_noise;
    uint32_t mix_shift;
    uint32_t zero_in, zero_out, low, high;
} qb_numbers;

static inline void qb_unpack(const uint8_t *stream, uint32_t bits, uint32_t count, int8_t *out) {
    uint32_t i;
    if (bits == 8u) {
        memcpy(out, stream, count);
    } else if (bits == 4u) {
        for (i = 0u; i + 1u < count; i += 2u) {
            uint32_t pair = stream[i / 2u];
            out[i] = (int8_t)((int32_t)((pair & 15u) ^ 8u) - 8);
            out[i + 1u] = (int8_t)((int32_t)((pair >> 4) ^ 8u) - 8);
        }
        if (i < count) {
            out[i] = (int8_t)((int32_t)(((uint32_t)stream[i / 2u] & 15u) ^ 8u) - 8);
        }
    } else {
        for (i = 0u; i < count; i++) {
            out[i] = (int8_t)qb_signed(qb_unsigned_code(stream, bits, i), bits);
        }
    }
}

/* One drawn weight from its mean and its noise n. */
static inline int32_t qb_mixed(const qb_weights *shape, const qb_numbers *numbers, int32_t mean, int32_t n) {
    int64_t total;
    if (shape->kind == QB_ONE_GRID) {
        return qb_clamped((int64_t)mean + n, shape->low, shape->high);
    }
    total = (int64_t)(mean - numbers->mean_zero) * numbers->mix_mean + (int64_t)n * numbers->mix_noise;
    return qb_clamped(numbers->weight_zero[0] + qb_shifted(total, numbers->mix_shift), shape->low, shape->high);
}

/* Puts the noise of one channel on the means in `row`, or into `second` where it has a grid of its own. */
static inline void qb_add_noise(const qb_weights *shape, const qb_numbers *numbers, uint32_t channel,
                                const qb_noise *noise, int8_t *row, int8_t *second) {
    const uint8_t *sigma = numbers->sigma + (size_t)channel * shape->sigma_bytes;
    int32_t multiplier = numbers->noise_multiplier[channel];
    uint32_t shift = numbers->noise_shift[channel];
    uint32_t words[QB_BLOCK];
    int32_t drawn[QB_BLOCK];
    uint32_t k, i, some;
    for (k = 0u; k < shape->row; k += some) {
        uint32_t element = channel * shape->row + k;
        uint32_t skipped = element & 3u;
        some = QB_BLOCK - skipped;
        some = shape->row - k < some ? shape->row - k : some;
        qb_words(noise, shape->site, 0u, element / 4u, words);
        for (i = 0u; i < some; i++) {
            drawn[i] = (int32_t)qb_unsigned_code(sigma, shape->sigma_bits, k + i) *
                       qb_epsilon(shape->epsilon, qb_word(words, skipped + i));
        }
        /* loops of one purpose each, so that compilers vectorise them. */
        for (i = 0u; i < some; i++) {
            drawn[i] = qb_clamped(qb_shifted((int64_t)drawn[i] * multiplier, shift), shape->low, shape->high);
        }
        if (shape->kind == QB_TWO_GRIDS) {
            for (i = 0u; i < some; i++) {
                second[k + i] = (int8_t)drawn[i];
            }
        } else {
            for (i = 0u; i < some; i++) {
                row[k + i] = (int8_t)qb_mixed(shape, numbers, row[k + i], drawn[i]);
            }
        }
    }
}

static inline int64_t qb_bias(const qb_weights *shape, const qb_numbers *numbers, uint32_t channel,
                              const qb_noise *noise) {
    uint32_t words[QB_BLOCK];
    int32_t product;
    if (!shape->noisy_bias) {
        return numbers->bias[channel];
    }
    qb_words(noise, shape->bias_site, 0u, channel / 4u, words);
    product = (int32_t)numbers->bias_sigma[channel] * qb_epsilon(shape->epsilon, qb_word(words, channel & 3u));
    return numbers->bias[channel] +
           qb_shifted((int64_t)product * numbers->bias_multiplier[channel], numbers->bias_shift[channel]);
}

#endif
