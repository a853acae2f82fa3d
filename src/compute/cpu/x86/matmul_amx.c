/*
 * matmul_amx.c: products of quantised weights with many rows on AMX tiles. Panels of outputs come
 * from the files' bytes as at the level below, whose kernels take fewer rows.
 *
 * The sums of a block are sums of integers, and yet the tiles hold bfloat16: weights and both
 * planes of activations are integers of 8 bits, which it holds exactly, the high plane times 256
 * too, and a sum of float32 is exact while no part of it reaches 2^24. So one tile takes the sums
 * of both planes, and they are floats when they come out (docs/adr/0011).
 *
 * A block of 32 k has scales of its own, so its sums leave the tiles before the next block: 16 rows
 * by 16 outputs, through memory, to float accumulators that stay in 16 vector registers over a
 * chunk. While the floats of one block are added up, the tiles multiply the block after the next,
 * and the sums of the one between are stored.
 */
#include "compute/cpu/x86/vec_avx512.h"

#include "compute/cpu/int8_panels.h"
#include "compute/cpu/levels.h"
#include "compute/cpu/x86/tile_amx.h"

#define ROWS 16       // of a tile of activations
#define TILE_BYTES (16 * 64)
#define PANELS 2 // that a chunk of activations meets while it is in the first-level cache
/* Of a group: with fewer, widening the weights costs more than tiles gain. */
#ifndef LEAST_ROWS
#define LEAST_ROWS 128
#endif

/* 16 rows of activations, those past the last one zero. The k of a block are in the order of
 * k_order. */
typedef struct row_tile {
    uint16_t *x;  // [n_cols / 32, ACT_PLANES, ROWS, 32], bfloat16
    float *scale; // [n_cols / 32, ROWS]
    float *sum;   // [n_cols / sub, ROWS]: scale * sum, where there are mins
} row_tile;

/* One product: a chunk of 16 rows by one of a panel. */
typedef struct product {
    float *out;            // [ROWS, PANEL], added to
    const uint16_t *x, *w; // w [n / 32, 16, PANEL, 2], bfloat16
    const float *w_scale, *w_min, *x_scale, *x_sum;
} product;

/* ---- to bfloat16 ---- */

/* Integers of 16 bits, at most 8 of them significant. */
KERNEL_INLINE vi words_to_bf16(vi a)
{
    vi low = _mm512_castps_si512(vi_to_vf(vi_sra(vi_sll(a, 16), 16)));
    vi high = _mm512_castps_si512(vi_to_vf(vi_sra(a, 16)));
    return vi_or(vi_srl(low, 16), vi_and(high, vi_set1((int)0xffff0000u)));
}

/* k_order: of each 4 k the pairs (0, 2) and (1, 3), because these are 16-bit halves of a dword of
 * bytes; a sum of integers has no order. */
static void pack_row(const row_tile *t, const act *x, int row, int r, shape f)
{
    size_t at = (size_t)row * x->stride;
    const int8_t *q = x->q + at * ACT_PLANES;
    const float *scale = x->scale + at / 32;
    const int32_t *sum = x->sum + at / 16;
    vi plane = _mm512_set1_epi64(8LL << 32 | 8LL << 48); // the high plane's words stay times 256
    for (int b = 0; b < x->n_cols / 32; b++) {
        vi v = vi_load(q + (size_t)b * 32 * ACT_PLANES);
        vi even = _mm512_srav_epi16(_mm512_slli_epi16(v, 8), plane);
        vi odd = _mm512_srav_epi16(vi_and(v, vi_set1((int)0xff00ff00u)), plane);
        vf e = vi_as_vf(words_to_bf16(even)), o = vi_as_vf(words_to_bf16(odd));
        uint16_t *to = t->x + ((size_t)b * ACT_PLANES * ROWS + (size_t)r) * 32;
        vf high = _mm512_mask_blend_ps(0xaaaa, e, _mm512_moveldup_ps(o));
        vf low = _mm512_mask_blend_ps(0xaaaa, _mm512_movehdup_ps(e), o);
        _mm512_storeu_ps(to, high);
        _mm512_storeu_ps(to + ROWS * 32, low);
        t->scale[b * ROWS + r] = scale[b];
        if (!f.has_min) continue;
        if (f.sub == 32) {
            t->sum[b * ROWS + r] = scale[b] * (float)(sum[2 * b] + sum[2 * b + 1]);
        } else {
            t->sum[2 * b * ROWS + r] = scale[b] * (float)sum[2 * b];
            t->sum[(2 * b + 1) * ROWS + r] = scale[b] * (float)sum[2 * b + 1];
        }
    }
}

