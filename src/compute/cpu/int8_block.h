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

#define FEW_ROWS 4 // most rows that are multiplied without storing panels

/* Few rows of activations, side by side. */
typedef struct x_rows {
    const int8_t *q;    // [n_cols / 4, rows, ACT_PLANES, 4]
    const float *scale; // [n_cols / 32, rows]
    const int *init;    // [n_cols / sub, rows]: -offset * sum, where there is an offset
    const float *sum;   // [n_cols / sub, rows]: scale * sum, where there are mins
    const int *wide;    // [n_cols / sub, rows, 2]: as in x_record, with FEW_WIDE
} x_rows;

/* A block of 32 k of a tile of more rows is one record of dwords, records in the order in which
 * they are read:
 *   low    [8, rows]        low planes
 *   wide   [subs, rows, 2]  the wide quad's hi, and where its weights lie in the block, in bytes;
 *                           hi 0 where the sub-block has none
 *   scale  [rows]
 *   init   [subs, rows]     as in x_rows
 *   sum    [subs, rows]     as in x_rows
 */
typedef struct x_record {
    int wide, scale, init, sum, size; // in dwords
} x_record;
KERNEL_INLINE x_record record_of(shape f, int rows)
{
    x_record r = { 0 };
    int subs = 32 / f.sub;
    r.wide = 8 * rows;
    r.scale = r.wide + 2 * subs * rows;
    r.init = r.scale + rows;
    r.sum = r.init + (f.offset ? subs * rows : 0);
    r.size = r.sum + (f.has_min ? subs * rows : 0);
    return r;
}

/* A chunk of an unpacked panel. */
typedef struct panel_chunk {
    uint8_t *w;   // [n / 32, 8, LANES, 4]
    float *scale; // [n / sub, LANES]
    float *min;   // [n / sub, LANES]
} panel_chunk;

/* ---- one block ---- */

KERNEL_INLINE int dots_at_once(int w_max, int dwords)
{
    int width = dot_width(w_max);
    return width < dwords ? width : dwords;
}

#ifndef FEW_WIDE // a level may take the wide quad otherwise
#define FEW_WIDE false  // few rows are multiplied by both planes in full
#define WIDE_LAST false // the wide quad's sum is shifted in place, then added to
/* acc + 256 * (w . x) */
KERNEL_INLINE vi vi_add_high(vi acc, vi w, int x, int w_max)
{
    return vi_add(acc, vi_sll(vi_dot(vi_zero(), &w, (const int8_t *)&x, 0, 1, w_max), 8));
}
#endif

#ifndef LEVEL_FEW_DOTS // a level whose instructions are used otherwise brings its own
/* sum [rows] += w . (256 * high + low) over `dwords` dwords of k; w [dwords], q [dwords, rows,
 * ACT_PLANES, 4]. */
KERNEL_INLINE void few_dots(vi *sum, const vi *w, const int8_t *q, int dwords, int w_max, int rows)
{
    int width = dots_at_once(w_max, dwords);
    size_t step = (size_t)rows * 4 * ACT_PLANES;
    vi high[FEW_ROWS];
    KERNEL_UNROLL for (int r = 0; r < rows; r++) high[r] = vi_zero();
    KERNEL_UNROLL for (int j = 0; j < dwords; j += width)
        KERNEL_UNROLL for (int r = 0; r < rows; r++)
    {
        const int8_t *v = q + (size_t)j * step + r * 4 * ACT_PLANES;
        high[r] = vi_dot(high[r], w + j, v, step, width, w_max);
        sum[r] = vi_dot(sum[r], w + j, v + 4, step, width, w_max);
    }
    KERNEL_UNROLL for (int r = 0; r < rows; r++) sum[r] = vi_add(sum[r], vi_sll(high[r], 8));
}
#endif

#ifndef LEVEL_STORED_DOTS
/* sum [rows, panels] += w . x over `dwords` dwords of k; w: each panel's [dwords, LANES, 4] as
 * stored, x [dwords, rows]. */
KERNEL_INLINE void stored_dots(vi *sum, const uint8_t *const *w, const int *x, int dwords,
                               int w_max, int rows, int panels)
{
    int width = dots_at_once(w_max, dwords);
    KERNEL_UNROLL for (int j = 0; j < dwords; j += width)
    {
        vi u[TILE_PANELS][8];
        KERNEL_UNROLL for (int p = 0; p < panels; p++)
            KERNEL_UNROLL for (int i = 0; i < width; i++) u[p][i] =
                vi_load(w[p] + (size_t)(j + i) * LANES * 4);
        KERNEL_UNROLL for (int r = 0; r < rows; r++)
            KERNEL_UNROLL for (int p = 0; p < panels; p++) sum[r * panels + p] =
                vi_dot(sum[r * panels + p], u[p], (const int8_t *)(x + j * rows + r),
                       (size_t)rows * 4, width, w_max);
    }
}
#endif

/* sum [rows, panels] += 256 * the wide quads of a sub-block: wide [rows, 2]; w: where the panels
 * have the block. */
KERNEL_INLINE void wide_dots(vi *sum, const uint8_t *const *w, const int *wide, int w_max, int rows,
                             int panels)
{
    KERNEL_UNROLL for (int r = 0; r < rows; r++, wide += 2)
        KERNEL_UNROLL for (int p = 0; p < panels; p++)
    {
        vi *to = &sum[r * panels + p];
        *to = vi_add_high(*to, vi_load(w[p] + (size_t)wide[1]), wide[0], w_max);
    }
}

