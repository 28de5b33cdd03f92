/* Linear and convolution: q_o = clamp(Z_o + round((sum (q_x - Z_x)(q_w - Z_w) + b) m_c / 2^s_c), low, high).
 *
 * The inputs of one output position are gathered into a patch that lies as a row of weights does, padded with
 * the code Z_x; then each output is one dot product of unit stride, which compilers vectorise. With codes of
 * at most 8 bits the patch holds them as they are, and
 *
 *     sum (q_x - Z_x)(q_w - Z_w) = sum q_x q_w - Z_x sum q_w - Z_w (sum q_x - K Z_x)
 *
 * where the second term of weights that are no draw lies in the bias already. Wide inputs (9 ... 16 bits) are
 * gathered centred, as 32-bit integers, and summed in 64 bits.
 */
#ifndef QB_WEIGHTED_H
#define QB_WEIGHTED_H

#include "qb_dot.h"
#include "qb_weights.h"

/* A row of images, channels first; a sequence has height 1, a Linear is a convolution of positions. */
typedef struct {
    uint32_t in_channels, in_height, in_width;
    uint32_t out_channels, out_height, out_width;
    uint32_t kernel_height, kernel_width;
    uint32_t stride_height, stride_width;
    uint32_t padding_height, padding_width;
    uint32_t dilation_height, dilation_width;
    uint32_t groups;
    uint32_t rows_at_once; /* output channels whose rows are held unpacked */
    uint8_t flat;          /* the input lies as patches already: positions x features */
    uint8_t direct;        /* 8-bit points are read where they lie */
    uint8_t corrected;     /* the bias holds -Z_x sum q_w */
} qb_geometry;

/* Room for one patch, for unpacked rows and, with two grids, for their noise. */
typedef struct {
    uint8_t *patch;
    int32_t *wide_patch;
    int8_t *rows;
    int8_t *noise_rows;
} qb_scratch;

/* Rows that are held at once, and what one draw of each needs besides. */
#define QB_MOST_ROWS 16u
#define QB_ROWS_A_DOT 4u

typedef struct {
    const int8_t *first[QB_MOST_ROWS];
    const int8_t *second[QB_MOST_ROWS];
    int32_t first_sum[QB_MOST_ROWS];
    int32_t second_sum[QB_MOST_ROWS];
    int64_t bias[QB_MOST_ROWS];
} qb_rows;

/* Which taps of a window lie inside an axis: first ... stop - 1, and where the first of them lies. */
typedef struct {
    uint32_t first, stop, place;
} qb_span;

static inline qb_span qb_inside(uint32_t at, uint32_t stride, uint32_t dilation, uint32_t padding, uint32_t kernel,
                                uint32_t length) {
    uint32_t start = at * stride, end = length + padding;
    qb_span span = {0u, 0u, 0u};
    span.first = start < padding ? (padding - start + dilation - 1u) / dilation : 0u;
    span.stop = start < end ? (end - start + dilation - 1u) / dilation : 0u;
    span.stop = span.stop < kernel ? span.stop : kernel;
    span.first = span.first < span.stop ? span.first : span.stop;
    span.place = start + span.first * dilation - padding; /* read only where first < stop */
    return span;
}

/* The patch of an output position, line by line: outside, inside, outside. */
static inline const uint8_t *qb_patch(const qb_geometry *g, const uint8_t *in, uint32_t group, uint32_t y,
                                      uint32_t x, uint32_t zero, uint8_t *patch) {
    uint32_t members = g->in_channels / g->groups, channel, ky;
    size_t kx; /* of 32 bits, gcc 12 would take it to wrap around, and warn */
    qb_span down, right;
    uint8_t *to = patch;
    if (g->flat) {
        return in + (size_t)x * g->in_channels;
    }
    down = qb_inside(y, g->stride_height, g->dilation_height, g->padding_height, g->kernel_height, g->in_height);
    right = qb_inside(x, g->stride_width, g->dilation_width, g->padding_width, g->kernel_width, g->in_width);
    for (channel = group * members; channel < (group + 1u) * members; channel++) {
        size_t line = ((size_t)channel * g->in_height + down.place) * g->in_width + right.place;
        for (ky = 0u; ky < g->kernel_height; ky++, to += g->kernel_width) {
            uint32_t stop = ky >= down.first && ky < down.stop ? right.stop : 0u;
            for (kx = 0u; kx < right.first; kx++) {
                to[kx] = (uint8_t)zero;
            }
            if (stop > kx) {
                const uint8_t *from = in + line;
                for (; kx < stop; kx++, from += g->dilation_width) {
                    to[kx] = *from;
                }
                line += (size_t)g->dilation_height * g->in_width;
            }
            for (; kx < g->kernel_width; kx++) {
                to[kx] = (uint8_t)zero;
            }
        }
    }
    return patch;
}

