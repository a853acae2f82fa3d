/*
 * matmul_int8.h: products of quantised weights and activations of two int8 planes, written once
 * over the registers of vec_matmul.h. A level's matmul_<level>.c includes its vec_<level>.h, then
 * this file.
 *
 * A panel is LANES outputs. 32 k of it are 8 vectors w[0 … 7]: lane i of w[j] has the 4 bytes
 * k = 4j … 4j + 3 of output i, so that one instruction multiplies them with 4 bytes of activations
 * that all lanes share. A format's unit function makes these vectors from the file's bytes in
 * registers: it loads 16 bytes a row, transposes dwords, splits bits, and hands each block to
 * `emit`.
 *
 * Few rows: emit multiplies at once; a panel never goes through memory, and the bytes of the next
 * one are prefetched meanwhile. From the file that is one row; of weights in panels (panels.h) it
 * is 2 and 4 as well. More rows: emit stores a chunk of the panel, over which tiles of
 * TILE_ROWS rows run. Formats without a unit function are unpacked row by row by quant.h and take
 * the second way always. The float operations of an output are those of quant_dot in each case.
 */
#ifndef COMPUTE_CPU_MATMUL_INT8_H
#define COMPUTE_CPU_MATMUL_INT8_H

#include "compute/cpu/int8_panels.h"

/* One row is bound by memory, and a panel is read as LANES streams at once, which no processor
 * foresees: the bytes to come are prefetched into the second-level cache, at least a panel and
 * 48 KiB ahead. On Gemma 3 270M, one thread (AMD EPYC, Zen 4): 17 ms a token; one panel ahead into
 * the first level 24 ms; without 36 ms. */
static inline size_t prefetch_distance(size_t panel_bytes)
{
    return panel_bytes > (48 << 10) ? panel_bytes : 48 << 10;
}

#define PANELS_AHEAD 8192 // bytes: panels are read in order

/* A format's own function: rows at p, as in unit_rows, or a panel there; n blocks of 32; acc [rows,
 * LANES], of a panel [rows, PANEL]. */
typedef void few_fn(float *acc, const uint8_t *p, size_t stride, int n_blocks, const x_rows *x,
                    int rows);

/* A panel's LANES are taken in turn, block by block: they share lines of the cache. */
#define X(type, name, shp, unit_blocks, unit_bytes)                                                \
    KERNEL_INLINE void few_rows_##name(float *acc, unit_rows u, int n_blocks, const x_rows *x,     \
                                       int rows)                                                   \
    {                                                                                              \
        const int parts = u.panels ? PANEL / LANES : 1;                                            \
        const size_t step = (u.panels ? PANEL : LANES) * unit_bytes;                               \
        const uint8_t *next =                                                                      \
            u.p + (u.panels ? PANELS_AHEAD : prefetch_distance(LANES * u.stride));                 \
        vf sum[PANEL / LANES * FEW_ROWS];                                                          \
        KERNEL_UNROLL for (int i = 0; i < parts * rows; i++) sum[i] = vf_zero();                   \
        for (int b = 0; b < n_blocks; b += unit_blocks) {                                          \
            for (size_t i = 0; i < step; i += 64)                                                  \
                PREFETCH_FAR(next + i);                                                            \
            next += step;                                                                          \
            for (int i = 0; i < parts; i++) {                                                      \
                vf acc_of[FEW_ROWS];                                                               \
                sink s = { .f = shp, .rows = rows, .x = x, .acc = acc_of };                        \
                KERNEL_UNROLL for (int r = 0; r < rows; r++) acc_of[r] = sum[i * rows + r];        \
                unit_rows part = u;                                                                \
                part.p += i * LANES * 4;                                                           \
                part.lane = i * LANES;                                                             \
                int block = b;                                                                     \
                FORGET(block); /* activations are loaded anew: registers are few */                \
                unit_##name(&s, block, &part);                                                     \
                KERNEL_UNROLL for (int r = 0; r < rows; r++) sum[i * rows + r] = acc_of[r];        \
            }                                                                                      \
            u.p += u.panels ? unit_bytes * PANEL : unit_bytes;                                     \
        }                                                                                          \
        KERNEL_UNROLL for (int i = 0; i < parts; i++)                                              \
            KERNEL_UNROLL for (int r = 0; r < rows; r++)                                           \
                vf_store(acc + (r * parts + i) * LANES, sum[i * rows + r]);                        \
    }                                                                                              \
    static void few_##name(float *acc, const uint8_t *p, size_t stride, int n_blocks,              \
                           const x_rows *x, int rows)                                              \
    {                                                                                              \
        unit_rows u = ROWS_OF(type, unit_bytes, 0, false);                                         \
        few_rows_##name(acc, u, n_blocks, x, 1);                                                   \
        (void)rows;                                                                                \
    }                                                                                              \
    static void few_panels_##name(float *acc, const uint8_t *p, size_t stride, int n_blocks,       \
                                  const x_rows *x, int rows)                                       \
    {                                                                                              \
        unit_rows u = ROWS_OF(type, unit_bytes, 0, true);                                          \
        if (rows == 1)                                                                             \
            few_rows_##name(acc, u, n_blocks, x, 1);                                               \
        else if (rows == 2)                                                                        \
            few_rows_##name(acc, u, n_blocks, x, 2);                                               \
        else                                                                                       \
            few_rows_##name(acc, u, n_blocks, x, 4);                                               \
    }
