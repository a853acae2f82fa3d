/*
 * int8_panels.h: chunks of panels in scratch, from any quantised format: by the unit functions of
 * int8_units.h, or else row by row through quant.h. For matmul_int8.h, which says what a panel is,
 * and for kernels that take panels to other units.
 */
#ifndef COMPUTE_CPU_INT8_PANELS_H
#define COMPUTE_CPU_INT8_PANELS_H

#include "compute/cpu/int8_units.h"
#include "compute/cpu/scratch.h"

/* A format's own function: a panel's rows, as they lie in the file or in a panel; n blocks of 32.
 * p is where they begin, as in unit_rows. */
typedef void store_fn(panel_chunk out, const uint8_t *p, size_t stride, int lane, int n_blocks);

#define ROWS_OF(type, unit_bytes, first_lane, in_panels)                                           \
    { .p = p, .stride = stride, .lane = first_lane, .bytes = unit_bytes, .panels = in_panels,      \
      .half_first = panel_half_first(type) }

#define X(type, name, shp, unit_blocks, unit_bytes)                                                \
    KERNEL_INLINE void store_from_##name(panel_chunk out, unit_rows u, int n_blocks)               \
    {                                                                                              \
        sink s = { .f = shp, .rows = 0, .out = out };                                              \
        for (int b = 0; b < n_blocks; b += unit_blocks) {                                          \
            unit_##name(&s, b, &u);                                                                \
            u.p += u.panels ? unit_bytes * PANEL : unit_bytes;                                     \
        }                                                                                          \
    }                                                                                              \
    static void store_##name(panel_chunk out, const uint8_t *p, size_t stride, int lane,           \
                             int n_blocks)                                                         \
    {                                                                                              \
        unit_rows u = ROWS_OF(type, unit_bytes, lane, false);                                      \
        store_from_##name(out, u, n_blocks);                                                       \
    }                                                                                              \
    static void store_panels_##name(panel_chunk out, const uint8_t *p, size_t stride, int lane,    \
                                    int n_blocks)                                                  \
    {                                                                                              \
        unit_rows u = ROWS_OF(type, unit_bytes, lane, true);                                       \
        store_from_##name(out, u, n_blocks);                                                       \
    }
UNIT_FORMATS(X)
#undef X

typedef struct int8_format {
    shape f;
    store_fn *store, *store_panels; // NULL: store_any
} int8_format;

