/* Elementwise ops on uint8 codes for the CPU, bit-equal to Op.run.
 *
 * Products of codes with 31-bit multipliers and their sums stay below 2^51 (the caller checks), so float64 holds
 * them exactly, and so does a product with 2^-s. Adding and taking away 1.5 * 2^52 then rounds to the nearest
 * integer, ties to even: the integer op's own rounding, in lanes that every vector unit has.
 *
 * A tensor has `rows` rows; row i of an input that all draws share is row i modulo its own number of rows.
 * `last` says whether channels lie last in memory (row, position, channel) or first (row, channel, position).
 * Threads are those of the OpenMP library that the process has already loaded; without one, the loops run alone.
 */
#include <stdlib.h>

#include "../noise_kernel.c"

#define BLOCK 256
#define CHUNK 1024 /* elements whose noise is made at once: it stays in the first cache */
#define ROUNDER 6755399441055744.0 /* 1.5 * 2^52 */
#define SPLIT(first, end, total, threads)                                                        \
    _Pragma("omp parallel for num_threads(threads) schedule(static)") for (int part = 0; part < (threads); part++) \
        for (int64_t first = (total) * part / (threads), end = (total) * (part + 1) / (threads); first < end; first = end)

/* ---- random words in the order of the elements ---- */

#define WORDS (4 * LANES) /* words of one block of counters */

/* out[e] for the elements 4 * first ... of `blocks` blocks: the words of philox(), counter by counter. */
typedef void words_of(uint32_t *out, int64_t blocks, uint64_t seed, uint32_t site, uint32_t draw, uint32_t row,
                      uint32_t first);

static void words_plain(uint32_t *out, int64_t blocks, uint64_t seed, uint32_t site, uint32_t draw, uint32_t row,
                        uint32_t first) {
    uint32_t words[4][LANES];
    for (int64_t b = 0; b < blocks; b++, out += WORDS) {
        philox((uint32_t)seed, (uint32_t)(seed >> 32), site, draw, row, first + (uint32_t)(b * LANES), words);
        for (int i = 0; i < LANES; i++)
            for (int k = 0; k < 4; k++)
                out[4 * i + k] = words[k][i];
    }
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

/* The same with each word in a lane of 64 bits. The vector unit multiplies the lower halves of such lanes, so what
 * stands in the upper halves does not matter until the words are put together; compilers do not see that. */
#define WORDS_IN_LANES(name, isa, bytes, MULTIPLY)                                                               \
    __attribute__((target(isa))) static void name(uint32_t *out, int64_t blocks, uint64_t seed, uint32_t site,   \
                                                  uint32_t draw, uint32_t row, uint32_t first) {                 \
        typedef uint64_t lanes __attribute__((vector_size(bytes)));                                              \
        enum { WIDE = (bytes) / 8, GROUPS = LANES / WIDE };                                                      \
        lanes index, lower, upper, none = {0}, half = none + 0xFFFFFFFFu;                                        \
        lanes m0 = none + 0xD2511F53u, m1 = none + 0xCD9E8D57u;                                                  \
        for (int i = 0; i < WIDE; i++) {                                                                         \
            index[i] = (uint64_t)i;                                                                              \
            lower[i] = (uint64_t)(i / 2 + i % 2 * WIDE);                                                         \
            upper[i] = lower[i] + WIDE / 2;                                                                      \
        }                                                                                                        \
        for (int64_t b = 0; b < blocks; b++, first += LANES) {                                                   \
            lanes c0[GROUPS], c1[GROUPS], c2[GROUPS], c3[GROUPS];                                                \
            uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);                                           \
            for (int g = 0; g < GROUPS; g++) {                                                                   \
                c0[g] = none + site, c1[g] = none + draw, c2[g] = none + row;                                    \
                c3[g] = index + (uint64_t)(first + (uint32_t)(g * WIDE));                                        \
            }                                                                                                    \
            _Pragma("GCC unroll 10") for (int n = 0; n < 10; n++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)          \
                _Pragma("GCC unroll 4") for (int g = 0; g < GROUPS; g++) {                                       \
                    lanes p0 = (lanes)MULTIPLY(c0[g], m0), p1 = (lanes)MULTIPLY(c2[g], m1);                      \
                    c0[g] = (p1 >> 32) ^ c1[g] ^ k0, c1[g] = p1;                                                 \
                    c2[g] = (p0 >> 32) ^ c3[g] ^ k1, c3[g] = p0;                                                 \
                }                                                                                                \
            _Pragma("GCC unroll 4") for (int g = 0; g < GROUPS; g++, out += 4 * WIDE) {                          \
                lanes a = (c0[g] & half) | c1[g] << 32, z = (c2[g] & half) | c3[g] << 32;                        \
                lanes one = __builtin_shuffle(a, z, lower), two = __builtin_shuffle(a, z, upper);                \
                memcpy(out, &one, sizeof one);                                                                   \
                memcpy(out + 2 * WIDE, &two, sizeof two);                                                        \
            }                                                                                                    \
        }                                                                                                        \
    }

