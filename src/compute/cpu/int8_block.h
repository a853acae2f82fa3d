/*
 * int8_block.h: one block of 32 k of a panel: how it lies in registers, its products with a tile of
 * activations, and where a unit function (int8_units.h) hands it. For matmul_int8.h, which says
 * what a panel is.
 */
#ifndef COMPUTE_CPU_INT8_BLOCK_H
#define COMPUTE_CPU_INT8_BLOCK_H

#include "compute/cpu/vec_matmul.h"

/* How weights lie in a panel: w in 0 … w_max stands for w - offset. */
typedef struct shape {
    int sub; // 16 or 32
    bool has_min;
    int offset, w_max;
} shape;

#define SHAPE_U4M ((shape){ 32, true, 0, 15 })
#define SHAPE_U5M ((shape){ 32, true, 0, 31 })
#define SHAPE_U4 ((shape){ 32, false, 8, 15 })
#define SHAPE_U5 ((shape){ 32, false, 16, 31 })
#define SHAPE_U2M ((shape){ 16, true, 0, 15 })
#define SHAPE_U3 ((shape){ 16, false, 4, 15 })
#define SHAPE_U6 ((shape){ 16, false, 32, 63 })
#define SHAPE_S32 ((shape){ 32, false, SIGNED_OFFSET, 128 })
#define SHAPE_S16 ((shape){ 16, false, SIGNED_OFFSET, 128 })
#define SHAPE_S32M ((shape){ 32, true, SIGNED_OFFSET, 128 })
#define SHAPE_S16M ((shape){ 16, true, SIGNED_OFFSET, 128 })

/* A tile of activations: dwords, scales and sums of its rows side by side. */
typedef struct x_tile {
    const int8_t *q;    // [n_cols / 4, rows, ACT_PLANES, 4]
    const float *scale; // [n_cols / 32, rows]
    const int *init;    // [n_cols / sub, rows]: -offset * sum, where there is an offset
    const float *sum;   // [n_cols / sub, rows]: scale * sum, where there are mins
} x_tile;

/* A chunk of an unpacked panel. */
typedef struct panel_chunk {
    uint8_t *w;   // [n / 32, 8, LANES, 4]
    float *scale; // [n / sub, LANES]
    float *min;   // [n / sub, LANES]
} panel_chunk;

/* ---- one block ---- */

/* acc [rows, panels] += one block of `panels` panels; w [panels, 8], scale and min [panels, 32 /
 * sub]. */
KERNEL_INLINE void multiply_block(vf *acc, const vi *w, const vf *scale, const vf *min, shape f,
                                  const x_tile *x, int block, int rows, int panels)
{
    int subs = 32 / f.sub, width = dot_width(f.w_max);
    size_t step = (size_t)rows * 4 * ACT_PLANES;
    const int8_t *q = x->q + (size_t)block * 8 * step;
    const float *x_scale = x->scale + (size_t)block * (size_t)rows;
    KERNEL_UNROLL for (int s = 0; s < subs; s++)
    {
        size_t at = (size_t)(block * subs + s) * (size_t)rows;
        vi dot[TILE_ROWS * TILE_PANELS], high[TILE_ROWS * TILE_PANELS]; // v = 256 * high + low
        KERNEL_UNROLL for (int r = 0; r < rows; r++) KERNEL_UNROLL for (int p = 0; p < panels; p++)
        {
            dot[r * panels + p] = f.offset ? vi_set1(x->init[at + (size_t)r]) : vi_zero();
            high[r * panels + p] = vi_zero();
        }
        KERNEL_UNROLL for (int j = s * f.sub / 4; j < (s + 1) * f.sub / 4; j += width)
            KERNEL_UNROLL for (int r = 0; r < rows; r++)
                KERNEL_UNROLL for (int p = 0; p < panels; p++)
        {
            vi *h = &high[r * panels + p], *d = &dot[r * panels + p];
            const int8_t *v = q + (size_t)j * step + r * 4 * ACT_PLANES;
            *h = vi_dot(*h, w + p * 8 + j, v, step, width, f.w_max);
            *d = vi_dot(*d, w + p * 8 + j, v + 4, step, width, f.w_max);
        }
        KERNEL_UNROLL for (int r = 0; r < rows; r++) KERNEL_UNROLL for (int p = 0; p < panels; p++)
        {
            vf *a = &acc[r * panels + p];
            vf ws = vf_mul(scale[p * subs + s], vf_set1(x_scale[r]));
            vi sum = vi_add(dot[r * panels + p], vi_sll(high[r * panels + p], 8));
            *a = vf_fma(ws, vi_to_vf(sum), *a);
            if (f.has_min) *a = vf_fma(min[p * subs + s], vf_set1(x->sum[at + (size_t)r]), *a);
        }
    }
}

/* Where a unit function's blocks go. All but the pointers is constant after inlining. */
typedef struct sink {
    shape f;
    int rows;        // 0: store
    const x_tile *x; // multiply
    vf *acc;         // [rows]
    panel_chunk out; // store
} sink;

KERNEL_INLINE void emit(const sink *s, int block, const vi *w, const vf *scale, const vf *min)
{
    if (s->rows) {
        multiply_block(s->acc, w, scale, min, s->f, s->x, block, s->rows, 1);
        return;
    }
    KERNEL_UNROLL for (int j = 0; j < 8; j++)
        vi_store(s->out.w + ((size_t)block * 8 + j) * LANES * 4, w[j]);
    int subs = 32 / s->f.sub;
    KERNEL_UNROLL for (int i = 0; i < subs; i++)
    {
        vf_store(s->out.scale + (size_t)(block * subs + i) * LANES, scale[i]);
        if (s->f.has_min) vf_store(s->out.min + (size_t)(block * subs + i) * LANES, min[i]);
    }
}

#endif
