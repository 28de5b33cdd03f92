/* Fixed-point numbers: a real multiplier is m / 2^s, and every rounding is to nearest, ties to even.
 *
 * Plain C99: no allocation, no recursion, no libm, no float. Functions are static, so that several networks
 * can live in one firmware.
 */
#ifndef QB_FIXED_H
#define QB_FIXED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* round(v / 2^s) for |v| < 2^62 and 0 <= s <= 62. The magnitude is rounded and the sign put back: rounding
 * half to even is odd, and shifts of negative numbers are left to no compiler's choice. */
static inline int64_t qb_shifted(int64_t v, uint32_t s) {
    uint64_t size = v < 0 ? (uint64_t)0 - (uint64_t)v : (uint64_t)v;
    if (s != 0u) {
        size = (size + (((uint64_t)1 << (s - 1u)) - 1u) + ((size >> s) & 1u)) >> s;
    }
    return v < 0 ? -(int64_t)size : (int64_t)size;
}

/* clamp(zero + round(v / 2^s), low, high): the last step of every op that computes. */
static inline uint32_t qb_requantised(int64_t v, uint32_t s, uint32_t zero, uint32_t low, uint32_t high) {
    int64_t code = (int64_t)zero + qb_shifted(v, s);
    if (code < (int64_t)low) {
        return low;
    }
    return code > (int64_t)high ? high : (uint32_t)code;
}

static inline int32_t qb_clamped(int64_t v, int32_t low, int32_t high) {
    if (v < low) {
        return low;
    }
    return v > high ? high : (int32_t)v;
}

/* floor(a / b) for b > 0: C rounds quotients towards zero. */
static inline int64_t qb_floor_divided(int64_t a, int64_t b) {
    int64_t quotient = a / b;
    return a % b < 0 ? quotient - 1 : quotient;
}

/* Code `index` of a stream of `bits` bits each (1 ... 8), least significant bit first, without its sign.
 * The second byte is read only where the code reaches into it: nothing is read behind the stream. */
static inline uint32_t qb_unsigned_code(const uint8_t *stream, uint32_t bits, uint32_t index) {
    uint32_t place, within, found;
    if (bits == 8u) {
        return stream[index];
    }
    place = index * bits;
    within = place & 7u;
    found = (uint32_t)stream[place >> 3] >> within;
    if (within + bits > 8u) {
        found |= (uint32_t)stream[(place >> 3) + 1u] << (8u - within);
    }
    return found & ((1u << bits) - 1u);
}

/* A code of `bits` bits in two's complement. */
static inline int32_t qb_signed(uint32_t code, uint32_t bits) {
    int32_t half = (int32_t)(1u << (bits - 1u));
    return (int32_t)(code ^ (uint32_t)half) - half;
}

#endif
