/* encode.h: float32 to the formats of vindex files, by their rules of rounding. */
#ifndef VINDEX_ENCODE_H
#define VINDEX_ENCODE_H

#include "base/half.h"

/* Half precision as vindex files have it: the mantissa is cut, not rounded; below 2^-14 a signed
 * zero, from 65536 on infinity, NaN becomes 0x7e00. */
static inline uint16_t vindex_half(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, mant = u & 0x7fffff;
    int e = (int)(u >> 23 & 0xff) - 127 + 15;
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (e >= 31) return (uint16_t)(sign | 0x7c00);
    if (e <= 0) return (uint16_t)sign;
    return (uint16_t)(sign | (uint32_t)e << 10 | mant >> 13);
}

#endif
