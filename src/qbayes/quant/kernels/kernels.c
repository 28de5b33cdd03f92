/* Fake quantisation for training on a CPU, one pass over memory each way: the arithmetic of affine.py.
 *
 * With t = x, or max(x, 0) with `relu`, v = t / S, a = low - Z, b = high - Z and r = round(clamp(v, a, b)):
 *
 *     y = r S,   dL/dx = g [a <= v <= b] [x > 0 with relu],   dL/dS = sum g (r - v [a <= v <= b])
 *
 * A row is the memory of all numbers that share a scale. Tensors hold float32 or bfloat16; all is computed in
 * float32. Sums are taken over chunks of fixed length, in lanes of a fixed number, and then chunk after chunk in
 * float64: their bits depend neither on the threads nor on the width of the processor's registers (-ffp-contract=off).
 * Comparisons and not minima: a NaN stays a NaN.
 */
#include "../../native/numbers.h"

#define CHUNK 4096 /* numbers whose shares are added in float32 */
#define LANES 32
#define ROUNDER 12582912.0f /* 1.5 * 2^23 has no room for halves: it rounds any code to even */
#define WIDE_ROUNDER 6755399441055744.0 /* 1.5 * 2^52 */

const int64_t qbayes_chunk = CHUNK;

typedef struct {
    float scale, low, high;
    int relu;
} grid;

/* dx is g or 0; of one type they are bits. */
INLINE void pass(void *dx, int dx_half, const void *g, int g_half, int64_t at, int through) {
    if (dx_half && g_half)
        ((uint16_t *)dx)[at] = through ? ((const uint16_t *)g)[at] : 0;
    else
        put(dx, at, through ? get(g, at, g_half) : 0.0f, dx_half, g_half);
}

INLINE float held(float v, float low, float high) {
    v = v < low ? low : v;
    return v > high ? high : v;
}

/* ---- one chunk ---- */

INLINE void round_run(const void *restrict x, int x_half, void *restrict y, int y_half, int64_t count, grid on) {
    for (int64_t i = 0; i < count; i++) {
        float t = get(x, i, x_half);
        if (on.relu)
            t = t < 0.0f ? 0.0f : t;
        float v = held(t / on.scale, on.low, on.high);
        put(y, i, ((v + ROUNDER) - ROUNDER) * on.scale, y_half, x_half);
    }
}

INLINE float term(const void *x, int x_half, const void *g, int g_half, void *dx, int64_t i, grid on) {
    float t = get(x, i, x_half), slope = get(g, i, g_half);
    int passes = 1;
    if (on.relu) {
        passes = t > 0.0f;
        t = t < 0.0f ? 0.0f : t;
    }
    float v = t / on.scale;
    int inside = (v >= on.low) & (v <= on.high);
    pass(dx, x_half, g, g_half, i, inside & passes);
    float near = (held(v, on.low, on.high) + ROUNDER) - ROUNDER;
    return slope * (near - (inside ? v : 0.0f));
}

INLINE double differentiate_run(const void *restrict x, int x_half, const void *restrict g, int g_half,
                                void *restrict dx, int64_t count, grid on) {
    float total[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            total[lane] += term(x, x_half, g, g_half, dx, i + lane, on);
    for (int64_t i = whole; i < count; i++)
        total[i - whole] += term(x, x_half, g, g_half, dx, i, on);
    double sum = 0.0;
    for (int lane = 0; lane < LANES; lane++)
        sum += total[lane];
    return sum;
}

#define ROUND_RUN(name, x_half, y_half)                                                          \
    MULTIVERSION                                                                                 \
    void qbayes_round_##name(const void *x, void *y, int64_t count, grid on) {                   \
        round_run(x, x_half, y, y_half, count, on);                                              \
    }
