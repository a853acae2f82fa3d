/*
 * test_top.c: the search for the largest products finds what the whole product has, to the bit: on
 * random matrices and on rows that are made to sit at the bound, tie, overflow or be no numbers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/half.h"
#include "base/mem.h"
#include "compute/backend.h"

enum { COLS = 256, ROWS = 1000, ACTS = 3, STRIDE = 1024, ROOM = 1100 };

typedef struct bench {
    const backend *be;
    device *dev;
    int n_threads;
    linear head;
    uint8_t *bytes;
    act x;
    coarse c;
    float *whole; // [ACTS, STRIDE]
    top_args args;
    top_row rows[ACTS];
    float *score, *upper, *best;
    int pack; // panels a thread packs before the search
} bench;

static uint32_t noise_state = 1;
static float noise(void) // -1 … 1, mostly small
{
    float v = 0;
    for (int i = 0; i < 3; i++) {
        noise_state = noise_state * 1664525u + 1013904223u;
        v += (float)(noise_state >> 8) / 0x1p23f - 1;
    }
    return v / 3;
}

static void *pages(bench *b, size_t n)
{
    void *p = b->be->alloc(b->dev, n);
    assert_non_null(p);
    return p;
}

static void open_bench(bench *b, dtype type, const char *level, int n_threads)
{
    *b = (bench){ .be = backend_find("cpu"), .n_threads = n_threads };
    device_options o = { n_threads, level, COLS, 64 };
    assert_int_equal(b->be->open(&b->dev, &o, NULL), INFER_OK);
    size_t row_bytes = quant_row_bytes(type, COLS);
    b->bytes = pages(b, row_bytes * ROWS);
    b->head.w = (tensor){ .name = "head",
                          .data = b->bytes,
                          .type = type,
                          .n_rows = ROWS,
                          .n_cols = COLS,
                          .n_slices = 1,
                          .row_bytes = row_bytes };
    b->x = (act){ .n_rows = ACTS, .n_cols = COLS, .stride = COLS };
    b->x.x = pages(b, ACTS * COLS * 4);
    b->x.q = pages(b, ACTS * COLS * ACT_PLANES);
    b->x.scale = pages(b, ACTS * COLS / 32 * 4);
    b->x.sum = pages(b, ACTS * COLS / 16 * 4);
    b->whole = pages(b, ACTS * STRIDE * 4);
    b->score = pages(b, ACTS * STRIDE * 4);
    b->upper = pages(b, ACTS * STRIDE * 4);
    b->best = pages(b, (size_t)n_threads * ACTS * COARSE_MOST * 4);
    float row[COLS];
    for (int r = 0; r < ROWS; r++) {
        float size = 1 + (float)(r % 7);
        for (int k = 0; k < COLS; k++)
            row[k] = noise() * size * (k / 32 == r % 8 ? 3 : 1);
        quant_formats[type]->quantize(b->bytes + (size_t)r * row_bytes, row, NULL, COLS);
    }
    for (int r = 0; r < ACTS; r++)
        for (int k = 0; k < COLS; k++)
            b->x.x[r * COLS + k] = noise() * (k % 37 == 5 ? 40 : 1) + 0.3f;
    for (int r = 0; r < ACTS; r++) {
        b->rows[r].ids = pages(b, (size_t)n_threads * ROOM * 4);
        b->rows[r].values = pages(b, (size_t)n_threads * ROOM * 4);
        b->rows[r].n = pages(b, (size_t)n_threads * sizeof(int));
    }
    assert_true(b->be->coarse_open(b->dev, &b->c, &b->head.w));
    for (int k = 0; k < COLS; k++)
        b->c.direction[k] = 1 / 16.0f; // of length 1
    b->args = (top_args){ .c = &b->c,
                          .x = &b->x,
                          .rows = b->rows,
                          .room = ROOM,
                          .scale = 1,
                          .score = b->score,
                          .upper = b->upper,
                          .stride = STRIDE,
                          .best = b->best };
    b->pack = 1 << 20;
}

static void close_bench(bench *b)
{
    b->be->coarse_close(&b->c);
    b->be->close(b->dev); // the rest goes with the process
}

static void run_both(const worker *w, void *arg)
{
    bench *b = arg;
    const uint8_t *from;
    size_t size;
    b->be->prepare(w, &b->x);
    b->be->barrier(w);
    b->be->matmul(w, b->whole, STRIDE, &b->head, &b->x, false);
    b->be->coarse_pack(w, &b->c, b->pack, &from, &size);
    b->be->barrier(w);
    b->be->top(w, &b->args);
}

static bool listed(const int32_t *list, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (list[i] == id) return true;
    return false;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The k-th largest of the whole product's numbers without `also`; -INFINITY where there are less.
 */
