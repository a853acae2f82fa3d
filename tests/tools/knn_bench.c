/*
 * knn_bench.c: the speed and recall of scans and graphs on a matrix in a file, for bench/vindex_knn.py.
 *
 *   knn_bench ROWS N D QUERIES NQ TYPE THREADS M EF_BUILD EF…
 *
 * ROWS and QUERIES hold raw float32. Prints one JSON object a line.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "vindex/hnsw.h"

#define K 10

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *load(const char *path, size_t n)
{
    float *x = malloc(n * sizeof *x);
    FILE *f = fopen(path, "rb");
    if (!x || !f || fread(x, sizeof *x, n, f) != n) {
        fprintf(stderr, "%s: cannot read %zu floats\n", path, n);
        exit(1);
    }
    fclose(f);
    return x;
}

static tensor as_type(const float *x, int n, int d, const char *name)
{
    int type = quant_find_name(name);
    if (type < 0 || (type != DT_F32 && !quant_formats[type]->quantize) ||
        !quant_row_bytes((dtype)type, (size_t)d)) {
        fprintf(stderr, "%s: no type to write\n", name);
        exit(1);
    }
    tensor t = { .name = "rows", .type = (dtype)type, .n_rows = n, .n_cols = d, .n_slices = 1 };
    t.row_bytes = quant_row_bytes(t.type, (size_t)d);
    uint8_t *data = mem_pages((size_t)n * t.row_bytes);
    for (int i = 0; i < n; i++) {
        if (type == DT_F32)
            memcpy(data + (size_t)i * t.row_bytes, x + (size_t)i * (size_t)d, t.row_bytes);
        else
            quant_formats[type]->quantize(data + (size_t)i * t.row_bytes, x + (size_t)i * (size_t)d,
                                          NULL, (size_t)d);
    }
    t.data = data;
    return t;
}

static void must(infer_status st, const infer_error *err)
{
    if (st == INFER_OK) return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

typedef struct job {
    const vindex_graph *g;
    graph_search *s[MAX_THREADS];
    const tensor *rows;
    const float *x;
    int nq, ef;
    knn_hit *hits;
    int *counts;
} job;

static void search(void *arg, int thread, int n_threads)
{
    job *j = arg;
    int begin, end;
    thread_share(j->nq, 1, thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++)
        j->counts[i] = graph_find(j->g, j->s[thread], j->hits + (size_t)i * K, K, j->rows,
                                  j->x + (size_t)i * (size_t)j->rows->n_cols, j->rows->n_cols, j->ef);
}

int main(int argc, char **argv)
{
    if (argc < 10) return 2;
    int n = atoi(argv[2]), d = atoi(argv[3]), nq = atoi(argv[5]), threads = atoi(argv[7]);
    float *x = load(argv[1], (size_t)n * (size_t)d), *q = load(argv[4], (size_t)nq * (size_t)d);
    tensor rows = as_type(x, n, d, argv[6]);
    infer_error err;
    knn *k;
    must(knn_new(&k, threads, d, &err), &err);
    knn_hit *truth = calloc((size_t)nq * K, sizeof *truth), *hits = calloc((size_t)nq * K, sizeof *hits);
    int *counts = calloc((size_t)nq, sizeof *counts);
    knn_query query = { .w = &rows, .count = n, .x = q, .n_queries = nq };
    must(knn_best(k, truth, counts, K, &query, &err), &err); // warms up
    double t = now(), all = 1e9, one = 1e9;
    for (int round = 0; round < 5; round++) {
        t = now();
        must(knn_best(k, truth, counts, K, &query, &err), &err);
        t = now() - t;
        if (t < all) all = t;
    }
    query.n_queries = 1;
    for (int round = 0; round < 60; round++) {
        query.x = q + (size_t)(round % nq) * (size_t)d;
        t = now();
        must(knn_best(k, hits, counts, K, &query, &err), &err);
        t = now() - t;
        if (t < one) one = t;
    }
    printf("{\"what\": \"scan\", \"type\": \"%s\", \"threads\": %d, \"one_ms\": %.4f, \"batch_ms\": "
           "%.4f, \"batch\": %d}\n",
           argv[6], threads, one * 1e3, all * 1e3, nq);
    if (argc > 10) {
        thread_pool *pool;
        must(pool_new(&pool, threads, &err), &err);
        graph_params p = { .m = atoi(argv[8]), .ef_build = atoi(argv[9]) };
        job j = { .rows = &rows, .x = q, .nq = nq, .hits = hits, .counts = counts };
        t = now();
        vindex_graph *g;
        must(graph_build(&g, &rows, &p, pool, &err), &err);
        double built = now() - t;
        printf("{\"what\": \"build\", \"threads\": %d, \"seconds\": %.3f}\n", threads, built);
        j.g = g;
        for (int i = 0; i < threads; i++)
            j.s[i] = graph_search_new(n, d, rows.row_bytes, 2000);
        for (int a = 10; a < argc; a++) {
            j.ef = atoi(argv[a]);
            double best = 1e9;
            uint64_t compared = graph_search_compared(j.s[0]);
            for (int round = 0; round < 5; round++) {
                t = now();
                pool_run(pool, search, &j);
                t = now() - t;
                if (t < best) best = t;
            }
            compared = graph_search_compared(j.s[0]) - compared;
            int right = 0;
            for (int i = 0; i < nq; i++)
                for (int u = 0; u < K; u++)
                    for (int v = 0; v < counts[i]; v++)
                        right += truth[i * K + u].row == hits[i * K + v].row;
            printf("{\"what\": \"search\", \"threads\": %d, \"ef\": %d, \"recall\": %.4f, \"qps\": %.0f, "
                   "\"compared\": %.0f}\n",
                   threads, j.ef, (double)right / nq / K, nq / best,
                   (double)compared / 5 / nq * threads);
        }
        graph_free(g);
    }
    return 0;
}