#define MULTIPLY_256(a, b) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define MULTIPLY_512(a, b) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
WORDS_IN_LANES(words_avx2, "avx2", 32, MULTIPLY_256)
WORDS_IN_LANES(words_avx512, "avx512f", 64, MULTIPLY_512)

static words_of *fastest_words(void) {
    if (__builtin_cpu_supports("avx512f")) return words_avx512;
    return __builtin_cpu_supports("avx2") ? words_avx2 : words_plain;
}
#else
static words_of *fastest_words(void) { return words_plain; }
#endif

static inline __attribute__((always_inline)) uint8_t code(double value, double zero, double low, double high) {
    double rounded = (value + ROUNDER) - ROUNDER + zero;
    rounded = rounded < low ? low : rounded;
    rounded = rounded > high ? high : rounded;
    return (uint8_t)(int32_t)rounded;
}

/* ---- q = keep ? q : Z ---- */

MULTIVERSION
void qbayes_keep_codes(uint8_t *restrict keep, const uint32_t *restrict words, int64_t count, uint32_t threshold) {
    for (int64_t i = 0; i < count; i++)
        keep[i] = (uint8_t)((words[i] >> 16) >= threshold ? 255 : 0);
}

/* keep[e] = 255 or 0 for the elements of one row, in the order of the noise: channels, then positions. */
static void keep_row(uint8_t *keep, int64_t elements, words_of *random, uint64_t seed, uint32_t site, uint32_t draw,
                     uint32_t row, uint32_t threshold) {
    uint32_t words[CHUNK];
    for (int64_t e = 0; e < elements; e += CHUNK) {
        int64_t left = elements - e < CHUNK ? elements - e : CHUNK;
        random(words, (left + WORDS - 1) / WORDS, seed, site, draw, row, (uint32_t)(e / 4));
        qbayes_keep_codes(keep + e, words, left, threshold);
    }
}

/* One row; keep[i * step] belongs to element i of a run of `run` elements, and runs repeat over the row. */
MULTIVERSION
void qbayes_keep_run(uint8_t *out, const uint8_t *in, const uint8_t *keep, int64_t runs, int64_t run, uint8_t zero) {
    for (int64_t r = 0; r < runs; r++, out += run, in += run)
        for (int64_t i = 0; i < run; i++)
            out[i] = (uint8_t)((in[i] & keep[i]) | (zero & ~keep[i]));
}

