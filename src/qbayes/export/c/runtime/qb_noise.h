/* Noise: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011), the generator of qbayes in Python.
 *
 * key = seed, counter = (site, draw, row, element / 4) for masks, with row 0 for weights. The same seed gives
 * the same bits here and there.
 */
#ifndef QB_NOISE_H
#define QB_NOISE_H

#include "qb_fixed.h"

/* Counters computed side by side: enough to fill the registers of a vector unit where there is one. */
#ifndef QB_LANES
#ifdef __AVX2__
#define QB_LANES 16u
#else
#define QB_LANES 4u
#endif
#endif
#define QB_BLOCK (4u * QB_LANES) /* elements that one call of qb_words serves */

typedef struct {
    uint64_t seed;
    uint32_t draw;
    uint32_t row;
} qb_noise;

#define QB_ROUND(n)                                           \
    do {                                                      \
        uint64_t p0 = (uint64_t)c0 * 0xD2511F53u;             \
        uint64_t p1 = (uint64_t)c2 * 0xCD9E8D57u;             \
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ (k0 + (n)*0x9E3779B9u); \
        c1 = (uint32_t)p1;                                    \
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ (k1 + (n)*0xBB67AE85u); \
        c3 = (uint32_t)p0;                                    \
    } while (0)

/* The words of elements 4 * quad ... 4 * quad + QB_BLOCK - 1. The rounds are written out, so that compilers
 * vectorise the loop over the lanes; hence the order of the words, which qb_word undoes. */
static inline void qb_words(const qb_noise *noise, uint32_t site, uint32_t row, uint32_t quad,
                            uint32_t words[QB_BLOCK]) {
    uint32_t k0 = (uint32_t)noise->seed, k1 = (uint32_t)(noise->seed >> 32), draw = noise->draw, lane;
    for (lane = 0u; lane < QB_LANES; lane++) {
        uint32_t c0 = site, c1 = draw, c2 = row, c3 = quad + lane;
        QB_ROUND(0u);
        QB_ROUND(1u);
        QB_ROUND(2u);
        QB_ROUND(3u);
        QB_ROUND(4u);
        QB_ROUND(5u);
        QB_ROUND(6u);
        QB_ROUND(7u);
        QB_ROUND(8u);
        QB_ROUND(9u);
        words[lane] = c0;
        words[QB_LANES + lane] = c1;
        words[2u * QB_LANES + lane] = c2;
        words[3u * QB_LANES + lane] = c3;
    }
}

/* The word of the i-th element of a block. */
static inline uint32_t qb_word(const uint32_t words[QB_BLOCK], uint32_t i) {
    return words[(i & 3u) * QB_LANES + (i >> 2)];
}

/* The integer Gaussian of a word: the table of 4096 codes is odd, so its upper half is stored. */
static inline int32_t qb_epsilon(const int8_t *upper, uint32_t word) {
    uint32_t index = word >> 20;
    return index >= 2048u ? upper[index - 2048u] : -upper[2047u - index];
}

/* out = keep ? in : zero. `inner` neighbouring elements share a bit (1, or those of a channel); an element is
 * kept where the upper 16 bits of its word reach the threshold. `in` and `out` may be the same. */
static inline void qb_mask(const uint8_t *in, uint8_t *out, uint32_t count, uint32_t inner, uint32_t site,
                           uint32_t threshold, uint32_t zero, const qb_noise *noise) {
    uint32_t words[QB_BLOCK];
    uint32_t first, i, k;
    for (first = 0u; first < count; first += QB_BLOCK) {
        uint32_t some = count - first < QB_BLOCK ? count - first : QB_BLOCK;
        qb_words(noise, site, noise->row, first / 4u, words);
        for (i = 0u; i < some; i++) {
            const uint8_t *from = in + (size_t)(first + i) * inner;
            uint8_t *to = out + (size_t)(first + i) * inner;
            uint32_t keep = (qb_word(words, i) >> 16) >= threshold;
            for (k = 0u; k < inner; k++) {
                to[k] = keep ? from[k] : (uint8_t)zero;
            }
        }
    }
}

#endif
