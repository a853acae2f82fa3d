/*
 * vec_arm.h: the operations of ref/vec_ref.h (which says what they mean) on four 128-bit registers,
 * and those of vec_matmul.h on one. Only armv8-a: what every arm64 processor has. The dot products
 * of bytes, in which the levels differ, are in vec_neon.h, vec_dotprod.h and vec_i8mm.h.
 */
#ifndef COMPUTE_CPU_ARM_VEC_ARM_H
#define COMPUTE_CPU_ARM_VEC_ARM_H

#include <arm_neon.h>
#include <string.h>

#include "base/compiler.h"
#include "base/half.h"

#define KERNEL_INLINE FORCE_INLINE
#define KERNEL_UNROLL UNROLL

// What attn_kernels.h keeps in registers: see ref/vec_ref.h. 16 of 32 registers are accumulators.
#define ATTN_GROUP 4
#define ATTN_VECS 1

typedef struct v16 {
    float32x4_t q[4];
} v16; // lanes 0-3, 4-7, 8-11, 12-15
typedef struct m16 {
    uint32x4_t q[4];
} m16;
typedef struct d16 {
    float64x2_t d[8];
} d16;

#define V16_QUADS KERNEL_UNROLL for (int i = 0; i < 4; i++)

KERNEL_INLINE v16 v16_set1(float x)
{
    float32x4_t q = vdupq_n_f32(x);
    return (v16){ { q, q, q, q } };
}
KERNEL_INLINE v16 v16_load(const float *p)
{
    return (v16){ { vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12) } };
}
KERNEL_INLINE void v16_store(float *p, v16 a) { V16_QUADS vst1q_f32(p + 4 * i, a.q[i]); }
KERNEL_INLINE v16 v16_load_n(const float *p, int n)
{
    if (n == 16) return v16_load(p);
    float part[16] ATTR_ALIGNED(16) = { 0 };
    memcpy(part, p, (size_t)n * 4);
    return v16_load(part);
}
KERNEL_INLINE void v16_store_n(float *p, v16 a, int n)
{
    if (n == 16) {
        v16_store(p, a);
        return;
    }
    float part[16] ATTR_ALIGNED(16);
    v16_store(part, a);
    memcpy(p, part, (size_t)n * 4);
}
KERNEL_INLINE v16 v16_load_f16(const uint16_t *p)
{
    v16 r;
    V16_QUADS r.q[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return r;
}
KERNEL_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    V16_QUADS vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i])));
}
KERNEL_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    v16 r;
    V16_QUADS r.q[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
    return r;
}
KERNEL_INLINE v16 floats_of_bytes(int8x16_t x)
{
    int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_high_s8(x);
    return (v16){ { vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))),
                    vcvtq_f32_s32(vmovl_high_s16(lo)),
                    vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))),
                    vcvtq_f32_s32(vmovl_high_s16(hi)) } };
}
KERNEL_INLINE v16 v16_load_i8(const int8_t *p) { return floats_of_bytes(vld1q_s8(p)); }
KERNEL_INLINE v16 v16_load_i4(const uint8_t *p, int shift)
{
    uint8x16_t x = vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)-shift));
    x = vandq_u8(x, vdupq_n_u8(15));
    return floats_of_bytes(vsubq_s8(vreinterpretq_s8_u8(x), vdupq_n_s8(8)));
}

KERNEL_INLINE v16 v16_add(v16 a, v16 b)
{
    V16_QUADS a.q[i] = vaddq_f32(a.q[i], b.q[i]);
    return a;
}
KERNEL_INLINE v16 v16_sub(v16 a, v16 b)
{
    V16_QUADS a.q[i] = vsubq_f32(a.q[i], b.q[i]);
    return a;
}
KERNEL_INLINE v16 v16_mul(v16 a, v16 b)
{
    V16_QUADS a.q[i] = vmulq_f32(a.q[i], b.q[i]);
    return a;
}
KERNEL_INLINE v16 v16_div(v16 a, v16 b)
{
    V16_QUADS a.q[i] = vdivq_f32(a.q[i], b.q[i]);
    return a;
}
KERNEL_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_QUADS c.q[i] = vfmaq_f32(c.q[i], a.q[i], b.q[i]);
    return c;
}
/* A comparison: the instruction FMAX gives NaN where there is one. */
KERNEL_INLINE float32x4_t max_4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
KERNEL_INLINE v16 v16_max(v16 a, v16 b)
{
    V16_QUADS a.q[i] = max_4(a.q[i], b.q[i]);
    return a;
}
KERNEL_INLINE v16 v16_abs(v16 a)
{
    V16_QUADS a.q[i] = vabsq_f32(a.q[i]);
    return a;
}
KERNEL_INLINE v16 v16_sign(v16 a, v16 s)
{
    V16_QUADS a.q[i] = vbslq_f32(vdupq_n_u32(0x80000000u), s.q[i], a.q[i]);
    return a;
}
KERNEL_INLINE v16 v16_scale_bits(v16 a, v16 n)
{
    V16_QUADS a.q[i] = vreinterpretq_f32_u32(vaddq_u32(
        vreinterpretq_u32_f32(a.q[i]), vshlq_n_u32(vreinterpretq_u32_f32(n.q[i]), 23)));
    return a;
}