/* One row with channels last and a mask for every element, which is in the order of channels first. */
MULTIVERSION
void qbayes_keep_turned(uint8_t *out, const uint8_t *in, const uint8_t *keep, int64_t channels, int64_t positions,
                        uint8_t zero) {
    enum { SIDE = 16 };
    uint8_t tile[SIDE][SIDE];
    for (int64_t p = 0; p < positions; p += SIDE)
        for (int64_t c = 0; c < channels; c += SIDE) {
            int64_t tall = positions - p < SIDE ? positions - p : SIDE, wide = channels - c < SIDE ? channels - c : SIDE;
            for (int64_t j = 0; j < wide; j++)
                for (int64_t i = 0; i < tall; i++)
                    tile[i][j] = keep[(c + j) * positions + p + i];
            for (int64_t i = 0; i < tall; i++) {
                const uint8_t *from = in + (p + i) * channels + c;
                uint8_t *to = out + (p + i) * channels + c;
                for (int64_t j = 0; j < wide; j++)
                    to[j] = (uint8_t)((from[j] & tile[i][j]) | (zero & ~tile[i][j]));
            }
        }
}

/* Returns 0, or 1 if there was no memory for a row of masks. */
int qbayes_mask(uint8_t *out, const uint8_t *in, int64_t in_rows, const int64_t *draws, int64_t n_draws,
                int64_t first_row, int64_t rows, int64_t channels, int64_t positions, int32_t last,
                int32_t channelwise, uint8_t zero, uint64_t seed, uint32_t site, uint32_t threshold, int32_t threads) {
    int64_t size = channels * positions, elements = channelwise ? channels : size;
    /* the masks of a pixel's channels, several times over: short runs would waste the vector unit */
    int64_t copies = channelwise && last ? (BLOCK + channels - 1) / channels : 1;
    int failed = 0;
    words_of *random = fastest_words();
    if (copies > positions) copies = positions;
    SPLIT(first, end, n_draws * rows, threads) {
        uint8_t *keep = malloc((size_t)(elements * copies));
        if (!keep) failed = 1;
        for (int64_t i = first; keep && i < end; i++) {
            const uint8_t *from = in + (i % in_rows) * size;
            uint8_t *to = out + i * size;
            keep_row(keep, elements, random, seed, site, (uint32_t)draws[i / rows], (uint32_t)(first_row + i % rows),
                     threshold);
            if (channelwise && last) {
                int64_t run = copies * channels, done = size / run * run;
                for (int64_t k = 1; k < copies; k++)
                    memcpy(keep + k * channels, keep, (size_t)channels);
                qbayes_keep_run(to, from, keep, size / run, run, zero);
                qbayes_keep_run(to + done, from + done, keep, 1, size - done, zero);
            } else if (channelwise)
                for (int64_t c = 0; c < channels; c++)
                    if (keep[c])
                        memcpy(to + c * positions, from + c * positions, (size_t)positions);
                    else
                        memset(to + c * positions, zero, (size_t)positions);
            else if (last && positions > 1)
                qbayes_keep_turned(to, from, keep, channels, positions, zero);
            else
                qbayes_keep_run(to, from, keep, 1, size, zero);
        }
        free(keep);
    }
    return failed;
}

/* ---- q = clamp(Z + round(sum_i (q_i - Z_i) f_i)) ---- */

MULTIVERSION
void qbayes_sum_run(uint8_t *out, const uint8_t *const *in, int64_t inputs, int64_t run, const double *zeros,
                    const double *factors, double zero, double low, double high) {
    double sum[BLOCK];
    for (int64_t e = 0; e < run; e += BLOCK) {
        int64_t left = run - e < BLOCK ? run - e : BLOCK;
        for (int64_t i = 0; i < left; i++)
            sum[i] = (in[0][e + i] - zeros[0]) * factors[0];
        for (int64_t k = 1; k < inputs; k++)
            for (int64_t i = 0; i < left; i++)
                sum[i] += (in[k][e + i] - zeros[k]) * factors[k];
        for (int64_t i = 0; i < left; i++)
            out[e + i] = code(sum[i], zero, low, high);
    }
}

#define MOST_INPUTS 16

