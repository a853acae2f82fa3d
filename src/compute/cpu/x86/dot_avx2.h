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
KERNEL_INLINE vi vi_dot(vi acc, const vi *w, const int8_t *x, size_t step, int n, int w_max)
{
    vi sum = _mm256_setzero_si256();
    KERNEL_UNROLL for (int j = 0; j < n; j++)
    {
        int x4;
        memcpy(&x4, x + (size_t)j * step, 4);
        vi v = _mm256_set1_epi32(x4), u = w[j];
        if (w_max > 127) {
            v = _mm256_sign_epi8(v, u);
            u = _mm256_abs_epi8(u); // 128 for -128, unsigned
        }
        v = _mm256_maddubs_epi16(u, v);
        sum = j ? _mm256_add_epi16(sum, v) : v;
    }
    return _mm256_add_epi32(acc, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

#endif
