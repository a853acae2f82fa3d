/* dots_avx512vnni.c: products of vectors of bytes by vpdpbusd, whose one side is unsigned: v goes
 * in with 128 added. */
#include "compute/cpu/x86/vec_avx512.h"

#include "compute/cpu/levels.h"

#define DOTS_Q 4
#define DI_BYTES 64
typedef __m512i di;
enum { di_offset = 128 };

KERNEL_INLINE di di_zero(void) { return _mm512_setzero_si512(); }
KERNEL_INLINE di di_load(const int8_t *p) { return _mm512_loadu_si512(p); }
KERNEL_INLINE di di_weight(di v) { return _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80)); }
KERNEL_INLINE di di_step(di acc, di v, di q) { return _mm512_dpbusd_epi32(acc, v, q); }
KERNEL_INLINE di di_sum(di acc, di q)
{
    return _mm512_dpbusd_epi32(acc, _mm512_set1_epi8((char)0x80), q);
}
KERNEL_INLINE void di_store4(int32_t *out, const di *acc, di less)
{
    di ab = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[0], acc[1]),
                             _mm512_unpackhi_epi32(acc[0], acc[1]));
    di cd = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[2], acc[3]),
                             _mm512_unpackhi_epi32(acc[2], acc[3]));
    di abcd = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i half =
        _mm256_add_epi32(_mm512_castsi512_si256(abcd), _mm512_extracti64x4_epi64(abcd, 1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    sum = _mm_sub_epi32(sum, _mm_set1_epi32(_mm512_reduce_add_epi32(less)));
    _mm_storeu_si128((__m128i *)(void *)out, sum);
}

#define DOTS_F_Q 4
#define DOTS_F_V 4
#include "compute/cpu/dots.h"
#include "compute/cpu/dots_float.h"

void init_avx512vnni_dots(cpu_kernels *k)
{
    k->dots_i8 = dots_i8;
    k->dots_float = dots_float;
}