void qbayes_sum(uint8_t *out, const uint8_t *const *in, const int64_t *in_rows, int64_t inputs, int64_t rows,
                int64_t size, const double *zeros, const double *factors, double zero, double low, double high,
                int32_t threads) {
    SPLIT(first, end, rows, threads)
        for (int64_t i = first; i < end; i++) {
            const uint8_t *from[MOST_INPUTS];
            for (int64_t k = 0; k < inputs; k++)
                from[k] = in[k] + (i % in_rows[k]) * size;
            qbayes_sum_run(out + i * size, from, inputs, size, zeros, factors, zero, low, high);
        }
}

/* Two inputs with multipliers m = 2^15 upper + lower below 2^30 and a shift of 16 ... 46: with sum_i q_i m_i = 2^15 t + r
 * lanes of 32 bits hold everything, and r only says on which side of a half t lies. places = shift - 15. */
MULTIVERSION
void qbayes_pair_run(uint8_t *restrict out, const uint8_t *restrict a, const uint8_t *restrict b, int64_t run,
                     const int32_t *zeros, const int32_t *multipliers, int32_t places, int32_t zero, int32_t low,
                     int32_t high) {
    int32_t upper_a = multipliers[0] >> 15, lower_a = multipliers[0] & 0x7FFF;
    int32_t upper_b = multipliers[1] >> 15, lower_b = multipliers[1] & 0x7FFF;
    int32_t upper = -zeros[0] * upper_a - zeros[1] * upper_b, lower = -zeros[0] * lower_a - zeros[1] * lower_b;
    int32_t half = (int32_t)(((uint32_t)1 << (places - 1)) - 1);
    for (int64_t i = 0; i < run; i++) {
        int32_t rest = a[i] * lower_a + b[i] * lower_b + lower;
        int32_t t = a[i] * upper_a + b[i] * upper_b + upper + (rest >> 15);
        int32_t sticky = ((rest & 0x7FFF) + 0x7FFF) >> 15;
        int32_t q = ((t + half + ((t >> places & 1) | sticky)) >> places) + zero;
        q = q < low ? low : q;
        out[i] = (uint8_t)(q > high ? high : q);
    }
}

void qbayes_pair(uint8_t *out, const uint8_t *a, int64_t a_rows, const uint8_t *b, int64_t b_rows, int64_t rows,
                 int64_t size, const int32_t *zeros, const int32_t *multipliers, int32_t places, int32_t zero,
                 int32_t low, int32_t high, int32_t threads) {
    SPLIT(first, end, rows, threads)
        for (int64_t i = first; i < end; i++)
            qbayes_pair_run(out + i * size, a + i % a_rows * size, b + i % b_rows * size, size, zeros, multipliers,
                            places, zero, low, high);
}

/* ---- q = clamp(Z + round((a - Z_a)(b - Z_b) f)); b has one element for each channel, or one for each of a ---- */

MULTIVERSION
void qbayes_product_run(uint8_t *out, const uint8_t *a, const uint8_t *b, int64_t step, int64_t run, double zero_a,
                        double zero_b, double factor, double zero, double low, double high) {
    if (step)
        for (int64_t i = 0; i < run; i++)
            out[i] = code((a[i] - zero_a) * (b[i] - zero_b) * factor, zero, low, high);
    else {
        double by = (b[0] - zero_b) * factor;
        for (int64_t i = 0; i < run; i++)
            out[i] = code((a[i] - zero_a) * by, zero, low, high);
    }
}

void qbayes_product(uint8_t *out, const uint8_t *a, int64_t a_rows, const uint8_t *b, int64_t b_rows,
                    int64_t b_positions, int64_t rows, int64_t channels, int64_t positions, int32_t last,
                    double zero_a, double zero_b, double factor, double zero, double low, double high,
                    int32_t threads) {
    SPLIT(first, end, rows, threads)
        for (int64_t i = first; i < end; i++) {
            const uint8_t *from = a + (i % a_rows) * channels * positions;
            const uint8_t *by = b + (i % b_rows) * channels * b_positions;
            uint8_t *to = out + i * channels * positions;
            int64_t runs = last ? positions : channels, run = last ? channels : positions;
            int64_t step = last || b_positions > 1; /* b moves along a run */
            int64_t hop = b_positions > 1 ? run : (last ? 0 : 1);
            for (int64_t r = 0; r < runs; r++)
                qbayes_product_run(to + r * run, from + r * run, by + r * hop, step, run, zero_a, zero_b, factor, zero,
                                   low, high);
        }
}

