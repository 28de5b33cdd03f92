/* Philox4x32-10 (Salmon et al., SC 2011) for the CPU, bit-equal to the torch version in noise.py.
 *
 * key = seed (two words), counter = (site, draw, row, element / 4); the four output words serve four
 * neighbouring elements. Plain C99 with fixed-width types, so that the same file can serve a microcontroller.
 */
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MULTIVERSION
#endif

#define LANES 16 /* counters computed side by side: enough to fill the widest registers */

#define ROUND(c0, c1, c2, c3, n)                                     \
    do {                                                            \
        uint64_t p0 = (uint64_t)c0 * 0xD2511F53u;                   \
        uint64_t p1 = (uint64_t)c2 * 0xCD9E8D57u;                   \
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ (k0 + (n) * 0x9E3779B9u);  \
        c1 = (uint32_t)p1;                                          \
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ (k1 + (n) * 0xBB67AE85u);  \
        c3 = (uint32_t)p0;                                          \
    } while (0)

/* The rounds are written out so that the compiler vectorises the loop over the lanes. */
static inline __attribute__((always_inline)) void philox(
    uint32_t k0, uint32_t k1, uint32_t site, uint32_t draw, uint32_t row, uint32_t first, uint32_t out[4][LANES]) {
    for (uint32_t i = 0; i < LANES; i++) {
        uint32_t c0 = site, c1 = draw, c2 = row, c3 = first + i;
        ROUND(c0, c1, c2, c3, 0u);
        ROUND(c0, c1, c2, c3, 1u);
        ROUND(c0, c1, c2, c3, 2u);
        ROUND(c0, c1, c2, c3, 3u);
        ROUND(c0, c1, c2, c3, 4u);
        ROUND(c0, c1, c2, c3, 5u);
        ROUND(c0, c1, c2, c3, 6u);
        ROUND(c0, c1, c2, c3, 7u);
        ROUND(c0, c1, c2, c3, 8u);
        ROUND(c0, c1, c2, c3, 9u);
        out[0][i] = c0;
        out[1][i] = c1;
        out[2][i] = c2;
        out[3][i] = c3;
    }
}

/* out[draw][row][element] = 1 where the element is kept: its upper 16 bits are at least `threshold`. */
MULTIVERSION
void qbayes_masks(uint8_t *out, const int64_t *draws, int64_t n_draws, int64_t first_row, int64_t rows,
                  int64_t elements, uint64_t seed, uint32_t site, uint32_t threshold) {
    uint32_t words[4][LANES];
    for (int64_t d = 0; d < n_draws; d++)
        for (int64_t r = 0; r < rows; r++, out += elements)
            for (int64_t e = 0; e < elements; e += 4 * LANES) {
                philox((uint32_t)seed, (uint32_t)(seed >> 32), site, (uint32_t)draws[d],
                       (uint32_t)(first_row + r), (uint32_t)(e / 4), words);
                int64_t left = elements - e < 4 * LANES ? elements - e : 4 * LANES;
                uint8_t keep[4 * LANES];
                for (int i = 0; i < LANES; i++)
                    for (int k = 0; k < 4; k++)
                        keep[4 * i + k] = (uint8_t)((words[k][i] >> 16) >= threshold);
                memcpy(out + e, keep, (size_t)left);
            }
}

/* out[draw][element] = (upper 23 bits + 1/2) / 2^23: a uniform in (0, 1), exact in float32 and symmetric about 1/2. */
MULTIVERSION
void qbayes_uniforms(float *out, const int64_t *draws, int64_t n_draws, int64_t elements, uint64_t seed,
                     uint32_t site) {
    uint32_t words[4][LANES];
    for (int64_t d = 0; d < n_draws; d++, out += elements)
        for (int64_t e = 0; e < elements; e += 4 * LANES) {
            philox((uint32_t)seed, (uint32_t)(seed >> 32), site, (uint32_t)draws[d], 0, (uint32_t)(e / 4), words);
            int64_t left = elements - e < 4 * LANES ? elements - e : 4 * LANES;
            float uniform[4 * LANES];
            for (int i = 0; i < LANES; i++)
                for (int k = 0; k < 4; k++)
                    uniform[4 * i + k] = ((float)(int32_t)(words[k][i] >> 9) + 0.5f) * 0x1p-23f;
            memcpy(out + e, uniform, (size_t)left * sizeof(float));
        }
}
