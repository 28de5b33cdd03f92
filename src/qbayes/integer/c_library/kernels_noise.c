/* What noise makes of codes: masks, and integer Gaussian weights. A part of kernels.c, which includes it. */
#include <stdlib.h>

#include "../../noise/philox.c"

#define BLOCK 256
#define CHUNK 1024 /* elements whose noise is made at once: it stays in the first cache */
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
