/* check_matmul.c: matmul_int8 against quant_dot, matmul_f32 against the sum in kernels.h, act_row
 * against quant_act_row; all formats, bit by bit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "check.h"

static bool finite_block(const quant_format *f, const uint8_t *block)
{
    float y[256];
    f->dequant(y, block, (size_t)f->block_size);
    for (int i = 0; i < f->block_size; i++)
        if (!(fabsf(y[i]) < 1e30f)) return false;
    return true;
}

tensor random_weights(fence *memory, dtype type, int n_rows, int n_cols)
{
    const quant_format *f = quant_formats[type];
    size_t row = quant_row_bytes(type, (size_t)n_cols);
    *memory = fence_new(row * (size_t)n_rows);
    uint8_t *p = memory->data;
    for (; p < memory->data + memory->n; p += f->block_bytes) {
        float v = random_normal();
        if (type == DT_F32) {
            memcpy(p, &v, 4);
        } else if (type == DT_F16 || type == DT_BF16) {
            uint16_t h = type == DT_F16 ? f16_from_f32(v) : bf16_from_f32(v);
            memcpy(p, &h, 2);
        } else {
            do
                for (int i = 0; i < f->block_bytes; i++) p[i] = (uint8_t)random_bits();
            while (!finite_block(f, p));
        }
    }
    return (tensor){"w", memory->data, type, n_rows, n_cols, 1, row, NULL};
}

act random_act(act_memory *m, int n_rows, int n_cols, pattern p)
{
    size_t stride = ((size_t)n_cols + 63) / 64 * 64, n = stride * (size_t)n_rows;
    m->x = fence_new(n * 4);
    m->q = fence_new(n * ACT_PLANES);
    m->scale = fence_new(n / 32 * 4);
    m->sum = fence_new(n / 16 * 4);
    act a = {(float *)(void *)m->x.data, (int8_t *)m->q.data, (float *)(void *)m->scale.data,
             (int32_t *)(void *)m->sum.data, n_rows, n_cols, stride};
    for (int r = 0; r < n_rows; r++) {
        size_t at = (size_t)r * stride;
        fill(a.x + at, (size_t)n_cols, p);
        if (n_cols % 32 == 0)
            quant_act_row(a.q + at * ACT_PLANES, a.scale + at / 32, a.sum + at / 16, a.x + at, (size_t)n_cols);
    }
    return a;
}

void act_memory_free(act_memory *m)
{
    fence_free(&m->x);
    fence_free(&m->q);
    fence_free(&m->scale);
    fence_free(&m->sum);
}

static float dot_f32(const float *w, const float *x, int n)
{
    float acc = 0;
    for (int b = 0; b < n; b += 32) {
        float acc32 = 0;
        for (int k = b; k < b + 32 && k < n; k++) acc32 = fmaf(w[k], x[k], acc32);
        acc += acc32;
    }
    return acc;
}

/* Expected outputs [n_rows, n_outputs]. */
static void expect(float *y, const tensor *w, const act *x, bool exact, float *row)
{
    for (int o = 0; o < w->n_rows; o++) {
        const uint8_t *p = w->data + (size_t)o * w->row_bytes;
        if (exact) tensor_row(row, w, o);
        for (int r = 0; r < x->n_rows; r++) {
            size_t at = (size_t)r * x->stride;
            act_row q = {x->q + at * ACT_PLANES, x->scale + at / 32, x->sum + at / 16};
            y[(size_t)r * (size_t)w->n_rows + (size_t)o] =
                exact ? dot_f32(row, x->x + at, w->n_cols)
                      : quant_dot(w->type, p, &q, (size_t)w->n_cols);
        }
    }
}