KERNEL_INLINE m16 v16_less(v16 a, v16 b)
{
    m16 m;
    V16_QUADS m.q[i] = vcltq_f32(a.q[i], b.q[i]);
    return m;
}
KERNEL_INLINE m16 m16_range(int lo, int hi)
{
    static const int32_t lanes[4] = { 0, 1, 2, 3 };
    int32x4_t from = vdupq_n_s32(lo), to = vdupq_n_s32(hi), lane = vld1q_s32(lanes);
    m16 m;
    V16_QUADS
    {
        m.q[i] = vandq_u32(vcgeq_s32(lane, from), vcltq_s32(lane, to));
        lane = vaddq_s32(lane, vdupq_n_s32(4));
    }
    return m;
}
KERNEL_INLINE v16 v16_select(m16 m, v16 a, v16 b)
{
    V16_QUADS a.q[i] = vbslq_f32(m.q[i], a.q[i], b.q[i]);
    return a;
}

KERNEL_INLINE float v16_sum(v16 a)
{
    float32x4_t x =
        vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3])); // i + 8, then i + 4
    float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}
KERNEL_INLINE float v16_reduce_max(v16 a)
{
    float32x4_t x = max_4(max_4(a.q[0], a.q[2]), max_4(a.q[1], a.q[3]));
    x = max_4(x, vextq_f32(x, x, 2));
    return vgetq_lane_f32(max_4(x, vextq_f32(x, x, 1)), 0);
}

KERNEL_INLINE d16 d16_zero(void)
{
    float64x2_t z = vdupq_n_f64(0);
    return (d16){ { z, z, z, z, z, z, z, z } };
}
KERNEL_INLINE d16 d16_add(d16 a, v16 x)
{
    V16_QUADS
    {
        a.d[2 * i] = vaddq_f64(a.d[2 * i], vcvt_f64_f32(vget_low_f32(x.q[i])));
        a.d[2 * i + 1] = vaddq_f64(a.d[2 * i + 1], vcvt_high_f64_f32(x.q[i]));
    }
    return a;
}
KERNEL_INLINE d16 d16_add_square(d16 a, v16 x)
{
    V16_QUADS
    { // exact products: fused or not is the same
        float64x2_t lo = vcvt_f64_f32(vget_low_f32(x.q[i])), hi = vcvt_high_f64_f32(x.q[i]);
        a.d[2 * i] = vfmaq_f64(a.d[2 * i], lo, lo);
        a.d[2 * i + 1] = vfmaq_f64(a.d[2 * i + 1], hi, hi);
    }
    return a;
}
KERNEL_INLINE double d16_sum(d16 a)
{
    V16_QUADS a.d[i] = vaddq_f64(a.d[i], a.d[i + 4]);
    float64x2_t x = vaddq_f64(vaddq_f64(a.d[0], a.d[2]), vaddq_f64(a.d[1], a.d[3]));
    return vgetq_lane_f64(x, 0) + vgetq_lane_f64(x, 1);
}

