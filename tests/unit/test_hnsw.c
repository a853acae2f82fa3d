/* The graph: what it finds against a scan, its determinism, its file and damaged ones. */
#include <math.h>

#include "base/half.h"
#include "base/mem.h"
#include "test.h"
#include "vindex/hnsw.h"

enum { N = 1000, D = 64, QUERIES = 50, K = 10 };

static uint64_t state;
static float draw(void) // about normal
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)((double)(state >> 40) * 0x1p-23 - 1.0);
    }
    return sum;
}

static float rows[N * D], queries[QUERIES * D];

static void random_data(void)
{
    state = 1;
    for (int i = 0; i < N * D; i++)
        rows[i] = draw();
    for (int i = 0; i < QUERIES * D; i++)
        queries[i] = draw();
}
static void clustered_data(void)
{
    float centres[20 * D];
    state = 2;
    for (int i = 0; i < 20 * D; i++)
        centres[i] = 3 * draw();
    for (int i = 0; i < N * D; i++)
        rows[i] = centres[i / D % 20 * D + i % D] + 0.3f * draw();
    for (int i = 0; i < QUERIES * D; i++)
        queries[i] = centres[i / D % 20 * D + i % D] + 0.3f * draw();
}

static tensor matrix(int n, int d)
{
    return (tensor){ .name = "rows",
                     .data = (const uint8_t *)rows,
                     .type = DT_F32,
                     .n_rows = n,
                     .n_cols = d,
                     .n_slices = 1,
                     .row_bytes = (size_t)d * 4 };
}

static vindex_graph *build(const tensor *t, int m, int threads)
{
    thread_pool *pool;
    vindex_graph *g;
    graph_params p = { .m = m };
    assert_int_equal(pool_new(&pool, threads, NULL), INFER_OK);
    assert_int_equal(graph_build(&g, t, &p, pool, NULL), INFER_OK);
    pool_free(pool);
    return g;
}

static int scan(const tensor *t, const float *x, knn_hit *hits, int n)
{
    knn *k;
    int count;
    assert_int_equal(knn_new(&k, 1, t->n_cols, NULL), INFER_OK);
    knn_query q = { .w = t, .count = t->n_rows, .x = x, .n_queries = 1 };
    assert_int_equal(knn_best(k, hits, &count, n, &q, NULL), INFER_OK);
    knn_free(k);
    return count;
}

static double recall(const tensor *t, const vindex_graph *g, int ef)
{
    graph_search *s = graph_search_new(t->n_rows, t->n_cols, t->row_bytes, 200);
    assert_non_null(s);
    int right = 0;
    for (int i = 0; i < QUERIES; i++) {
        knn_hit want[K], got[K];
        const float *x = queries + i * t->n_cols;
        assert_int_equal(scan(t, x, want, K), K);
        int n = graph_find(g, s, got, K, t, x, D, ef);
        for (int a = 0; a < n; a++)
            for (int b = 0; b < K; b++)
                right += got[a].row == want[b].row;
    }
    graph_search_free(s);
    return (double)right / (QUERIES * K);
}

static void empty(void **u)
{
    (void)u;
    tensor t = matrix(0, D);
    vindex_graph *g = build(&t, 8, 1);
    graph_search *s = graph_search_new(0, D, t.row_bytes, 10);
    knn_hit h[K];
    assert_int_equal(graph_find(g, s, h, K, &t, queries, D, 10), 0);
    graph_search_free(s);
    graph_free(g);
}

static void single(void **u)
{
    (void)u;
    random_data();
    tensor t = matrix(1, D);
    vindex_graph *g = build(&t, 8, 1);
    graph_search *s = graph_search_new(1, D, t.row_bytes, 10);
    knn_hit h[K];
    assert_int_equal(graph_find(g, s, h, K, &t, queries, D, 10), 1);
    assert_int_equal(h[0].row, 0);
    graph_search_free(s);
    graph_free(g);
}