/* One call over [begin, end): wanted outputs, all others untouched. */
static void check_range(checker *c, const tensor *w, const act *x, const float *want, bool exact,
                        int begin, int end, const char *what)
{
    size_t y_stride = ((size_t)w->n_rows + 15) / 16 * 16, rows = (size_t)x->n_rows;
    size_t scratch_bytes = (matmul_scratch_bytes(w->n_cols) + 63) / 64 * 64;
    fence y = fence_new(rows * y_stride * 4), scratch = fence_new(scratch_bytes);
    float *out = (float *)(void *)y.data;
    matmul_args a = {out, y_stride, w, x, begin, end, scratch.data};
    (exact ? c->k->matmul_f32 : c->k->matmul_int8)(&a);
    bool same = true, outside = true;
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < y_stride; o++) {
            float v = out[r * y_stride + o];
            if ((int)o < begin || (int)o >= end) {
                outside &= f32_bits(v) == 0xffffffffu;
                continue;
            }
            float e = want[r * (size_t)w->n_rows + o];
            // 0xffffffff, the filling, is a NaN that no kernel makes
            bool equal = f32_bits(v) == f32_bits(e) ||
                         (isnan(v) && isnan(e) && f32_bits(v) != 0xffffffffu);
            if (!equal && same)
                check_true(c, false, "%s: row %zu output %zu is %a, expected %a", what, r, o,
                           (double)v, (double)e);
            same &= equal;
        }
    if (same) check_true(c, true, "%s", what);
    check_true(c, outside && fence_intact(&y) && fence_intact(&scratch), "%s: wrote elsewhere", what);
    fence_free(&y);
    fence_free(&scratch);
}

/* The same from panels alone: the rows are gone. */
static void check_panels(checker *c, const tensor *w, const act *x, const float *want, bool exact,
                         const char *what)
{
    if (!c->k->reads_by_vectors || !panels_take(w)) return;
    fence panels = fence_new(panels_bytes(w)), rows = fence_new(tensor_bytes(w));
    for (int o = 0; o < w->n_rows; o += PANEL)
        panels_pack(panels.data, w, o, o + PANEL < w->n_rows ? o + PANEL : w->n_rows);
    tensor packed = *w;
    packed.data = rows.data;
    packed.panels = panels.data;
    c->op = exact ? "matmul_f32 of panels" : "matmul_int8 of panels";
    check_range(c, &packed, x, want, exact, 0, w->n_rows, what);
    if (w->n_rows > 32) check_range(c, &packed, x, want, exact, 16, 32, what);
    check_true(c, fence_intact(&panels), "panels: wrote elsewhere");
    fence_free(&panels);
    fence_free(&rows);
}

static void check_case(checker *c, dtype type, int n_rows, int n_outputs, int n_cols, pattern p)
{
    fence weights;
    act_memory m;
    tensor w = random_weights(&weights, type, n_outputs, n_cols);
    act x = random_act(&m, n_rows, n_cols, p);
    float *want = mem_alloc((size_t)n_rows * (size_t)n_outputs, 4), *row = mem_alloc((size_t)n_cols, 4);
    uint64_t before = hash_bytes(weights.data, weights.n) ^ hash_bytes(m.x.data, m.x.n) ^
                      hash_bytes(m.q.data, m.q.n);
    for (int exact = 0; exact < 2; exact++) {
        if (!exact && (!quant_formats[type]->sub || n_cols % 32)) continue;
        char what[160];
        c->op = exact ? "matmul_f32" : "matmul_int8";
        snprintf(what, sizeof what, "%s %d rows, %d outputs, %d columns, %s",
                 quant_formats[type]->name, n_rows, n_outputs, n_cols, pattern_names[p]);
        expect(want, &w, &x, exact, row);
        check_range(c, &w, &x, want, exact, 0, n_outputs, what);
        if (n_outputs > 32) check_range(c, &w, &x, want, exact, 16, 32, what);
        if (!exact || panels_float(type)) check_panels(c, &w, &x, want, exact, what);
    }
    uint64_t after = hash_bytes(weights.data, weights.n) ^ hash_bytes(m.x.data, m.x.n) ^
                     hash_bytes(m.q.data, m.q.n);
    check_true(c, before == after, "inputs were changed");
    mem_free(want);
    mem_free(row);
    fence_free(&weights);
    act_memory_free(&m);
}

