/*
 * vec_avx512.h: the operations of ref/vec_ref.h (which says what they mean) on one 512-bit
 * register, and below them those of the matrix products (matmul_int8.h, matmul_f32.h): LANES floats
 * or dwords.
 */
#ifndef COMPUTE_CPU_X86_VEC_AVX512_H
#define COMPUTE_CPU_X86_VEC_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "base/compiler.h"
#include "base/half.h"

#define KERNEL_INLINE FORCE_INLINE
#define KERNEL_UNROLL UNROLL

// What attn_kernels.h keeps in registers: see ref/vec_ref.h.
#define ATTN_GROUP 4
#define ATTN_VECS 4

typedef __m512 v16;
typedef __mmask16 m16;
typedef struct d16 {
    __m512d lo, hi;
} d16;

KERNEL_INLINE m16 first_lanes(int n) { return (m16)((1u << n) - 1); }

KERNEL_INLINE v16 v16_set1(float x) { return _mm512_set1_ps(x); }
KERNEL_INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
KERNEL_INLINE void v16_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
KERNEL_INLINE v16 v16_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
KERNEL_INLINE void v16_store_n(float *p, v16 a, int n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), a);
}
KERNEL_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
KERNEL_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    __m256i h = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)(void *)p, h);
}
KERNEL_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
KERNEL_INLINE v16 v16_load_i8(const int8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
}
KERNEL_INLINE v16 v16_load_i4(const uint8_t *p, int shift)
{
    __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    x = _mm512_and_si512(_mm512_srlv_epi32(x, _mm512_set1_epi32(shift)), _mm512_set1_epi32(15));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(x, _mm512_set1_epi32(8)));
}

KERNEL_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
KERNEL_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
KERNEL_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
KERNEL_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
KERNEL_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
KERNEL_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
KERNEL_INLINE v16 v16_abs(v16 a) { return _mm512_abs_ps(a); }
KERNEL_INLINE v16 v16_sign(v16 a, v16 s)
{
    __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, s));
}
KERNEL_INLINE v16 v16_scale_bits(v16 a, v16 n)
{
    __m512i e = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), e));
}

KERNEL_INLINE m16 v16_less(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
KERNEL_INLINE m16 m16_range(int lo, int hi)
{
    lo = lo < 0 ? 0 : lo > 16 ? 16 : lo;
    hi = hi < lo ? lo : hi > 16 ? 16 : hi;
    return (m16)(first_lanes(hi) & ~first_lanes(lo));
}
KERNEL_INLINE v16 v16_select(m16 m, v16 a, v16 b) { return _mm512_mask_blend_ps(m, b, a); }

KERNEL_INLINE float v16_sum(v16 a)
{
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}
KERNEL_INLINE float v16_reduce_max(v16 a)
{
    __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

KERNEL_INLINE d16 d16_zero(void) { return (d16){ _mm512_setzero_pd(), _mm512_setzero_pd() }; }
KERNEL_INLINE __m512d low_doubles(v16 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
KERNEL_INLINE __m512d high_doubles(v16 x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
KERNEL_INLINE d16 d16_add(d16 a, v16 x)
{
    return (d16){ _mm512_add_pd(a.lo, low_doubles(x)), _mm512_add_pd(a.hi, high_doubles(x)) };
}
KERNEL_INLINE d16 d16_add_square(d16 a, v16 x)
{
    __m512d lo = low_doubles(x), hi = high_doubles(x); // exact products: fused or not is the same
    return (d16){ _mm512_fmadd_pd(lo, lo, a.lo), _mm512_fmadd_pd(hi, hi, a.hi) };
}
KERNEL_INLINE double d16_sum(d16 a)
{
    __m512d x = _mm512_add_pd(a.lo, a.hi);
    __m256d y = _mm256_add_pd(_mm512_castpd512_pd256(x), _mm512_extractf64x4_pd(x, 1));
    __m128d z = _mm_add_pd(_mm256_castpd256_pd128(y), _mm256_extractf128_pd(y, 1));
    return _mm_cvtsd_f64(_mm_add_sd(z, _mm_unpackhi_pd(z, z)));
}

KERNEL_INLINE __m512i quad_max(v16 a)
{
    __m512i m = _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff));
    m = _mm512_max_epu32(m, _mm512_shuffle_epi32(m, _MM_PERM_BADC));
    return _mm512_max_epu32(m, _mm512_shuffle_epi32(m, _MM_PERM_CDAB));
}
KERNEL_INLINE __m128i max_of_8(__m256i q)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
}
KERNEL_INLINE void v16_wide_quad(uint32_t *most, uint32_t *rest, v16 a, v16 b)
{
    __m512i at = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
    __m256i q = _mm512_castsi512_si256(_mm512_permutex2var_epi32(quad_max(a), at, quad_max(b)));
    __m128i m = max_of_8(q);
    unsigned top = _mm256_cmpeq_epi32_mask(q, _mm256_broadcastd_epi32(m));
    *most = (uint32_t)_mm_cvtsi128_si32(m);
    q = _mm256_maskz_mov_epi32((__mmask8) ~(top & -top), q); // all but the first
    *rest = (uint32_t)_mm_cvtsi128_si32(max_of_8(q));
}
KERNEL_INLINE int v16_store_planes(int8_t *q, v16 hi, v16 lo)
{
    __m512i h = _mm512_cvtps_epi32(hi), l = _mm512_cvtps_epi32(lo);
    __m128i hb = _mm512_cvtepi32_epi8(h), lb = _mm512_cvtepi32_epi8(l);
    _mm_storeu_si128((__m128i *)(void *)q, _mm_unpacklo_epi32(hb, lb));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm_unpackhi_epi32(hb, lb));
    return _mm512_reduce_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(h, 8), l));
}
KERNEL_INLINE uint32_t v16_max_bits(v16 a, v16 b)
{
    __m512i mag = _mm512_set1_epi32(0x7fffffff);
    __m512i m = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), mag),
                                 _mm512_and_si512(_mm512_castps_si512(b), mag));
    return _mm512_reduce_max_epu32(m);
}
KERNEL_INLINE int v16_store_i8(int8_t *q, v16 a)
{
    __m512i i = _mm512_cvtps_epi32(a);
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(i));
    return _mm512_reduce_add_epi32(i);
}

