/* Pooling of images, channels first; a sequence has height 1. */
#ifndef QB_POOL_H
#define QB_POOL_H

#include "qb_elementwise.h"

typedef struct {
    uint32_t channels, in_height, in_width, out_height, out_width;
    uint32_t kernel_height, kernel_width, stride_height, stride_width;
    uint32_t padding_height, padding_width, dilation_height, dilation_width;
} qb_window;

/* q_o = max q of each window; what lies in the padding counts as code 0, which no code is below. */
static inline void qb_max_pool(const qb_window *w, const uint8_t *in, uint8_t *out) {
    uint32_t channel, y, x, ky, kx;
    for (channel = 0u; channel < w->channels; channel++, in += (size_t)w->in_height * w->in_width) {
        for (y = 0u; y < w->out_height; y++) {
            for (x = 0u; x < w->out_width; x++) {
                uint8_t most = 0u;
                for (ky = 0u; ky < w->kernel_height; ky++) {
                    uint32_t row = y * w->stride_height + ky * w->dilation_height;
                    if (row < w->padding_height || row - w->padding_height >= w->in_height) {
                        continue;
                    }
                    for (kx = 0u; kx < w->kernel_width; kx++) {
                        uint32_t column = x * w->stride_width + kx * w->dilation_width;
                        if (column >= w->padding_width && column - w->padding_width < w->in_width) {
                            uint8_t code = in[(size_t)(row - w->padding_height) * w->in_width +
                                              (column - w->padding_width)];
                            most = code > most ? code : most;
                        }
                    }
                }
                *out++ = most;
            }
        }
    }
}

/* Where each window of an average starts and stops along each axis, padding left out. */
typedef struct {
    uint32_t channels, in_height, in_width, out_height, out_width;
    const uint32_t *top, *bottom, *left, *right;
    uint32_t step; /* 1: a multiplier for each position; 0: one for all */
} qb_average;

/* q_o = clamp(Z_o + round(m_p / 2^s * sum (q - Z)), low, high) over each window. */
static inline void qb_avg_pool(const qb_average *w, const qb_scaling *numbers, const uint8_t *in, uint8_t *out) {
    uint32_t channel, y, x, row, column;
    for (channel = 0u; channel < w->channels; channel++, in += (size_t)w->in_height * w->in_width) {
        for (y = 0u; y < w->out_height; y++) {
            for (x = 0u; x < w->out_width; x++) {
                int32_t total = 0;
                for (row = w->top[y]; row < w->bottom[y]; row++) {
                    const uint8_t *line = in + (size_t)row * w->in_width;
                    for (column = w->left[x]; column < w->right[x]; column++) {
                        total += (int32_t)line[column] - (int32_t)numbers->zeros[0];
                    }
                }
                *out++ = (uint8_t)qb_requantised(
                    (int64_t)total * numbers->multipliers[(y * w->out_width + x) * w->step], numbers->shift,
                    numbers->zero_out, numbers->low, numbers->high);
            }
        }
    }
}

#endif
