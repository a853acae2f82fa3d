/*
 * int8_units.h: the formats that kernels read by vector code. unit_<fmt> takes one unit of LANES
 * rows (the bytes are as in quant_<fmt>.c), makes its blocks of 32 k in registers, and hands them
 * to emit in order. It reads no byte outside the unit.
 *
 * A format is one function and one line in UNIT_FORMATS.
 */
#ifndef COMPUTE_CPU_INT8_UNITS_H
#define COMPUTE_CPU_INT8_UNITS_H

#include "compute/cpu/int8_block.h"

/* Where a unit of LANES rows lies: rows as in the file, or a panel (compute/panels.h). All but the
 * pointer and the stride is constant after inlining. */
typedef struct unit_rows {
    const uint8_t *p; // first row; of panels at this kernel's first lane
    size_t stride;    // of rows
    int lane, bytes;  // of panels; of a unit of a row
    bool panels, half_first;
} unit_rows;

/* n dwords of each row from byte `at` on. */
KERNEL_INLINE void unit_dwords(vi *t, const unit_rows *u, int at, int n)
{
    if (u->panels) {
        const uint8_t *p = u->p + (at - (u->half_first ? 2 : 0)) * PANEL;
        KERNEL_UNROLL for (int i = 0; i < n; i++) t[i] = vi_load(p + i * PANEL * 4);
        return;
    }
    KERNEL_UNROLL for (int i = 0; i < n; i += 4)
    {
        vi v[4];
        int from = at + 4 * i, past = from + 16 > u->bytes ? from + 16 - u->bytes : 0;
        load_dwords(v, u->p + from - past, u->stride);
        int some = n - i < 4 ? n - i : 4;
        KERNEL_UNROLL for (int j = 0; j < some; j++)
        {
            int k = j + past / 4;
            t[i + j] = past % 4 ? vi_or(vi_srl(v[k], 16), vi_sll(v[(k + 1) % 4], 16)) : v[k];
        }
    }
}
/* The same for one of several blocks that need these dwords. They are made once, but loaded from a
 * panel for each where there are no registers to keep them. */
KERNEL_INLINE void unit_dwords_of(vi *t, const unit_rows *u, int at, int n, bool first)
{
    bool each = u->panels && REGISTERS < 32;
    if (!first && !each) return;
    unit_rows again = *u;
    if (each) FORGET(again.p);
    unit_dwords(t, &again, at, n);
}
KERNEL_INLINE vi unit_dword(const unit_rows *u, int at)
{
    vi t[1];
    unit_dwords(t, u, at, 1);
    return t[0];
}
/* The scale at byte `at`, the unit's first or last two. */
KERNEL_INLINE vf unit_half(const unit_rows *u, int at)
{
    if (u->panels) return vf_load_half(u->p + u->bytes / 4 * PANEL * 4 - 2 * u->lane);
    return at ? vi_half(vi_srl(unit_dword(u, at - 2), 16)) : vi_half(unit_dword(u, 0));
}

/* 16 bytes of packed nibbles: low ones to w[0 … 3], high ones to w[4 … 7]. */
KERNEL_INLINE void split_nibbles(vi *low, vi *high, const vi *t, int n)
{
    vi mask = vi_set1(0x0f0f0f0f);
    KERNEL_UNROLL for (int j = 0; j < n; j++)
    {
        low[j] = vi_and(t[j], mask);
        high[j] = vi_and(vi_srl(t[j], 4), mask);
    }
}

/* The low nibbles, or the high ones, of 32 bytes. */
KERNEL_INLINE void pick_nibbles(vi *w, const vi *t, int high)
{
    KERNEL_UNROLL for (int j = 0; j < 8; j++) w[j] =
        vi_and(high ? vi_srl(t[j], 4) : t[j], vi_set1(0x0f0f0f0f));
}

