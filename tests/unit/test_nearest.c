/*
 * test_nearest.c: the search for the rows with the largest products finds what the whole exact
 * product has, to the bit: all kinds of tables and widths, equal rows, rows that are not to be
 * found, numbers that are none.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "vindex/nearest.h"

enum { ROWS = 5000, VECTORS = 70, MOST_COLS = 1024 };

typedef struct bench {
    const backend *be;
    device *dev;
    tensor table;
    float *x, *y; // [VECTORS, stride], [VECTORS, ROWS]
    size_t stride;
    uint8_t *skip;
} bench;

static uint32_t state;
static float noise(void)
{
    float v = 0;
    for (int i = 0; i < 3; i++) {
        state = state * 1664525u + 1013904223u;
        v += (float)(state >> 8) / 0x1p23f - 1;
    }
    return v;
}

/* kind: 0 noise; 1 many equal rows; 2 numbers that are none, rows of zeros, very long ones */
static void open_bench(bench *b, dtype type, int cols, int n_threads, int kind)
{
    state = 7;
    *b = (bench){ .be = default_backend(), .stride = row_stride(cols) };
    device_options o = { n_threads, NULL, cols, 64 };
    assert_int_equal(b->be->open(&b->dev, &o, NULL), INFER_OK);
    size_t size = quant_row_bytes(type, (size_t)cols);
    uint8_t *bytes = b->be->alloc(b->dev, size * ROWS);
    b->x = b->be->alloc(b->dev, VECTORS * b->stride * sizeof(float));
    b->y = b->be->alloc(b->dev, sizeof(float) * VECTORS * ROWS);
    b->skip = b->be->alloc(b->dev, ROWS);
    assert_true(bytes && b->x && b->y && b->skip);
    b->table = (tensor){ .name = "table",
                         .data = bytes,
                         .type = type,
                         .n_rows = ROWS,
                         .n_cols = cols,
                         .n_slices = 1,
                         .row_bytes = size };
    float row[MOST_COLS];
    for (int r = 0; r < ROWS; r++) {
        float length = kind == 2 && r % 97 == 0   ? 1e15f
                       : kind == 2 && r % 89 == 0 ? 0
                                                  : 1 + (float)(r % 5);
        for (int k = 0; k < cols; k++)
            row[k] = noise() * length * (k % 50 == 7 ? 6 : 1);
        if (kind == 2 && type == DT_F32 && r % 501 == 3)
            row[r % cols] = r % 2 ? INFINITY : r % 4 ? -INFINITY : NAN;
        quant_formats[type]->quantize(bytes + (size_t)r * size, row, NULL, (size_t)cols);
        if (kind == 1 && r % 3 && r > 100)
            memcpy(bytes + (size_t)r * size, bytes + (size_t)(r % 4) * size, size);
        b->skip[r] = r % 11 == 2;
    }
    for (int i = 0; i < VECTORS; i++)
        for (int k = 0; k < cols; k++) {
            float v = noise() * (k % 37 == 5 ? 40 : 1);
            if (kind == 2 && i % 10 == 3) v = 0;
            if (kind == 2 && i % 10 == 4) v *= 1e30f;
            if (kind == 2 && i % 10 == 5 && k == 9) v = NAN;
            if (kind == 2 && i % 10 == 6 && k == 9) v = INFINITY;
            if (kind == 2 && i % 10 == 7) v *= 1e-38f;
            b->x[(size_t)i * b->stride + (size_t)k] = v;
        }
}

static void whole(const worker *w, void *arg)
{
    bench *b = arg;
    linear l = { b->table, NULL };
    act x = { .x = b->x, .n_rows = VECTORS, .n_cols = b->table.n_cols, .stride = b->stride };
    b->be->matmul(w, b->y, ROWS, &l, &x, true);
}

static const float *order_of;
static int by_product(const void *p, const void *q)
{
    int a = *(const int *)p, b = *(const int *)q;
    if (order_of[a] != order_of[b]) return order_of[a] < order_of[b] ? 1 : -1;
    return a - b;
}

static void check(dtype type, int cols, int n_threads, int kind, int top_k, bool skip)
{
    bench b;
    nearest *x;
    size_t stride;
    static int order[ROWS];
    open_bench(&b, type, cols, n_threads, kind);
    b.be->run(b.dev, whole, &b);
    assert_int_equal(nearest_new(&x, b.be, b.dev, &b.table, top_k, skip ? b.skip : NULL, NULL),
                     INFER_OK);
    for (int again = 0; again < 2; again++) {
        memcpy(nearest_vectors(x, &stride), b.x, VECTORS * b.stride * sizeof(float));
        assert_int_equal(stride, b.stride);
        assert_true(nearest_search(x, VECTORS, NULL, NULL));
    }
    for (int i = 0; i < VECTORS; i++) {
        const float *y = b.y + (size_t)i * ROWS;
        int n = 0, found;
        for (int r = 0; r < ROWS; r++)
            if (y[r] > -INFINITY && !(skip && b.skip[r])) order[n++] = r;
        order_of = y;
        qsort(order, (size_t)n, sizeof *order, by_product);
        const near_row *best = nearest_best(x, i, &found);
        assert_int_equal(found, n < top_k ? n : top_k);
        for (int j = 0; j < found; j++) {
            assert_int_equal(best[j].id, order[j]);
            assert_memory_equal(&best[j].score, &y[order[j]], sizeof(float));
        }
    }
    nearest_free(x);
    b.be->close(b.dev); // the rest goes with the process
}

static void test_types(void **s)
{
    static const dtype types[] = { DT_F32, DT_F16, DT_BF16, DT_Q8_0, DT_Q4_1, DT_Q5_0 };
    (void)s;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int kind = 0; kind < 3; kind++)
            check(types[i], 288, 2, kind, 10, false);
    check(DT_Q6_K, 512, 3, 0, 10, false);
}

static void test_widths(void **s)
{
    (void)s;
    check(DT_F32, 40, 2, 0, 10, false); // no integer products
    check(DT_F32, 40, 2, 2, 10, false);
    check(DT_F16, 128, 2, 1, 10, false); // slow ones
    check(DT_F16, 1024, 1, 0, 10, false);
}

static void test_counts(void **s)
{
    static const int counts[] = { 1, 3, 64, 65, 1000 };
    (void)s;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int kind = 0; kind < 3; kind++)
            check(DT_F32, 256, 2, kind, counts[i], i % 2 == 0);
}

static bool stop(double share, void *user)
{
    *(double *)user = share;
    return false;
}

static void test_stopped(void **s)
{
    bench b;
    nearest *x;
    double share = 0;
    (void)s;
    open_bench(&b, DT_Q8_0, 256, 2, 0);
    assert_int_equal(nearest_new(&x, b.be, b.dev, &b.table, 5, NULL, NULL), INFER_OK);
    assert_false(nearest_search(x, 3, stop, &share));
    assert_true(share > 0 && share < 1);
    nearest_free(x);
    b.be->close(b.dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
