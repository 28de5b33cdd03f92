/* Dot products of codes: unit stride, no branches, so that compilers vectorise them.
 *
 * Sums of products of 8-bit codes are taken in 32 bits: the code generator takes this way only where no input
 * can make them leave it. QB_ARM_DSP takes the DSP instructions of Cortex-M4, M7 and M33: the same bits.
 */
#ifndef QB_DOT_H
#define QB_DOT_H

#include "qb_fixed.h"

#ifdef QB_ARM_DSP
#include <arm_acle.h>

/* Four codes as two pairs of 16 bits: bytes 0 and 2, and bytes 1 and 3 by an instruction that also rotates. */
static inline int16x2_t qb_even_codes(uint32_t codes) {
    return (int16x2_t)__uxtb16(codes);
}

static inline int16x2_t qb_odd_codes(uint32_t codes) {
    int16x2_t pair;
    __asm__("uxtb16 %0, %1, ror #8" : "=r"(pair) : "r"(codes));
    return pair;
}

static inline int16x2_t qb_even_weights(uint32_t weights) {
    return __sxtb16((int8x4_t)weights);
}

static inline int16x2_t qb_odd_weights(uint32_t weights) {
    int16x2_t pair;
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(pair) : "r"(weights));
    return pair;
}

static inline int32_t qb_dot(const uint8_t *x, const int8_t *w, uint32_t count) {
    int32_t total = 0;
    uint32_t i, a, b;
    for (i = 0u; i + 4u <= count; i += 4u) {
        memcpy(&a, x + i, 4u);
        memcpy(&b, w + i, 4u);
        total = __smlad(qb_even_codes(a), qb_even_weights(b), total);
        total = __smlad(qb_odd_codes(a), qb_odd_weights(b), total);
    }
    for (; i < count; i++) {
        total += (int32_t)x[i] * w[i];
    }
    return total;
}

static inline int32_t qb_four_products(int16x2_t even, int16x2_t odd, const int8_t *w, int32_t total) {
    uint32_t b;
    memcpy(&b, w, 4u);
    total = __smlad(even, qb_even_weights(b), total);
    return __smlad(odd, qb_odd_weights(b), total);
}

static inline void qb_dots(const uint8_t *x, const int8_t *const w[4], uint32_t count, int32_t totals[4]) {
    const int8_t *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    int32_t t0 = 0, t1 = 0, t2 = 0, t3 = 0;
    uint32_t i, a;
    for (i = 0u; i + 4u <= count; i += 4u) {
        int16x2_t even, odd;
        memcpy(&a, x + i, 4u);
        even = qb_even_codes(a);
        odd = qb_odd_codes(a);
        t0 = qb_four_products(even, odd, w0 + i, t0);
        t1 = qb_four_products(even, odd, w1 + i, t1);
        t2 = qb_four_products(even, odd, w2 + i, t2);
        t3 = qb_four_products(even, odd, w3 + i, t3);
    }
    for (; i < count; i++) {
        t0 += (int32_t)x[i] * w0[i];
        t1 += (int32_t)x[i] * w1[i];
        t2 += (int32_t)x[i] * w2[i];
        t3 += (int32_t)x[i] * w3[i];
    }
    totals[0] = t0;
    totals[1] = t1;
    totals[2] = t2;
    totals[3] = t3;
}

#else

static inline int32_t qb_dot(const uint8_t *restrict x, const int8_t *restrict w, uint32_t count) {
    int32_t total = 0;
    uint32_t i;
    for (i = 0u; i < count; i++) {
        total += (int32_t)x[i] * w[i];
    }
    return total;
}

/* Four rows at once: each input is loaded once for all. */
static inline void qb_dots(const uint8_t *restrict x, const int8_t *const w[4], uint32_t count,
                           int32_t totals[4]) {
    const int8_t *restrict w0 = w[0], *restrict w1 = w[1], *restrict w2 = w[2], *restrict w3 = w[3];
    int32_t t0 = 0, t1 = 0, t2 = 0, t3 = 0;
    uint32_t i;
    for (i = 0u; i < count; i++) {
        t0 += (int32_t)x[i] * w0[i];
        t1 += (int32_t)x[i] * w1[i];
        t2 += (int32_t)x[i] * w2[i];
        t3 += (int32_t)x[i] * w3[i];
    }
    totals[0] = t0;
    totals[1] = t1;
    totals[2] = t2;
    totals[3] = t3;
}

#endif

static inline int32_t qb_sum_of(const int8_t *w, uint32_t count) {
    int32_t total = 0;
    uint32_t i;
    for (i = 0u; i < count; i++) {
        total += w[i];
    }
    return total;
}

static inline int32_t qb_sum_of_codes(const uint8_t *x, uint32_t count) {
    int32_t total = 0;
    uint32_t i;
    for (i = 0u; i < count; i++) {
        total += x[i];
    }
    return total;
}

static inline int64_t qb_wide_dot(const int32_t *restrict x, const int8_t *restrict w, uint32_t count) {
    int64_t total = 0;
    uint32_t i;
    for (i = 0u; i < count; i++) {
        total += (int64_t)x[i] * w[i];
    }
    return total;
}

static inline int64_t qb_wide_sum(const int32_t *x, uint32_t count) {
    int64_t total = 0;
    uint32_t i;
    for (i = 0u; i < count; i++) {
        total += x[i];
    }
    return total;
}

#endif
