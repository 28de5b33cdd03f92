/* Statistics over draws in integers: softmax, entropy and moments, bit for bit those of qbayes in Python
 * (integer/softmax.py and integer/moments.py have the equations). Probabilities, logarithms and entropies are
 * in units of 2^-24. */
#ifndef QB_STATISTICS_H
#define QB_STATISTICS_H

#include "qb_fixed.h"

#define QB_MOST_DRAWS 16384u
#define QB_ONE ((int64_t)1 << 24)
#define QB_LN2 11629080     /* 2^24 ln 2 */
#define QB_LN_2PIE 47611677 /* 2^24 ln(2 pi e) */

/* sums[i] and squares[i] += p_i and p_i^2, with p the softmax of the codes:
 * p_i = floor((E_i 2^24 + floor(T/2)) / T), E_i = table[max q - q_i], T = sum E. Differences behind the end of
 * the table have E = 0. */
static inline void qb_add_softmax(const uint16_t *codes, uint32_t count, const uint32_t *table, uint32_t entries,
                                  int64_t *sums, int64_t *squares) {
    uint32_t most = 0u, i;
    uint64_t total = 0u;
    for (i = 0u; i < count; i++) {
        most = codes[i] > most ? codes[i] : most;
    }
    for (i = 0u; i < count; i++) {
        total += most - codes[i] < entries ? table[most - codes[i]] : 0u;
    }
    for (i = 0u; i < count; i++) {
        uint64_t entry = most - codes[i] < entries ? table[most - codes[i]] : 0u;
        int64_t p = (int64_t)(((entry << 24) + total / 2u) / total);
        sums[i] += p;
        squares[i] += p * p;
    }
}

static inline int64_t qb_mean(int64_t sum, uint32_t draws) {
    return qb_floor_divided(sum + (int64_t)(draws / 2u), (int64_t)draws);
}

/* The unbiased variance, in units of 2^places times that of a square. */
static inline int64_t qb_variance(int64_t sum, int64_t squares, uint32_t draws, uint32_t places) {
    int64_t count = (int64_t)draws, floor, rest, numerator, divisor;
    if (draws < 2u) {
        return 0;
    }
    floor = qb_floor_divided(sum, count);
    rest = sum - floor * count;
    numerator = squares - floor * (sum + rest) - rest * rest / count;
    divisor = (count - 1) * ((int64_t)1 << places);
    return (numerator + divisor / 2) / divisor;
}

/* table[j] + the part r / 2^16 of the way to table[j + 1], for a fraction of 24 bits: j has 8, r has 16. */
static inline int64_t qb_between(const uint32_t *table, uint32_t fraction) {
    uint32_t j = fraction >> 16;
    int64_t slope = ((int64_t)table[j + 1u] - table[j]) * (int64_t)(fraction & 0xFFFFu);
    return (int64_t)table[j] + (slope + 32768) / 65536;
}

/* ln n for 1 <= n < 2^62, in units of 2^-24. */
static inline int64_t qb_logarithm(uint64_t n, const uint32_t *log_table) {
    uint32_t exponent = 0u;
    uint64_t mantissa;
    while (exponent < 61u && n >> (exponent + 1u) != 0u) {
        exponent++;
    }
    mantissa = exponent < 24u ? n << (24u - exponent) : n >> (exponent - 24u);
    return (int64_t)exponent * QB_LN2 + qb_between(log_table, (uint32_t)(mantissa - (uint64_t)QB_ONE));
}

/* -p ln p in units of 2^-48; 0 for p = 0. */
static inline int64_t qb_entropy_term(int64_t p, const uint32_t *log_table) {
    return p > 0 ? -p * (qb_logarithm((uint64_t)p, log_table) - 24 * (int64_t)QB_LN2) : 0;
}

/* 2^(t / 2^24), rounded, within 1 ... 2^46. */
static inline int64_t qb_power(int64_t t, const uint32_t *power_table) {
    uint32_t exponent;
    uint64_t mantissa;
    if (t < 0) {
        return 1;
    }
    if (t >= 46 * QB_ONE) {
        return (int64_t)1 << 46;
    }
    exponent = (uint32_t)(t >> 24);
    mantissa = (uint64_t)qb_between(power_table, (uint32_t)(t & (QB_ONE - 1)));
    if (exponent >= 30u) {
        return (int64_t)(mantissa << (exponent - 30u));
    }
    return (int64_t)((mantissa + (((uint64_t)1 << (30u - exponent)) >> 1)) >> (30u - exponent));
}

#endif