/* Rows [first, first + n) of x. */
static row_tile pack_rows(const act *x, int first, int n, shape f, uint8_t **at)
{
    size_t blocks = (size_t)x->n_cols / 32, sums = (size_t)(x->n_cols / f.sub);
    size_t x_bytes = blocks * ACT_PLANES * TILE_BYTES, scale_bytes = blocks * ROWS * sizeof(float);
    size_t sum_bytes = f.has_min ? sums * ROWS * sizeof(float) : 0;
    row_tile t = { scratch_take(at, x_bytes), scratch_take(at, scale_bytes),
                   scratch_take(at, sum_bytes) };
    if (n < ROWS) {
        memset(t.x, 0, x_bytes);
        memset(t.scale, 0, scale_bytes);
        memset(t.sum, 0, sum_bytes);
    }
    for (int r = 0; r < n; r++)
        pack_row(&t, x, first + r, r, f);
    return t;
}

/* Bytes 0 … w_max of a chunk of n k to tiles of w - offset. */
static void widen_chunk(uint16_t *to, const uint8_t *from, int n, shape f)
{
    int16_t values[64] ATTR_ALIGNED(64);
    for (int i = 0; i < 64; i++)
        values[i] = (int16_t)(i - f.offset);
    vi table[2] = { words_to_bf16(vi_load(values)), words_to_bf16(vi_load(values + 32)) };
    vi bytes = vi_set1(0x00ff00ff), offset = _mm512_set1_epi16((int16_t)f.offset);
    for (int j = 0; j < n / 4; j++, from += LANES * 4, to += 2 * LANES * 2) {
        vi v = vi_load(from), even = vi_and(v, bytes), odd = vi_and(_mm512_srli_epi16(v, 8), bytes);
        if (f.w_max < 32) {
            even = _mm512_permutexvar_epi16(even, table[0]);
            odd = _mm512_permutexvar_epi16(odd, table[0]);
        } else if (f.w_max < 64) {
            even = _mm512_permutex2var_epi16(table[0], even, table[1]);
            odd = _mm512_permutex2var_epi16(table[0], odd, table[1]);
        } else {
            even = words_to_bf16(_mm512_sub_epi16(even, offset));
            odd = words_to_bf16(_mm512_sub_epi16(odd, offset));
        }
        vi_store(to, even);
        vi_store(to + LANES * 2, odd);
    }
}

/* ---- one tile: ROWS rows by one panel ---- */

/* The largest sum of a block: |v| is at most 127, in the wide quad 127 * ACT_REACH and a cut. */
_Static_assert((28 * 127 + 4 * (127 * ACT_REACH + 1)) * 128 < 1 << 24, "exact in float32");

/* Tiles 0, 1: sums, of even and odd blocks; 2: weights; 4, 5: planes of activations. */
static void set_shapes(int sub)
{
    tile_shapes s = { .palette = 1 };
    for (int t = 0; t < 6; t++) {
        s.rows[t] = ROWS;
        s.row_bytes[t] = PANEL * 4;
    }
    s.rows[2] = (uint8_t)(sub / 2);
    s.row_bytes[4] = s.row_bytes[5] = (uint16_t)(sub * 2);
    tile_config(&s);
}

typedef float block_sums[ROWS][PANEL];

/* Sums of a sub-block into tile t. */
#define DOT_BLOCK(t, x, w)                                                                         \
    do {                                                                                           \
        TILE_LOAD(2, w, PANEL * 4);                                                                \
        TILE_LOAD(4, x, 64);                                                                       \
        TILE_ZERO(t);                                                                              \
        TILE_DOT(t, 4, 2);                                                                         \
        TILE_LOAD(5, (x) + ROWS * 32, 64);                                                         \
        TILE_DOT(t, 5, 2);                                                                         \
    } while (0)

