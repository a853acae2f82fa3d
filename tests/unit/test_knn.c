/* Scans: scores against plain sums, the best and their order, NaN, ties, parts, threads. */
#include <math.h>

#include "base/half.h"
#include "base/mem.h"
#include "test.h"
#include "vindex/kmeans.h"
#include "vindex/knn.h"

enum { N = 300, D = 64, QUERIES = 70, K = 12 };

static uint64_t state;
static float draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(state >> 40) * 0x1p-23 - 1.0);
}

static float rows[N * D], queries[QUERIES * D];

static void setup(void)
{
    state = 7;
    for (int i = 0; i < N * D; i++)
        rows[i] = draw();
    for (int i = 0; i < QUERIES * D; i++)
        queries[i] = draw();
}

static tensor as_type(dtype type)
{
    tensor t = { .type = type, .n_rows = N, .n_cols = D, .n_slices = 1 };
    t.row_bytes = quant_row_bytes(type, D);
    uint8_t *data = mem_alloc(N, t.row_bytes);
    assert_non_null(data);
    for (int r = 0; r < N; r++) {
        if (type == DT_F32)
            memcpy(data + (size_t)r * t.row_bytes, rows + r * D, t.row_bytes);
        else
            quant_formats[type]->quantize(data + (size_t)r * t.row_bytes, rows + r * D, NULL, D);
    }
    t.data = data;
    return t;
}

/* What a scan of a matrix must find, in float64. */
static double product(const tensor *t, int r, const float *x, double *size)
{
    float row[D];
    double sum = 0;
    tensor_row(row, t, r);
    *size = 0;
    for (int i = 0; i < D; i++) {
        sum += (double)row[i] * (double)x[i];
        *size += fabs((double)row[i] * (double)x[i]);
    }
    return sum;
}

static void scores_are_products(void **s)
{
    (void)s;
    setup();
    static const dtype types[] = { DT_F32, DT_F16, DT_BF16, DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_IQ4_NL };
    knn *k;
    assert_int_equal(knn_new(&k, 2, D, NULL), INFER_OK);
    float *got = mem_alloc(QUERIES * N, sizeof *got);
    for (int t = 0; t < 7; t++) {
        if (types[t] != DT_F32 && !quant_formats[types[t]]->quantize) continue;
        tensor w = as_type(types[t]);
        knn_query q = { .w = &w, .count = N, .x = queries, .n_queries = QUERIES };
        assert_int_equal(knn_scores(k, got, &q, NULL), INFER_OK);
        for (int i = 0; i < QUERIES; i++)
            for (int r = 0; r < N; r++) {
                double size, want = product(&w, r, queries + i * D, &size);
                // fast mode rounds queries to 16 bits
                assert_true(fabs((double)got[i * N + r] - want) <= 1e-4 * size + 1e-6);
            }
        mem_free((void *)(uintptr_t)w.data);
    }
    mem_free(got);
    knn_free(k);
}

/* One query or many, one thread or three, all rows or some: the same bits and the same order. */
static void the_best_of_any_cut(void **s)
{
    (void)s;
    setup();
    static const dtype types[] = { DT_F32, DT_F16, DT_Q8_0 };
    for (int t = 0; t < 3; t++) {
        tensor w = as_type(types[t]);
        float all[N], part[N];
        knn_hit many[QUERIES * K], one[K];
        int counts[QUERIES], count;
        knn *k1, *k3;
        assert_int_equal(knn_new(&k1, 1, D, NULL), INFER_OK);
        assert_int_equal(knn_new(&k3, 3, D, NULL), INFER_OK);
        knn_query q = { .w = &w, .count = N, .x = queries, .n_queries = QUERIES };
        assert_int_equal(knn_best(k3, many, counts, K, &q, NULL), INFER_OK);
        for (int i = 0; i < QUERIES; i++) {
            q = (knn_query){ .w = &w, .count = N, .x = queries + i * D, .n_queries = 1 };
            assert_int_equal(knn_best(k1, one, &count, K, &q, NULL), INFER_OK);
            assert_int_equal(count, K);
            assert_int_equal(counts[i], K);
            assert_memory_equal(one, many + i * K, sizeof one);
            assert_int_equal(knn_scores(k1, all, &q, NULL), INFER_OK);
            for (int j = 0; j < K; j++) {
                assert_int_equal(f32_bits(one[j].score), f32_bits(all[one[j].row]));
                if (j) assert_true(fabsf(one[j].score) <= fabsf(one[j - 1].score));
            }
            int better = 0; // nothing that was left out is larger than the last
            for (int r = 0; r < N; r++)
                better += fabsf(all[r]) > fabsf(one[K - 1].score);
            assert_true(better <= K - 1);
            q.first = 33;
            q.count = 100;
            assert_int_equal(knn_scores(k3, part, &q, NULL), INFER_OK);
            assert_memory_equal(part, all + 33, 100 * sizeof *part);
            assert_int_equal(knn_best(k3, one, &count, K, &q, NULL), INFER_OK);
            for (int j = 0; j < count; j++)
                assert_true(one[j].row >= 33 && one[j].row < 133);
        }
        q.count = N;
        infer_error err;
        assert_int_equal(knn_scores(k1, part, &q, &err), INFER_ARGUMENT);
        mem_free((void *)(uintptr_t)w.data);
        knn_free(k1);
        knn_free(k3);
    }
}

