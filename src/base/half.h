/*
 * half.h: IEEE 754 binary16, bfloat16 and the 8-bit floats that file formats use, to and from
 * float32. Scalar reference code: exact for every input, round to nearest even.
 */
#ifndef BASE_HALF_H
#define BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 1023;
    if (exp == 31) return f32_from_bits(sign | 0x7f800000u | man << 13);
    if (exp) return f32_from_bits(sign | (exp + 112) << 23 | man << 13);
    float f = (float)man * 0x1p-24f; // zero and subnormals: exact
    return sign ? -f : f;
}

static inline uint16_t f16_from_f32(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, abs = u & 0x7fffffff;
    if (abs > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (abs >> 13 & 0x1ff)); // a quiet NaN
    if (abs >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                      // 65520 and more
    if (abs < 0x38800000) { // subnormal result
        // Adding 0.5 lines the mantissa up with 2^-24 and rounds to nearest even.
        uint32_t r = f32_bits(f32_from_bits(abs) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | r);
    }
    uint32_t r = abs - 0x38000000u;
    r += 0xfff + (r >> 13 & 1);
    return (uint16_t)(sign | r >> 13);
}

static inline float bf16_to_f32(uint16_t h) { return f32_from_bits((uint32_t)h << 16); }

static inline uint16_t bf16_from_f32(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 64); // NaN stays NaN
    return (uint16_t)((u + (0x7fff + (u >> 16 & 1))) >> 16);
}

#endif
