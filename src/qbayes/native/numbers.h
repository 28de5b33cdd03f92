/* What the kernels of training share: numbers in memory as float32 or bfloat16, and loops over threads. */
#ifndef QBAYES_NUMBERS_H
#define QBAYES_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MULTIVERSION __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define MULTIVERSION
#endif
#define INLINE static inline __attribute__((always_inline))

#define SPLIT(first, end, total, threads)                                                                          \
    _Pragma("omp parallel for num_threads(threads) schedule(static)") for (int part = 0; part < (threads); part++) \
        for (int64_t first = (total) * part / (threads), end = (total) * (part + 1) / (threads); first < end; first = end)

INLINE float real(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE float get(const void *from, int64_t at, int half) {
    return half ? real((uint32_t)((const uint16_t *)from)[at] << 16) : ((const float *)from)[at];
}

/* Rounded to the nearest, ties to even. `exact_nan`: no NaN has bits that rounding would carry into its sign. */
INLINE void put(void *to, int64_t at, float value, int half, int exact_nan) {
    if (half) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        uint32_t near = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
        ((uint16_t *)to)[at] = (uint16_t)(!exact_nan && value != value ? 0x7FC0u : near);
    } else
        ((float *)to)[at] = value;
}

#endif