#define DIFFERENTIATE_RUN(name, x_half, g_half)                                                              \
    MULTIVERSION                                                                                             \
    double qbayes_differentiate_##name(const void *x, const void *g, void *dx, int64_t count, grid on) {     \
        return differentiate_run(x, x_half, g, g_half, dx, count, on);                                       \
    }
ROUND_RUN(full, 0, 0)
ROUND_RUN(narrowing, 0, 1)
ROUND_RUN(widening, 1, 0)
ROUND_RUN(half, 1, 1)
DIFFERENTIATE_RUN(full, 0, 0)
DIFFERENTIATE_RUN(narrowing, 0, 1)
DIFFERENTIATE_RUN(widening, 1, 0)
DIFFERENTIATE_RUN(half, 1, 1)

typedef void rounding(const void *, void *, int64_t, grid);
typedef double differentiation(const void *, const void *, void *, int64_t, grid);
/* by the halves of x, and of y or g. */
static rounding *const roundings[2][2] = {{qbayes_round_full, qbayes_round_narrowing},
                                          {qbayes_round_widening, qbayes_round_half}};
static differentiation *const differentiations[2][2] = {
    {qbayes_differentiate_full, qbayes_differentiate_narrowing},
    {qbayes_differentiate_widening, qbayes_differentiate_half}};

/* ---- rows ---- */

/* A learned scale counts by its size, within the usable ones. */
static grid grid_of(const float *scale, const float *zero, int64_t row, float low, float high, float smallest,
                    float largest, int relu) {
    float s = scale[row];
    if (largest > 0.0f) {
        s = fabsf(s) > largest ? largest : fabsf(s);
        s = s < smallest ? smallest : s;
    }
    s = s != s ? real(0x7FC00000u) : s; /* a NaN that bfloat16 has too */
    return (grid){s, low - zero[row], high - zero[row], relu};
}

/* `largest` is 0 where the scale is a constant. */
void qbayes_round(const char *x, int32_t x_half, char *y, int32_t y_half, int64_t rows, int64_t length,
                  const float *scale, const float *zero, float low, float high, float smallest, float largest,
                  int32_t relu, int32_t threads) {
    int64_t chunks = (length + CHUNK - 1) / CHUNK, x_size = x_half ? 2 : 4, y_size = y_half ? 2 : 4;
    rounding *run = roundings[!!x_half][!!y_half];
    SPLIT(first, end, rows * chunks, threads)
        for (int64_t i = first; i < end; i++) {
            int64_t row = i / chunks, from = i % chunks * CHUNK, at = row * length + from;
            int64_t count = length - from < CHUNK ? length - from : CHUNK;
            run(x + at * x_size, y + at * y_size, count,
                grid_of(scale, zero, row, low, high, smallest, largest, relu));
        }
}

/* `shares` has one place for each chunk of each row; `dp` is that of a learned scale, which serves `served` numbers. */
void qbayes_differentiate(const char *x, int32_t x_half, const char *g, int32_t g_half, char *dx, int64_t rows,
                          int64_t length, const float *scale, const float *zero, float low, float high,
                          float smallest, float largest, int32_t relu, double *shares, float *dp, double served,
                          int32_t threads) {
    int64_t chunks = (length + CHUNK - 1) / CHUNK, x_size = x_half ? 2 : 4, g_size = g_half ? 2 : 4;
    differentiation *run = differentiations[!!x_half][!!g_half];
    SPLIT(first, end, rows * chunks, threads)
        for (int64_t i = first; i < end; i++) {
            int64_t row = i / chunks, from = i % chunks * CHUNK, at = row * length + from;
            int64_t count = length - from < CHUNK ? length - from : CHUNK;
            shares[i] = run(x + at * x_size, g + at * g_size, dx + at * x_size, count,
                            grid_of(scale, zero, row, low, high, smallest, largest, relu));
        }
    for (int64_t row = 0; dp && row < rows; row++) {
        double total = 0.0, above = (double)(high - zero[row]), p = scale[row];
        for (int64_t i = 0; i < chunks; i++)
            total += shares[row * chunks + i];
        above = above < 1.0 ? 1.0 : above;
        double slope = fabs(p) <= largest ? total / sqrt(above * served) : 0.0;
        dp[row] = (float)(p > 0.0 ? slope : p < 0.0 ? -slope : 0.0);
    }
}

