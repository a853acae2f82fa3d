/* coarse_avx2.c: scores from a coarse copy at this level. */
#include "compute/cpu/x86/dot_avx2.h"

#include "compute/cpu/levels.h"

KERNEL_INLINE vi vi_bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

#include "compute/cpu/coarse_kernels.h"

void init_avx2_coarse(cpu_kernels *k)
{
    k->coarse_scores = coarse_scores;
    k->coarse_pack = coarse_pack;
}
