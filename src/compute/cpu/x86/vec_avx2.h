/*
 * vec_avx2.h: the operations of ref/vec_ref.h (which says what they mean) on two 256-bit registers.
 */
#ifndef COMPUTE_CPU_X86_VEC_AVX2_H
#define COMPUTE_CPU_X86_VEC_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "base/compiler.h"
#include "base/half.h"

#define KERNEL_INLINE FORCE_INLINE
#define KERNEL_UNROLL UNROLL

// What attn_kernels.h keeps in registers: see ref/vec_ref.h.
#define ATTN_GROUP 4
#define ATTN_VECS 1

typedef struct v16 {
    __m256 lo, hi;
} v16; // lanes 0-7, 8-15
typedef struct m16 {
    __m256 lo, hi;
} m16;
typedef struct d16 {
    __m256d d[4];
} d16;

#define V16_BOTH(op, a, b) ((v16){ op((a).lo, (b).lo), op((a).hi, (b).hi) })

KERNEL_INLINE v16 v16_set1(float x) { return (v16){ _mm256_set1_ps(x), _mm256_set1_ps(x) }; }
KERNEL_INLINE v16 v16_load(const float *p)
{
    return (v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}
KERNEL_INLINE void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
KERNEL_INLINE v16 v16_load_n(const float *p, int n)
{
    if (n == 16) return v16_load(p);
    float part[16] ATTR_ALIGNED(32) = { 0 };
    memcpy(part, p, (size_t)n * 4);
    return v16_load(part);
}
KERNEL_INLINE void v16_store_n(float *p, v16 a, int n)
{
    if (n == 16) {
        v16_store(p, a);
        return;
    }
    float part[16] ATTR_ALIGNED(32);
    v16_store(part, a);
    memcpy(p, part, (size_t)n * 4);
}
KERNEL_INLINE v16 v16_load_f16(const uint16_t *p)
{
    const __m128i *h = (const __m128i *)(const void *)p;
    return (v16){ _mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1)) };
}
KERNEL_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    __m128i *h = (__m128i *)(void *)p;
    _mm_storeu_si128(h, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
KERNEL_INLINE __m256 load_bf16_8(const uint16_t *p)
{
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
KERNEL_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    return (v16){ load_bf16_8(p), load_bf16_8(p + 8) };
}
KERNEL_INLINE v16 v16_load_i8(const int8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (v16){ _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                  _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))) };
}
KERNEL_INLINE v16 v16_load_i4(const uint8_t *p, int shift)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    x = _mm_and_si128(_mm_srl_epi16(x, _mm_cvtsi32_si128(shift)), _mm_set1_epi8(15));
    x = _mm_sub_epi8(x, _mm_set1_epi8(8));
    return (v16){ _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                  _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))) };
}

KERNEL_INLINE v16 v16_add(v16 a, v16 b) { return V16_BOTH(_mm256_add_ps, a, b); }
KERNEL_INLINE v16 v16_sub(v16 a, v16 b) { return V16_BOTH(_mm256_sub_ps, a, b); }
KERNEL_INLINE v16 v16_mul(v16 a, v16 b) { return V16_BOTH(_mm256_mul_ps, a, b); }
KERNEL_INLINE v16 v16_div(v16 a, v16 b) { return V16_BOTH(_mm256_div_ps, a, b); }
KERNEL_INLINE v16 v16_max(v16 a, v16 b) { return V16_BOTH(_mm256_max_ps, a, b); }
KERNEL_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){ _mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi) };
}
KERNEL_INLINE v16 v16_abs(v16 a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){ _mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi) };
}
KERNEL_INLINE v16 v16_sign(v16 a, v16 s)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){ _mm256_or_ps(_mm256_andnot_ps(sign, a.lo), _mm256_and_ps(sign, s.lo)),
                  _mm256_or_ps(_mm256_andnot_ps(sign, a.hi), _mm256_and_ps(sign, s.hi)) };
}
KERNEL_INLINE __m256 scale_bits_8(__m256 a, __m256 n)
{
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), e));
}
KERNEL_INLINE v16 v16_scale_bits(v16 a, v16 n) { return V16_BOTH(scale_bits_8, a, n); }

