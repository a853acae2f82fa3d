/*
 * dpbusd_avxvnni.h: the one instruction of AVX-VNNI. Apart, because the checker puts
 * tests/kernels/x86/dpbusd_emulated.h in its place.
 */
#ifndef COMPUTE_CPU_X86_DPBUSD_H
#define COMPUTE_CPU_X86_DPBUSD_H

#include <immintrin.h>

/* acc + the sum of the products of 4 unsigned bytes of w and 4 signed ones of x, a dword each. */
static inline __m256i vi_dpbusd(__m256i acc, __m256i w, __m256i x)
{
    return _mm256_dpbusd_avx_epi32(acc, w, x);
}

#endif
