/*
 * matmul_f32.h: products of dequantised weights and float32 activations, written once over the
 * registers of vec_matmul.h. A chunk of F32_CHUNK k of a panel of LANES outputs is converted to floats
 * [k, LANES] in scratch; tiles of rows run over it in the order that kernels.h states.
 */
#ifndef COMPUTE_CPU_MATMUL_F32_H
#define COMPUTE_CPU_MATMUL_F32_H

#include "compute/cpu/scratch.h"
#include "compute/cpu/vec_matmul.h"

/* Panels are F32_CHUNK * LANES floats; k of a short last group of 8 or 4 are rounded up in it. */
KERNEL_INLINE void store_dwords(float *w, const uint8_t *p, size_t stride)
{
    vi t[4];
    load_dwords(t, p, stride);
    KERNEL_UNROLL for (int j = 0; j < 4; j++) vi_store(w + j * LANES, t[j]);
}
KERNEL_INLINE void store_bf16(float *w, const uint8_t *p, size_t stride)
{
    vi t[4], high = vi_set1((int)0xffff0000u);
    load_dwords(t, p, stride);
    KERNEL_UNROLL for (int j = 0; j < 4; j++) {
        vi_store(w + 2 * j * LANES, vi_sll(t[j], 16));
        vi_store(w + (2 * j + 1) * LANES, vi_and(t[j], high));
    }
}
KERNEL_INLINE void store_f16(float *w, const uint8_t *p, size_t stride)
{
    vi t[4];
    load_dwords(t, p, stride);
    KERNEL_UNROLL for (int j = 0; j < 4; j++) {
        vf_store(w + 2 * j * LANES, vi_half(t[j]));
        vf_store(w + (2 * j + 1) * LANES, vi_half(vi_srl(t[j], 16)));
    }
}

/* n k of the rows at p to floats [n, LANES]. Rows from n_rows on are 0. */
static void store_panel(float *w, dtype type, const uint8_t *p, size_t stride, int n_rows, int n,
                        float *rows)
{
    int k = 0;
    if (n_rows == LANES && type == DT_F32)
        for (; k + 4 <= n; k += 4) store_dwords(w + (size_t)k * LANES, p + (size_t)k * 4, stride);
    if (n_rows == LANES && type == DT_BF16)
        for (; k + 8 <= n; k += 8) store_bf16(w + (size_t)k * LANES, p + (size_t)k * 2, stride);
    if (n_rows == LANES && type == DT_F16)
        for (; k + 8 <= n; k += 8) store_f16(w + (size_t)k * LANES, p + (size_t)k * 2, stride);
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
    for (int j = 0; k < n; k += 4, j += 4) // up to three k of anything after n
        store_dwords(w + (size_t)k * LANES, (const uint8_t *)(rows + j), F32_CHUNK * 4);
}

/* acc [rows, LANES] += panel . x, blocks of 32 k each on their own; x is [n, rows]. */
KERNEL_INLINE void run_f32(float *acc, const float *w, const float *x, int n, int rows)
{
    vf sum[TILE_ROWS], part[TILE_ROWS];
    KERNEL_UNROLL for (int r = 0; r < rows; r++) sum[r] = vf_load(acc + r * LANES);
    for (int b = 0; b < n; b += 32) {
        int end = b + 32 < n ? b + 32 : n;
        KERNEL_UNROLL for (int r = 0; r < rows; r++) part[r] = vf_zero();
        for (int k = b; k < end; k++) {
            vf v = vf_load(w + (size_t)k * LANES);
            KERNEL_UNROLL for (int r = 0; r < rows; r++)
                part[r] = vf_fma(v, vf_set1(x[(size_t)k * rows + r]), part[r]);
        }
        KERNEL_UNROLL for (int r = 0; r < rows; r++) sum[r] = vf_add(sum[r], part[r]);
    }
    KERNEL_UNROLL for (int r = 0; r < rows; r++) vf_store(acc + r * LANES, sum[r]);
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
            KERNEL_UNROLL for (int i = 0; i < 4; i++)
                part[i] = vf_fma(vf_load(w + (size_t)(k + 32 * i) * LANES), vf_set1(x[k + 32 * i]),
                                 part[i]);
        KERNEL_UNROLL for (int i = 0; i < 4; i++) sum = vf_add(sum, part[i]);
    }
    vf_store(acc, sum);
    run_f32(acc, w + (size_t)b * LANES, x + b, n - b, 1);
}

static void run_f32_tile(float *acc, const float *w, const float *x, int n, int rows)
{
    if (rows == 1)
        run_f32_one(acc, w, x, n);
    else if (rows == 2)
        run_f32(acc, w, x, n, 2);
    else if (rows == 4)
        run_f32(acc, w, x, n, 4);
    else
        run_f32(acc, w, x, n, TILE_ROWS);
}

/* Rows [first, first + n) of x. */
static void f32_rows(const matmul_args *a, int first, int n)
{
    int cols = a->w->n_cols;
    const quant_format *f = quant_formats[a->w->type];
    uint8_t *at = a->scratch;
    float *w = scratch_take(&at, (size_t)F32_CHUNK * LANES * 4);
    float *rows = scratch_take(&at, ((size_t)F32_CHUNK + 4) * LANES * 4);
    float *acc = scratch_take(&at, (size_t)n * LANES * 4);
    float *packed = scratch_take(&at, (size_t)n * (size_t)cols * 4); // tiles of [cols, rows]
    for (int r = 0, m; r < n; r += m) {
        m = tile_rows(n - r);
        float *tile = packed + (size_t)r * (size_t)cols;
        for (int i = 0; i < m; i++) {
            const float *x = a->x->x + (size_t)(first + r + i) * a->x->stride;
            for (int k = 0; k < cols; k++) tile[(size_t)k * m + i] = x[k];
        }
    }
    for (int o = a->begin; o < a->end; o += LANES) {
        int outputs = a->w->n_rows - o < LANES ? a->w->n_rows - o : LANES;
        const uint8_t *p = a->w->data + (size_t)o * a->w->row_bytes;
        memset(acc, 0, (size_t)n * LANES * sizeof(float));
        for (int k = 0; k < cols; k += F32_CHUNK) {
            int m = cols - k < F32_CHUNK ? cols - k : F32_CHUNK, tile;
            store_panel(w, a->w->type, p + (size_t)(k / f->block_size) * f->block_bytes,
                        a->w->row_bytes, outputs, m, rows);
            for (int r = 0; r < n; r += tile) {
                tile = tile_rows(n - r);
                run_f32_tile(acc + r * LANES, w,
                             packed + (size_t)r * (size_t)cols + (size_t)k * tile, m, tile);
            }
        }
        for (int r = 0; r < n; r++)
            vf_store_n(a->y + (size_t)(first + r) * a->y_stride + o, vf_load(acc + r * LANES),
                       outputs);
    }
}

static void matmul_f32(const matmul_args *a)
{
    int group = f32_group(a->w->n_cols);
    for (int r = 0; r < a->x->n_rows; r += group)
        f32_rows(a, r, a->x->n_rows - r < group ? a->x->n_rows - r : group);
}

#endif