KERNEL_INLINE void unit_q8_0(const sink *s, int block, const unit_rows *u)
{
    vi w[8];
    vf d = unit_half(u, 0);
    unit_dwords(w, u, 2, 8);
    KERNEL_UNROLL for (int j = 0; j < 8; j++) w[j] = vi_signed_weights(w[j]);
    emit(s, block, w, &d, NULL);
}

KERNEL_INLINE void unit_q4_0(const sink *s, int block, const unit_rows *u)
{
    vi t[4], w[8];
    vf d = unit_half(u, 0);
    unit_dwords(t, u, 2, 4);
    split_nibbles(w, w + 4, t, 4);
    emit(s, block, w, &d, NULL);
}

static const int8_t iq4_table[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113 };

KERNEL_INLINE void unit_iq4_nl(const sink *s, int block, const unit_rows *u)
{
    vi t[4], w[8];
    vf d = unit_half(u, 0);
    unit_dwords(t, u, 2, 4);
    split_nibbles(w, w + 4, t, 4);
    KERNEL_UNROLL for (int j = 0; j < 8; j++) w[j] = vi_signed_weights(vi_table16(w[j], iq4_table));
    emit(s, block, w, &d, NULL);
}

KERNEL_INLINE void unit_q4_1(const sink *s, int block, const unit_rows *u)
{
    vi head = unit_dword(u, 0), t[4], w[8];
    vf d = vi_half(head), m = vi_half(vi_srl(head, 16));
    unit_dwords(t, u, 4, 4);
    split_nibbles(w, w + 4, t, 4);
    emit(s, block, w, &d, &m);
}

KERNEL_INLINE void add_fifth_bits(vi *w, vi bits)
{
    KERNEL_UNROLL for (int j = 0; j < 8; j++) w[j] = vi_or(w[j], vi_bits_to_16(bits, 4 * j));
}

KERNEL_INLINE void unit_q5_0(const sink *s, int block, const unit_rows *u)
{
    vi t[4], w[8];
    vf d = unit_half(u, 0);
    unit_dwords(t, u, 6, 4);
    split_nibbles(w, w + 4, t, 4);
    add_fifth_bits(w, unit_dword(u, 2));
    emit(s, block, w, &d, NULL);
}

KERNEL_INLINE void unit_q5_1(const sink *s, int block, const unit_rows *u)
{
    vi head[2], t[4], w[8]; // bytes: d d m m | h h h h
    unit_dwords(head, u, 0, 2);
    vf d = vi_half(head[0]), m = vi_half(vi_srl(head[0], 16));
    unit_dwords(t, u, 8, 4);
    split_nibbles(w, w + 4, t, 4);
    add_fifth_bits(w, head[1]);
    emit(s, block, w, &d, &m);
}

/* Q4_K and Q5_K: 16 bytes of header to the scales and mins, 4 of 6 bits in the bytes of a dword:
 * [0] of sub-blocks 0 … 3, [1] of 4 … 7. */
typedef struct k_header {
    vf d, dmin;
    vi scale[2], min[2];
} k_header;

KERNEL_INLINE k_header load_k_header(const unit_rows *u)
{
    vi t[4], six = vi_set1(0x3f3f3f3f), four = vi_set1(0x0f0f0f0f), top = vi_set1(0x30303030);
    unit_dwords(t, u, 0, 4);
    k_header h = {
        .d = vi_half(t[0]),
        .dmin = vf_sub(vf_zero(), vi_half(vi_srl(t[0], 16))),
        .scale = { vi_and(t[1], six), vi_or(vi_and(t[3], four), vi_and(vi_srl(t[1], 2), top)) },
        .min = { vi_and(t[2], six),
                 vi_or(vi_and(vi_srl(t[3], 4), four), vi_and(vi_srl(t[2], 2), top)) },
    };
    return h;
}
KERNEL_INLINE vf byte_to_vf(vi v, int i)
{
    return vi_to_vf(vi_and(vi_srl(v, 8 * i), vi_set1(255)));
}