KERNEL_INLINE m16 v16_less(v16 a, v16 b)
{
    return (m16){ _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ) };
}
KERNEL_INLINE __m256 range_8(__m256i lane, int lo, int hi)
{
    __m256i in = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane),
                                     _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
    return _mm256_castsi256_ps(in);
}
KERNEL_INLINE m16 m16_range(int lo, int hi)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (m16){ range_8(lane, lo, hi), range_8(lane, lo - 8, hi - 8) };
}
KERNEL_INLINE v16 v16_select(m16 m, v16 a, v16 b)
{
    return (v16){ _mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi) };
}

KERNEL_INLINE float v16_sum(v16 a)
{
    __m256 x = _mm256_add_ps(a.lo, a.hi);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}
KERNEL_INLINE float v16_reduce_max(v16 a)
{
    __m256 x = _mm256_max_ps(a.lo, a.hi);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

KERNEL_INLINE d16 d16_zero(void)
{
    __m256d z = _mm256_setzero_pd();
    return (d16){ { z, z, z, z } };
}
KERNEL_INLINE d16 to_doubles(v16 x)
{
    return (d16){ { _mm256_cvtps_pd(_mm256_castps256_ps128(x.lo)),
                    _mm256_cvtps_pd(_mm256_extractf128_ps(x.lo, 1)),
                    _mm256_cvtps_pd(_mm256_castps256_ps128(x.hi)),
                    _mm256_cvtps_pd(_mm256_extractf128_ps(x.hi, 1)) } };
}
KERNEL_INLINE d16 d16_add(d16 a, v16 x)
{
    d16 v = to_doubles(x);
    KERNEL_UNROLL for (int i = 0; i < 4; i++) a.d[i] = _mm256_add_pd(a.d[i], v.d[i]);
    return a;
}
KERNEL_INLINE d16 d16_add_square(d16 a, v16 x)
{
    d16 v = to_doubles(x); // exact products: fused or not is the same
    KERNEL_UNROLL for (int i = 0; i < 4; i++) a.d[i] = _mm256_fmadd_pd(v.d[i], v.d[i], a.d[i]);
    return a;
}
KERNEL_INLINE double d16_sum(d16 a)
{
    __m256d y = _mm256_add_pd(_mm256_add_pd(a.d[0], a.d[2]), _mm256_add_pd(a.d[1], a.d[3]));
    __m128d z = _mm_add_pd(_mm256_castpd256_pd128(y), _mm256_extractf128_pd(y, 1));
    return _mm_cvtsd_f64(_mm_add_sd(z, _mm_unpackhi_pd(z, z)));
}

KERNEL_INLINE __m256i quad_max_8(__m256 a)
{
    __m256i m = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff));
    m = _mm256_max_epu32(m, _mm256_shuffle_epi32(m, 0x4e));
    return _mm256_max_epu32(m, _mm256_shuffle_epi32(m, 0xb1));
}
KERNEL_INLINE __m256i max_of_8(__m256i m) // in every lane
{
    m = _mm256_max_epu32(m, _mm256_permute4x64_epi64(m, 0x4e));
    m = _mm256_max_epu32(m, _mm256_shuffle_epi32(m, 0x4e));
    return _mm256_max_epu32(m, _mm256_shuffle_epi32(m, 0xb1));
}
KERNEL_INLINE void v16_wide_quad(uint32_t *most, uint32_t *rest, v16 a, v16 b)
{
    // 64-bit lanes: quads a0 a0 a1 a1 … with b's in the upper dwords
    __m256i lo = _mm256_blend_epi32(quad_max_8(a.lo), quad_max_8(b.lo), 0xaa);
    __m256i hi = _mm256_blend_epi32(quad_max_8(a.hi), quad_max_8(b.hi), 0xaa);
    __m256i q = _mm256_unpacklo_epi64(lo, hi), m = max_of_8(q); // a0 b0 a2 b2, a1 b1 a3 b3
    int top = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(q, m)));
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i is_top = _mm256_cmpeq_epi32(lane, _mm256_set1_epi32(__builtin_ctz((unsigned)top)));
    *most = (uint32_t)_mm256_cvtsi256_si32(m);
    *rest = (uint32_t)_mm256_cvtsi256_si32(max_of_8(_mm256_andnot_si256(is_top, q)));
}
KERNEL_INLINE __m128i to_bytes(__m256i lo, __m256i hi)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
KERNEL_INLINE int v16_store_planes(int8_t *q, v16 hi, v16 lo)
{
    __m256i h0 = _mm256_cvtps_epi32(hi.lo), h1 = _mm256_cvtps_epi32(hi.hi);
    __m256i l0 = _mm256_cvtps_epi32(lo.lo), l1 = _mm256_cvtps_epi32(lo.hi);
    __m128i hb = to_bytes(h0, h1), lb = to_bytes(l0, l1);
    _mm_storeu_si128((__m128i *)(void *)q, _mm_unpacklo_epi32(hb, lb));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm_unpackhi_epi32(hb, lb));
    __m256i sum =
        _mm256_add_epi32(_mm256_slli_epi32(_mm256_add_epi32(h0, h1), 8), _mm256_add_epi32(l0, l1));
    __m128i n = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(n, _mm_shuffle_epi32(n, 0xb1)));
}
KERNEL_INLINE uint32_t v16_max_bits(v16 a, v16 b)
{
    a = v16_abs(a);
    b = v16_abs(b);
    __m256i m =
        _mm256_max_epu32(_mm256_max_epu32(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)),
                         _mm256_max_epu32(_mm256_castps_si256(b.lo), _mm256_castps_si256(b.hi)));
    __m128i n = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epu32(n, _mm_shuffle_epi32(n, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(n, _mm_shuffle_epi32(n, 0xb1)));
}
KERNEL_INLINE int v16_store_i8(int8_t *q, v16 a)
{
    __m256i lo = _mm256_cvtps_epi32(a.lo), hi = _mm256_cvtps_epi32(a.hi);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)q, bytes);
    __m256i sum = _mm256_add_epi32(lo, hi);
    __m128i n = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    n = _mm_add_epi32(n, _mm_shuffle_epi32(n, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(n, _mm_shuffle_epi32(n, 0xb1)));
}