/* ---- q = clamp(Z + round((q - Z_in) f_c + o_c)) ---- */

MULTIVERSION
void qbayes_affine_run(uint8_t *out, const uint8_t *in, int64_t run, int64_t step, const double *factor,
                       const double *offset, double zero_in, double zero, double low, double high) {
    if (step)
        for (int64_t i = 0; i < run; i++)
            out[i] = code((in[i] - zero_in) * factor[i] + offset[i], zero, low, high);
    else {
        double by = factor[0], plus = offset[0];
        for (int64_t i = 0; i < run; i++)
            out[i] = code((in[i] - zero_in) * by + plus, zero, low, high);
    }
}

void qbayes_affine(uint8_t *out, const uint8_t *in, int64_t rows, int64_t channels, int64_t positions, int32_t last,
                   const double *factor, const double *offset, double zero_in, double zero, double low, double high,
                   int32_t threads) {
    int64_t runs = last ? positions : channels, run = last ? channels : positions;
    SPLIT(first, end, rows * runs, threads)
        for (int64_t r = first; r < end; r++) {
            int64_t c = last ? 0 : r % channels;
            qbayes_affine_run(out + r * run, in + r * run, run, last, factor + c, offset + c, zero_in, zero, low, high);
        }
}

/* ---- tables, and putting a block of codes into its place (concatenation) ---- */

void qbayes_lookup(uint8_t *out, const uint8_t *in, int64_t count, const uint8_t *table, int32_t threads) {
    SPLIT(first, end, count, threads)
        for (int64_t i = first; i < end; i++)
            out[i] = table[in[i]];
}

/* out[r][offset + i] = table[in[r][i]] for i < run; a table of NULL copies. */
void qbayes_place(uint8_t *out, const uint8_t *in, int64_t in_runs, int64_t runs, int64_t run, int64_t out_run,
                  int64_t offset, const uint8_t *table, int32_t threads) {
    SPLIT(first, end, runs, threads)
        for (int64_t r = first; r < end; r++) {
            const uint8_t *from = in + (r % in_runs) * run;
            uint8_t *to = out + r * out_run + offset;
            if (table)
                for (int64_t i = 0; i < run; i++)
                    to[i] = table[from[i]];
            else
                memcpy(to, from, (size_t)run);
        }
}

/* ---- poolings, channels last: window (top, bottom, left, right) of each output position, in the image ---- */

MULTIVERSION
void qbayes_max_row(uint8_t *out, const uint8_t *in, int64_t channels, int64_t wide, const int32_t *windows,
                    int64_t count, const int32_t *dilation) {
    for (int64_t o = 0; o < count; o++, out += channels, windows += 4) {
        memset(out, 0, (size_t)channels);
        for (int64_t y = windows[0]; y < windows[1]; y += dilation[0])
            for (int64_t x = windows[2]; x < windows[3]; x += dilation[1]) {
                const uint8_t *pixel = in + (y * wide + x) * channels;
                for (int64_t c = 0; c < channels; c++)
                    out[c] = pixel[c] > out[c] ? pixel[c] : out[c];
            }
    }
}

void qbayes_max_pool(uint8_t *out, const uint8_t *in, int64_t rows, int64_t channels, int64_t high, int64_t wide,
                     const int32_t *windows, int64_t count, const int32_t *dilation, int32_t threads) {
    SPLIT(first, end, rows, threads)
        for (int64_t i = first; i < end; i++)
            qbayes_max_row(out + i * count * channels, in + i * high * wide * channels, channels, wide, windows, count,
                           dilation);
}

