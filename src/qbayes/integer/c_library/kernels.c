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
#include "kernels_noise.c"

#define ROUNDER 6755399441055744.0 /* 1.5 * 2^52 */

static inline __attribute__((always_inline)) uint8_t code(double value, double zero, double low, double high) {
    double rounded = (value + ROUNDER) - ROUNDER + zero;
    rounded = rounded < low ? low : rounded;
    rounded = rounded > high ? high : rounded;
    return (uint8_t)(int32_t)rounded;
}

#include "kernels_linear.c"

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

/* ---- q = clamp(Z + round(a f_c + b g_c)) from sums in float32, channels last; without b (NULL) of one sum ---- */

MULTIVERSION
void qbayes_join_run(uint8_t *restrict out, const float *restrict a, const float *restrict b, int64_t count,
                     const double *restrict f, const double *restrict g, double zero, double low, double high) {
    if (b)
        for (int64_t i = 0; i < count; i++)
            out[i] = code((double)a[i] * f[i] + (double)b[i] * g[i], zero, low, high);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = code((double)a[i] * f[i], zero, low, high);
}

/* f and g have a number for each channel, over and over, `run` in all; a and b begin with the first channel. */
void qbayes_join(uint8_t *out, const float *a, const float *b, int64_t count, int64_t run, const double *f,
                 const double *g, double zero, double low, double high, int32_t threads) {
    SPLIT(first, end, (count + run - 1) / run, threads)
        for (int64_t e = first * run; e < end * run && e < count; e += run)
            qbayes_join_run(out + e, a + e, b ? b + e : NULL, count - e < run ? count - e : run, f, g, zero, low, high);
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