/* The float operations of quant_dot for one sub-block. */
KERNEL_INLINE void add_block(vf *acc, block_sums in, const float *w_scale, const float *w_min,
                             const float *x_scale, const float *x_sum)
{
    vf scale = vf_load(w_scale), min = w_min ? vf_load(w_min) : vf_zero();
    KERNEL_UNROLL for (int r = 0; r < ROWS; r++)
    {
        acc[r] = vf_fma(vf_mul(scale, vf_set1(x_scale[r])), vf_load(in[r]), acc[r]);
        if (w_min) acc[r] = vf_fma(min, vf_set1(x_sum[r]), acc[r]);
    }
    // Now: compilers move this below the next store to memory, and have no registers for it there.
    KERNEL_UNROLL for (int r = 0; r < ROWS; r++) __asm__ volatile("" : "+v"(acc[r]));
}

/* Products one after the other, each of n sub-blocks of `sub` k. What is multiplied and stored
 * ahead may be of the next product; at the end it is the last one's once more, for nobody. */
KERNEL_INLINE void run_products(const product *todo, int n_products, int n, int sub, bool has_min,
                                ahead *next)
{
    block_sums sums[2] ATTR_ALIGNED(64);
    const product *coming = todo, *end = todo + n_products; // next to be multiplied: its block `at`
    int at = 0, per = 32 / sub, odd = 0, each = next->n / n_products + 1;
#define DOT_NEXT(t)                                                                                \
    do {                                                                                           \
        DOT_BLOCK(t, coming->x + (size_t)(at / per) * ACT_PLANES * ROWS * 32 + at % per * sub,     \
                  coming->w + (size_t)at * (size_t)sub * PANEL);                                   \
        if (++at == n) {                                                                           \
            at = 0;                                                                                \
            coming += coming + 1 < end;                                                            \
        }                                                                                          \
    } while (0)
/* Block i, whose tile t is free again; that of the next one is u. */
#define STEP(i, t, u)                                                                              \
    do {                                                                                           \
        DOT_NEXT(t);                                                                               \
        add_block(acc, sums[t], todo->w_scale + (size_t)(i)*PANEL,                                 \
                  has_min ? todo->w_min + (size_t)(i)*PANEL : NULL,                                \
                  todo->x_scale + (size_t)((i) / per) * ROWS,                                      \
                  has_min ? todo->x_sum + (size_t)(i)*ROWS : NULL);                                \
        TILE_STORE(u, sums[u], PANEL * 4);                                                         \
    } while (0)
    DOT_NEXT(0);
    DOT_NEXT(1);
    TILE_STORE(0, sums[0], PANEL * 4);
    for (; todo < end; todo++) {
        vf acc[ROWS];
        KERNEL_UNROLL for (int r = 0; r < ROWS; r++) acc[r] = vf_load(todo->out + r * PANEL);
        prefetch_some(next, each);
        for (int i = 0; i < n; i++, odd = !odd)
            if (odd)
                STEP(i, 1, 0);
            else
                STEP(i, 0, 1);
        KERNEL_UNROLL for (int r = 0; r < ROWS; r++) vf_store(todo->out + r * PANEL, acc[r]);
    }
#undef STEP
#undef DOT_NEXT
}

#define RUN(name, sub, has_min)                                                                    \
    static void name(const product *todo, int n_products, int n, ahead *next)                      \
    {                                                                                              \
        run_products(todo, n_products, n, sub, has_min, next);                                     \
    }
RUN(run_32, 32, false)
RUN(run_32m, 32, true)
RUN(run_16, 16, false)
RUN(run_16m, 16, true)
#undef RUN

typedef void run_fn(const product *todo, int n_products, int n, ahead *next);

static run_fn *run_of(shape f)
{
    if (f.sub == 32) return f.has_min ? run_32m : run_32;
    return f.has_min ? run_16m : run_16;
}

/* ---- the kernel ---- */