/* factor has one element, or one for each output position (step 0 or 1); `pixels` counts those of each window. */
MULTIVERSION
void qbayes_mean_row(uint8_t *out, const uint8_t *in, int64_t channels, int64_t wide, const int32_t *windows,
                     int64_t count, const double *factor, int64_t step, double zero_in, double zero, double low,
                     double high) {
    for (int64_t o = 0; o < count; o++, out += channels, windows += 4) {
        double centre = zero_in * (windows[1] - windows[0]) * (windows[3] - windows[2]);
        for (int64_t c = 0; c < channels; c += BLOCK) {
            int32_t sum[BLOCK] = {0};
            int64_t left = channels - c < BLOCK ? channels - c : BLOCK;
            for (int64_t y = windows[0]; y < windows[1]; y++)
                for (int64_t x = windows[2]; x < windows[3]; x++) {
                    const uint8_t *pixel = in + (y * wide + x) * channels + c;
                    for (int64_t i = 0; i < left; i++)
                        sum[i] += pixel[i];
                }
            for (int64_t i = 0; i < left; i++)
                out[c + i] = code((sum[i] - centre) * factor[o * step], zero, low, high);
        }
    }
}

void qbayes_mean_pool(uint8_t *out, const uint8_t *in, int64_t rows, int64_t channels, int64_t high_in, int64_t wide,
                      const int32_t *windows, int64_t count, const double *factor, int64_t step, double zero_in,
                      double zero, double low, double high, int32_t threads) {
    SPLIT(first, end, rows, threads)
        for (int64_t i = first; i < end; i++)
            qbayes_mean_row(out + i * count * channels, in + i * high_in * wide * channels, channels, wide, windows,
                            count, factor, step, zero_in, zero, low, high);
}

/* ---- q = clamp(Z + round(a + b)) from two float32 accumulators that are scaled already ---- */

MULTIVERSION
void qbayes_join_run(uint8_t *out, const float *a, const float *b, int64_t count, double zero, double low,
                     double high) {
    for (int64_t i = 0; i < count; i++)
        out[i] = code((double)a[i] + (double)b[i], zero, low, high);
}

void qbayes_join(uint8_t *out, const float *a, const float *b, int64_t count, double zero, double low, double high,
                 int32_t threads) {
    SPLIT(first, end, count, threads)
        qbayes_join_run(out + first, a + first, b + first, end - first, zero, low, high);
}

/* ---- w = clamp(mean + clamp(round(sigma e m / 2^s))): integer Gaussian weights, as qbayes_sample defines them ---- */

MULTIVERSION
void qbayes_codes_run(int8_t *restrict codes, const uint32_t *restrict words, int64_t count,
                      const int8_t *restrict table) {
    for (int64_t i = 0; i < count; i++)
        codes[i] = table[words[i] >> 20];
}

/* Elements of one channel, at most CHUNK. With p = sigma e (16 bits) and m = 2^16 upper + lower, p m = 2^16 t + r:
 * lanes of 32 bits suffice, and r only says on which side of a half t lies. places = s - 16 is 1 ... 31. */
MULTIVERSION
void qbayes_weights_run(int8_t *restrict out, const int8_t *restrict mean, const uint8_t *restrict sigma,
                        const int8_t *restrict e, int64_t count, int32_t upper, int32_t lower, int32_t places,
                        int32_t low, int32_t high) {
    int16_t product[CHUNK];
    int32_t half = (int32_t)(((uint32_t)1 << (places - 1)) - 1);
    for (int64_t i = 0; i < count; i++)
        product[i] = (int16_t)((int16_t)sigma[i] * (int16_t)e[i]);
    for (int64_t i = 0; i < count; i++) {
        int32_t p = product[i], rest = p * lower, t = p * upper + (rest >> 16);
        int32_t sticky = ((rest & 0xFFFF) + 0xFFFF) >> 16;
        int32_t n = (t + half + ((t >> places & 1) | sticky)) >> places;
        n = n < low ? low : n;
        out[i] = (int8_t)(n > high ? high : n);
    }
    if (mean)
        for (int64_t i = 0; i < count; i++) {
            int32_t w = out[i] + mean[i];
            w = w < low ? low : w;
            out[i] = (int8_t)(w > high ? high : w);
        }
}

