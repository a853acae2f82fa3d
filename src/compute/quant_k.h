/*
 * quant_k.h: what Q4_K and Q5_K have in common: eight 6-bit scales and eight 6-bit mins in 12
 * bytes.
 *
 *   byte   0..3    EEAAAAAA .. HHDDDDDD     A..D: scales 0..3, E..H: the high bits of scales 4..7
 *          4..7    eeaaaaaa .. hhdddddd     a..d: mins 0..3,   e..h: the high bits of mins 4..7
 *          8..11   eeeeEEEE .. hhhhHHHH     the low four bits of scales and mins 4..7
 */
#ifndef COMPUTE_QUANT_K_H
#define COMPUTE_QUANT_K_H

#include <stdint.h>

static inline void k_scales_unpack(uint8_t *restrict scale, uint8_t *restrict min,
                                   const uint8_t *restrict p)
{
    for (int j = 0; j < 4; j++) {
        scale[j] = p[j] & 63;
        min[j] = p[j + 4] & 63;
        scale[j + 4] = (uint8_t)((p[j + 8] & 15) | (p[j] >> 6) << 4);
        min[j + 4] = (uint8_t)(p[j + 8] >> 4 | (p[j + 4] >> 6) << 4);
    }
}

static inline void k_scales_pack(uint8_t *p, const uint8_t *scale, const uint8_t *min)
{
    for (int j = 0; j < 4; j++) {
        p[j] = (uint8_t)(scale[j] | (scale[j + 4] >> 4) << 6);
        p[j + 4] = (uint8_t)(min[j] | (min[j + 4] >> 4) << 6);
        p[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

#endif