static float kth_of(const bench *b, int r)
{
    static float sorted[ROWS];
    const top_row *t = &b->rows[r];
    int n = 0;
    for (int i = 0; i < ROWS; i++)
        if (!isnan(b->whole[r * STRIDE + i]) && !listed(t->also, t->n_also, i))
            sorted[n++] = b->whole[r * STRIDE + i];
    qsort(sorted, (size_t)n, sizeof *sorted, descending);
    return n < t->k ? -INFINITY : sorted[t->k - 1];
}

/* Searches and compares with the whole product; returns the rows that were read exactly. */
static int check(bench *b, int k, const int32_t *also, int n_also)
{
    int read = 0;
    for (int r = 0; r < ACTS; r++) {
        b->rows[r].k = k;
        b->rows[r].also = also;
        b->rows[r].n_also = n_also;
    }
    b->be->run(b->dev, run_both, b);
    for (int r = 0; r < ACTS; r++) {
        const top_row *t = &b->rows[r];
        bool found[ROWS] = { false };
        int32_t last = -1;
        for (int i = 0; i < b->n_threads; i++) {
            assert_true(t->n[i] >= 0);
            for (int j = 0; j < t->n[i]; j++) {
                int32_t id = t->ids[i * ROOM + j];
                assert_true(id > last && id < ROWS);
                last = id;
                found[id] = true;
                assert_memory_equal(&t->values[i * ROOM + j], &b->whole[r * STRIDE + id], 4);
            }
            read += t->n[i];
        }
        float kth = kth_of(b, r);
        for (int i = 0; i < ROWS; i++)
            if (b->whole[r * STRIDE + i] >= kth || listed(also, n_also, i)) assert_true(found[i]);
        // The bound itself, of every row that is packed: |product - score| <= upper - score.
        for (int i = 0; i < ROWS && b->pack >= ROWS; i++) {
            float y = b->whole[r * STRIDE + i], s = b->score[r * STRIDE + i];
            float bound = b->upper[r * STRIDE + i] - s;
            if (!isnan(y)) assert_false(fabs((double)y - (double)s) > (double)bound);
        }
    }
    return read;
}

static const char *const levels[] = { "ref", "avx2", "avx512vnni" };
static bool have_level(const char *name) { return cpu_kernels_get(name) != NULL; }

static void random_rows(void **state)
{
    (void)state;
    static const dtype types[] = { DT_Q8_0, DT_Q4_1, DT_Q5_0, DT_Q4_K, DT_Q6_K, DT_F16, DT_BF16 };
    static const int32_t also[] = { 0, 3, 500, 501, 999 };
    for (int l = 0; l < 3; l++)
        for (int t = 0; t < 7; t++) {
            if (!have_level(levels[l])) continue;
            for (int threads = 1; threads <= 3; threads += 2) {
                bench b;
                open_bench(&b, types[t], levels[l], threads);
                int read = check(&b, 1, NULL, 0);
                if (types[t] != DT_Q4_K) assert_true(read < ACTS * ROWS / 2);
                check(&b, 40, also, 5);
                check(&b, COARSE_MOST, NULL, 0);
                b.be->coarse_drop(&b.c);
                check(&b, 7, also, 5);
                close_bench(&b);
            }
        }
}

static void while_it_is_packed(void **state)
{
    (void)state;
    bench b;
    static const int32_t also[] = { 17, 900 };
    open_bench(&b, DT_Q8_0, NULL, 2);
    b.pack = 3; // a slice at a time
    for (int i = 0; i < 14; i++)
        check(&b, 1 + i * 5, also, 2);
    close_bench(&b);
}

static uint8_t *q8_row(bench *b, int r) { return b->bytes + (size_t)r * b->head.w.row_bytes; }

/* All products below zero, which is what a row of nothing would have. */
static void negative_while_it_is_packed(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, DT_Q8_0, NULL, 2);
    memcpy(b.x.x + COLS, b.x.x, COLS * 4);
    memcpy(b.x.x + 2 * COLS, b.x.x, COLS * 4);
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < COLS; k++) {
            int8_t *q = (int8_t *)q8_row(&b, r) + k / 32 * 34 + 2 + k % 32;
            int size = *q < 0 ? -*q : *q;
            *q = (int8_t)(b.x.x[k] > 0 ? -size - (size < 127) : size + (size < 127));
        }
    b.pack = 3;
    for (int i = 0; i < 14; i++)
        check(&b, 1 + i, NULL, 0);
    close_bench(&b);
}

/* Row r: what the copy leaves of it points where x does (sign 1) or against it, as far as a low
 * nibble goes; its high nibbles are all `high`. */