/* Few rows: acc [rows] += one block; w [8], scale and min [32 / sub]. */
KERNEL_INLINE void multiply_block(vf *acc, const vi *w, const vf *scale, const vf *min, shape f,
                                  const x_rows *x, int block, int rows)
{
    int subs = 32 / f.sub, dwords = f.sub / 4, width = dots_at_once(f.w_max, dwords);
    size_t step = (size_t)rows * 4 * ACT_PLANES;
    const int8_t *q = x->q + (size_t)block * 8 * step;
    uint8_t stored[8 * LANES * 4] ATTR_ALIGNED(64);
    const uint8_t *at_quad = stored;
    KERNEL_UNROLL for (int j = 0; FEW_WIDE && j < 8; j++) vi_store(stored + j * LANES * 4, w[j]);
    KERNEL_UNROLL for (int s = 0; s < subs; s++)
    {
        size_t at = (size_t)(block * subs + s) * (size_t)rows;
        vi dot[FEW_ROWS];
        KERNEL_UNROLL for (int r = 0; r < rows; r++) dot[r] =
            f.offset ? vi_set1(x->init[at + (size_t)r]) : vi_zero();
        if (FEW_WIDE) {
            KERNEL_UNROLL for (int j = s * dwords; j < (s + 1) * dwords; j += width)
                KERNEL_UNROLL for (int r = 0; r < rows; r++) dot[r] =
                    vi_dot(dot[r], w + j, q + (size_t)j * step + r * 4 * ACT_PLANES + 4, step,
                           width, f.w_max);
            wide_dots(dot, &at_quad, x->wide + at * 2, f.w_max, rows, 1);
        } else {
            few_dots(dot, w + s * dwords, q + (size_t)(s * dwords) * step, dwords, f.w_max, rows);
        }
        KERNEL_UNROLL for (int r = 0; r < rows; r++)
        {
            vf ws = vf_mul(scale[s], vf_set1(x->scale[block * rows + r]));
            acc[r] = vf_fma(ws, vi_to_vf(dot[r]), acc[r]);
            if (f.has_min) acc[r] = vf_fma(min[s], vf_set1(x->sum[at + (size_t)r]), acc[r]);
        }
    }
}

KERNEL_INLINE vf record_float(const int *x)
{
    float f;
    memcpy(&f, x, sizeof f);
    return vf_set1(f);
}

/* More rows: acc [rows, panels] += one block of stored panels; x is its record. */
KERNEL_INLINE void multiply_stored(vf *acc, const panel_chunk *c, shape f, const int *x, int block,
                                   int rows, int panels)
{
    int subs = 32 / f.sub, dwords = f.sub / 4;
    const x_record rec = record_of(f, rows);
    const uint8_t *w[TILE_PANELS], *from[TILE_PANELS];
    KERNEL_UNROLL for (int p = 0; p < panels; p++) w[p] = c[p].w + (size_t)block * 8 * LANES * 4;
    KERNEL_UNROLL for (int s = 0; s < subs; s++)
    {
        size_t scales = (size_t)(block * subs + s) * LANES;
        vi dot[TILE_ROWS * TILE_PANELS];
        KERNEL_UNROLL for (int r = 0; r < rows; r++)
            KERNEL_UNROLL for (int p = 0; p < panels; p++) dot[r * panels + p] =
                f.offset ? vi_set1(x[rec.init + s * rows + r]) : vi_zero();
        if (!WIDE_LAST) wide_dots(dot, w, x + rec.wide + s * rows * 2, f.w_max, rows, panels);
        KERNEL_UNROLL for (int p = 0; p < panels; p++) from[p] =
            w[p] + (size_t)(s * dwords) * LANES * 4;
        stored_dots(dot, from, x + s * dwords * rows, dwords, f.w_max, rows, panels);
        if (WIDE_LAST) wide_dots(dot, w, x + rec.wide + s * rows * 2, f.w_max, rows, panels);
        KERNEL_UNROLL for (int p = 0; p < panels; p++)
        {
            vf scale = vf_load(c[p].scale + scales);
            vf min = f.has_min ? vf_load(c[p].min + scales) : vf_zero();
            KERNEL_UNROLL for (int r = 0; r < rows; r++)
            {
                vf *a = &acc[r * panels + p];
                vf ws = vf_mul(scale, record_float(x + rec.scale + r));
                *a = vf_fma(ws, vi_to_vf(dot[r * panels + p]), *a);
                if (f.has_min) *a = vf_fma(min, record_float(x + rec.sum + s * rows + r), *a);
            }
        }
    }
}

/* Where a unit function's blocks go. All but the pointers is constant after inlining. */
typedef struct sink {
    shape f;
    int rows;        // 0: store
    const x_rows *x; // multiply
    vf *acc;         // [rows]
    panel_chunk out; // store
} sink;

KERNEL_INLINE void emit(const sink *s, int block, const vi *w, const vf *scale, const vf *min)
{
    if (s->rows) {
        multiply_block(s->acc, w, scale, min, s->f, s->x, block, s->rows);
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
