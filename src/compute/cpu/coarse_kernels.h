/*
 * coarse_kernels.h: scores and bounds from a coarse copy (compute/coarse.h), written once over the
 * registers of vec_matmul.h; a level's coarse_<level>.c adds vi_bytes, LANES bytes to dwords. These
 * floats are within a bound that covers their rounding, so their order is free.
 *
 * A panel is read front to back once, by one stream, 288 bytes a block for 16 rows: the processor
 * foresees it, and a prefetch further ahead than 2 KiB only disturbs it (Zen 4, one thread:
 * 37 GB/s; 35 without; 21 at 8 KiB).
 */
#ifndef COMPUTE_CPU_COARSE_KERNELS_H
#define COMPUTE_CPU_COARSE_KERNELS_H

#include "compute/coarse.h"
#include "compute/cpu/coarse_pack.h"
#include "compute/cpu/vec_matmul.h"

/* One block of LANES rows: score += u * (scale * codes . v + offset), bound += e * norm. */
KERNEL_INLINE void coarse_block(vf *score, vf *bound, const uint8_t *p, int lane, int b,
                                const coarse_act *x)
{
    vi t[4], w[8], mask = vi_set1(0x0f0f0f0f), high = vi_zero(), low = vi_zero();
    vi a0 = vi_load(p + 4 * lane), a1 = vi_load(p + 64 + 4 * lane);
    vi a2 = vi_load(p + 128 + 4 * lane), a3 = vi_load(p + 192 + 4 * lane);
    vi ab = vi_lo32(a0, a1), cd = vi_lo32(a2, a3);
    t[0] = vi_lo64(ab, cd);
    t[1] = vi_hi64(ab, cd);
    ab = vi_hi32(a0, a1);
    cd = vi_hi32(a2, a3);
    t[2] = vi_lo64(ab, cd);
    t[3] = vi_hi64(ab, cd);
    KERNEL_UNROLL for (int j = 0; j < 4; j++)
    {
        w[j] = vi_and(t[j], mask);
        w[4 + j] = vi_and(vi_srl(t[j], 4), mask);
    }
    int width = dot_width(15);
    size_t step = 4 * ACT_PLANES;
    const int8_t *q = x->q + (size_t)b * 32 * ACT_PLANES;
    KERNEL_UNROLL for (int j = 0; j < 8; j += width)
    {
        high = vi_dot(high, w + j, q + (size_t)j * step, step, width, 15);
        low = vi_dot(low, w + j, q + (size_t)j * step + 4, step, width, 15);
    }
    vf dot = vi_to_vf(vi_add(low, vi_sll(high, 8)));
    vf part = vf_fma(vf_set1(x->scale[b]), dot, vf_set1(x->offset[b]));
    *score = vf_fma(vi_to_vf(vi_bytes(p + 256 + lane)), part, *score);
    *bound = vf_fma(vi_to_vf(vi_bytes(p + 272 + lane)), vf_set1(x->norm[b]), *bound);
}

static void coarse_scores(float *score, float *upper, const uint8_t *panels, int n_panels,
                          int n_blocks, const coarse_act *x)
{
    size_t bytes = coarse_panel_bytes(n_blocks * 32);
    for (int i = 0; i < n_panels; i++, panels += bytes) {
        vf s[PANEL / LANES], e[PANEL / LANES];
        KERNEL_UNROLL for (int h = 0; h < PANEL / LANES; h++) s[h] = e[h] = vf_zero();
        for (int b = 0; b < n_blocks; b++) {
            const uint8_t *p = panels + (size_t)b * COARSE_BLOCK;
            for (int line = 0; line < COARSE_BLOCK; line += 64)
                PREFETCH_FAR(p + 1024 + line);
            KERNEL_UNROLL for (int h = 0; h < PANEL / LANES; h++)
                coarse_block(&s[h], &e[h], p, h * LANES, b, x);
        }
        const float *row = (const float *)(const void *)(panels + (size_t)n_blocks * COARSE_BLOCK);
        KERNEL_UNROLL for (int h = 0; h < PANEL / LANES; h++)
        {
            const float *r = row + h * LANES;
            vf v = vf_mul(vf_load(r + 2 * PANEL), vf_set1(x->along));
            v = vf_fma(vf_load(r), s[h], v);
            vf bound = vf_mul(vf_load(r + 3 * PANEL), vf_set1(x->slack));
            bound = vf_fma(vf_load(r + PANEL), e[h], bound);
            vf_store(score + i * PANEL + h * LANES, v);
            vf_store(upper + i * PANEL + h * LANES, vf_add(v, bound));
        }
    }
}

#endif
