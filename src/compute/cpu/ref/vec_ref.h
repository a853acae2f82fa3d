/*
 * vec_ref.h: the vector of 16 floats that the shared kernels (float_kernels.h, attn_kernels.h) are
 * written with, in plain C. It defines what each operation means; the other levels' headers give
 * the same bits with instructions.
 *
 *   v16  16 floats          m16  a truth value for each lane          d16  16 doubles
 *
 * Partial loads and stores touch the first n lanes alone (0 <= n <= 16); lanes not loaded are 0.
 */
#ifndef COMPUTE_CPU_REF_VEC_REF_H
#define COMPUTE_CPU_REF_VEC_REF_H

#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "base/half.h"

// Elsewhere all is inlined and unrolled, to stay in registers; plain C is left as it is.
#define KERNEL_INLINE static inline
#define KERNEL_UNROLL

// What attn_kernels.h keeps in registers: queries x vectors of positions, queries x vectors of V.
#define ATTN_GROUP 4
#define ATTN_VECS 1

typedef struct v16 {
    float f[16];
} v16;
typedef struct m16 {
    uint16_t bits;
} m16;
typedef struct d16 {
    double d[16];
} d16;

#define V16_LANES for (int i = 0; i < 16; i++)

KERNEL_INLINE v16 v16_set1(float x)
{
    v16 r;
    V16_LANES r.f[i] = x;
    return r;
}
KERNEL_INLINE v16 v16_load(const float *p)
{
    v16 r;
    memcpy(&r, p, sizeof r);
    return r;
}
KERNEL_INLINE void v16_store(float *p, v16 a) { memcpy(p, &a, sizeof a); }
KERNEL_INLINE v16 v16_load_n(const float *p, int n)
{
    v16 r = { { 0 } };
    memcpy(&r, p, (size_t)n * 4);
    return r;
}
KERNEL_INLINE void v16_store_n(float *p, v16 a, int n) { memcpy(p, &a, (size_t)n * 4); }
KERNEL_INLINE v16 v16_load_f16(const uint16_t *p)
{
    v16 r;
    V16_LANES r.f[i] = f16_to_f32(p[i]);
    return r;
}
KERNEL_INLINE void v16_store_f16(uint16_t *p, v16 a) { V16_LANES p[i] = f16_from_f32(a.f[i]); }
KERNEL_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    v16 r;
    V16_LANES r.f[i] = bf16_to_f32(p[i]);
    return r;
}
KERNEL_INLINE v16 v16_load_i8(const int8_t *p)
{
    v16 r;
    V16_LANES r.f[i] = p[i];
    return r;
}
/* The low (shift 0) or high (shift 4) halves of 16 bytes, 0 … 15, less 8. */
KERNEL_INLINE v16 v16_load_i4(const uint8_t *p, int shift)
{
    v16 r;
    V16_LANES r.f[i] = (float)((p[i] >> shift & 15) - 8);
    return r;
}

KERNEL_INLINE v16 v16_add(v16 a, v16 b)
{
    V16_LANES a.f[i] += b.f[i];
    return a;
}
KERNEL_INLINE v16 v16_sub(v16 a, v16 b)
{
    V16_LANES a.f[i] -= b.f[i];
    return a;
}
KERNEL_INLINE v16 v16_mul(v16 a, v16 b)
{
    V16_LANES a.f[i] *= b.f[i];
    return a;
}
KERNEL_INLINE v16 v16_div(v16 a, v16 b)
{
    V16_LANES a.f[i] /= b.f[i];
    return a;
}
/* a * b + c, rounded once */
KERNEL_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_LANES a.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return a;
}
/* b where they do not compare, as x86 has it */
KERNEL_INLINE v16 v16_max(v16 a, v16 b)
{
    V16_LANES a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
    return a;
}
KERNEL_INLINE v16 v16_abs(v16 a)
{
    V16_LANES a.f[i] = fabsf(a.f[i]);
    return a;
}
/* The magnitude of a with the sign of s. */
KERNEL_INLINE v16 v16_sign(v16 a, v16 s)
{
    V16_LANES a.f[i] = copysignf(a.f[i], s.f[i]);
    return a;
}
/* The bits of a plus those of n, shifted to the exponent: a * 2^n for n rounded by adding 1.5 *
 * 2^23. */
KERNEL_INLINE v16 v16_scale_bits(v16 a, v16 n)
{
    V16_LANES a.f[i] = f32_from_bits(f32_bits(a.f[i]) + (f32_bits(n.f[i]) << 23));
    return a;
}

