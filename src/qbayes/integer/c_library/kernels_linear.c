/* Products with small matrices, by exact integers: q = clamp(Z + round((sum_i (x_i - Z_x)(w_i - Z_w) + b) m / 2^s)).
 * A part of kernels.c, which includes it.
 */

#define LINES 4 /* lines that share each load of a weight */
#define TILE 16 /* outputs whose weights are widened at once */
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

/* The same for a single line: a quarter of the work. */
MULTIVERSION
void qbayes_line_run(int32_t *restrict sums, const int16_t *restrict x, const int16_t *restrict w, int64_t inputs,
                     int64_t outputs) {
    for (int64_t o = 0; o < outputs; o++, w += inputs) {
        int32_t s = 0;
        for (int64_t i = 0; i < inputs; i++)
            s += (int32_t)x[i] * (int32_t)w[i];
        sums[o] = s;
    }
}

static void run_lines(int64_t lines, int32_t *sums, const int16_t *x, const int16_t *w, int64_t inputs,
                      int64_t outputs) {
    if (lines == 1)
        qbayes_line_run(sums, x, w, inputs, outputs);
    else
        qbayes_lines_run(sums, x, w, inputs, outputs);
}

/* `outputs` lines of weights less their zero-points, each padded to a multiple of 16. */
static void widen(int16_t *to, const int8_t *w, int64_t inputs, int64_t outputs, const int32_t *zeros, int64_t step) {
    for (int64_t o = 0; o < outputs; o++, to += PADDED(inputs), w += inputs)
        for (int64_t i = 0; i < inputs; i++)
            to[i] = (int16_t)(w[i] - zeros[o * step]);
}

static inline int64_t rounded_shift(int64_t v, int32_t places) {
    int64_t one = (int64_t)1 << places, quotient = v >> places, rest = v & (one - 1);
    return quotient + (2 * rest + (quotient & 1) > one);
}

/* The constants of a matrix, and the weights of each draw (of `noise` too, or NULL: a sum with a scale of its own).
 * `factor` is m / 2^s of each output where float64 rounds as the integers do, else NULL; `wide` codes, of more than 8
 * bits, are written as int32_t, the others as uint8_t. */
struct matrix {
    int64_t inputs, outputs;
    const int8_t *const *weights, *const *noise;
    const int32_t *const *biases;
    const int32_t *weight_zeros, *multiplier, *second_multiplier;
    const uint8_t *shift;
    const double *factor;
    int64_t zero_step, scale_step;
    int32_t x_zero, zero, low, high, wide;
};

/* With s from 17 to 43 a product that is no tie lies at least 2^-43 from one, and the error of a product below 2^9 is
 * at most 2^-44; what is larger is clamped either way. */
MULTIVERSION
void qbayes_finish_run(uint8_t *restrict out, const int32_t *restrict sums, const int32_t *restrict bias,
                       const double *restrict factor, int64_t outputs, double zero, double low, double high) {
    for (int64_t o = 0; o < outputs; o++)
        out[o] = code(((double)sums[o] + (double)bias[o]) * factor[o], zero, low, high);
}

/* The outputs of a line from `first` on: sums, spread and bias begin there. */
static void finish(void *out, int64_t line, const struct matrix *a, int64_t first, int64_t outputs,
                   const int32_t *sums, const int32_t *spread, const int32_t *bias) {
    int64_t at = line * a->outputs + first;
    if (a->factor) {
        qbayes_finish_run((uint8_t *)out + at, sums, bias, a->factor + first, outputs, a->zero, a->low, a->high);
        return;
    }
    for (int64_t o = 0; o < outputs; o++) {
        int64_t c = (first + o) * a->scale_step, total = ((int64_t)sums[o] + bias[o]) * a->multiplier[c];
        if (spread) total += (int64_t)spread[o] * a->second_multiplier[c];
        int64_t q = rounded_shift(total, a->shift[c]) + a->zero;
        q = q < a->low ? a->low : q > a->high ? a->high : q;
        if (a->wide)
            ((int32_t *)out)[at + o] = (int32_t)q;
        else
            ((uint8_t *)out)[at + o] = (uint8_t)q;
    }
}