static void store_tile(const matmul_args *a, const float *acc, int first, int n, int o)
{
    int outputs = a->w->n_rows - o < PANEL ? a->w->n_rows - o : PANEL;
    for (int r = 0; r < n; r++)
        vf_store_n(a->y + (size_t)(first + r) * a->y_stride + o, vf_load(acc + r * PANEL), outputs);
}

/* n k, from k on, of the panel of outputs from o on: c, and its weights as tiles. */
static void fill_tiles(uint16_t *to, panel_chunk c, const int8_format *f, const tensor *w, int o,
                       int k, int n, const int8_scratch *s)
{
    fill_chunk(c, f, w, o, k, n, s);
    widen_chunk(to, c.w, n, f->f);
}

/* Rows [first, first + n) of x. */
static void amx_rows(const matmul_args *a, int first, int n)
{
    const tensor *w = a->w;
    int8_format f = int8_format_of(w);
    run_fn *run = run_of(f.f);
    uint8_t *at = a->scratch;
    int8_scratch s = take_scratch(&at, w);
    uint16_t *w_tiles = scratch_take(&at, PANELS * AMX_CHUNK * PANEL * sizeof *w_tiles);
    int n_tiles = (n + ROWS - 1) / ROWS;
    size_t acc_bytes = (size_t)n_tiles * PANELS * ROWS * PANEL * sizeof(float);
    float *acc = scratch_take(&at, acc_bytes);
    row_tile rows[AMX_ROWS / ROWS];
    product todo[AMX_ROWS / ROWS * PANELS];
    for (int t = 0; t < n_tiles; t++)
        rows[t] =
            pack_rows(a->x, first + t * ROWS, n - t * ROWS < ROWS ? n - t * ROWS : ROWS, f.f, &at);
    for (int o = a->begin; o < a->end; o += PANELS * PANEL) {
        int panels = (a->end - o + PANEL - 1) / PANEL;
        if (panels > PANELS) panels = PANELS;
        memset(acc, 0, acc_bytes);
        for (int k = 0, len; k < w->n_cols; k += len) {
            len = amx_chunk(w->n_cols, k);
            for (int p = 0; p < panels; p++)
                fill_tiles(w_tiles + p * AMX_CHUNK * PANEL, s.chunk[p], &f, w, o + p * PANEL, k,
                           len, &s);
            for (int i = 0; i < n_tiles * panels; i++) {
                const row_tile *x = &rows[i / panels];
                const panel_chunk *c = &s.chunk[i % panels];
                todo[i] = (product){
                    .out = acc + i * ROWS * PANEL,
                    .x = x->x + (size_t)(k / 32) * ACT_PLANES * ROWS * 32,
                    .w = w_tiles + i % panels * AMX_CHUNK * PANEL,
                    .w_scale = c->scale,
                    .w_min = c->min,
                    .x_scale = x->scale + (size_t)(k / 32) * ROWS,
                    .x_sum = x->sum + (size_t)(k / f.f.sub) * ROWS,
                };
            }
            ahead next = next_chunk(a, o, panels, k + len, amx_chunk);
            run(todo, n_tiles * panels, len / f.f.sub, &next);
        }
        for (int i = 0; i < n_tiles * panels; i++)
            store_tile(a, acc + i * ROWS * PANEL, first + i / panels * ROWS,
                       n - i / panels * ROWS < ROWS ? n - i / panels * ROWS : ROWS,
                       o + i % panels * PANEL);
    }
}

static void (*level_below)(const matmul_args *);

static void matmul_amx(const matmul_args *a)
{
    int n = a->x->n_rows, most = amx_group(a->w->n_cols);
    int groups = (n + most - 1) / most;
    int each = ((n + groups - 1) / groups + ROWS - 1) / ROWS * ROWS;
    if (each < LEAST_ROWS || a->w->n_cols < ACT_NARROW) {
        level_below(a);
        return;
    }
    set_shapes(int8_format_of(a->w).f.sub);
    for (int r = 0; r < n; r += each)
        amx_rows(a, r, n - r < each ? n - r : each);
    tile_release();
}

void init_amx_matmul(cpu_kernels *k)
{
    level_below = k->matmul_int8;
    k->matmul_int8 = matmul_amx;
}