KERNEL_INLINE void unit_q4_k(const sink *s, int block, const unit_rows *u)
{
    k_header h = load_k_header(u);
    vi t[8];
    KERNEL_UNROLL for (int b = 0; b < 8; b++)
    { // 32 bytes: two sub-blocks
        vi w[8];
        unit_dwords_of(t, u, 16 + b / 2 * 32, 8, b % 2 == 0);
        pick_nibbles(w, t, b % 2);
        vf sc = vf_mul(h.d, byte_to_vf(h.scale[b / 4], b % 4));
        vf mn = vf_mul(h.dmin, byte_to_vf(h.min[b / 4], b % 4));
        emit(s, block + b, w, &sc, &mn);
    }
}

KERNEL_INLINE void unit_q5_k(const sink *s, int block, const unit_rows *u)
{
    k_header h = load_k_header(u);
    vi fifth[8], bit = vi_set1(0x10101010); // bit b of byte l: of element l of sub-block b
    unit_dwords(fifth, u, 16, 8);
    KERNEL_UNROLL for (int g = 0; g < 4; g++)
    {
        vi t[8], low[8], high[8];
        unit_dwords(t, u, 48 + 32 * g, 8);
        split_nibbles(low, high, t, 8);
        KERNEL_UNROLL for (int j = 0; j < 8; j++)
        {
            vi a = g < 2 ? vi_sll(fifth[j], 4 - 2 * g) : vi_srl(fifth[j], 2 * g - 4);
            vi b = g < 2 ? vi_sll(fifth[j], 3 - 2 * g) : vi_srl(fifth[j], 2 * g - 3);
            low[j] = vi_or_and(low[j], a, bit);
            high[j] = vi_or_and(high[j], b, bit);
        }
        vf sc = vf_mul(h.d, byte_to_vf(h.scale[g / 2], g % 2 * 2));
        vf mn = vf_mul(h.dmin, byte_to_vf(h.min[g / 2], g % 2 * 2));
        emit(s, block + 2 * g, low, &sc, &mn);
        sc = vf_mul(h.d, byte_to_vf(h.scale[g / 2], g % 2 * 2 + 1));
        mn = vf_mul(h.dmin, byte_to_vf(h.min[g / 2], g % 2 * 2 + 1));
        emit(s, block + 2 * g + 1, high, &sc, &mn);
    }
}

/* Sub-blocks 2i and 2i + 1 of four: scales of 8 signed bits times d. */
KERNEL_INLINE void q6_k_scales(vf *sc, vf d, vi bytes, int i)
{
    sc[0] = vf_mul(d, vi_to_vf(vi_sra(vi_sll(bytes, 24 - 16 * i), 24)));
    sc[1] = vf_mul(d, vi_to_vf(vi_sra(vi_sll(bytes, 16 - 16 * i), 24)));
}

KERNEL_INLINE void unit_q6_k(const sink *s, int block, const unit_rows *u)
{
    vi scales[4], two = vi_set1(0x30303030);
    unit_dwords(scales, u, 192, 4);
    vf d = unit_half(u, 208), sc[2];
    KERNEL_UNROLL for (int half = 0; half < 2; half++)
    { // 128 elements: 64 bytes of low bits, 32 of high
        vi t[8], h[8], low[8], high_a[8], high_b[8];
        unit_dwords(h, u, 128 + 32 * half, 8);
        unit_dwords(t, u, 64 * half, 8);
        split_nibbles(low, high_a, t, 8);
        KERNEL_UNROLL for (int j = 0; j < 8; j++)
        {
            low[j] = vi_or_and(low[j], vi_sll(h[j], 4), two);
            high_a[j] = vi_or_and(high_a[j], h[j], two);
        }
        q6_k_scales(sc, d, scales[2 * half], 0);
        emit(s, block + 4 * half, low, sc, NULL);
        unit_dwords(t, u, 64 * half + 32, 8);
        split_nibbles(low, high_b, t, 8);
        KERNEL_UNROLL for (int j = 0; j < 8; j++)
        {
            low[j] = vi_or_and(low[j], vi_sll(h[j], 2), two);
            high_b[j] = vi_or_and(high_b[j], vi_srl(h[j], 2), two);
        }
        q6_k_scales(sc, d, scales[2 * half], 1);
        emit(s, block + 4 * half + 1, low, sc, NULL);
        q6_k_scales(sc, d, scales[2 * half + 1], 0);
        emit(s, block + 4 * half + 2, high_a, sc, NULL);
        q6_k_scales(sc, d, scales[2 * half + 1], 1);
        emit(s, block + 4 * half + 3, high_b, sc, NULL);
    }
}