KERNEL_INLINE void v16_wide_quad(uint32_t *most, uint32_t *rest, v16 a, v16 b)
{
    *most = *rest = 0;
    KERNEL_UNROLL for (int i = 0; i < 8; i++)
    {
        float32x4_t quad = i < 4 ? a.q[i % 4] : b.q[i % 4];
        uint32_t m = vmaxvq_u32(vreinterpretq_u32_f32(vabsq_f32(quad)));
        uint32_t less = m < *most ? m : *most;
        *rest = less > *rest ? less : *rest;
        *most = m > *most ? m : *most;
    }
}
KERNEL_INLINE int32x4_t to_bytes(const int32x4_t *n)
{
    int16x8_t lo = vcombine_s16(vmovn_s32(n[0]), vmovn_s32(n[1]));
    int16x8_t hi = vcombine_s16(vmovn_s32(n[2]), vmovn_s32(n[3]));
    return vreinterpretq_s32_s8(vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
}
KERNEL_INLINE int v16_store_planes(int8_t *q, v16 hi, v16 lo)
{
    int32x4_t h[4], l[4], sum = vdupq_n_s32(0);
    V16_QUADS
    {
        h[i] = vcvtnq_s32_f32(hi.q[i]);
        l[i] = vcvtnq_s32_f32(lo.q[i]);
        sum = vaddq_s32(sum, vaddq_s32(vshlq_n_s32(h[i], 8), l[i]));
    }
    int32x4_t hb = to_bytes(h), lb = to_bytes(l);
    vst1q_s8(q, vreinterpretq_s8_s32(vzip1q_s32(hb, lb)));
    vst1q_s8(q + 16, vreinterpretq_s8_s32(vzip2q_s32(hb, lb)));
    return vaddvq_s32(sum);
}
KERNEL_INLINE uint32_t v16_max_bits(v16 a, v16 b)
{
    uint32x4_t m = vdupq_n_u32(0);
    V16_QUADS
    {
        m = vmaxq_u32(m, vreinterpretq_u32_f32(vabsq_f32(a.q[i])));
        m = vmaxq_u32(m, vreinterpretq_u32_f32(vabsq_f32(b.q[i])));
    }
    return vmaxvq_u32(m);
}
KERNEL_INLINE int v16_store_i8(int8_t *q, v16 a)
{
    int32x4_t n[4];
    V16_QUADS n[i] = vcvtnq_s32_f32(a.q[i]);
    int16x8_t lo = vcombine_s16(vmovn_s32(n[0]), vmovn_s32(n[1]));
    int16x8_t hi = vcombine_s16(vmovn_s32(n[2]), vmovn_s32(n[3]));
    vst1q_s8(q, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
    return vaddvq_s16(vaddq_s16(lo, hi)); // at most 16 * 127
}

KERNEL_INLINE void v16_load_pairs(v16 *even, v16 *odd, const float *p)
{
    V16_QUADS
    {
        float32x4x2_t x = vld2q_f32(p + 8 * i);
        even->q[i] = x.val[0];
        odd->q[i] = x.val[1];
    }
}
KERNEL_INLINE void v16_store_pairs(float *p, v16 even, v16 odd)
{
    V16_QUADS vst2q_f32(p + 8 * i, ((float32x4x2_t){ { even.q[i], odd.q[i] } }));
}

/* ---- for the matrix products; the meaning is in vec_matmul.h ---- */

#define LANES 4
#define REGISTERS 32
#define PIN(v) // the compiler does well
#define TILE_ROWS 4
#define SIGNED_OFFSET 0 // all multiplications of bytes are signed

typedef float32x4_t vf;
typedef int32x4_t vi;

KERNEL_INLINE vf vf_zero(void) { return vdupq_n_f32(0); }
KERNEL_INLINE vf vf_set1(float x) { return vdupq_n_f32(x); }
KERNEL_INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
KERNEL_INLINE void vf_store(float *p, vf a) { vst1q_f32(p, a); }
KERNEL_INLINE vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
KERNEL_INLINE vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
KERNEL_INLINE vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
KERNEL_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }

KERNEL_INLINE vi vi_zero(void) { return vdupq_n_s32(0); }
KERNEL_INLINE vi vi_set1(int x) { return vdupq_n_s32(x); }
KERNEL_INLINE vi vi_load(const void *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
KERNEL_INLINE void vi_store(void *p, vi a) { vst1q_u8(p, vreinterpretq_u8_s32(a)); }
KERNEL_INLINE vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
KERNEL_INLINE vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
KERNEL_INLINE vi vi_or_and(vi a, vi b, vi mask) { return vi_or(a, vi_and(b, mask)); }
KERNEL_INLINE vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
KERNEL_INLINE vi vi_sub(vi a, vi b) { return vsubq_s32(a, b); }
// The compiler's own shifts: the immediate ones of arm_neon.h take neither 0 nor a loop's counter.
KERNEL_INLINE vi vi_srl(vi a, int n)
{
    return vreinterpretq_s32_u32(vreinterpretq_u32_s32(a) >> (unsigned)n);
}
KERNEL_INLINE vi vi_sll(vi a, int n)
{
    return vreinterpretq_s32_u32(vreinterpretq_u32_s32(a) << (unsigned)n);
}
KERNEL_INLINE vi vi_sra(vi a, int n) { return a >> n; }
KERNEL_INLINE vf vi_to_vf(vi a) { return vcvtq_f32_s32(a); }
KERNEL_INLINE vf vi_as_vf(vi a) { return vreinterpretq_f32_s32(a); }
KERNEL_INLINE vi vi_lo32(vi a, vi b) { return vzip1q_s32(a, b); }
KERNEL_INLINE vi vi_hi32(vi a, vi b) { return vzip2q_s32(a, b); }
KERNEL_INLINE vi vi_lo64(vi a, vi b)
{
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
KERNEL_INLINE vi vi_hi64(vi a, vi b)
{
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
KERNEL_INLINE vf vf_load_half(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
KERNEL_INLINE vf vf_load_bf16(const uint8_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
KERNEL_INLINE vf vi_half(vi a)
{
    return vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(a)));
}

KERNEL_INLINE vi vi_rows(const uint8_t *p, size_t step)
{
    (void)step; // one row
    return vi_load(p);
}
KERNEL_INLINE void transpose_4(vi *t, vi a, vi b, vi c, vi d)
{
    vi ab = vi_lo32(a, b), cd = vi_lo32(c, d);
    t[0] = vi_lo64(ab, cd);
    t[1] = vi_hi64(ab, cd);
    ab = vi_hi32(a, b);
    cd = vi_hi32(c, d);
    t[2] = vi_lo64(ab, cd);
    t[3] = vi_hi64(ab, cd);
}
KERNEL_INLINE void vi_square(vi *t, const uint8_t *p, size_t stride)
{
    transpose_4(t, vi_load(p), vi_load(p + stride), vi_load(p + 2 * stride),
                vi_load(p + 3 * stride));
}
KERNEL_INLINE vi vi_bits_to_16(vi bits, int from)
{
    // the byte that holds the four bits to all bytes of the dword, then bit i to byte i
    static const uint8_t first[16] = { 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12 };
    uint8x16_t to = vaddq_u8(vld1q_u8(first), vdupq_n_u8((uint8_t)(from / 8)));
    uint8x16_t bit = vreinterpretq_u8_u32(vdupq_n_u32(0x08040201u << from % 8));
    uint8x16_t set = vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_s32(bits), to), bit);
    return vreinterpretq_s32_u8(vandq_u8(set, vdupq_n_u8(0x10)));
}
KERNEL_INLINE vi vi_table16(vi index, const int8_t *table)
{
    return vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(table), vreinterpretq_u8_s32(index)));
}
KERNEL_INLINE vi vi_signed_weights(vi w) { return w; }

