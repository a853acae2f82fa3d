/* dots_avx2.c: products of vectors of bytes. vpmaddubsw takes one side unsigned: |v| and q with v's
 * sign; a pair of products stays below 2^15 because no byte is -128. */
#include "compute/cpu/x86/vec_avx2.h"

#include "compute/cpu/levels.h"

#define DOTS_Q 2
#define DI_BYTES 32
typedef __m256i di;
enum { di_offset = 0 };

KERNEL_INLINE di di_zero(void) { return _mm256_setzero_si256(); }
KERNEL_INLINE di di_load(const int8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
KERNEL_INLINE di di_weight(di v) { return v; }
KERNEL_INLINE di di_step(di acc, di v, di q)
{
    di pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(q, v));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
KERNEL_INLINE di di_sum(di acc, di q)
{
    (void)q;
    return acc;
}
KERNEL_INLINE void di_store4(int32_t *out, const di *acc, di less)
{
    (void)less;
    di ab = _mm256_hadd_epi32(acc[0], acc[1]), cd = _mm256_hadd_epi32(acc[2], acc[3]);
    di abcd = _mm256_hadd_epi32(ab, cd);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1));
    _mm_storeu_si128((__m128i *)(void *)out, sum);
}

#define DOTS_F_Q 1
#define DOTS_F_V 4
#include "compute/cpu/dots.h"
#include "compute/cpu/dots_float.h"

void init_avx2_dots(cpu_kernels *k)
{
    k->dots_i8 = dots_i8;
    k->dots_float = dots_float;
}
