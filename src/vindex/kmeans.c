/*
 * kmeans.c: the farthest-first start and the iterations, on the scans' products. Sums of points run
 * in float64 in the order of points, each cluster by one thread, so that threads do not show.
 */
#include "vindex/kmeans.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "vindex/knn.h"

#define CHUNK 4096 // points whose products with all centres are held at once

typedef struct clusters {
    const kmeans_run *run;
    knn *scan;
    const float *x; // [n, d]
    int n, d, k;
    float *centres;   // [k, d]
    int32_t *cluster; // [n]
    float *nearest;   // [n] products of a scan; at the start the largest with any centre
    float *products;  // [CHUNK, k] or [n]
    atomic_bool failed;
} clusters;

static infer_status tick(const clusters *c, double share, infer_error *err)
{
    if (!c->run->tick || c->run->tick(share, c->run->user)) return INFER_OK;
    return error_set(err, INFER_CANCELLED, "clusters: stopped");
}

static tensor matrix(const float *x, int n, int d)
{
    return (tensor){ .name = "points",
                     .data = (const uint8_t *)x,
                     .type = DT_F32,
                     .n_rows = n,
                     .n_cols = d,
                     .n_slices = 1,
                     .row_bytes = (size_t)d * sizeof *x };
}

static infer_status choose_centres(clusters *c, infer_error *err)
{
    int best = 0;
    double longest = -1;
    for (int i = 0; i < c->n; i++) {
        double size = 0;
        for (int j = 0; j < c->d; j++)
            size += (double)c->x[(size_t)i * (size_t)c->d + (size_t)j] *
                    (double)c->x[(size_t)i * (size_t)c->d + (size_t)j];
        if (size > longest) longest = size, best = i;
        c->nearest[i] = -INFINITY;
    }
    tensor points = matrix(c->x, c->n, c->d);
    for (int centre = 0; centre < c->k; centre++) {
        float *to = c->centres + (size_t)centre * (size_t)c->d;
        memcpy(to, c->x + (size_t)best * (size_t)c->d, (size_t)c->d * sizeof *to);
        knn_query q = { .w = &points, .count = c->n, .x = to, .n_queries = 1 };
        infer_status st = knn_scores(c->scan, c->products, &q, err);
        if (st == INFER_OK) st = tick(c, 0.5 * centre / c->k, err);
        if (st != INFER_OK) return st;
        float least = INFINITY;
        for (int i = 0; i < c->n; i++) {
            if (c->products[i] > c->nearest[i]) c->nearest[i] = c->products[i];
            if (c->nearest[i] < least) least = c->nearest[i], best = i;
        }
    }
    return INFER_OK;
}

/* *moved: a point went to another cluster. */
static infer_status assign(clusters *c, bool *moved, infer_error *err)
{
    tensor centres = matrix(c->centres, c->k, c->d);
    *moved = false;
    for (int first = 0, n; first < c->n; first += n) {
        n = c->n - first < CHUNK ? c->n - first : CHUNK;
        knn_query q = {
            .w = &centres, .count = c->k, .x = c->x + (size_t)first * (size_t)c->d, .n_queries = n
        };
        infer_status st = knn_scores(c->scan, c->products, &q, err);
        if (st != INFER_OK) return st;
        for (int i = 0; i < n; i++) {
            const float *p = c->products + (size_t)i * (size_t)c->k;
            int32_t best = 0;
            for (int32_t j = 1; j < c->k; j++)
                if (p[j] > p[best]) best = j;
            if (c->cluster[first + i] != best) *moved = true;
            c->cluster[first + i] = best;
        }
    }
    return INFER_OK;
}

/* This thread's columns of all centres; each sum in the order of points. */
static void sum_columns(void *arg, int thread, int n_threads)
{
    clusters *c = arg;
    int begin, end;
    thread_share(c->d, 16, thread, n_threads, &begin, &end);
    size_t d = (size_t)c->d, width = (size_t)(end - begin);
    double *sums = mem_zero((size_t)c->k * width + 1, sizeof *sums);
    if (!sums) {
        c->failed = true;
        return;
    }
    for (int i = 0; i < c->n; i++) {
        double *to = sums + (size_t)c->cluster[i] * width;
        const float *x = c->x + (size_t)i * d + (size_t)begin;
        for (size_t j = 0; j < width; j++)
            to[j] += (double)x[j];
    }
    for (int k = 0; k < c->k; k++)
        for (size_t j = 0; j < width; j++)
            c->centres[(size_t)k * d + (size_t)begin + j] = (float)sums[(size_t)k * width + j];
    mem_free(sums);
}

static infer_status move_centres(clusters *c, infer_error *err)
{
    knn_run(c->scan, sum_columns, c);
    if (c->failed) return error_set(err, INFER_NOMEM, "clusters: out of memory");
    for (int k = 0; k < c->k; k++) { // the mean's length does not matter
        float *centre = c->centres + (size_t)k * (size_t)c->d;
        double size = 0;
        for (int j = 0; j < c->d; j++)
            size += (double)centre[j] * (double)centre[j];
        double scale = size > 1e-16 ? 1.0 / sqrt(size) : 0.0;
        for (int j = 0; j < c->d; j++)
            centre[j] = (float)((double)centre[j] * scale);
    }
    return INFER_OK;
}

infer_status kmeans(float *centres, int32_t *cluster, const kmeans_run *run, infer_error *err)
{
    int n = run->n, d = run->d, k = run->k;
    if (k < 1 || k > n || d < 1)
        return error_set(err, INFER_ARGUMENT, "clusters: %d of %d points", k, n);
    clusters c = {
        .run = run, .x = run->x, .n = n, .d = d, .k = k, .centres = centres, .cluster = cluster
    };
    infer_status st = knn_new(&c.scan, run->n_threads, d, err);
    if (st != INFER_OK) return st;
    size_t chunk = (size_t)(n < CHUNK ? n : CHUNK) * (size_t)k;
    c.nearest = mem_alloc((size_t)n, sizeof *c.nearest);
    c.products = mem_alloc(chunk > (size_t)n ? chunk : (size_t)n, sizeof *c.products);
    if (!c.nearest || !c.products) st = error_set(err, INFER_NOMEM, "clusters: out of memory");
    memset(cluster, 0, (size_t)n * sizeof *cluster);
    if (st == INFER_OK) st = choose_centres(&c, err);
    bool moved = true;
    for (int i = 0; st == INFER_OK && i < run->max_iterations; i++) {
        st = assign(&c, &moved, err);
        if (st == INFER_OK) st = tick(&c, 0.5 + 0.5 * i / run->max_iterations, err);
        if (st != INFER_OK || !moved) break;
        st = move_centres(&c, err);
    }
    mem_free(c.nearest);
    mem_free(c.products);
    knn_free(c.scan);
    return st;
}
