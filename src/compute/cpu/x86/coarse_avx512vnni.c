/* coarse_avx512vnni.c: scores from a coarse copy at this level. */
#include "compute/cpu/x86/vec_avx512.h"

#include "compute/cpu/levels.h"

KERNEL_INLINE vi vi_bytes(const uint8_t *p) { return _mm512_cvtepu8_epi32(load_128(p)); }

#include "compute/cpu/coarse_kernels.h"

void init_avx512vnni_coarse(cpu_kernels *k)
{
    k->coarse_scores = coarse_scores;
    k->coarse_pack = coarse_pack;
}
