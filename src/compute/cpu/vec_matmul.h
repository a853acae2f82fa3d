/*
 * vec_matmul.h: what matmul_int8.h and matmul_f32.h share. Both are written once over the level's
 * own register, which the vec_<level>.h before them gives as
 *
 *   vf, vi         LANES floats, LANES dwords or 4 * LANES bytes: 16 with AVX-512, 8 with AVX2, 4
 *                  with NEON
 *   REGISTERS      how many there are
 *   PIN            v is in a register here. Compilers load weights again for each product, and turn
 *                  chains of integer additions into trees that take more registers
 *   TILE_ROWS, TILE_PANELS   rows of activations and panels of LANES outputs, the product of which
 *                  a tile keeps in accumulators
 *   vi_rows        16 bytes from each of LANES / 4 places, `step` bytes apart
 *   vi_square      LANES dwords of each of LANES rows, transposed: whole lines of the cache at once
 *   vi_or_and      a | (b & mask)
 *   vf_load_half   LANES binary16, to floats; vf_load_bf16: LANES bfloat16
 *   vi_half        the low 16 bits of each dword, as binary16, to floats
 *   vi_bits_to_16  for bits `from` … from + 3 of a dword: 0x10 in byte i where bit i is set
 *   vi_table16     each byte to table[byte]
 *   vi_low_quads   dwords [8, TILE_ROWS]: the low plane of a block (act_row's q) of TILE_ROWS rows
 *   wide_quad      a block's quad whose high plane is not 0; any where there is none
 *   vi_dot         acc + w . x for n vectors of 4 bytes a lane; x: one dword for all lanes, the
 *                  dwords `step` bytes apart. Weights are 0 … w_max, or signed ones (w_max 128)
 * after vi_signed_weights, which adds SIGNED_OFFSET. n is at most dot_width(w_max).
 */
#ifndef COMPUTE_CPU_VEC_MATMUL_H
#define COMPUTE_CPU_VEC_MATMUL_H

#include "compute/cpu/kernels.h"

/* Four dwords of each of LANES rows, transposed: t[j] has dword j of row i in lane i. */
KERNEL_INLINE void load_dwords(vi *t, const uint8_t *p, size_t stride)
{
    vi a = vi_rows(p, 4 * stride), b = vi_rows(p + stride, 4 * stride);
    vi c = vi_rows(p + 2 * stride, 4 * stride), d = vi_rows(p + 3 * stride, 4 * stride);
    vi ab = vi_lo32(a, b), cd = vi_lo32(c, d);
    t[0] = vi_lo64(ab, cd);
    t[1] = vi_hi64(ab, cd);
    ab = vi_hi32(a, b);
    cd = vi_hi32(c, d);
    t[2] = vi_lo64(ab, cd);
    t[3] = vi_hi64(ab, cd);
}

/* Stores the first n lanes. */
KERNEL_INLINE void vf_store_n(float *p, vf a, int n)
{
    if (n == LANES) {
        vf_store(p, a);
        return;
    }
    float part[LANES] ATTR_ALIGNED(64);
    vf_store(part, a);
    memcpy(p, part, (size_t)n * sizeof(float));
}

/* Cuts rows into tiles of TILE_ROWS, then 2 and 1: the next tile's rows when `left` are left. */
KERNEL_INLINE int tile_rows(int left)
{
    int rows = TILE_ROWS;
    while (rows > left)
        rows /= 2;
    return rows;
}

#endif
