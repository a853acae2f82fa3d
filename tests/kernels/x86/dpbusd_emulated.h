/*
 * dpbusd_emulated.h: dpbusd_avxvnni.h by AVX2 alone, so that every machine with AVX2 checks the
 * AVX-VNNI kernel. Includers put it before matmul_avxvnni.c; it takes the other header's guard.
 */
#ifndef COMPUTE_CPU_X86_DPBUSD_H
#define COMPUTE_CPU_X86_DPBUSD_H

#include <immintrin.h>

static inline __m256i vi_dpbusd(__m256i acc, __m256i w, __m256i x)
{
    __m256i w_even = _mm256_and_si256(w, _mm256_set1_epi16(255)), w_odd = _mm256_srli_epi16(w, 8);
    __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), x_odd = _mm256_srai_epi16(x, 8);
    __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(w_even, x_even), _mm256_madd_epi16(w_odd, x_odd));
    return _mm256_add_epi32(acc, sum);
}

#endif
