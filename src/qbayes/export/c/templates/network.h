/* @SUMMARY@
 *
 * Made by qbayes; change the program and export it again, not this file. Plain C99: no allocation, no recursion,
 * no libm, and no float unless NETWORK_FLOAT is defined. All memory is static, so one prediction runs at a time.
 *
 *     network_init(seed);
 *     network_predict(codes, NETWORK_INPUT_CODES, 20, mean, variance, &entropy, NETWORK_OUTPUTS);
 *
 * Every function gives NETWORK_OK or says what is wrong; then it has changed nothing but what it was writing.
 */
#ifndef NETWORK_H
#define NETWORK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One input is @SHAPE@ in the order of the training data (channels first), in codes of @INPUT_BITS@ bits. */
#define NETWORK_INPUTS @INPUTS@u
/* Members of an ensemble may read the same input on different grids: then the codes of each grid follow each
 * other. NETWORK_INPUT_CODES = NETWORK_INPUTS * NETWORK_GRIDS. */
#define NETWORK_GRIDS @GRIDS@u
#define NETWORK_INPUT_CODES (NETWORK_INPUTS * NETWORK_GRIDS)
#define NETWORK_INPUT_TOP @INPUT_TOP@u /* the largest code */
typedef @INPUT_TYPE@ network_input;

/* An answer has @OUTPUTS_ARE@. */
#define NETWORK_OUTPUTS @OUTPUTS@u
/* One draw gives so many codes@CODES_ARE@. */
#define NETWORK_CODES @CODES@u
typedef @OUTPUT_TYPE@ network_output;

#define NETWORK_MEMBERS @MEMBERS@u
#define NETWORK_CLASSIFIER @CLASSIFIER@
#define NETWORK_MOST_DRAWS 16384u

/* Bytes of constants that network.c holds, and of static memory that it needs. */
#define NETWORK_CONSTANT_BYTES @CONSTANT_BYTES@u
#define NETWORK_ARENA_BYTES @ARENA_BYTES@u

/* Units: a mean m stands for m / 2^NETWORK_MEAN_BITS, a variance and an entropy likewise. @UNITS@ */
#define NETWORK_MEAN_BITS @MEAN_BITS@
#define NETWORK_VARIANCE_BITS @VARIANCE_BITS@
#define NETWORK_ENTROPY_BITS 24

enum {
    NETWORK_OK = 0,
    NETWORK_NULL = 1,   /* a pointer is NULL */
    NETWORK_SIZE = 2,   /* an array has not the length it must have */
    NETWORK_DRAWS = 3,  /* draws must be 1 ... NETWORK_MOST_DRAWS */
    NETWORK_SEED = 4,   /* a seed must be below 2^63 */
    NETWORK_CODE = 5,   /* an input code is above NETWORK_INPUT_TOP */
    NETWORK_UNREADY = 6, /* network_init was not called */
    NETWORK_VALUE = 7   /* a raw input is not finite */
};

/* Sets the seed, and starts at row 0. The same seed gives the draws that qbayes gives in Python. */
int network_init(uint64_t seed);

/* The next answer is that of this row and draw: noise is keyed by (seed, draw, layer, row), a row being the
 * number of an input in a call of predict in Python. */
int network_seek(uint32_t row, uint32_t draw);

/* One draw: the codes of the network's outputs. The next call makes the next draw of the same row. */
int network_draw(const network_input *input, size_t input_codes, network_output *output, size_t output_codes);

/* The statistics of draws 0 ... draws - 1, in integers; the next call is for the next row. `mean` and `variance`
 * have NETWORK_OUTPUTS elements, `entropy` is one number, in nats. @STATISTICS@ */
int network_predict(const network_input *input, size_t input_codes, uint32_t draws, int32_t *mean,
                    int64_t *variance, int64_t *entropy, size_t outputs);

#ifdef NETWORK_FLOAT
/* The codes of one raw input, on every grid. Needs the arithmetic of IEEE floats: no -ffast-math. */
int network_quantize(const float *raw, size_t inputs, network_input *codes, size_t input_codes);

/* As network_predict, in the units of the task@FLOAT_UNITS@. */
int network_predict_float(const network_input *input, size_t input_codes, uint32_t draws, float *mean,
                          float *variance, float *entropy, size_t outputs);
#endif

#ifdef __cplusplus
}
#endif

#endif
