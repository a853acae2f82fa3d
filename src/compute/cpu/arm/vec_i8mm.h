/*
 * vec_i8mm.h: dot products of bytes by SMMLA (FEAT_I8MM): 8 bytes of two outputs times 8 bytes of
 * two columns, which are two rows of activations, or the two planes of one: so that a row alone
 * uses the whole instruction.
 */
#ifndef COMPUTE_CPU_ARM_VEC_I8MM_H
#define COMPUTE_CPU_ARM_VEC_I8MM_H

#include "compute/cpu/arm/vec_sdot.h"

KERNEL_INLINE vi mmla(vi acc, vi w, vi x)
{
    return vmmlaq_s32(acc, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
}
/* Dwords 0 2 1 3. */
KERNEL_INLINE vi swap_middle(vi v) { return vi_lo32(v, vextq_s32(v, v, 2)); }

KERNEL_INLINE void few_dots(vi *sum, const vi *w, const int8_t *q, int dwords, int w_max, int rows)
{
    vi a[4], b[4]; // outputs 0 and 1, 2 and 3: high, low of each
    (void)w_max;
    KERNEL_UNROLL for (int r = 0; r < rows; r++) a[r] = b[r] = vi_zero();
    KERNEL_UNROLL for (int j = 0; j < dwords; j += 2)
    {
        vi x[4], w01 = vi_lo32(w[j], w[j + 1]), w23 = vi_hi32(w[j], w[j + 1]);
        if (rows == 1) x[0] = swap_middle(vi_load(q + j * 8));
        KERNEL_UNROLL for (int r = 0; r + 1 < rows; r += 2)
        {
            vi first = vi_load(q + (j * rows + r) * 8);
            vi second = vi_load(q + ((j + 1) * rows + r) * 8);
            x[r] = vi_lo32(first, second);
            x[r + 1] = vi_hi32(first, second);
        }
        KERNEL_UNROLL for (int r = 0; r < rows; r++)
        {
            a[r] = mmla(a[r], w01, x[r]);
            b[r] = mmla(b[r], w23, x[r]);
        }
    }
    KERNEL_UNROLL for (int r = 0; r < rows; r++)
    {
        vi high = vuzp1q_s32(a[r], b[r]), low = vuzp2q_s32(a[r], b[r]);
        sum[r] = vi_add(sum[r], vi_add(low, vi_sll(high, 8)));
    }
}

KERNEL_INLINE void stored_dots(vi *sum, const uint8_t *const *w, const int *x, int dwords,
                               int w_max, int rows, int panels)
{
    vi a[2 * TILE_PANELS], b[2 * TILE_PANELS]; // [pairs of rows, panels], as above: row, next row
    int pairs = (rows + 1) / 2;
    (void)w_max;
    KERNEL_UNROLL for (int i = 0; i < pairs * panels; i++) a[i] = b[i] = vi_zero();
    KERNEL_UNROLL for (int j = 0; j < dwords; j += 2)
    {
        vi v[2];
        if (rows == 1) {
            v[0] = vreinterpretq_s32_s64(vdupq_n_s64(vget_lane_s64(
                vreinterpret_s64_u8(vld1_u8((const uint8_t *)(x + j))), 0))); // twice the row
        } else if (rows == 2) {
            v[0] = swap_middle(vi_load(x + j * 2));
        } else {
            vi first = vi_load(x + j * 4), second = vi_load(x + j * 4 + 4);
            v[0] = vi_lo32(first, second);
            v[1] = vi_hi32(first, second);
        }
        KERNEL_UNROLL for (int p = 0; p < panels; p++)
        {
            vi first = vi_load(w[p] + j * LANES * 4), second = vi_load(w[p] + (j + 1) * LANES * 4);
            vi w01 = vi_lo32(first, second), w23 = vi_hi32(first, second);
            KERNEL_UNROLL for (int i = 0; i < pairs; i++)
            {
                a[i * panels + p] = mmla(a[i * panels + p], w01, v[i]);
                b[i * panels + p] = mmla(b[i * panels + p], w23, v[i]);
            }
        }
    }
    KERNEL_UNROLL for (int r = 0; r < rows; r++) KERNEL_UNROLL for (int p = 0; p < panels; p++)
    {
        vi u = a[r / 2 * panels + p], v = b[r / 2 * panels + p];
        u = r % 2 ? vuzp2q_s32(u, v) : vuzp1q_s32(u, v);
        sum[r * panels + p] = vi_add(sum[r * panels + p], u);
    }
}

#endif