/* The whole tensor, in parts of whole blocks of noise, one for each thread. */
void qbayes_sample_all(int8_t *out, int64_t draw, int64_t count, int64_t row_length, uint64_t seed, uint32_t site,
                       const int8_t *mean, const uint8_t *sigma, const int8_t *table, const int32_t *multiplier,
                       const uint8_t *shift, int64_t channel_stride, int32_t low, int32_t high, int32_t threads) {
    words_of *random = fastest_words();
    SPLIT(first, end, (count + CHUNK - 1) / CHUNK, threads)
        for (int64_t start = first * CHUNK; start < end * CHUNK && start < count; start += CHUNK) {
            uint32_t words[CHUNK];
            int8_t codes[CHUNK];
            int64_t stop = start + CHUNK < count ? start + CHUNK : count;
            random(words, (stop - start + WORDS - 1) / WORDS, seed, site, (uint32_t)draw, 0, (uint32_t)(start / 4));
            qbayes_codes_run(codes, words, stop - start, table);
            for (int64_t from = start, to; from < stop; from = to) {
                int64_t channel = from / row_length, next = (channel + 1) * row_length;
                int32_t m = multiplier[channel * channel_stride], s = shift[channel * channel_stride];
                to = next < stop ? next : stop;
                if (s < 17 && m) /* a factor above 2^13: no lane of 32 bits would do */
                    qbayes_sample(out, draw, from, to - from, row_length, seed, site, mean, sigma, table, multiplier,
                                  shift, channel_stride, low, high);
                else
                    qbayes_weights_run(out + from, mean ? mean + from : NULL, sigma + from, codes + (from - start),
                                       to - from, m >> 16, m & 0xFFFF, !m ? 1 : s > 47 ? 31 : s - 16, low, high);
            }
        }
}

/* ---- small matrices: q = clamp(Z + round((sum_i (x_i - Z_x)(w_i - Z_w) + b) m / 2^s)), exactly ---- */

#define LINES 4  /* lines that share each load of a weight */
#define PADDED(n) (((n) + 15) / 16 * 16)

/* sums[l][o] of LINES lines; `inputs` is a multiple of 16, what pads is zero. */
MULTIVERSION
void qbayes_lines_run(int32_t *restrict sums, const int16_t *restrict x, const int16_t *restrict w, int64_t inputs,
                      int64_t outputs) {
    for (int64_t o = 0; o < outputs; o++, w += inputs) {
        int32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (int64_t i = 0; i < inputs; i++) {
            s0 += (int32_t)x[i] * (int32_t)w[i];
            s1 += (int32_t)x[inputs + i] * (int32_t)w[i];
            s2 += (int32_t)x[2 * inputs + i] * (int32_t)w[i];
            s3 += (int32_t)x[3 * inputs + i] * (int32_t)w[i];
        }
        sums[o] = s0, sums[outputs + o] = s1, sums[2 * outputs + o] = s2, sums[3 * outputs + o] = s3;
    }
}

static void widen(int16_t *to, const int8_t *w, int64_t inputs, int64_t outputs, const int32_t *zeros, int64_t step) {
    for (int64_t o = 0; o < outputs; o++, to += PADDED(inputs), w += inputs)
        for (int64_t i = 0; i < inputs; i++)
            to[i] = (int16_t)(w[i] - zeros[o * step]);
}

static inline int64_t rounded_shift(int64_t v, int32_t places) {
    int64_t one = (int64_t)1 << places, quotient = v >> places, rest = v & (one - 1);
    return quotient + (2 * rest + (quotient & 1) > one);
}

