/* Local reparametrisation in training on a CPU, one pass over memory each way (reparametrise.py has the equations).
 *
 * Tensors hold float32 or bfloat16, epsilon float32; all is computed in float32, each operation rounded as IEEE
 * 754 says (-ffp-contract=off): the same bits on every processor.
 */
#include "../../native/numbers.h"

INLINE void draw_run(const void *restrict mean, const void *restrict variance, const float *restrict epsilon,
                     void *restrict y, int half, int64_t from, int64_t to, float least) {
    for (int64_t i = from; i < to; i++) {
        float v = get(variance, i, half);
        v = v < least ? least : v; /* a comparison: a NaN stays a NaN */
        put(y, i, get(mean, i, half) + sqrtf(v) * epsilon[i], half, 0);
    }
}

INLINE void differentiate_run(const void *restrict variance, const float *restrict epsilon, const void *restrict g,
                              void *restrict dv, int half, int64_t from, int64_t to, float least) {
    for (int64_t i = from; i < to; i++) {
        float v = get(variance, i, half), held = v < least ? least : v;
        float slope = get(g, i, half) * epsilon[i] / (2.0f * sqrtf(held));
        put(dv, i, v >= least ? slope : 0.0f, half, 0);
    }
}

INLINE void square_run(const void *restrict x, const void *restrict g, void *restrict dx, int half, int64_t from,
                       int64_t to) {
    for (int64_t i = from; i < to; i++)
        put(dx, i, 2.0f * (get(x, i, half) * get(g, i, half)), half, 0);
}

#define VARIANTS(name, half)                                                                                         \
    MULTIVERSION                                                                                                     \
    void qbayes_draw_##name(const void *mean, const void *variance, const float *epsilon, void *y, int64_t from,     \
                            int64_t to, float least) {                                                               \
        draw_run(mean, variance, epsilon, y, half, from, to, least);                                                 \
    }                                                                                                                \
    MULTIVERSION                                                                                                     \
    void qbayes_differentiate_##name(const void *variance, const float *epsilon, const void *g, void *dv,            \
                                     int64_t from, int64_t to, float least) {                                        \
        differentiate_run(variance, epsilon, g, dv, half, from, to, least);                                          \
    }                                                                                                                \
    MULTIVERSION                                                                                                     \
    void qbayes_square_##name(const void *x, const void *g, void *dx, int64_t from, int64_t to) {                    \
        square_run(x, g, dx, half, from, to);                                                                        \
    }
VARIANTS(full, 0)
VARIANTS(half, 1)

void qbayes_draw(const void *mean, const void *variance, const float *epsilon, void *y, int32_t half, int64_t count,
                 float least, int32_t threads) {
    SPLIT(first, end, count, threads)
        (half ? qbayes_draw_half : qbayes_draw_full)(mean, variance, epsilon, y, first, end, least);
}

void qbayes_differentiate_draw(const void *variance, const float *epsilon, const void *g, void *dv, int32_t half,
                               int64_t count, float least, int32_t threads) {
    SPLIT(first, end, count, threads)
        (half ? qbayes_differentiate_half : qbayes_differentiate_full)(variance, epsilon, g, dv, first, end, least);
}

/* The gradient of x squared. */
void qbayes_differentiate_square(const void *x, const void *g, void *dx, int32_t half, int64_t count,
                                 int32_t threads) {
    SPLIT(first, end, count, threads)
        (half ? qbayes_square_half : qbayes_square_full)(x, g, dx, first, end);
}