UNIT_FORMATS(X)
#undef X

/* ---- tiles over a stored chunk ---- */

/* to [rows, panels], rows to_stride apart, = from + the chunk's products; from: such sums, close
 * together, or NULL for zeros. */
KERNEL_INLINE void run_tile(float *to, size_t to_stride, const float *from, const panel_chunk *c,
                            const int *x, int n_blocks, shape f, int rows, int panels)
{
    int size = record_of(f, rows).size;
    vf sum[TILE_ROWS * TILE_PANELS];
    KERNEL_UNROLL for (int i = 0; i < rows * panels; i++) sum[i] =
        from ? vf_load(from + i * LANES) : vf_zero();
    for (int b = 0; b < n_blocks; b++)
        multiply_stored(sum, c, f, x + b * size, b, rows, panels);
    KERNEL_UNROLL for (int r = 0; r < rows; r++) KERNEL_UNROLL for (int p = 0; p < panels; p++)
        vf_store(to + (size_t)r * to_stride + p * LANES, sum[r * panels + p]);
}

typedef void tile_fn(float *to, size_t to_stride, const float *from, const panel_chunk *c,
                     const int *x, int n_blocks, int rows, int panels);

#define TILE_FN(name, shp)                                                                         \
    KERNEL_INLINE void name##_panels(float *to, size_t to_stride, const float *from,               \
                                     const panel_chunk *c, const int *x, int n_blocks, int rows,   \
                                     int panels)                                                   \
    {                                                                                              \
        if (rows == 1)                                                                             \
            run_tile(to, to_stride, from, c, x, n_blocks, shp, 1, panels);                         \
        else if (rows == 2)                                                                        \
            run_tile(to, to_stride, from, c, x, n_blocks, shp, 2, panels);                         \
        else                                                                                       \
            run_tile(to, to_stride, from, c, x, n_blocks, shp, TILE_ROWS, panels);                 \
    }                                                                                              \
    static void name(float *to, size_t to_stride, const float *from, const panel_chunk *c,         \
                     const int *x, int n_blocks, int rows, int panels)                             \
    {                                                                                              \
        if (panels == 1)                                                                           \
            name##_panels(to, to_stride, from, c, x, n_blocks, rows, 1);                           \
        else                                                                                       \
            name##_panels(to, to_stride, from, c, x, n_blocks, rows, TILE_PANELS);                 \
    }