KERNEL_INLINE void v16_load_pairs(v16 *even, v16 *odd, const float *p)
{
    __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
    __m512i at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, at, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(at, _mm512_set1_epi32(1)), b);
}
KERNEL_INLINE void v16_store_pairs(float *p, v16 even, v16 odd)
{
    __m512i at = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(even, at, odd));
    at = _mm512_add_epi32(at, _mm512_set1_epi32(8));
    _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(even, at, odd));
}

/* ---- for the matrix products; the meaning is in vec_matmul.h ---- */

#define LANES 16
#define REGISTERS 32
#define PIN(v) // the compiler does well
#define TILE_ROWS 4
#define TILE_PANELS 2
#define SIGNED_OFFSET 128 // vpdpbusd takes unsigned weights: signed ones go in as w + 128

typedef __m512 vf;
typedef __m512i vi;

KERNEL_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
KERNEL_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
KERNEL_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
KERNEL_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
KERNEL_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
KERNEL_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
KERNEL_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
KERNEL_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }

KERNEL_INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
KERNEL_INLINE vi vi_set1(int x) { return _mm512_set1_epi32(x); }
KERNEL_INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
KERNEL_INLINE void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
KERNEL_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
KERNEL_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
KERNEL_INLINE vi vi_or_and(vi a, vi b, vi mask)
{
    return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}
