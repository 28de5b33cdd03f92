/* Philox4x32-10 (Salmon et al., SC 2011) for the CPU, bit-equal to the torch version in noise.py.
 *
 * key = seed (two words), counter = (site, draw, row, element / 4); the four output words serve four
 * neighbouring elements. Plain C99 with fixed-width types, so that the same file can serve a microcontroller.
 */
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MULTIVERSION __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
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

/* e[i] = table[upper 12 bits of the word] for the 4 * LANES elements from `first` (a multiple of 4) on. */
static inline __attribute__((always_inline)) void epsilon_block(int8_t *codes, uint64_t seed, uint32_t site,
                                                                uint32_t draw, int64_t first, const int8_t *table) {
    uint32_t words[4][LANES];
    philox((uint32_t)seed, (uint32_t)(seed >> 32), site, draw, 0, (uint32_t)(first / 4), words);
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < 4; k++)
            codes[4 * i + k] = table[words[k][i] >> 20];
}

/* out[draw][element] = the integer code of the Gaussian whose uniform qbayes_uniforms gives for the same word. */
MULTIVERSION
void qbayes_epsilon(int8_t *out, const int64_t *draws, int64_t n_draws, int64_t elements, uint64_t seed,
                    uint32_t site, const int8_t *table) {
    int8_t codes[4 * LANES];
    for (int64_t d = 0; d < n_draws; d++, out += elements)
        for (int64_t e = 0; e < elements; e += 4 * LANES) {
            epsilon_block(codes, seed, site, (uint32_t)draws[d], e, table);
            int64_t left = elements - e < 4 * LANES ? elements - e : 4 * LANES;
            memcpy(out + e, codes, (size_t)left);
        }
}

/* One draw of integer Gaussian weights for the elements [first, first + count) of a tensor with `row_length`
 * elements for each output channel c:
 *
 *     n = clamp(round(sigma * e * m_c / 2^s_c), low, high);    w = clamp(mean + n, low, high), or n if mean is NULL
 *
 * Ties go to even. The magnitude is rounded and the sign put back: rounding half to even is odd-symmetric, and
 * unsigned shifts of 64 bits exist in every vector unit. |sigma * e| < 2^15 and |m| < 2^31, so nothing overflows.
 */
MULTIVERSION
void qbayes_sample(int8_t *out, int64_t draw, int64_t first, int64_t count, int64_t row_length, uint64_t seed,
                   uint32_t site, const int8_t *mean, const uint8_t *sigma, const int8_t *table,
                   const int32_t *multiplier, const uint8_t *shift, int64_t channel_stride, int32_t low,
                   int32_t high) {
    uint64_t factor[4 * LANES], places[4 * LANES], half[4 * LANES], parity[4 * LANES];
    int32_t turn[4 * LANES], value[4 * LANES];
    int8_t codes[4 * LANES], drawn[4 * LANES];
    uint8_t deviation[4 * LANES];
    int64_t end = first + count, filled_until = -1; /* the channel in the arrays serves elements below this */
    for (int64_t e = first - first % 4; e < end; e += 4 * LANES) {
        int64_t from = e < first ? first : e, to = e + 4 * LANES < end ? e + 4 * LANES : end;
        epsilon_block(codes, seed, site, (uint32_t)draw, e, table);
        memset(deviation, 0, sizeof deviation);
        memcpy(deviation + (from - e), sigma + from, (size_t)(to - from));
        if (to > filled_until) {
            int64_t channel = e / row_length, next = (channel + 1) * row_length;
            for (int i = 0; i < 4 * LANES; i++) {
                if (e + i == next && next < end) {
                    channel++;
                    next += row_length;
                }
                int32_t m = multiplier[channel * channel_stride];
                uint8_t s = shift[channel * channel_stride];
                factor[i] = (uint64_t)(m < 0 ? -(int64_t)m : m);
                turn[i] = m < 0 ? -1 : 0;
                places[i] = s;
                half[i] = s ? ((uint64_t)1 << (s - 1)) - 1 : 0;
                parity[i] = s ? 1 : 0;
            }
            filled_until = channel * row_length <= e ? next : -1;
            if (!channel_stride) filled_until = end;
        }
        for (int i = 0; i < 4 * LANES; i++) {
            int32_t product = (int32_t)deviation[i] * codes[i];
            int32_t sign = (product >> 31) ^ turn[i];
            uint64_t size = (uint64_t)(uint32_t)(product < 0 ? -product : product) * factor[i];
            int64_t rounded = (int64_t)((size + half[i] + (size >> places[i] & parity[i])) >> places[i]);
            value[i] = ((int32_t)(rounded < 512 ? rounded : 512) ^ sign) - sign;
        }
        for (int i = 0; i < 4 * LANES; i++) {
            int32_t n = value[i] < low ? low : value[i];
            drawn[i] = (int8_t)(n > high ? high : n);
        }
        if (mean) {
            memset(codes, 0, sizeof codes);
            memcpy(codes + (from - e), mean + from, (size_t)(to - from));
            for (int i = 0; i < 4 * LANES; i++) {
                int32_t w = codes[i] + drawn[i];
                w = w < low ? low : w;
                drawn[i] = (int8_t)(w > high ? high : w);
            }
        }
        memcpy(out + from, drawn + (from - e), (size_t)(to - from));
    }
}