/* ---- ranges that follow the data ---- */

INLINE void extremes_run(const void *restrict x, int half, int64_t count, float *low, float *high, float *odd) {
    float least[LANES], most[LANES], rest[LANES] = {0};
    for (int lane = 0; lane < LANES; lane++) {
        least[lane] = INFINITY;
        most[lane] = -INFINITY;
    }
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float v = get(x, i + lane, half);
            least[lane] = v < least[lane] ? v : least[lane];
            most[lane] = v > most[lane] ? v : most[lane];
            rest[lane] += v - v; /* 0 of what is finite, else NaN */
        }
    for (int64_t i = whole; i < count; i++) {
        float v = get(x, i, half);
        least[0] = v < least[0] ? v : least[0];
        most[0] = v > most[0] ? v : most[0];
        rest[0] += v - v;
    }
    *low = least[0], *high = most[0], *odd = rest[0];
    for (int lane = 1; lane < LANES; lane++) {
        *low = least[lane] < *low ? least[lane] : *low;
        *high = most[lane] > *high ? most[lane] : *high;
        *odd += rest[lane];
    }
}

MULTIVERSION
void qbayes_extremes_full(const void *x, int64_t count, float *low, float *high, float *odd) {
    extremes_run(x, 0, count, low, high, odd);
}

MULTIVERSION
void qbayes_extremes_half(const void *x, int64_t count, float *low, float *high, float *odd) {
    extremes_run(x, 1, count, low, high, odd);
}

/* The range `low` ... `high` moves towards the extremes of x, and the grid of codes from `first` to `last` with it;
 * without a range (NULL: of weights, which are seen whole) it is there at once. Nothing moves where a number is not
 * finite. Flags are bytes; `shares` has three places for each chunk. */
void qbayes_follow(const char *x, int32_t half, int64_t count, float *low, float *high, uint8_t *started,
                   float *scale, float *zero, uint8_t *ready, double first, double last, double pace, double empty,
                   double smallest, double largest, float *shares, int32_t threads) {
    int64_t chunks = (count + CHUNK - 1) / CHUNK, size = half ? 2 : 4;
    SPLIT(begin, end, chunks, threads)
        for (int64_t i = begin; i < end; i++) {
            int64_t left = count - i * CHUNK < CHUNK ? count - i * CHUNK : CHUNK;
            float *to = shares + 3 * i;
            (half ? qbayes_extremes_half : qbayes_extremes_full)(x + i * CHUNK * size, left, to, to + 1, to + 2);
        }
    float least = shares[0], most = shares[1], odd = shares[2];
    for (int64_t i = 1; i < chunks; i++) {
        least = shares[3 * i] < least ? shares[3 * i] : least;
        most = shares[3 * i + 1] > most ? shares[3 * i + 1] : most;
        odd += shares[3 * i + 2];
    }
    if (odd != 0.0f)
        return;
    if (low) {
        if (*started) {
            least = *low + (float)pace * (least - *low);
            most = *high + (float)pace * (most - *high);
        }
        *low = least, *high = most, *started = 1;
    }
    /* float64: the width of a range of float32 numbers may be no float32. */
    double bottom = least > 0.0f ? 0.0 : least, top = most < 0.0f ? 0.0 : most, step = (top - bottom) / (last - first);
    step = step == 0.0 ? empty : step;
    step = step < smallest ? smallest : step > largest ? largest : step;
    *scale = (float)step;
    double middle = first - ((bottom / *scale + WIDE_ROUNDER) - WIDE_ROUNDER);
    *zero = (float)(middle < first ? first : middle > last ? last : middle);
    *ready = 1;
}