/* Sorted by magnitude, each once; scores are products and have a scan's bits. */
static void sorted_exact_scores(void **u)
{
    (void)u;
    random_data();
    tensor t = matrix(N, D);
    vindex_graph *g = build(&t, 8, 2);
    graph_search *s = graph_search_new(N, D, t.row_bytes, 100);
    knn *k;
    float all[N];
    assert_int_equal(knn_new(&k, 1, D, NULL), INFER_OK);
    for (int i = 0; i < QUERIES; i++) {
        knn_hit h[K];
        knn_query q = { .w = &t, .count = N, .x = queries + i * D, .n_queries = 1 };
        assert_int_equal(knn_scores(k, all, &q, NULL), INFER_OK);
        assert_int_equal(graph_find(g, s, h, K, &t, q.x, D, 100), K);
        for (int j = 0; j < K; j++) {
            double sum = 0;
            for (int l = 0; l < D; l++)
                sum += (double)rows[h[j].row * D + l] * (double)q.x[l];
            assert_true(fabs((double)h[j].score - sum) <= 1e-5 * fabs(sum) + 1e-5);
            assert_int_equal(f32_bits(h[j].score), f32_bits(all[h[j].row]));
            if (j) assert_true(fabsf(h[j].score) <= fabsf(h[j - 1].score));
            for (int l = 0; l < j; l++)
                assert_int_not_equal(h[l].row, h[j].row);
        }
    }
    knn_free(k);
    graph_search_free(s);
    graph_free(g);
}

static void recall_random(void **u)
{
    (void)u;
    random_data();
    tensor t = matrix(N, D);
    vindex_graph *g = build(&t, 8, 2);
    assert_true(recall(&t, g, 200) >= 0.9);
    graph_free(g);
}

static void recall_clustered(void **u)
{
    (void)u;
    clustered_data();
    tensor t = matrix(N, D);
    vindex_graph *g = build(&t, 8, 2);
    assert_true(recall(&t, g, 100) >= 0.9);
    graph_free(g);
}

/* A row and its negative are one: the sign of a query turns the scores' signs, nothing else. */
static void both_signs(void **u)
{
    (void)u;
    random_data();
    tensor t = matrix(N, D);
    vindex_graph *g = build(&t, 8, 2);
    graph_search *s = graph_search_new(N, D, t.row_bytes, 100);
    int negative = 0;
    for (int i = 0; i < QUERIES; i++) {
        knn_hit a[K], b[K];
        float x[D];
        for (int j = 0; j < D; j++)
            x[j] = -queries[i * D + j];
        int n = graph_find(g, s, a, K, &t, queries + i * D, D, 100);
        assert_int_equal(graph_find(g, s, b, K, &t, x, D, 100), n);
        for (int j = 0; j < n; j++) {
            assert_int_equal(a[j].row, b[j].row);
            assert_true(a[j].score == -b[j].score);
            negative += a[j].score < 0;
        }
    }
    assert_in_range(negative, QUERIES * K / 4, QUERIES * K * 3 / 4);
    graph_search_free(s);
    graph_free(g);
}

static void same_whatever_the_threads(void **u)
{
    (void)u;
    clustered_data();
    tensor t = matrix(N, D);
    vindex_graph *a = build(&t, 6, 1), *b = build(&t, 6, 3);
    assert_int_equal(a->memory_bytes, b->memory_bytes);
    assert_memory_equal(a->memory, b->memory, a->memory_bytes);
    assert_int_equal(a->entry, b->entry);
    assert_true(a->n_levels >= 3);
    graph_free(a);
    graph_free(b);
}

/* Rows of zeros, NaN and infinity, and queries of them. */
static void odd_values(void **u)
{
    (void)u;
    random_data();
    for (int i = 0; i < D; i++)
        rows[3 * D + i] = 0;
    rows[5 * D] = NAN;
    rows[7 * D] = INFINITY;
    tensor t = matrix(N, D);
    vindex_graph *g = build(&t, 8, 2);
    graph_search *s = graph_search_new(N, D, t.row_bytes, 100);
    knn_hit h[K];
    float x[D] = { 0 };
    assert_int_equal(graph_find(g, s, h, K, &t, x, D, 100), 0);
    x[1] = NAN;
    assert_int_equal(graph_find(g, s, h, K, &t, x, D, 100), 0);
    int n = graph_find(g, s, h, K, &t, queries, D, 100);
    assert_int_equal(n, K);
    for (int i = 0; i < n; i++) {
        assert_false(isnan(h[i].score));
        assert_int_not_equal(h[i].row, 5);
    }
    graph_search_free(s);
    graph_free(g);
    // all rows equal, and all zero
    for (int i = 0; i < N * D; i++)
        rows[i] = 1;
    g = build(&t, 8, 2);
    graph_free(g);
    memset(rows, 0, sizeof rows);
    g = build(&t, 8, 2);
    graph_free(g);
}