/* The same centred, of codes of either width. */
static inline void qb_wide_patch(const qb_geometry *g, const uint8_t *narrow, const uint16_t *wide, uint32_t group,
                                 uint32_t y, uint32_t x, uint32_t zero, int32_t *patch) {
    uint32_t members = g->in_channels / g->groups, channel, ky, kx;
    qb_span down = qb_inside(y, g->stride_height, g->dilation_height, g->padding_height, g->kernel_height,
                             g->in_height);
    qb_span right =
        qb_inside(x, g->stride_width, g->dilation_width, g->padding_width, g->kernel_width, g->in_width);
    if (g->flat) {
        size_t first = (size_t)x * g->in_channels, k;
        for (k = 0u; k < g->in_channels; k++) {
            patch[k] = (int32_t)(narrow ? narrow[first + k] : wide[first + k]) - (int32_t)zero;
        }
        return;
    }
    for (channel = group * members; channel < (group + 1u) * members; channel++) {
        size_t line = ((size_t)channel * g->in_height + down.place) * g->in_width + right.place;
        for (ky = 0u; ky < g->kernel_height; ky++) {
            uint32_t row = ky >= down.first && ky < down.stop;
            size_t at = line;
            for (kx = 0u; kx < g->kernel_width; kx++) {
                uint32_t inside = row && kx >= right.first && kx < right.stop;
                *patch++ = inside ? (int32_t)(narrow ? narrow[at] : wide[at]) - (int32_t)zero : 0;
                at += inside ? g->dilation_width : 0u;
            }
            line += row ? (size_t)g->dilation_height * g->in_width : 0u;
        }
    }
}

/* Unpacks or draws `count` rows from `channel` on. */
static inline void qb_prepare(const qb_geometry *g, const qb_weights *shape, const qb_numbers *numbers,
                              uint32_t channel, uint32_t count, const qb_noise *noise, const qb_scratch *scratch,
                              qb_rows *rows) {
    uint32_t i;
    for (i = 0u; i < count; i++) {
        const uint8_t *codes = numbers->codes + (size_t)(channel + i) * shape->row_bytes;
        int8_t *row = scratch->rows, *second = scratch->noise_rows;
        rows->first_sum[i] = 0;
        rows->second_sum[i] = 0;
        rows->bias[i] = qb_bias(shape, numbers, channel + i, noise);
        rows->second[i] = NULL;
        if (g->direct) {
            rows->first[i] = (const int8_t *)codes;
            continue;
        }
        row += (size_t)i * shape->row;
        qb_unpack(codes, shape->bits, shape->row, row);
        rows->first[i] = row;
        if (shape->kind == QB_TWO_GRIDS) {
            second += (size_t)i * shape->row;
            rows->second[i] = second;
        }
        if (shape->kind != QB_POINT) {
            qb_add_noise(shape, numbers, channel + i, noise, row, second);
            rows->second_sum[i] = shape->kind == QB_TWO_GRIDS ? qb_sum_of(second, shape->row) : 0;
            rows->first_sum[i] = g->corrected ? 0 : qb_sum_of(row, shape->row);
        }
    }
}

/* The output's code from its one or two sums. */
static inline uint32_t qb_output(const qb_numbers *numbers, uint32_t channel, int64_t first, int64_t second) {
    uint32_t at = channel * numbers->scale_step;
    int64_t total = first * numbers->multiplier[at];
    if (numbers->second_multiplier) {
        total += second * numbers->second_multiplier[at];
    }
    return qb_requantised(total, numbers->shift[at], numbers->zero_out, numbers->low, numbers->high);
}

static inline void qb_store(uint8_t *narrow, uint16_t *wide, size_t at, uint32_t code) {
    if (narrow) {
        narrow[at] = (uint8_t)code;
    } else {
        wide[at] = (uint16_t)code;
    }
}

/* Where the output of a channel at a position lies: channels first, or features last behind a Linear. */
static inline size_t qb_place(const qb_geometry *g, uint32_t channel, uint32_t y, uint32_t x) {
    if (g->flat) {
        return (size_t)x * g->out_channels + channel;
    }
    return ((size_t)channel * g->out_height + y) * g->out_width + x;
}