KERNEL_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
KERNEL_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
KERNEL_INLINE vi vi_srl(vi a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
KERNEL_INLINE vi vi_sll(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
KERNEL_INLINE vi vi_sra(vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
KERNEL_INLINE vf vi_to_vf(vi a) { return _mm512_cvtepi32_ps(a); }
KERNEL_INLINE vf vi_as_vf(vi a) { return _mm512_castsi512_ps(a); }
KERNEL_INLINE vi vi_lo32(vi a, vi b) { return _mm512_unpacklo_epi32(a, b); }
KERNEL_INLINE vi vi_hi32(vi a, vi b) { return _mm512_unpackhi_epi32(a, b); }
KERNEL_INLINE vi vi_lo64(vi a, vi b) { return _mm512_unpacklo_epi64(a, b); }
KERNEL_INLINE vi vi_hi64(vi a, vi b) { return _mm512_unpackhi_epi64(a, b); }
KERNEL_INLINE vf vf_load_half(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
KERNEL_INLINE vf vf_load_bf16(const uint8_t *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
KERNEL_INLINE vf vi_half(vi a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }

KERNEL_INLINE __m128i load_128(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
KERNEL_INLINE vi vi_rows(const uint8_t *p, size_t step)
{
    vi v = _mm512_castsi128_si512(load_128(p));
    v = _mm512_inserti32x4(v, load_128(p + step), 1);
    v = _mm512_inserti32x4(v, load_128(p + 2 * step), 2);
    return _mm512_inserti32x4(v, load_128(p + 3 * step), 3);
}
KERNEL_INLINE void vi_square(vi *t, const uint8_t *p, size_t stride)
{
    vi q[4][4]; // [g][j]: part l has dword 4l + j of rows 4g … 4g + 3
    KERNEL_UNROLL for (int g = 0; g < 4; g++)
    {
        const uint8_t *r = p + (size_t)g * 4 * stride;
        vi a = vi_load(r), b = vi_load(r + stride), c = vi_load(r + 2 * stride);
        vi d = vi_load(r + 3 * stride), ab = vi_lo32(a, b), cd = vi_lo32(c, d);
        q[g][0] = vi_lo64(ab, cd);
        q[g][1] = vi_hi64(ab, cd);
        ab = vi_hi32(a, b);
        cd = vi_hi32(c, d);
        q[g][2] = vi_lo64(ab, cd);
        q[g][3] = vi_hi64(ab, cd);
    }
    KERNEL_UNROLL for (int j = 0; j < 4; j++)
    {
        vi lo01 = _mm512_shuffle_i32x4(q[0][j], q[1][j], 0x44);
        vi hi01 = _mm512_shuffle_i32x4(q[0][j], q[1][j], 0xee);
        vi lo23 = _mm512_shuffle_i32x4(q[2][j], q[3][j], 0x44);
        vi hi23 = _mm512_shuffle_i32x4(q[2][j], q[3][j], 0xee);
        t[j] = _mm512_shuffle_i32x4(lo01, lo23, 0x88);
        t[4 + j] = _mm512_shuffle_i32x4(lo01, lo23, 0xdd);
        t[8 + j] = _mm512_shuffle_i32x4(hi01, hi23, 0x88);
        t[12 + j] = _mm512_shuffle_i32x4(hi01, hi23, 0xdd);
    }
}
KERNEL_INLINE vi vi_bits_to_16(vi bits, int from)
{
    vi table = _mm512_setr_epi32(0, 0x10, 0x1000, 0x1010, 0x100000, 0x100010, 0x101000, 0x101010,
                                 0x10000000, 0x10000010, 0x10001000, 0x10001010, 0x10100000,
                                 0x10100010, 0x10101000, 0x10101010);
    return _mm512_permutexvar_epi32(_mm512_srli_epi32(bits, (unsigned)from), table);
}
KERNEL_INLINE vi vi_table16(vi index, const int8_t *table)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_128((const uint8_t *)table)), index);
}
KERNEL_INLINE vi vi_signed_weights(vi w)
{
    return _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80));
}

KERNEL_INLINE void vi_low_quads(int *to, const int8_t *q, size_t step)
{
    vi a = vi_load(q), b = vi_load(q + step), c = vi_load(q + 2 * step), d = vi_load(q + 3 * step);
    vi ab = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(a, 32), b);
    vi cd = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(c, 32), d);
    vi at = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    vi_store(to, _mm512_permutex2var_epi64(ab, at, cd));
    at = _mm512_add_epi64(at, _mm512_set1_epi64(4));
    vi_store(to + 16, _mm512_permutex2var_epi64(ab, at, cd));
}
KERNEL_INLINE int wide_quad(const int8_t *q)
{
    vi a = vi_load(q);
    return __builtin_ctz((_mm512_test_epi32_mask(a, a) & 0x5555u) | 0x4000u) / 2;
}

KERNEL_INLINE int dot_width(int w_max)
{
    (void)w_max;
    return 1;
}
KERNEL_INLINE vi vi_dot(vi acc, const vi *w, const int8_t *x, size_t step, int n, int w_max)
{
    (void)w_max;
    KERNEL_UNROLL for (int j = 0; j < n; j++)
    {
        int x4;
        memcpy(&x4, x + (size_t)j * step, 4);
        acc = _mm512_dpbusd_epi32(acc, w[j], _mm512_set1_epi32(x4));
    }
    return acc;
}

#endif