static void file_round_trip(void **u)
{
    (void)u;
    char folder[256], path[300];
    snprintf(path, sizeof path, "%s/graphs", test_folder(folder, sizeof folder));
    random_data();
    tensor t = matrix(N, D), small = matrix(40, D);
    vindex_graph *g = build(&t, 8, 2), *little = build(&small, 4, 1);
    graph_entry e[] = { { 0, 0, g, &t }, { 3, 1, little, &small } };
    infer_error err;
    assert_int_equal(graph_file_write(path, e, 2, &err), INFER_OK);
    graph_file *f;
    assert_int_equal(graph_file_open(&f, path, &err), INFER_OK);
    const vindex_graph *m;
    assert_int_equal(graph_file_find(f, &m, 1, 0, &t, &err), INFER_NOT_FOUND);
    assert_int_equal(graph_file_find(f, &m, 3, 1, &t, &err), INFER_FORMAT);
    assert_int_equal(graph_file_find(f, &m, 3, 1, &small, &err), INFER_OK);
    assert_int_equal(graph_file_find(f, &m, 0, 0, &t, &err), INFER_OK);
    assert_int_equal(graph_file_check(f, &err), INFER_OK);
    graph_search *s = graph_search_new(N, D, t.row_bytes, 100);
    for (int i = 0; i < QUERIES; i++) {
        knn_hit a[K], b[K];
        int n = graph_find(g, s, a, K, &t, queries + i * D, D, 50);
        assert_int_equal(graph_find(m, s, b, K, &t, queries + i * D, D, 50), n);
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
    }
    rows[0] += 1; // other gates
    assert_int_equal(graph_file_find(f, &m, 0, 0, &t, &err), INFER_FORMAT);
    graph_file_close(f);
    graph_search_free(s);
    graph_free(g);
    graph_free(little);
    test_remove_folder(folder);
}

/* Every byte of head, table and links changed: an error, or (the vectors) seen by the check. Every
 * length: an error. */
static void damaged_files(void **u)
{
    (void)u;
    char folder[256], path[300];
    snprintf(path, sizeof path, "%s/graphs", test_folder(folder, sizeof folder));
    random_data();
    tensor t = matrix(40, D);
    vindex_graph *g = build(&t, 4, 1);
    graph_entry e = { 2, 0, g, &t };
    assert_int_equal(graph_file_write(path, &e, 1, NULL), INFER_OK);
    char *text;
    size_t size;
    assert_int_equal(file_read(path, 1 << 20, &text, &size, NULL), INFER_OK);
    uint8_t *data = mem_pages(size);
    graph_file *f;
    infer_error err;
    int unseen = 0;
    for (size_t i = 0; i < size; i++) {
        memcpy(data, text, size);
        data[i] ^= 0x41;
        if (graph_file_parse(&f, "damaged", data, size, &err) != INFER_OK) continue;
        unseen += graph_file_check(f, &err) == INFER_OK;
        graph_file_close(f);
    }
    // 36 reserved bytes of the head, which no version uses
    assert_in_range(unseen, 0, 36);
    memcpy(data, text, size);
    for (size_t n = 0; n < size; n += n < 256 ? 1 : 61)
        assert_int_equal(graph_file_parse(&f, "cut", data, n, &err), INFER_FORMAT);
    assert_int_equal(graph_file_parse(&f, "whole", data, size, &err), INFER_OK);
    graph_file_close(f);
    mem_free_pages(data, size);
    mem_free(text);
    graph_free(g);
    test_remove_folder(folder);
}

static void refused(void **u)
{
    (void)u;
    tensor t = matrix(10, D);
    thread_pool *pool;
    vindex_graph *g;
    infer_error err;
    assert_int_equal(pool_new(&pool, 1, NULL), INFER_OK);
    graph_params p = { .m = GRAPH_M_MAX + 1 };
    assert_int_equal(graph_build(&g, &t, &p, pool, &err), INFER_ARGUMENT);
    assert_null(g);
    pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty),
        cmocka_unit_test(single),
        cmocka_unit_test(sorted_exact_scores),
        cmocka_unit_test(recall_random),
        cmocka_unit_test(recall_clustered),
        cmocka_unit_test(both_signs),
        cmocka_unit_test(same_whatever_the_threads),
        cmocka_unit_test(odd_values),
        cmocka_unit_test(file_round_trip),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