TILE_FN(tile_u4m, SHAPE_U4M)
TILE_FN(tile_u5m, SHAPE_U5M)
TILE_FN(tile_u4, SHAPE_U4)
TILE_FN(tile_u5, SHAPE_U5)
TILE_FN(tile_u6, SHAPE_U6)
TILE_FN(tile_u2m, SHAPE_U2M)
TILE_FN(tile_u3, SHAPE_U3)
TILE_FN(tile_s32, SHAPE_S32)
TILE_FN(tile_s16, SHAPE_S16)
TILE_FN(tile_s32m, SHAPE_S32M)
TILE_FN(tile_s16m, SHAPE_S16M)

static tile_fn *tile_of(shape f)
{
    if (f.w_max == 15 && f.sub == 16) return f.has_min ? tile_u2m : tile_u3;
    if (f.w_max == 15) return f.has_min ? tile_u4m : tile_u4;
    if (f.w_max == 31) return f.has_min ? tile_u5m : tile_u5;
    if (f.w_max == 63) return tile_u6;
    if (f.sub == 32) return f.has_min ? tile_s32m : tile_s32;
    return f.has_min ? tile_s16m : tile_s16;
}

/* ---- activations ---- */

/* -offset * sum and scale * sum of sub-block b of a row. */
static inline int sub_sum(const int32_t *sum, shape f, int b)
{
    return f.sub == 16 ? sum[b] : sum[2 * b] + sum[2 * b + 1];
}

/* to [2] = what a record's `wide` has of sub-block s of the block q. */
static inline void find_wide(int *to, const int8_t *q, shape f, int s)
{
    int j = wide_quad(q);
    to[0] = to[1] = 0;
    if (j * 4 / f.sub != s) return;
    memcpy(to, q + j * 8, 4); // 0 where the block has none
    to[1] = j * LANES * 4;
}

/* Few rows of x, from `first` on, side by side. */
static x_rows pack_few(const act *x, int first, int rows, shape f, uint8_t **at)
{
    const size_t quad = 4 * ACT_PLANES;
    int n = x->n_cols, n_sums = n / f.sub;
    int8_t *q = x->q + (size_t)first * x->stride * ACT_PLANES;
    float *scale = x->scale + (size_t)first * x->stride / 32;
    int *init = f.offset ? scratch_take(at, (size_t)(rows * n_sums) * sizeof *init) : NULL;
    float *sum = f.has_min ? scratch_take(at, (size_t)(rows * n_sums) * sizeof *sum) : NULL;
    int subs = 32 / f.sub;
    int *wide = FEW_WIDE ? scratch_take(at, (size_t)(rows * n_sums) * 2 * sizeof *wide) : NULL;
    if (rows > 1) {
        q = scratch_take(at, (size_t)rows * (size_t)n * ACT_PLANES);
        scale = scratch_take(at, (size_t)(rows * n / 32) * sizeof *scale);
    }
    for (int r = 0; r < rows; r++) {
        size_t row = (size_t)(first + r) * x->stride;
        if (rows > 1) {
            for (int k = 0; k < n / 4; k++)
                memcpy(q + (size_t)(k * rows + r) * quad,
                       x->q + row * ACT_PLANES + (size_t)k * quad, quad);
            for (int b = 0; b < n / 32; b++)
                scale[b * rows + r] = x->scale[row / 32 + (size_t)b];
        }
        for (int b = 0; b < n_sums; b++) {
            int v = sub_sum(x->sum + row / 16, f, b);
            if (init) init[b * rows + r] = -f.offset * v;
            if (sum) sum[b * rows + r] = x->scale[row / 32 + (size_t)(b * f.sub / 32)] * (float)v;
            if (wide)
                find_wide(wide + (size_t)(b * rows + r) * 2,
                          x->q + (row + (size_t)(b / subs) * 32) * ACT_PLANES, f, b % subs);
        }
    }
    return (x_rows){ q, scale, init, sum, wide };
}