/* The constants of a matrix, and the weights of each draw (of `noise` too, or NULL: a sum with a scale of its own). */
struct matrix {
    int64_t inputs, outputs;
    const int8_t *const *weights, *const *noise;
    const int32_t *const *biases;
    const int32_t *weight_zeros, *multiplier, *second_multiplier;
    const uint8_t *shift;
    int64_t zero_step, scale_step;
    int32_t x_zero, zero, low, high;
};

static void finish(uint8_t *out, const struct matrix *a, const int32_t *sums, const int32_t *spread,
                   const int32_t *bias) {
    for (int64_t o = 0; o < a->outputs; o++) {
        int64_t c = o * a->scale_step, total = ((int64_t)sums[o] + bias[o]) * a->multiplier[c];
        if (spread) total += (int64_t)spread[o] * a->second_multiplier[c];
        int64_t q = rounded_shift(total, a->shift[c]) + a->zero;
        out[o] = (uint8_t)(q < a->low ? a->low : q > a->high ? a->high : q);
    }
}

/* `lines` lines for each draw; all draws share the lines where x has no more than that. Returns 1 without memory. */
int qbayes_lines(uint8_t *out, const uint8_t *x, int64_t x_lines, int64_t draws, int64_t lines,
                 const struct matrix *a, int32_t threads) {
    int64_t wide = PADDED(a->inputs), size = wide * a->outputs, blocks = (lines + LINES - 1) / LINES;
    int failed = 0;
    SPLIT(first, end, draws * blocks, threads) {
        int16_t *w = calloc((size_t)(2 * size + LINES * wide), sizeof *w), *n = w + size, *rows = n + size;
        int32_t *sums = malloc((size_t)(2 * LINES * a->outputs) * sizeof *sums), *spread = sums + LINES * a->outputs;
        if (!w || !sums) failed = 1;
        for (int64_t i = first, last = -1; w && sums && i < end; i++) {
            int64_t draw = i / blocks, line = i % blocks * LINES;
            int64_t count = lines - line < LINES ? lines - line : LINES;
            if (draw != last) {
                static const int32_t none = 0;
                widen(w, a->weights[draw], a->inputs, a->outputs, a->weight_zeros, a->zero_step);
                if (a->noise) widen(n, a->noise[draw], a->inputs, a->outputs, &none, 0);
                last = draw;
            }
            for (int64_t l = 0; l < count; l++) {
                const uint8_t *from = x + (draw * lines + line + l) % x_lines * a->inputs;
                for (int64_t k = 0; k < a->inputs; k++)
                    rows[l * wide + k] = (int16_t)(from[k] - a->x_zero);
            }
            qbayes_lines_run(sums, rows, w, wide, a->outputs);
            if (a->noise) qbayes_lines_run(spread, rows, n, wide, a->outputs);
            for (int64_t l = 0; l < count; l++)
                finish(out + (draw * lines + line + l) * a->outputs, a, sums + l * a->outputs,
                       a->noise ? spread + l * a->outputs : NULL, a->biases[draw]);
        }
        free(w);
        free(sums);
    }
    return failed;
}

/* ---- codes of the network's input where it comes in bytes: a table of 256 codes for each channel ---- */

void qbayes_bytes(uint8_t *out, const uint8_t *in, int64_t rows, int64_t channels, int64_t positions, int32_t last,
                  const uint8_t *tables, int32_t threads) {
    SPLIT(first, end, rows, threads)
        for (int64_t i = first * channels; i < end * channels; i++) {
            int64_t c = i % channels, step = last ? channels : 1;
            const uint8_t *from = in + i * positions, *table = tables + 256 * c;
            uint8_t *to = last ? out + (i - c) * positions + c : out + i * positions;
            for (int64_t p = 0; p < positions; p++)
                to[p * step] = table[from[p]];
        }
}