static int8_format int8_format_of(const tensor *w)
{
    dtype type = w->panels ? panels_type(w->type) : w->type;
    switch (type) {
#define X(type, name, shp, unit_blocks, unit_bytes)                                                \
    case type: return (int8_format){ shp, store_##name, store_panels_##name };
        UNIT_FORMATS(X)
#undef X
    default: break;
    }
    const quant_format *q = quant_formats[type];
    if (q->sub == 32) return (int8_format){ q->has_min ? SHAPE_S32M : SHAPE_S32, 0, 0 };
    return (int8_format){ q->has_min ? SHAPE_S16M : SHAPE_S16, 0, 0 };
}

/* ---- any other format: rows through quant.h, then transposed ---- */

typedef struct row_buffer {
    int8_t *q;          // [LANES, INT8_CHUNK_MOST]
    float *scale, *min; // [INT8_CHUNK_MOST / 16]
} row_buffer;

static void store_any(panel_chunk out, const quant_format *f, const uint8_t *p, size_t stride,
                      int n_rows, int n, const row_buffer *b)
{
    for (int i = 0; i < LANES; i++) {
        int8_t *q = b->q + (size_t)i * INT8_CHUNK_MOST;
        if (i < n_rows) {
            f->unpack(q, b->scale, b->min, p + (size_t)i * stride, (size_t)n);
        } else {
            memset(q, 0, (size_t)n);
            memset(b->scale, 0, (size_t)(n / f->sub) * sizeof(float));
            memset(b->min, 0, (size_t)(n / f->sub) * sizeof(float));
        }
        for (int s = 0; s < n / f->sub; s++) {
            out.scale[s * LANES + i] = b->scale[s];
            if (f->has_min) out.min[s * LANES + i] = b->min[s];
        }
    }
    for (int k = 0; k < n; k += 16) {
        vi t[4];
        load_dwords(t, (const uint8_t *)b->q + k, INT8_CHUNK_MOST);
        KERNEL_UNROLL for (int j = 0; j < 4; j++)
            vi_store(out.w + (size_t)(k / 4 + j) * LANES * 4, vi_signed_weights(t[j]));
    }
}

/* The last panel's rows followed by zeros. */
static const uint8_t *last_rows(const tensor *w, int o, uint8_t *copy)
{
    size_t n = (size_t)(w->n_rows - o) * w->row_bytes;
    memcpy(copy, w->data + (size_t)o * w->row_bytes, n);
    memset(copy + n, 0, LANES * w->row_bytes - n);
    return copy;
}

typedef struct int8_scratch {
    panel_chunk chunk[TILE_PANELS];
    row_buffer rows;
    uint8_t *copy; // [LANES, row_bytes]
} int8_scratch;

static int8_scratch take_scratch(uint8_t **at, const tensor *w)
{
    size_t n = INT8_CHUNK_MOST, scales = n / 16 * sizeof(float);
    int8_scratch s;
    for (int p = 0; p < TILE_PANELS; p++)
        s.chunk[p] = (panel_chunk){ scratch_take(at, n * LANES), scratch_take(at, scales * LANES),
                                    scratch_take(at, scales * LANES) };
    s.rows = (row_buffer){ scratch_take(at, n * LANES), scratch_take(at, scales),
                           scratch_take(at, scales) };
    s.copy = scratch_take(at, LANES * w->row_bytes);
    return s;
}

/* Where w's panels have the row bytes from `at` on of the LANES rows from o on. */
static inline const uint8_t *in_panels(const tensor *w, int o, size_t at)
{
    return w->panels + (size_t)(o / PANEL * PANEL) * w->row_bytes + at * PANEL + o % PANEL * 4;
}

/* n k, from k on, of the panel of outputs from o on. */
static void fill_chunk(panel_chunk c, const int8_format *f, const tensor *w, int o, int k, int n,
                       const int8_scratch *s)
{
    const quant_format *q = quant_formats[w->type];
    size_t at = (size_t)k / (size_t)q->block_size * (size_t)q->block_bytes;
    int n_rows = w->n_rows - o < LANES ? w->n_rows - o : LANES;
    const uint8_t *from = w->data + (size_t)o * w->row_bytes + at;
    if (w->panels)
        f->store_panels(c, in_panels(w, o, at), 0, o % PANEL, n / 32);
    else if (!f->store)
        store_any(c, q, from, w->row_bytes, n_rows, n, &s->rows);
    else if (n_rows == LANES)
        f->store(c, from, w->row_bytes, 0, n / 32);
    else
        f->store(c, last_rows(w, o, s->copy) + at, w->row_bytes, 0, n / 32);
}

/* Bytes that the next chunk is unpacked from, in pieces, of which each tile prefetches a few: of
 * rows in the file the pieces are LANES streams a panel, which no processor foresees, and those of
 * panels come after a pause. */
typedef struct ahead {
    const uint8_t *p;
    size_t bytes, step; // of a piece; to the next one
    ptrdiff_t jump;     // added after LANES of them
    int n, done;
} ahead;

/* For `panels` panels of outputs from o on, of which k are done; chunk says how long the next is.
 */
static ahead next_chunk(const matmul_args *a, int o, int panels, int k,
                        int (*chunk)(int n_cols, int done))
{
    const tensor *w = a->w;
    const quant_format *q = quant_formats[w->type];
    if (k >= w->n_cols) {
        k = 0;
        o += panels * LANES;
    }
    size_t at = (size_t)k / (size_t)q->block_size * (size_t)q->block_bytes;
    size_t bytes = (size_t)chunk(w->n_cols, k) / (size_t)q->block_size * (size_t)q->block_bytes;
    int rows = a->end - o < panels * LANES ? a->end - o : panels * LANES;
    if (rows <= 0) return (ahead){ 0 };
    if (!w->panels)
        return (ahead){ w->data + (size_t)o * w->row_bytes + at, bytes, w->row_bytes, 0, rows, 0 };
    bytes *= PANEL / LANES;
    const uint8_t *p = in_panels(w, o, at);
    ptrdiff_t jump = in_panels(w, o + LANES, at) - p - (ptrdiff_t)(LANES * bytes);
    return (ahead){ p, bytes, bytes, jump, (rows + LANES - 1) / LANES * LANES, 0 };
}

static inline void prefetch_some(ahead *next, int n)
{
    for (; n > 0 && next->done < next->n; n--) {
        for (size_t i = 0; i < next->bytes; i += 64)
            PREFETCH_FAR(next->p + i);
        PREFETCH_FAR(next->p + next->bytes - 1);
        next->p += next->step;
        if (++next->done % LANES == 0) next->p += next->jump;
    }
}

#endif