/* Q2_K: block g of 32 is two bits of 32 bytes; scale and min of a sub-block share a byte. */
KERNEL_INLINE void unit_q2_k(const sink *s, int block, const unit_rows *u)
{
    vi scales[4], two = vi_set1(0x03030303), four = vi_set1(15);
    unit_dwords(scales, u, 0, 4);
    vi head = unit_dword(u, 80);
    vf d = vi_half(head), dmin = vf_sub(vf_zero(), vi_half(vi_srl(head, 16)));
    KERNEL_UNROLL for (int half = 0; half < 2; half++)
    {
        vi t[8], w[8];
        unit_dwords(t, u, 16 + 32 * half, 8);
        KERNEL_UNROLL for (int g = 0; g < 4; g++)
        {
            vi bytes = vi_srl(scales[2 * half + g / 2], 16 * (g % 2));
            vf sc[2] = { vf_mul(d, vi_to_vf(vi_and(bytes, four))),
                         vf_mul(d, vi_to_vf(vi_and(vi_srl(bytes, 8), four))) };
            vf mn[2] = { vf_mul(dmin, vi_to_vf(vi_and(vi_srl(bytes, 4), four))),
                         vf_mul(dmin, vi_to_vf(vi_and(vi_srl(bytes, 12), four))) };
            KERNEL_UNROLL for (int j = 0; j < 8; j++) w[j] = vi_and(vi_srl(t[j], 2 * g), two);
            emit(s, block + 4 * half + g, w, sc, mn);
        }
    }
}

/* Q3_K: two bits as in Q2_K, the third in bit g of 32 bytes for block g; 16 scales of 6 bits, four
 * of them in the bytes of a dword. */
KERNEL_INLINE void unit_q3_k(const sink *s, int block, const unit_rows *u)
{
    vi t[8], third[8], w[8], two = vi_set1(0x03030303), four = vi_set1(0x0f0f0f0f);
    unit_dwords(t, u, 96, 3);
    vf d = unit_half(u, 108);
    vi a = t[0], b = t[1], c = t[2];
    vi scales[4] = { vi_or(vi_and(a, four), vi_sll(vi_and(c, two), 4)),
                     vi_or(vi_and(b, four), vi_sll(vi_and(vi_srl(c, 2), two), 4)),
                     vi_or(vi_and(vi_srl(a, 4), four), vi_sll(vi_and(vi_srl(c, 4), two), 4)),
                     vi_or(vi_and(vi_srl(b, 4), four), vi_sll(vi_and(vi_srl(c, 6), two), 4)) };
    unit_dwords(third, u, 0, 8);
    KERNEL_UNROLL for (int half = 0; half < 2; half++)
    {
        unit_dwords(t, u, 32 + 32 * half, 8);
        KERNEL_UNROLL for (int i = 0; i < 4; i++)
        {
            int g = 4 * half + i;
            vf sc[2];
            KERNEL_UNROLL for (int j = 0; j < 2; j++)
            {
                vi byte = vi_and(vi_srl(scales[g / 2], 16 * (g % 2) + 8 * j), vi_set1(63));
                sc[j] = vf_mul(d, vi_to_vf(vi_sub(byte, vi_set1(32))));
            }
            KERNEL_UNROLL for (int j = 0; j < 8; j++)
            {
                vi bit = g < 2 ? vi_sll(third[j], 2 - g) : vi_srl(third[j], g - 2);
                w[j] = vi_or_and(vi_and(vi_srl(t[j], 2 * i), two), bit, vi_set1(0x04040404));
            }
            emit(s, block + g, w, sc, NULL);
        }
    }
}

