/*
 * dot_avx2.h: the dots of bytes of vec_matmul.h by VPMADDUBSW. It multiplies unsigned by signed
 * bytes: signed weights go in as |w|, activations with the sign of w.
 */
#ifndef COMPUTE_CPU_X86_DOT_H
#define COMPUTE_CPU_X86_DOT_H

#include "compute/cpu/x86/vec_avx2.h"

#define SIGNED_OFFSET 0

KERNEL_INLINE vi vi_signed_weights(vi w) { return w; }

/* Products of bytes are added in 16 bits: so many fit, each at most 2 * 127 * w_max. */
KERNEL_INLINE int dot_width(int w_max)
{
    return w_max > 63 ? 1 : w_max > 31 ? 2 : w_max > 15 ? 4 : 8;
}
KERNEL_INLINE vi pair_sums(vi w, int x4, int w_max) // of two products each, 16 bits
{
    vi v = _mm256_set1_epi32(x4);
    if (w_max > 127) {
        v = _mm256_sign_epi8(v, w);
        w = _mm256_abs_epi8(w); // 128 for -128, unsigned
    }
    return _mm256_maddubs_epi16(w, v);
}
KERNEL_INLINE vi vi_dot(vi acc, const vi *w, const int8_t *x, size_t step, int n, int w_max)
{
    vi sum = _mm256_setzero_si256();
    KERNEL_UNROLL for (int j = 0; j < n; j++)
    {
        int x4;
        memcpy(&x4, x + (size_t)j * step, 4);
        vi v = pair_sums(w[j], x4, w_max);
        sum = j ? _mm256_add_epi16(sum, v) : v;
        PIN(sum);
    }
    return _mm256_add_epi32(acc, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

/* As in int8_block.h. What a tile adds up in 16 bits stays in registers, and so each load, of
 * weights or activations, serves several products. */
#define LEVEL_STORED_DOTS
#define FEW_WIDE true  // few rows by the low plane and the wide quad: storing costs less
#define WIDE_LAST true // fewer sums live in the registers that a tile needs
KERNEL_INLINE vi vi_add_high(vi acc, vi w, int x, int w_max)
{
    vi v = _mm256_madd_epi16(pair_sums(w, x, w_max), _mm256_set1_epi16(256));
    return _mm256_add_epi32(acc, v);
}
KERNEL_INLINE void stored_dots(vi *sum, const uint8_t *const *w, const int *x, int dwords,
                               int w_max, int rows, int panels)
{
    int width = dot_width(w_max) < dwords ? dot_width(w_max) : dwords;
    KERNEL_UNROLL for (int j = 0; j < dwords; j += width)
    {
        vi part[TILE_ROWS * TILE_PANELS];
        KERNEL_UNROLL for (int i = j; i < j + width; i++)
        {
            vi u[TILE_PANELS];
            KERNEL_UNROLL for (int p = 0; p < panels; p++)
            {
                u[p] = vi_load(w[p] + (size_t)i * LANES * 4);
                PIN(u[p]);
            }
            KERNEL_UNROLL for (int r = 0; r < rows; r++)
                KERNEL_UNROLL for (int p = 0; p < panels; p++)
            {
                vi v = pair_sums(u[p], x[i * rows + r], w_max);
                vi *to = &part[r * panels + p];
                *to = i > j ? _mm256_add_epi16(*to, v) : v;
                PIN(*to);
            }
        }
        KERNEL_UNROLL for (int i = 0; i < rows * panels; i++) sum[i] =
            _mm256_add_epi32(sum[i], _mm256_madd_epi16(part[i], _mm256_set1_epi16(1)));
    }
}

#endif
