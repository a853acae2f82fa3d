/*
 * matmul_f32.h: products of dequantised weights and float32 activations, written once over the
 * registers of vec_matmul.h. A chunk of F32_CHUNK k of a panel of LANES outputs is converted to
 * floats [k, LANES] in scratch; tiles of rows run over it in the order that kernels.h states.
 */
#ifndef COMPUTE_CPU_MATMUL_F32_H
#define COMPUTE_CPU_MATMUL_F32_H

#include "compute/cpu/scratch.h"
#include "compute/cpu/vec_matmul.h"

/* A transposed dword to floats: one of F32, two of the others. */
KERNEL_INLINE void store_dword(float *w, vi t, dtype type)
{
    if (type == DT_F32) {
        vi_store(w, t);
    } else if (type == DT_BF16) {
        vi_store(w, vi_sll(t, 16));
        vi_store(w + LANES, vi_and(t, vi_set1((int)0xffff0000u)));
    } else {
        vf_store(w, vi_half(t));
        vf_store(w + LANES, vi_half(vi_srl(t, 16)));
    }
}

/* LANES whole rows of n k to floats [k, LANES]; returns the k done: a multiple of four dwords. */
KERNEL_INLINE int store_floats(float *w, const uint8_t *p, size_t stride, int n, dtype type)
{
    int per = type == DT_F32 ? 1 : 2, dwords = n / per, i = 0; // k in a dword
    vi t[LANES];
    for (; i + LANES <= dwords; i += LANES) {
        vi_square(t, p + (size_t)i * 4, stride);
        KERNEL_UNROLL for (int j = 0; j < LANES; j++)
            store_dword(w + (i + j) * per * LANES, t[j], type);
    }
    for (; i + 4 <= dwords; i += 4) {
        load_dwords(t, p + (size_t)i * 4, stride);
        KERNEL_UNROLL for (int j = 0; j < 4; j++)
            store_dword(w + (i + j) * per * LANES, t[j], type);
    }
    return i * per;
}

KERNEL_INLINE vf load_floats(const uint8_t *p, dtype type)
{
    if (type == DT_F32) return vf_load((const float *)(const void *)p);
    return type == DT_F16 ? vf_load_half(p) : vf_load_bf16(p);
}

/* n k of a panel (compute/panels.h) at p to floats [n, LANES]. */
KERNEL_INLINE void widen_panel(float *w, const uint8_t *p, int n, dtype type)
{
    size_t step = (type == DT_F32 ? 4 : 2) * PANEL;
    for (int k = 0; k < n; k++)
        vf_store(w + k * LANES, load_floats(p + (size_t)k * step, type));
}
static void store_from_panel(float *w, dtype type, const uint8_t *p, int n)
{
    if (type == DT_F32)
        widen_panel(w, p, n, DT_F32);
    else if (type == DT_F16)
        widen_panel(w, p, n, DT_F16);
    else
        widen_panel(w, p, n, DT_BF16);
}
/* Where w's panels have k of the LANES rows from o on. */
static inline const uint8_t *floats_at(const tensor *w, int o, int k)
{
    size_t size = (size_t)quant_formats[w->type]->block_bytes;
    return w->panels + (size_t)(o / PANEL * PANEL) * w->row_bytes +
           ((size_t)k * PANEL + (size_t)(o % PANEL)) * size;
}

/* n k of the rows at p to floats [n, LANES]. Rows from n_rows on are 0. */
static void store_panel(float *w, dtype type, const uint8_t *p, size_t stride, int n_rows, int n,
                        float *rows)
{
    int k = 0;
    if (n_rows == LANES && type == DT_F32) k = store_floats(w, p, stride, n, DT_F32);
    if (n_rows == LANES && type == DT_BF16) k = store_floats(w, p, stride, n, DT_BF16);
    if (n_rows == LANES && type == DT_F16) k = store_floats(w, p, stride, n, DT_F16);
    if (k == n) return;
    // Other formats, few rows, or the last k: through whole rows of floats.
    const quant_format *f = quant_formats[type];
    for (int i = 0; i < LANES; i++) {
        float *row = rows + (size_t)i * F32_CHUNK;
        if (i < n_rows)
            f->dequant(row, p + (size_t)i * stride + (size_t)(k / f->block_size) * f->block_bytes,
                       (size_t)(n - k));
        else
            memset(row, 0, (size_t)(n - k) * sizeof *row);
    }
    for (int j = 0; k < n; k += 4, j += 4) { // up to three k of anything after n, within the chunk
        vi t[4];
        load_dwords(t, (const uint8_t *)(rows + j), F32_CHUNK * 4);
        KERNEL_UNROLL for (int i = 0; i < 4; i++) vi_store(w + (k + i) * LANES, t[i]);
    }
}

/* acc [rows, panels, LANES] += panels . x, blocks of 32 k each on their own; x is [n, rows], a
 * panel [F32_CHUNK, LANES]. */