/* The low planes of a block of `rows` rows, `step` bytes apart, side by side. */
static inline void pack_low(int *to, const int8_t *q, size_t step, int rows)
{
    if (rows == TILE_ROWS) {
        vi_low_quads(to, q, step);
        return;
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < 8; j++)
            memcpy(to + j * rows + r, q + (size_t)r * step + j * 8 + 4, 4);
}

/* Records of the blocks [first_block, first_block + n_blocks) of a tile's rows. */
static void pack_tile(int *to, const act *x, int first, int rows, shape f, int first_block,
                      int n_blocks)
{
    const x_record rec = record_of(f, rows);
    int subs = 32 / f.sub;
    for (int b = first_block; b < first_block + n_blocks; b++, to += rec.size) {
        size_t at = (size_t)first * x->stride + (size_t)b * 32;
        pack_low(to, x->q + at * ACT_PLANES, x->stride * ACT_PLANES, rows);
        for (int r = 0; r < rows; r++, at += x->stride) {
            const int8_t *q = x->q + at * ACT_PLANES;
            int *t = to + r;
            float scale = x->scale[at / 32];
            for (int s = 0; s < subs; s++) {
                int v = sub_sum(x->sum + at / 16, f, s);
                float scaled = scale * (float)v;
                find_wide(to + rec.wide + (s * rows + r) * 2, q, f, s);
                if (f.offset) t[rec.init + s * rows] = -f.offset * v;
                if (f.has_min) memcpy(t + rec.sum + s * rows, &scaled, sizeof scaled);
            }
            memcpy(t + rec.scale, &scale, sizeof scale);
        }
    }
}

/* Chunk by chunk of k, and in each tile by tile, the records of rows [first, first + n). */
static const int *pack_tiles(const act *x, int first, int n, shape f, uint8_t **at)
{
    const x_record row = record_of(f, 1);
    int *records = scratch_take(at, (size_t)n * (size_t)(x->n_cols / 32 * row.size) * sizeof(int));
    int *to = records;
    for (int k = 0, chunk; k < x->n_cols; k += chunk) {
        chunk = int8_chunk(x->n_cols, k);
        int blocks = chunk / 32;
        for (int r = 0, rows; r < n; r += rows) {
            rows = tile_rows(n - r);
            pack_tile(to, x, first + r, rows, f, k / 32, blocks);
            to += blocks * rows * row.size;
        }
    }
    return records;
}

/* ---- the kernel ---- */

/* For n rows; NULL: tiles. */
static few_fn *few_of(const tensor *w, int n)
{
    if (w->panels ? n != 1 && n != 2 && n != 4 : n != 1) return NULL;
    switch (w->panels ? panels_type(w->type) : w->type) {
#define X(type, name, shp, unit_blocks, unit_bytes)                                                \
    case type: return w->panels ? few_panels_##name : few_##name;
        UNIT_FORMATS(X)
#undef X
    default: return NULL;
    }
}

static bool reads_by_vectors(dtype type)
{
    tensor w = { .type = type };
    return int8_format_of(&w).store != NULL;
}

/* `panels` panels of outputs from o on for n_x rows in pack_tiles' form, chunk by chunk of k, whose
 * sums wait in acc [n_x, panels, LANES]; the last goes to y, rows y_stride apart. */
static void panel_tiles(float *y, size_t y_stride, float *acc, const int8_format *f,
                        const matmul_args *a, int o, int panels, const int *x, int n_x,
                        const int8_scratch *s)
{
    const tensor *w = a->w;
    tile_fn *run = tile_of(f->f);
    for (int k = 0, n; k < w->n_cols; k += n) {
        n = int8_chunk(w->n_cols, k);
        for (int p = 0; p < panels; p++)
            fill_chunk(s->chunk[p], f, w, o + p * LANES, k, n, s);
        float *sum = acc;
        bool last = k + n == w->n_cols;
        ahead next = next_chunk(a, o, panels, k + n, int8_chunk);
        int each = next.n * TILE_ROWS / n_x + 1;
        for (int r = 0, rows; r < n_x; r += rows) {
            rows = tile_rows(n_x - r);
            prefetch_some(&next, each);
            run(last ? y + (size_t)r * y_stride : sum, last ? y_stride : (size_t)panels * LANES,
                k ? sum : NULL, s->chunk, x, n / 32, rows, panels);
            x += n / 32 * rows * record_of(f->f, 1).size;
            sum += rows * panels * LANES;
        }
    }
}

