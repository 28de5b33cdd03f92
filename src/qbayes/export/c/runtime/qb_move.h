/* Ops that move codes, and the walk that all ops with strides share. */
#ifndef QB_MOVE_H
#define QB_MOVE_H

#include "qb_fixed.h"

#define QB_MOST_AXES 32u

/* How to go through the elements of an output: lengths of its axes, the last the fastest, and how far one step
 * along each leads in the output and in each input (0: the input is repeated along that axis). */
typedef struct {
    uint32_t axes, inputs;
    const uint32_t *lengths;
    const uint32_t *out;
    const uint32_t *in; /* axes x inputs */
} qb_walk;

/* One step to the next line of a walk: counts the outer axes up and moves the places of output and input `i`.
 * Gives 0 behind the last line. */
static inline uint32_t qb_next_line(const qb_walk *walk, uint32_t *at, size_t *out, size_t *in) {
    uint32_t axis = walk->axes - 1u, i;
    while (axis > 0u) {
        axis--;
        at[axis]++;
        *out += walk->out[axis];
        for (i = 0u; i < walk->inputs; i++) {
            in[i] += walk->in[axis * walk->inputs + i];
        }
        if (at[axis] < walk->lengths[axis]) {
            return 1u;
        }
        *out -= (size_t)walk->out[axis] * at[axis];
        for (i = 0u; i < walk->inputs; i++) {
            in[i] -= (size_t)walk->in[axis * walk->inputs + i] * at[axis];
        }
        at[axis] = 0u;
    }
    return 0u;
}

/* Upsample, Slice, Permute and Pad: each output element is one of the input; `size` is 1 or 2 bytes. */
static inline void qb_move(const qb_walk *walk, const void *in, void *out, uint32_t size) {
    uint32_t at[QB_MOST_AXES] = {0u};
    size_t to = 0u, from[1] = {0u};
    uint32_t last = walk->axes - 1u, k;
    do {
        const uint8_t *source = (const uint8_t *)in + from[0] * size;
        uint8_t *target = (uint8_t *)out + to * size;
        for (k = 0u; k < walk->lengths[last]; k++) {
            memcpy(target, source, size);
            source += (size_t)walk->in[last] * size;
            target += (size_t)walk->out[last] * size;
        }
    } while (qb_next_line(walk, at, &to, from));
}

/* Pad by mirror or edge: output element (i, j, ...) is the input's at places[0][i] + places[1][j] + ... */
static inline void qb_take(uint32_t axes, const uint32_t *lengths, const uint32_t *const *places, const uint8_t *in,
                           uint8_t *out) {
    uint32_t at[QB_MOST_AXES] = {0u};
    uint32_t axis;
    for (;;) {
        size_t from = 0u;
        for (axis = 0u; axis < axes; axis++) {
            from += places[axis][at[axis]];
        }
        *out++ = in[from];
        axis = axes;
        do {
            if (axis == 0u) {
                return;
            }
            axis--;
            at[axis]++;
            if (at[axis] < lengths[axis]) {
                break;
            }
            at[axis] = 0u;
        } while (1);
    }
}

#endif