static void at_the_bound(bench *b, int r, int high, int sign, float scale)
{
    uint8_t *p = q8_row(b, r);
    for (int k = 0; k < COLS; k++) {
        uint16_t d = f16_from_f32(scale);
        memcpy(p + k / 32 * 34, &d, 2);
        int low = (b->x.x[k] > 0) == (sign > 0) ? 15 : 0;
        p[k / 32 * 34 + 2 + k % 32] = (uint8_t)(int8_t)(16 * high + low);
    }
}

static void rows_at_the_bound(void **state)
{
    (void)state;
    for (int l = 0; l < 3; l++) {
        bench b;
        if (!have_level(levels[l])) continue;
        open_bench(&b, DT_Q8_0, levels[l], 2);
        // Scores in one order, products in the other: many pairs that only the rest tells apart.
        for (int r = 100; r < 400; r++)
            at_the_bound(&b, r, (r - 100) % 3 - 1, r % 2 ? 1 : -1, 0.01f);
        for (int r = 400; r < 420; r++)
            at_the_bound(&b, r, 0, 1, 0.02f);
        int32_t also[] = { 101, 400 };
        check(&b, 1, NULL, 0);
        check(&b, 5, also, 2);
        check(&b, 40, NULL, 0);
        close_bench(&b);
    }
}

static void ties(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, DT_Q8_0, NULL, 3);
    for (int r = 50; r < 60; r++)
        at_the_bound(&b, r, 5, 1, 0.5f); // the largest, ten times
    check(&b, 1, NULL, 0);
    for (int r = 0; r < ACTS; r++)
        for (int i = 50, at = 0; i < 60; i++) { // all of them are there, the lowest first
            while (at < b.rows[r].n[0] && b.rows[r].ids[at] != i)
                at++;
            assert_true(at < b.rows[r].n[0]);
        }
    memset(b.bytes, 0, b.head.w.row_bytes * ROWS); // all equal
    b.be->coarse_drop(&b.c);
    check(&b, 3, NULL, 0);
    close_bench(&b);
}

static void no_numbers(void **state)
{
    (void)state;
    static const uint16_t scales[] = { 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x8000,
                                       0,      1,      0x8001, 0x7bff, 0xbc00 };
    for (int l = 0; l < 3; l++) {
        bench b;
        if (!have_level(levels[l])) continue;
        open_bench(&b, DT_Q8_0, levels[l], 2);
        for (int r = 0; r < 100; r++)
            memcpy(q8_row(&b, r * 9) + r % 8 * 34, &scales[r % 10], 2);
        check(&b, 1, NULL, 0);
        check(&b, 30, NULL, 0);
        close_bench(&b);
        open_bench(&b, DT_BF16, levels[l], 2);
        static const uint16_t halves[] = { 0x7f80, 0xff80, 0x7fc0, 0x7f00, 0xff7f, 1, 0x8000 };
        for (int r = 0; r < 70; r++)
            memcpy(q8_row(&b, r * 9) + r % 8 * 34, &halves[r % 7], 2);
        check(&b, 1, NULL, 0);
        check(&b, 30, NULL, 0);
        close_bench(&b);
    }
}

/* Activations that are no numbers are refused; zeros and tiny ones are not. */
static void activations(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, DT_Q8_0, NULL, 2);
    memset(b.x.x, 0, COLS * 4);
    for (int k = 0; k < COLS; k++)
        b.x.x[COLS + k] *= 1e-30f;
    check(&b, 2, NULL, 0);
    b.x.x[COLS + 7] = NAN;
    b.x.x[2 * COLS + 9] = INFINITY;
    b.be->run(b.dev, run_both, &b);
    for (int t = 0; t < 2; t++) {
        assert_true(b.rows[0].n[t] >= 0);
        assert_int_equal(b.rows[1].n[t], -1);
        assert_int_equal(b.rows[2].n[t], -1);
    }
    close_bench(&b);
}

static void room_and_scale(void **state)
{
    (void)state;
    bench b;
    open_bench(&b, DT_F16, NULL, 1);
    b.args.scale = 0.25f;
    for (int r = 0; r < ACTS; r++)
        b.rows[r].k = 3, b.rows[r].also = NULL, b.rows[r].n_also = 0;
    b.be->run(b.dev, run_both, &b);
    for (int i = 0; i < b.rows[0].n[0]; i++)
        assert_true(b.rows[0].values[i] == b.whole[b.rows[0].ids[i]] * 0.25f);
    b.args.room = 2;
    b.be->run(b.dev, run_both, &b);
    assert_int_equal(b.rows[0].n[0], -1);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows),
        cmocka_unit_test(while_it_is_packed),
        cmocka_unit_test(negative_while_it_is_packed),
        cmocka_unit_test(rows_at_the_bound),
        cmocka_unit_test(ties),
        cmocka_unit_test(no_numbers),
        cmocka_unit_test(activations),
        cmocka_unit_test(room_and_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