static void store_outputs(const matmul_args *a, const float *acc, int first, int n, int o,
                          int panels)
{
    for (int r = 0; r < n; r++)
        for (int p = 0, at = o; p < panels && at < a->w->n_rows; p++, at += LANES) {
            int outputs = a->w->n_rows - at < LANES ? a->w->n_rows - at : LANES;
            vf_store_n(a->y + (size_t)(first + r) * a->y_stride + at,
                       vf_load(acc + (r * panels + p) * LANES), outputs);
        }
}

/* Rows [first, first + n) of x. */
static void int8_rows(const matmul_args *a, int first, int n)
{
    const tensor *w = a->w;
    int8_format f = int8_format_of(w);
    uint8_t *at = a->scratch;
    int8_scratch s = take_scratch(&at, w);
    size_t outputs = TILE_PANELS * LANES > PANEL ? TILE_PANELS * LANES : PANEL;
    float *acc = scratch_take(&at, (size_t)n * outputs * sizeof(float));
    few_fn *few = few_of(w, n);
    if (few) {
        x_rows t = pack_few(a->x, first, n, f.f, &at);
        int parts = w->panels ? PANEL / LANES : 1;
        for (int o = a->begin; o < a->end; o += parts * LANES) {
            const uint8_t *p = w->panels               ? in_panels(w, o, 0)
                               : w->n_rows - o < LANES ? last_rows(w, o, s.copy)
                                                       : w->data + (size_t)o * w->row_bytes;
            few(acc, p, w->row_bytes, w->n_cols / 32, &t, n);
            store_outputs(a, acc, first, n, o, parts);
        }
        return;
    }
    const int *x = pack_tiles(a->x, first, n, f.f, &at);
    for (int o = a->begin, panels; o < a->end; o += panels * LANES) {
        panels = a->end - o > (TILE_PANELS - 1) * LANES ? TILE_PANELS : 1;
        if (o + panels * LANES <= w->n_rows) {
            panel_tiles(a->y + (size_t)first * a->y_stride + o, a->y_stride, acc, &f, a, o, panels,
                        x, n, &s);
            continue;
        }
        panel_tiles(acc, (size_t)panels * LANES, acc, &f, a, o, panels, x, n, &s);
        store_outputs(a, acc, first, n, o, panels);
    }
}

/* Narrow rows are wide in all quads, which tiles do not do, nor few rows at some levels. */
static void narrow_rows(const matmul_args *a) // never of panels
{
    const tensor *w = a->w;
    const act *x = a->x;
    if (!FEW_WIDE && few_of(w, 1)) {
        for (int r = 0; r < x->n_rows; r++)
            int8_rows(a, r, 1);
        return;
    }
    for (int r = 0; r < x->n_rows; r++) {
        size_t at = (size_t)r * x->stride;
        act_row row = { x->q + at * ACT_PLANES, x->scale + at / 32, x->sum + at / 16 };
        for (int o = a->begin; o < a->end; o++)
            a->y[(size_t)r * a->y_stride + (size_t)o] =
                quant_dot(w->type, w->data + (size_t)o * w->row_bytes, &row, (size_t)w->n_cols);
    }
}

static void matmul_int8(const matmul_args *a)
{
    if (a->w->n_cols < ACT_NARROW) {
        narrow_rows(a);
        return;
    }
    int group = int8_group(a->w->n_cols);
    for (int r = 0; r < a->x->n_rows; r += group)
        int8_rows(a, r, a->x->n_rows - r < group ? a->x->n_rows - r : group);
}

#endif