KERNEL_INLINE void unit_iq4_xs(const sink *s, int block, const unit_rows *u)
{
    vi head[2]; // bytes: d d h h | l l l l
    unit_dwords(head, u, 0, 2);
    vf d = vi_half(head[0]);
    KERNEL_UNROLL for (int g = 0; g < 8; g++)
    {
        vi t[4], w[8], low = vi_and(vi_srl(head[1], 4 * g), vi_set1(15));
        vi high = vi_and(vi_srl(head[0], 16 + 2 * g), vi_set1(3));
        vi scale = vi_sub(vi_or(low, vi_sll(high, 4)), vi_set1(32));
        vf sc = vf_mul(d, vi_to_vf(scale));
        unit_dwords(t, u, 8 + 16 * g, 4);
        split_nibbles(w, w + 4, t, 4);
        KERNEL_UNROLL for (int j = 0; j < 8; j++) w[j] =
            vi_signed_weights(vi_table16(w[j], iq4_table));
        emit(s, block + g, w, &sc, NULL);
    }
}

KERNEL_INLINE void unit_mxfp4(const sink *s, int block, const unit_rows *u)
{
    static const int8_t values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
    vi t[4], w[8], e = vi_and(unit_dword(u, 0), vi_set1(255));
    // 2^(e - 128) as a product of two powers that are normal numbers for every e
    vi half = vi_srl(e, 1), bias = vi_set1(63);
    vf sc = vf_mul(vi_as_vf(vi_sll(vi_add(half, bias), 23)),
                   vi_as_vf(vi_sll(vi_add(vi_sub(e, half), bias), 23)));
    unit_dwords(t, u, 1, 4);
    split_nibbles(w, w + 4, t, 4);
    KERNEL_UNROLL for (int j = 0; j < 8; j++) w[j] = vi_signed_weights(vi_table16(w[j], values));
    emit(s, block, w, &sc, NULL);
}

/* X(type, name, shape, blocks of 32 in a unit, bytes of a unit) */
#define UNIT_FORMATS(X)                                                                            \
    X(DT_Q8_0, q8_0, SHAPE_S32, 1, 34)                                                             \
    X(DT_Q4_0, q4_0, SHAPE_U4, 1, 18)                                                              \
    X(DT_Q4_1, q4_1, SHAPE_U4M, 1, 20)                                                             \
    X(DT_Q5_0, q5_0, SHAPE_U5, 1, 22)                                                              \
    X(DT_Q5_1, q5_1, SHAPE_U5M, 1, 24)                                                             \
    X(DT_Q4_K, q4_k, SHAPE_U4M, 8, 144)                                                            \
    X(DT_Q5_K, q5_k, SHAPE_U5M, 8, 176)                                                            \
    X(DT_Q6_K, q6_k, SHAPE_U6, 8, 210)                                                             \
    X(DT_Q2_K, q2_k, SHAPE_U2M, 8, 84)                                                             \
    X(DT_Q3_K, q3_k, SHAPE_U3, 8, 110)                                                             \
    X(DT_IQ4_NL, iq4_nl, SHAPE_S32, 1, 18)                                                         \
    X(DT_IQ4_XS, iq4_xs, SHAPE_S32, 8, 136)                                                        \
    X(DT_MXFP4, mxfp4, SHAPE_S32, 1, 17)

#endif