/* Every second dword of 32 bytes: the high or low plane (0, 1) of 4 quads of act_row's q. */
KERNEL_INLINE vi plane_of(const int8_t *q, int plane)
{
    return plane ? vuzp2q_s32(vi_load(q), vi_load(q + 16))
                 : vuzp1q_s32(vi_load(q), vi_load(q + 16));
}
KERNEL_INLINE void vi_low_quads(int *to, const int8_t *q, size_t step)
{
    KERNEL_UNROLL for (int half = 0; half < 2; half++, q += 32, to += 16)
    {
        vi t[4];
        transpose_4(t, plane_of(q, 1), plane_of(q + step, 1), plane_of(q + 2 * step, 1),
                    plane_of(q + 3 * step, 1));
        KERNEL_UNROLL for (int j = 0; j < 4; j++) vi_store(to + 4 * j, t[j]);
    }
}
KERNEL_INLINE int wide_quad(const int8_t *q)
{
    vi a = plane_of(q, 0), b = plane_of(q + 32, 0);
    uint16x8_t some = vcombine_u16(vmovn_u32(vtstq_s32(a, a)), vmovn_u32(vtstq_s32(b, b)));
    uint64_t byte_of_quad = vget_lane_u64(vreinterpret_u64_u8(vmovn_u16(some)), 0);
    return __builtin_ctzll(byte_of_quad | (uint64_t)1 << 63) / 8;
}

KERNEL_INLINE vi vi_bytes(const uint8_t *p) // for coarse_kernels.h
{
    uint32_t x4;
    memcpy(&x4, p, 4);
    uint16x8_t words = vmovl_u8(vcreate_u8(x4));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words)));
}

/* 4 bytes to all lanes. */
KERNEL_INLINE vi vi_dword(const int8_t *p)
{
    int32_t x4;
    memcpy(&x4, p, 4);
    return vdupq_n_s32(x4);
}

#endif