KERNEL_INLINE void run_f32(float *acc, const float *w, const float *x, int n, int rows, int panels)
{
    vf sum[TILE_ROWS * TILE_PANELS], part[TILE_ROWS * TILE_PANELS], v[TILE_PANELS];
    KERNEL_UNROLL for (int i = 0; i < rows * panels; i++) sum[i] = vf_load(acc + i * LANES);
    for (int b = 0; b < n; b += 32) {
        int end = b + 32 < n ? b + 32 : n;
        KERNEL_UNROLL for (int i = 0; i < rows * panels; i++) part[i] = vf_zero();
        for (int k = b; k < end; k++) {
            KERNEL_UNROLL for (int p = 0; p < panels; p++)
            {
                v[p] = vf_load(w + ((size_t)k + (size_t)p * F32_CHUNK) * LANES);
                PIN(v[p]);
            }
            KERNEL_UNROLL for (int r = 0; r < rows; r++)
            {
                vf xk = vf_set1(x[(size_t)k * (size_t)rows + (size_t)r]);
                KERNEL_UNROLL for (int p = 0; p < panels; p++) part[r * panels + p] =
                    vf_fma(v[p], xk, part[r * panels + p]);
            }
        }
        KERNEL_UNROLL for (int i = 0; i < rows * panels; i++) sum[i] = vf_add(sum[i], part[i]);
    }
    KERNEL_UNROLL for (int i = 0; i < rows * panels; i++) vf_store(acc + i * LANES, sum[i]);
}

/* One row: four blocks at a time, so that four sums hide the latency of the addition. */
static void run_f32_one(float *acc, const float *w, const float *x, int n)
{
    int b = 0;
    vf sum = vf_load(acc);
    for (; b + 128 <= n; b += 128) {
        vf part[4];
        KERNEL_UNROLL for (int i = 0; i < 4; i++) part[i] = vf_zero();
        for (int k = b; k < b + 32; k++)
            KERNEL_UNROLL for (int i = 0; i < 4; i++) part[i] =
                vf_fma(vf_load(w + (size_t)(k + 32 * i) * LANES), vf_set1(x[k + 32 * i]), part[i]);
        KERNEL_UNROLL for (int i = 0; i < 4; i++) sum = vf_add(sum, part[i]);
    }
    vf_store(acc, sum);
    run_f32(acc, w + (size_t)b * LANES, x + b, n - b, 1, 1);
}

KERNEL_INLINE void run_f32_panels(float *acc, const float *w, const float *x, int n, int rows,
                                  int panels)
{
    if (rows == 1 && panels == 1)
        run_f32_one(acc, w, x, n);
    else if (rows == 1)
        run_f32(acc, w, x, n, 1, panels);
    else if (rows == 2)
        run_f32(acc, w, x, n, 2, panels);
    else
        run_f32(acc, w, x, n, TILE_ROWS, panels);
}

static void run_f32_tile(float *acc, const float *w, const float *x, int n, int rows, int panels)
{
    if (panels == 1)
        run_f32_panels(acc, w, x, n, rows, 1);
    else
        run_f32_panels(acc, w, x, n, rows, TILE_PANELS);
}

/* Tiles of rows side by side: [cols, rows of the tile]. */
static void pack_f32(float *packed, const act *x, int first, int n)
{
    size_t cols = (size_t)x->n_cols;
    for (int r = 0, m; r < n; r += m, packed += (size_t)m * cols) {
        m = tile_rows(n - r);
        for (int i = 0; i < m; i++) {
            const float *from = x->x + (size_t)(first + r + i) * x->stride;
            for (size_t k = 0; k < cols; k++)
                packed[k * (size_t)m + (size_t)i] = from[k];
        }
    }
}

/* The next panel, in pieces as large as the chunk of n k that is used meanwhile. */
static void prefetch_next(const tensor *w, int o, int k, int n)
{
    const quant_format *f = quant_formats[w->type];
    size_t done = (size_t)k / (size_t)f->block_size * (size_t)f->block_bytes * LANES;
    size_t bytes = (size_t)n / (size_t)f->block_size * (size_t)f->block_bytes * LANES;
    if (o + 2 * LANES > w->n_rows) return;
    const uint8_t *next = w->data + (size_t)(o + LANES) * w->row_bytes + done;
    for (size_t i = 0; i < bytes; i += 64)
        PREFETCH(next + i);
}

#define FLOATS_AHEAD 4096
#define ONE_PANELS 4 // panels of one row's products under way: a sum waits for itself four cycles