static inline void qb_weighted_position(const qb_geometry *g, const qb_weights *shape, const qb_numbers *numbers,
                                        const uint8_t *patch, const qb_rows *rows, uint32_t channel,
                                        uint32_t count, uint32_t y, uint32_t x, uint8_t *out, uint16_t *wide_out) {
    int32_t first[QB_ROWS_A_DOT];
    int64_t centred = 0;
    uint32_t from, i;
    if (numbers->weight_zero) {
        centred = (int64_t)qb_sum_of_codes(patch, shape->row) - (int64_t)shape->row * numbers->zero_in;
    }
    for (from = 0u; from < count; from += QB_ROWS_A_DOT) {
        uint32_t some = count - from < QB_ROWS_A_DOT ? count - from : QB_ROWS_A_DOT;
        if (some == QB_ROWS_A_DOT) {
            qb_dots(patch, rows->first + from, shape->row, first);
        } else {
            for (i = 0u; i < some; i++) {
                first[i] = qb_dot(patch, rows->first[from + i], shape->row);
            }
        }
        for (i = 0u; i < some; i++) {
            uint32_t row = from + i, at = channel + row;
            int64_t zero = numbers->weight_zero ? numbers->weight_zero[at * numbers->zero_step] : 0;
            int64_t total =
                first[i] - (int64_t)numbers->zero_in * rows->first_sum[row] - zero * centred + rows->bias[row];
            int64_t spread = 0;
            if (rows->second[row]) {
                spread = qb_dot(patch, rows->second[row], shape->row) -
                         (int64_t)numbers->zero_in * rows->second_sum[row];
            }
            qb_store(out, wide_out, qb_place(g, at, y, x), qb_output(numbers, at, total, spread));
        }
    }
}

/* Inputs of at most 8 bits; one of `out` and `wide_out` is NULL. */
static inline void qb_weighted(const qb_geometry *g, const qb_weights *shape, const qb_numbers *numbers,
                               const uint8_t *in, uint8_t *out, uint16_t *wide_out, const qb_scratch *scratch,
                               const qb_noise *noise) {
    uint32_t per_group = g->out_channels / g->groups, group, channel, y, x;
    for (group = 0u; group < g->groups; group++) {
        uint32_t end = (group + 1u) * per_group, held;
        for (held = group * per_group; held < end; held += g->direct ? per_group : g->rows_at_once) {
            uint32_t stop = g->direct || end - held < g->rows_at_once ? end : held + g->rows_at_once;
            qb_rows rows = {{NULL}, {NULL}, {0}, {0}, {0}};
            if (!g->direct) {
                qb_prepare(g, shape, numbers, held, stop - held, noise, scratch, &rows);
            }
            for (y = 0u; y < g->out_height; y++) {
                for (x = 0u; x < g->out_width; x++) {
                    const uint8_t *patch = qb_patch(g, in, group, y, x, numbers->zero_in, scratch->patch);
                    for (channel = held; channel < stop; channel += QB_MOST_ROWS) {
                        uint32_t count = stop - channel < QB_MOST_ROWS ? stop - channel : QB_MOST_ROWS;
                        if (g->direct) {
                            qb_prepare(g, shape, numbers, channel, count, noise, scratch, &rows);
                        }
                        qb_weighted_position(g, shape, numbers, patch, &rows, channel, count, y, x, out, wide_out);
                    }
                }
            }
        }
    }
}

/* Inputs of up to 16 bits, or rows too long for a sum of uncentred products in 32 bits. */
static inline void qb_weighted_wide(const qb_geometry *g, const qb_weights *shape, const qb_numbers *numbers,
                                    const uint8_t *in, const uint16_t *wide_in, uint8_t *out, uint16_t *wide_out,
                                    const qb_scratch *scratch, const qb_noise *noise) {
    uint32_t per_group = g->out_channels / g->groups, group, held, i, y, x;
    for (group = 0u; group < g->groups; group++) {
        uint32_t end = (group + 1u) * per_group;
        for (held = group * per_group; held < end; held += g->rows_at_once) {
            uint32_t count = end - held < g->rows_at_once ? end - held : g->rows_at_once;
            qb_rows rows = {{NULL}, {NULL}, {0}, {0}, {0}};
            qb_prepare(g, shape, numbers, held, count, noise, scratch, &rows);
            for (y = 0u; y < g->out_height; y++) {
                for (x = 0u; x < g->out_width; x++) {
                    int64_t centred;
                    qb_wide_patch(g, in, wide_in, group, y, x, numbers->zero_in, scratch->wide_patch);
                    centred = numbers->weight_zero ? qb_wide_sum(scratch->wide_patch, shape->row) : 0;
                    for (i = 0u; i < count; i++) {
                        int64_t zero =
                            numbers->weight_zero ? numbers->weight_zero[(held + i) * numbers->zero_step] : 0;
                        int64_t first = qb_wide_dot(scratch->wide_patch, rows.first[i], shape->row) -
                                        zero * centred + rows.bias[i];
                        int64_t second =
                            rows.second[i] ? qb_wide_dot(scratch->wide_patch, rows.second[i], shape->row) : 0;
                        qb_store(out, wide_out, qb_place(g, held + i, y, x),
                                 qb_output(numbers, held + i, first, second));
                    }
                }
            }
        }
    }
}

#endif