MULTIVERSION
void qbayes_whole_run(int32_t *restrict out, const float *restrict in, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)in[i];
}

/* The same from sums that float32 holds exactly; `spread` is NULL without a second one, all lines are of one draw. */
int qbayes_sums(void *out, const float *sums, const float *spread, int64_t lines, const struct matrix *a,
                int32_t threads) {
    int failed = 0;
    SPLIT(first, end, lines, threads) {
        int32_t *whole = malloc((size_t)(2 * a->outputs) * sizeof *whole), *second = whole + a->outputs;
        if (!whole) failed = 1;
        for (int64_t l = first; whole && l < end; l++) {
            qbayes_whole_run(whole, sums + l * a->outputs, a->outputs);
            if (spread) qbayes_whole_run(second, spread + l * a->outputs, a->outputs);
            finish(out, l, a, 0, a->outputs, whole, spread ? second : NULL, a->biases[0]);
        }
        free(whole);
    }
    return failed;
}

/* The same from sums that are whole already. */
void qbayes_whole_sums(void *out, const int32_t *sums, const int32_t *spread, int64_t lines, const struct matrix *a,
                       int32_t threads) {
    SPLIT(first, end, lines, threads) {
        for (int64_t l = first; l < end; l++)
            finish(out, l, a, 0, a->outputs, sums + l * a->outputs, spread ? spread + l * a->outputs : NULL,
                   a->biases[0]);
    }
}

/* `lines` lines for each draw; all draws share the lines where x has no more than that. Some outputs at a time, so
 * that their widened weights stay in the cache while the lines pass. Returns 1 without memory. */
int qbayes_lines(void *out, const uint8_t *x, int64_t x_lines, int64_t draws, int64_t lines,
                 const struct matrix *a, int32_t threads) {
    int64_t wide = PADDED(a->inputs), tiles = (a->outputs + TILE - 1) / TILE;
    int failed = 0;
    SPLIT(first, end, draws * tiles, threads) {
        int16_t *w = calloc((size_t)((2 * TILE + LINES) * wide), sizeof *w), *n = w + TILE * wide, *rows = n + TILE * wide;
        if (!w) failed = 1;
        for (int64_t i = first; w && i < end; i++) {
            static const int32_t none = 0;
            int32_t sums[LINES * TILE], spread[LINES * TILE];
            int64_t draw = i / tiles, from = i % tiles * TILE, at = from * a->inputs;
            int64_t outputs = a->outputs - from < TILE ? a->outputs - from : TILE;
            widen(w, a->weights[draw] + at, a->inputs, outputs, a->weight_zeros + from * a->zero_step, a->zero_step);
            if (a->noise) widen(n, a->noise[draw] + at, a->inputs, outputs, &none, 0);
            for (int64_t line = 0; line < lines; line += LINES) {
                int64_t count = lines - line < LINES ? lines - line : LINES;
                for (int64_t l = 0; l < count; l++) {
                    const uint8_t *codes = x + (draw * lines + line + l) % x_lines * a->inputs;
                    for (int64_t k = 0; k < a->inputs; k++)
                        rows[l * wide + k] = (int16_t)(codes[k] - a->x_zero);
                }
                run_lines(count, sums, rows, w, wide, outputs);
                if (a->noise) run_lines(count, spread, rows, n, wide, outputs);
                for (int64_t l = 0; l < count; l++)
                    finish(out, draw * lines + line + l, a, from, outputs, sums + l * outputs,
                           a->noise ? spread + l * outputs : NULL, a->biases[draw] + from);
            }
        }
        free(w);
    }
    return failed;
}