/* One row and weights in panels: nothing goes through memory. */
KERNEL_INLINE void panels_one_row(const matmul_args *a, int o, int panels, dtype type)
{
    const tensor *w = a->w;
    const float *x = a->x->x;
    const uint8_t *p[ONE_PANELS];
    size_t step = (type == DT_F32 ? 4 : 2) * PANEL;
    vf sum[ONE_PANELS], part[ONE_PANELS];
    KERNEL_UNROLL for (int i = 0; i < panels; i++)
    {
        p[i] = floats_at(w, o + i * LANES, 0);
        sum[i] = vf_zero();
    }
    for (int b = 0; b < w->n_cols; b += 32) {
        int end = b + 32 < w->n_cols ? b + 32 : w->n_cols;
        KERNEL_UNROLL for (int i = 0; i < panels; i++) part[i] = vf_zero();
        for (int k = b; k < end; k++)
            KERNEL_UNROLL for (int i = 0; i < panels; i++)
        {
            const uint8_t *q = p[i] + (size_t)k * step;
            PREFETCH_FAR(q + FLOATS_AHEAD);
            part[i] = vf_fma(load_floats(q, type), vf_set1(x[k]), part[i]);
        }
        KERNEL_UNROLL for (int i = 0; i < panels; i++) sum[i] = vf_add(sum[i], part[i]);
    }
    KERNEL_UNROLL for (int i = 0; i < panels; i++)
    {
        int out = o + i * LANES, left = w->n_rows - out;
        vf_store_n(a->y + out, sum[i], left < LANES ? left : LANES);
    }
}
KERNEL_INLINE void panels_one(const matmul_args *a, dtype type)
{
    int o = a->begin;
    for (; o + (ONE_PANELS - 1) * LANES < a->end; o += ONE_PANELS * LANES)
        panels_one_row(a, o, ONE_PANELS, type);
    for (; o < a->end; o += LANES)
        panels_one_row(a, o, 1, type);
}

/* Rows [first, first + n) of x. */
static void f32_rows(const matmul_args *a, int first, int n)
{
    int cols = a->w->n_cols;
    bool in_panels = a->w->panels && panels_float(a->w->type);
    const quant_format *f = quant_formats[a->w->type];
    uint8_t *at = a->scratch;
    float *w = scratch_take(&at, (size_t)F32_CHUNK * LANES * TILE_PANELS * 4);
    float *rows = scratch_take(&at, ((size_t)F32_CHUNK + 16) * LANES * 4);
    float *acc = scratch_take(&at, (size_t)n * LANES * TILE_PANELS * 4);
    float *packed = scratch_take(&at, (size_t)n * (size_t)cols * 4);
    pack_f32(packed, a->x, first, n);
    for (int o = a->begin, panels; o < a->end; o += panels * LANES) {
        panels = n > 1 && a->end - o > (TILE_PANELS - 1) * LANES ? TILE_PANELS : 1;
        memset(acc, 0, (size_t)n * (size_t)panels * LANES * sizeof(float));
        for (int k = 0; k < cols; k += F32_CHUNK) {
            int m = cols - k < F32_CHUNK ? cols - k : F32_CHUNK, tile;
            if (n == 1 && !in_panels) prefetch_next(a->w, o, k, m);
            for (int p = 0; p < panels; p++) {
                int out = o + p * LANES, left = a->w->n_rows - out;
                float *chunk = w + (size_t)p * F32_CHUNK * LANES;
                if (in_panels) {
                    store_from_panel(chunk, a->w->type, floats_at(a->w, out, k), m);
                    continue;
                }
                store_panel(chunk, a->w->type,
                            a->w->data + (size_t)out * a->w->row_bytes +
                                (size_t)(k / f->block_size) * (size_t)f->block_bytes,
                            a->w->row_bytes, left < LANES ? left : LANES, m, rows);
            }
            for (int r = 0; r < n; r += tile) {
                tile = tile_rows(n - r);
                run_f32_tile(acc + (size_t)r * (size_t)panels * LANES, w,
                             packed + (size_t)r * (size_t)cols + (size_t)k * (size_t)tile, m, tile,
                             panels);
            }
        }
        for (int r = 0; r < n; r++)
            for (int p = 0; p < panels; p++) {
                int out = o + p * LANES, left = a->w->n_rows - out;
                vf_store_n(a->y + (size_t)(first + r) * a->y_stride + out,
                           vf_load(acc + (r * panels + p) * LANES), left < LANES ? left : LANES);
            }
    }
}

static void matmul_f32(const matmul_args *a)
{
    if (a->w->panels && a->x->n_rows == 1 && panels_float(a->w->type)) {
        if (a->w->type == DT_F32)
            panels_one(a, DT_F32);
        else if (a->w->type == DT_F16)
            panels_one(a, DT_F16);
        else
            panels_one(a, DT_BF16);
        return;
    }
    int group = f32_group(a->w->n_cols);
    for (int r = 0; r < a->x->n_rows; r += group)
        f32_rows(a, r, a->x->n_rows - r < group ? a->x->n_rows - r : group);
}

#endif