static void check_format(checker *c, dtype type)
{
    static const int outputs[] = {1, 15, 16, 17, 31, 33, 100};
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64};
    static const int columns[] = {1, 2, 3, 5, 9, 31, 33};
    int block = quant_formats[type]->block_size;
    size_t some = c->quick ? 5 : 1; // quick: 2, 7 and 17 rows; 15 and 100 outputs; 2 and 33 blocks
    int step = block < 32 ? 32 : block;
    for (size_t i = c->quick; i < sizeof rows / sizeof *rows; i += some)
        check_case(c, type, rows[i], 33, c->quick ? 3 * step : step == 32 ? 1056 : 1280, RANDOM);
    for (size_t i = c->quick; i < sizeof outputs / sizeof *outputs; i += some) {
        check_case(c, type, 1, outputs[i], 256, RANDOM);
        check_case(c, type, 11, outputs[i], 256, RANDOM);
    }
    for (size_t i = c->quick; i < sizeof columns / sizeof *columns; i += some) {
        check_case(c, type, 1, 16, columns[i] * step, RANDOM);
        check_case(c, type, 9, 17, columns[i] * step, RANDOM);
    }
    for (int p = c->quick; p < PATTERN_COUNT; p++) {
        check_case(c, type, 1, 17, 512, (pattern)p);
        check_case(c, type, 12, 17, 512, (pattern)p);
    }
    if (block == 1) // any number of columns
        for (int n = 1; n < 300; n += n < 20 ? (int)some : 37) {
            check_case(c, type, 1, 16, n, RANDOM);
            check_case(c, type, 3, 20, n, RANDOM);
        }
}

/* More rows than one group of rows in scratch; and so many that any level finds them many. */
static void check_many_rows(checker *c)
{
    static const dtype types[] = {DT_Q8_0, DT_Q5_0, DT_Q4_1, DT_Q4_K, DT_Q6_K, DT_Q2_K, DT_IQ3_S};
    for (int i = 0; i < COUNT_OF(types); i++) check_case(c, types[i], 150, 33, 768, RANDOM);
    check_case(c, DT_Q8_0, 271, 16, 64, RANDOM);
    check_case(c, DT_Q4_K, 67, 16, 16384, RANDOM);
    check_case(c, DT_BF16, 140, 16, 64, RANDOM);
}

static void check_act_row(checker *c)
{
    c->op = "act_row";
    for (int n = 32; n <= 512; n += 32)
        for (int p = 0; p < PATTERN_COUNT + 2; p++) {
            act_memory m, e;
            act a = random_act(&m, 1, n, p < PATTERN_COUNT ? (pattern)p : RANDOM);
            if (p == PATTERN_COUNT) a.x[random_below(n)] = NAN;
            if (p == PATTERN_COUNT + 1) a.x[random_below(n)] = -INFINITY;
            act b = random_act(&e, 1, n, ZEROS);
            quant_act_row(b.q, b.scale, b.sum, a.x, (size_t)n);
            c->k->act_row(a.q, a.scale, a.sum, a.x, n);
            check_bits(c, a.scale, b.scale, (size_t)n / 32, "scales");
            check_true(c, !memcmp(a.q, b.q, (size_t)n * ACT_PLANES) && !memcmp(a.sum, b.sum, (size_t)n / 4),
                       "codes or sums of %d, pattern %d", n, p);
            check_true(c, fence_intact(&m.q) && fence_intact(&m.scale) && fence_intact(&m.sum),
                       "wrote elsewhere");
            act_memory_free(&m);
            act_memory_free(&e);
        }
}

void check_matmul(checker *c)
{
    check_act_row(c);
    for (int t = 0; t < DT_COUNT; t++) check_format(c, (dtype)t);
    check_many_rows(c);
}