KERNEL_INLINE void load_pairs_8(__m256 *even, __m256 *odd, const float *p)
{
    __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
    __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    __m256d o = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
}
KERNEL_INLINE void v16_load_pairs(v16 *even, v16 *odd, const float *p)
{
    load_pairs_8(&even->lo, &odd->lo, p);
    load_pairs_8(&even->hi, &odd->hi, p + 16);
}
KERNEL_INLINE void store_pairs_8(float *p, __m256 even, __m256 odd)
{
    __m256 lo = _mm256_unpacklo_ps(even, odd), hi = _mm256_unpackhi_ps(even, odd);
    _mm256_storeu_ps(p, _mm256_permute2f128_ps(lo, hi, 0x20));
    _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(lo, hi, 0x31));
}
KERNEL_INLINE void v16_store_pairs(float *p, v16 even, v16 odd)
{
    store_pairs_8(p, even.lo, odd.lo);
    store_pairs_8(p + 16, even.hi, odd.hi);
}

/* ---- for the matrix products; the meaning is in vec_matmul.h. The dots of bytes are in
 * dot_avx2.h and dot_avxvnni.h ---- */

#define LANES 8
#define REGISTERS 16
#define PIN(v) __asm__("" : "+x"(v))
#define TILE_ROWS 4
#define TILE_PANELS 2

typedef __m256 vf;
typedef __m256i vi;

KERNEL_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
KERNEL_INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
KERNEL_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
KERNEL_INLINE void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
KERNEL_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
KERNEL_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
KERNEL_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
KERNEL_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }

KERNEL_INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
KERNEL_INLINE vi vi_set1(int x) { return _mm256_set1_epi32(x); }
KERNEL_INLINE vi vi_load(const void *p) { return _mm256_loadu_si256(p); }
KERNEL_INLINE void vi_store(void *p, vi a) { _mm256_storeu_si256(p, a); }
KERNEL_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
KERNEL_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
KERNEL_INLINE vi vi_or_and(vi a, vi b, vi mask) { return vi_or(a, vi_and(b, mask)); }
KERNEL_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
KERNEL_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
KERNEL_INLINE vi vi_srl(vi a, int n) { return _mm256_srli_epi32(a, n); }
KERNEL_INLINE vi vi_sll(vi a, int n) { return _mm256_slli_epi32(a, n); }
KERNEL_INLINE vi vi_sra(vi a, int n) { return _mm256_srai_epi32(a, n); }
KERNEL_INLINE vf vi_to_vf(vi a) { return _mm256_cvtepi32_ps(a); }
KERNEL_INLINE vf vi_as_vf(vi a) { return _mm256_castsi256_ps(a); }
KERNEL_INLINE vi vi_lo32(vi a, vi b) { return _mm256_unpacklo_epi32(a, b); }
KERNEL_INLINE vi vi_hi32(vi a, vi b) { return _mm256_unpackhi_epi32(a, b); }
KERNEL_INLINE vi vi_lo64(vi a, vi b) { return _mm256_unpacklo_epi64(a, b); }
KERNEL_INLINE vi vi_hi64(vi a, vi b) { return _mm256_unpackhi_epi64(a, b); }
KERNEL_INLINE vf vf_load_half(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
KERNEL_INLINE vf vf_load_bf16(const uint8_t *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
KERNEL_INLINE vf vi_half(vi a)
{
    vi low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff)); // packus would saturate the rest
    low = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0xd8);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(low));
}

KERNEL_INLINE __m128i load_128(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
KERNEL_INLINE vi vi_rows(const uint8_t *p, size_t step)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(p)), load_128(p + step), 1);
}
KERNEL_INLINE void vi_square(vi *t, const uint8_t *p, size_t stride)
{
    vi q[2][4]; // [g][j]: half l has dword 4l + j of rows 4g … 4g + 3
    KERNEL_UNROLL for (int g = 0; g < 2; g++)
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
        t[j] = _mm256_permute2x128_si256(q[0][j], q[1][j], 0x20);
        t[4 + j] = _mm256_permute2x128_si256(q[0][j], q[1][j], 0x31);
    }
}
KERNEL_INLINE vi vi_bits_to_16(vi bits, int from)
{
    // the byte that holds the four bits to all bytes of the dword, then bit i of byte i, looked up
    vi to = _mm256_add_epi8(_mm256_set1_epi8((char)(from / 8)),
                            _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404,
                                              0x08080808, 0x0c0c0c0c));
    vi four = _mm256_shuffle_epi8(from % 8 ? _mm256_srli_epi32(bits, 4) : bits, to);
    vi set = _mm256_setr_epi8(0, 16, 16, 0, 16, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 0, 16,
                              0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0);
    return _mm256_shuffle_epi8(set, _mm256_and_si256(four, _mm256_set1_epi32(0x08040201)));
}
KERNEL_INLINE vi vi_table16(vi index, const int8_t *table)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_128((const uint8_t *)table)),
                               index);
}
KERNEL_INLINE void vi_low_quads(int *to, const int8_t *q, size_t step)
{
    KERNEL_UNROLL for (int half = 0; half < 2; half++, q += 32, to += 16)
    {
        vi a = vi_load(q), b = vi_load(q + step), c = vi_load(q + 2 * step);
        vi d = vi_load(q + 3 * step);
        vi ab = _mm256_blend_epi32(_mm256_srli_epi64(a, 32), b, 0xaa);
        vi cd = _mm256_blend_epi32(_mm256_srli_epi64(c, 32), d, 0xaa);
        vi even = vi_lo64(ab, cd), odd = vi_hi64(ab, cd); // quads 0, 2 and 1, 3
        vi_store(to, _mm256_permute2x128_si256(even, odd, 0x20));
        vi_store(to + 8, _mm256_permute2x128_si256(even, odd, 0x31));
    }
}
KERNEL_INLINE int wide_quad(const int8_t *q)
{
    vi zero = vi_zero();
    int a = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(vi_load(q), zero)));
    int b = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(vi_load(q + 32), zero)));
    return __builtin_ctz((~(unsigned)(a | b << 8) & 0x5555u) | 0x4000u) / 2;
}

#endif