KERNEL_INLINE m16 v16_less(v16 a, v16 b)
{
    m16 r = { 0 };
    V16_LANES r.bits = (uint16_t)(r.bits | (a.f[i] < b.f[i]) << i);
    return r;
}
/* Lanes i with lo <= i < hi, for any lo and hi. */
KERNEL_INLINE m16 m16_range(int lo, int hi)
{
    m16 r = { 0 };
    V16_LANES r.bits = (uint16_t)(r.bits | (lo <= i && i < hi) << i);
    return r;
}
/* a where m, else b */
KERNEL_INLINE v16 v16_select(m16 m, v16 a, v16 b)
{
    V16_LANES a.f[i] = m.bits >> i & 1 ? a.f[i] : b.f[i];
    return a;
}

/* Lanes i and i + 8 first, then i + 4, i + 2, i + 1. */
KERNEL_INLINE float v16_sum(v16 a)
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            a.f[i] += a.f[i + h];
    return a.f[0];
}
KERNEL_INLINE float v16_reduce_max(v16 a)
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            a.f[i] = a.f[i] > a.f[i + h] ? a.f[i] : a.f[i + h];
    return a.f[0];
}

KERNEL_INLINE d16 d16_zero(void)
{
    d16 r = { { 0 } };
    return r;
}
KERNEL_INLINE d16 d16_add(d16 a, v16 x)
{
    V16_LANES a.d[i] += (double)x.f[i];
    return a;
}
/* a + x * x; the product of two floats is exact. */
KERNEL_INLINE d16 d16_add_square(d16 a, v16 x)
{
    V16_LANES a.d[i] += (double)x.f[i] * (double)x.f[i];
    return a;
}
KERNEL_INLINE double d16_sum(d16 a)
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            a.d[i] += a.d[i + h];
    return a.d[0];
}

/* The largest magnitude in a and b, and the largest outside its quad (the first, of equal ones), as
 * bits: order of unsigned numbers, NaN above infinity. */
KERNEL_INLINE void v16_wide_quad(uint32_t *most, uint32_t *rest, v16 a, v16 b)
{
    uint32_t quad[8] = { 0 };
    V16_LANES
    {
        uint32_t x = f32_bits(a.f[i]) & 0x7fffffff, y = f32_bits(b.f[i]) & 0x7fffffff;
        quad[i / 4] = x > quad[i / 4] ? x : quad[i / 4];
        quad[4 + i / 4] = y > quad[4 + i / 4] ? y : quad[4 + i / 4];
    }
    *most = *rest = 0;
    for (int j = 0; j < 8; j++) {
        uint32_t less = quad[j] < *most ? quad[j] : *most;
        *rest = less > *rest ? less : *rest;
        *most = quad[j] > *most ? quad[j] : *most;
    }
}
/* Whole numbers of at most 127 to bytes: for each 4 their hi, then their lo; returns the sum of
 * 256 * hi + lo. */
KERNEL_INLINE int v16_store_planes(int8_t *q, v16 hi, v16 lo)
{
    int sum = 0;
    V16_LANES
    {
        int8_t *p = q + i / 4 * 8 + i % 4;
        p[0] = (int8_t)hi.f[i];
        p[4] = (int8_t)lo.f[i];
        sum += 256 * p[0] + p[4];
    }
    return sum;
}
/* The largest magnitude in a and b, as bits: order of unsigned numbers, NaN above infinity. */
KERNEL_INLINE uint32_t v16_max_bits(v16 a, v16 b)
{
    uint32_t m = 0;
    V16_LANES
    {
        uint32_t x = f32_bits(a.f[i]) & 0x7fffffff, y = f32_bits(b.f[i]) & 0x7fffffff;
        m = x > m ? x : m;
        m = y > m ? y : m;
    }
    return m;
}
/* Rounds to nearest even (|a| <= 127), stores 16 bytes, returns their sum. */
KERNEL_INLINE int v16_store_i8(int8_t *q, v16 a)
{
    int sum = 0;
    V16_LANES sum += q[i] = (int8_t)rintf(a.f[i]);
    return sum;
}

/* Pairs apart and together: even = x0 x2 x4 …, odd = x1 x3 x5 … */
KERNEL_INLINE void v16_load_pairs(v16 *even, v16 *odd, const float *p)
{
    V16_LANES
    {
        even->f[i] = p[2 * i];
        odd->f[i] = p[2 * i + 1];
    }
}
KERNEL_INLINE void v16_store_pairs(float *p, v16 even, v16 odd)
{
    V16_LANES
    {
        p[2 * i] = even.f[i];
        p[2 * i + 1] = odd.f[i];
    }
}

#endif
