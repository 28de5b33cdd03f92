/* The same network in float, as one would write it by hand: plain loops, the processor's FPU, libm for Gaussians. */
#include <math.h>

#include "board.h"
#include "number.h"
#include "qb_noise.h"

typedef struct {
    uint32_t in_channels, in_height, in_width, out_channels, out_height, out_width;
    uint32_t kernel_height, kernel_width, stride_height, stride_width, padding_height, padding_width;
    uint32_t row, site;
    const float *mean, *sigma, *bias;
    float floor; /* 0 with a ReLU, else as low as floats go */
} layer;

static float buffers[2][FLOAT_VALUES];
static float row_of_weights[FLOAT_ROW];

/* Two normal numbers from two words (Box and Muller, 1958). */
static void normals(uint32_t one, uint32_t two, float out[2]) {
    float radius = sqrtf(-2.0f * logf(((float)(one >> 9) + 0.5f) * 0x1p-23f));
    float angle = 6.2831853f * (float)(two >> 8) * 0x1p-24f;
    out[0] = radius * cosf(angle);
    out[1] = radius * sinf(angle);
}

static const float *drawn(const layer *l, uint32_t channel, const qb_noise *noise) {
    const float *mean = l->mean + (size_t)channel * l->row;
    uint32_t words[QB_BLOCK], k, i;
    float pair[2];
    if (!l->sigma) {
        return mean;
    }
    for (k = 0u; k < l->row; k += QB_BLOCK) {
        qb_words(noise, l->site, 0u, (channel * l->row + k) / 4u, words);
        for (i = 0u; i < QB_BLOCK && k + i < l->row; i++) {
            if (i % 2u == 0u) {
                normals(words[i], words[i + 1u], pair);
            }
            row_of_weights[k + i] = mean[k + i] + l->sigma[(size_t)channel * l->row + k + i] * pair[i % 2u];
        }
    }
    return row_of_weights;
}

/* The part of a window that lies inside an axis: first ... stop - 1. */
static void inside(uint32_t start, uint32_t padding, uint32_t kernel, uint32_t length, uint32_t *first, uint32_t *stop) {
    *first = start < padding ? padding - start : 0u;
    *stop = length + padding - start < kernel ? length + padding - start : kernel;
}

static void weighted(const layer *l, const float *in, float *out, const qb_noise *noise) {
    uint32_t channel, y, x, c, ky, kx, top, bottom, left, right;
    for (channel = 0u; channel < l->out_channels; channel++) {
        const float *weights = drawn(l, channel, noise);
        for (y = 0u; y < l->out_height; y++) {
            uint32_t down = y * l->stride_height;
            inside(down, l->padding_height, l->kernel_height, l->in_height, &top, &bottom);
            for (x = 0u; x < l->out_width; x++) {
                uint32_t across = x * l->stride_width;
                float total = l->bias[channel];
                inside(across, l->padding_width, l->kernel_width, l->in_width, &left, &right);
                for (c = 0u; c < l->in_channels; c++) {
                    for (ky = top; ky < bottom; ky++) {
                        const float *w = weights + ((size_t)c * l->kernel_height + ky) * l->kernel_width;
                        const float *line = in + ((size_t)c * l->in_height + down + ky - l->padding_height) * l->in_width;
                        const float *at = line + (across + left - l->padding_width);
                        for (kx = left; kx < right; kx++) {
                            total += *at++ * w[kx];
                        }
                    }
                }
                out[((size_t)channel * l->out_height + y) * l->out_width + x] = total > l->floor ? total : l->floor;
            }
        }
    }
}

static void linear(const layer *l, const float *in, float *out, const qb_noise *noise) {
    uint32_t channel, k;
    for (channel = 0u; channel < l->out_channels; channel++) {
        const float *w = drawn(l, channel, noise);
        float total = l->bias[channel];
        for (k = 0u; k < l->row; k++) {
            total += in[k] * w[k];
        }
        out[channel] = total > l->floor ? total : l->floor;
    }
}

static void max_pool(uint32_t channels, uint32_t height, uint32_t width, const float *in, float *out) {
    uint32_t c, y, x;
    for (c = 0u; c < channels; c++, in += (size_t)height * width) {
        for (y = 0u; y + 1u < height; y += 2u) {
            for (x = 0u; x + 1u < width; x += 2u) {
                const float *at = in + (size_t)y * width + x;
                float top = at[0] > at[1] ? at[0] : at[1];
                float low = at[width] > at[width + 1u] ? at[width] : at[width + 1u];
                *out++ = top > low ? top : low;
            }
        }
    }
}

static void mask(float *values, uint32_t count, uint32_t inner, uint32_t site, uint32_t threshold, float factor,
                 const qb_noise *noise) {
    uint32_t words[QB_BLOCK], first, i, k;
    for (first = 0u; first < count; first += QB_BLOCK) {
        qb_words(noise, site, noise->row, first / 4u, words);
        for (i = 0u; i < QB_BLOCK && first + i < count; i++) {
            float keep = (qb_word(words, i) >> 16) >= threshold ? factor : 0.0f;
            for (k = 0u; k < inner; k++) {
                values[(size_t)(first + i) * inner + k] *= keep;
            }
        }
    }
}

#include "float_network.h"

static void __attribute__((noinline)) measure(void) {
    qb_noise noise = {0u, 0u, 0u};
    uint32_t before = board_ticks();
    float_draw(&noise);
    write_number((uint64_t)board_ticks_since(before) * BOARD_INSTRUCTIONS_A_TICK);
}

int main(void) {
    *(volatile uint32_t *)0xE000ED88u |= 0xF00000u; /* switches the FPU on */
    __asm__ volatile("dsb\n\tisb");
    measure();
    return 0;
}