static void top_leaves_nan_out(void **s)
{
    (void)s;
    float scores[] = { 1, NAN, -3, 3, 0, -NAN, INFINITY, 2, -3 };
    knn_hit h[9];
    assert_int_equal(knn_top(h, 9, scores, 9, 100), 7);
    static const int order[] = { 106, 102, 103, 108, 107, 100, 104 };
    for (int i = 0; i < 7; i++)
        assert_int_equal(h[i].row, order[i]);
    assert_int_equal(knn_top(h, 2, scores, 9, 0), 2);
    assert_int_equal(h[0].row, 6);
    assert_int_equal(h[1].row, 2);
    assert_int_equal(knn_top(h, 0, scores, 9, 0), 0);
    assert_int_equal(knn_top(h, 3, scores, 0, 0), 0);
    for (int i = 0; i < 9; i++)
        scores[i] = 1;
    assert_int_equal(knn_top(h, 4, scores, 9, 0), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(h[i].row, i); // ties: the lowest
}

static void contributions(void **s)
{
    (void)s;
    setup();
    tensor w = as_type(DT_F16), up = as_type(DT_F32);
    float norms[N], gate[N], ups[N], got[N], bias[N], row[D];
    knn_row_norms(norms, &w, row);
    knn *k;
    assert_int_equal(knn_new(&k, 2, D, NULL), INFER_OK);
    for (int i = 0; i < N; i++)
        bias[i] = draw();
    knn_query q = { .w = &w, .count = N, .x = queries, .n_queries = 1 };
    assert_int_equal(knn_scores(k, gate, &q, NULL), INFER_OK);
    q.w = &up;
    assert_int_equal(knn_scores(k, ups, &q, NULL), INFER_OK);
    q = (knn_query){ .w = &w,
                     .up = up,
                     .count = N,
                     .x = queries,
                     .n_queries = 1,
                     .norms = norms,
                     .gate_bias = bias,
                     .act = ACT_SILU };
    assert_int_equal(knn_scores(k, got, &q, NULL), INFER_OK);
    for (int i = 0; i < N; i++) {
        double g = (double)gate[i] + (double)bias[i];
        double want = g / (1 + exp(-g)) * (double)ups[i] * (double)norms[i];
        assert_true(fabs((double)got[i] - want) <= 1e-4 * fabs(want) + 1e-4);
    }
    float sums[D];
    double wide[D];
    knn_column_norms(sums, &up, row, wide);
    for (int i = 0; i < D; i++) {
        double sum = 0;
        for (int r = 0; r < N; r++)
            sum += (double)rows[r * D + i] * (double)rows[r * D + i];
        assert_true(fabs((double)sums[i] - sqrt(sum)) <= 1e-5);
    }
    mem_free((void *)(uintptr_t)w.data);
    mem_free((void *)(uintptr_t)up.data);
    knn_free(k);
}

static void clusters(void **s)
{
    (void)s;
    setup();
    // five directions and noise
    enum { C = 5 };
    static float x[N * D];
    for (int i = 0; i < N; i++) {
        double size = 0;
        for (int j = 0; j < D; j++) {
            x[i * D + j] = queries[(i % C) * D + j] + 0.1f * rows[i * D + j];
            size += (double)x[i * D + j] * (double)x[i * D + j];
        }
        for (int j = 0; j < D; j++)
            x[i * D + j] = (float)((double)x[i * D + j] / sqrt(size));
    }
    float centres[C * D], again[C * D];
    int32_t cluster[N], other[N];
    kmeans_run run = { .x = x, .n = N, .d = D, .k = C, .max_iterations = 50, .n_threads = 1 };
    assert_int_equal(kmeans(centres, cluster, &run, NULL), INFER_OK);
    run.n_threads = 3;
    assert_int_equal(kmeans(again, other, &run, NULL), INFER_OK);
    assert_memory_equal(centres, again, sizeof centres);
    assert_memory_equal(cluster, other, sizeof cluster);
    for (int i = 0; i < N; i++) {
        assert_int_equal(cluster[i], cluster[i % C]);
        for (int j = 0; j < i && j < C; j++)
            if (i < C) assert_int_not_equal(cluster[i], cluster[j]);
    }
    for (int c = 0; c < C; c++) {
        double size = 0;
        for (int j = 0; j < D; j++)
            size += (double)centres[c * D + j] * (double)centres[c * D + j];
        assert_true(fabs(size - 1) < 1e-5);
    }
    // more clusters than points: each its own
    run.n = 3;
    assert_int_equal(kmeans(centres, cluster, &run, NULL), INFER_ARGUMENT);
    run.k = 3;
    assert_int_equal(kmeans(centres, cluster, &run, NULL), INFER_OK);
    assert_int_not_equal(cluster[0], cluster[1]);
    assert_int_not_equal(cluster[1], cluster[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_products),
        cmocka_unit_test(the_best_of_any_cut),
        cmocka_unit_test(top_leaves_nan_out),
        cmocka_unit_test(contributions),
        cmocka_unit_test(clusters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
