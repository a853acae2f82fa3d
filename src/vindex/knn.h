/*
 * knn.h: scans of a matrix for the rows that a vector speaks to most: all scores, by the engine's
 * kernels, then the best by magnitude.
 *
 * A score is a function of the row and the query alone, bit for bit, whatever the threads, the CPU
 * level, the number of queries and the part of the matrix that is looked at. NaN is never among the
 * best; among equals the lowest row comes first.
 */
#ifndef VINDEX_KNN_H
#define VINDEX_KNN_H

#include "compute/backend.h"

typedef struct knn_hit {
    int row;
    float score; // as signed
} knn_hit;

/* The n best of scores [n_scores] by |score|, best first; the count. Row numbers begin at first. */
int knn_top(knn_hit *hits, int n, const float *scores, int n_scores, int first);

/* Threads and scratch memory for scans, shared by threads, which take turns. */
typedef struct knn knn;
infer_status knn_new(knn **out, int n_threads, int max_cols, infer_error *err);
void knn_free(knn *k);
int knn_threads(const knn *k);

/* One scan: rows [first, first + count) of w for queries x. */
typedef struct knn_query {
    const tensor *w; // [n, n_cols]
    int first, count;
    const float *x; // [n_queries, x_cols], any alignment
    int n_queries;
    int x_cols; // 0: w's; fewer: zeros follow, as in the rows of a padded matrix
    /* With them the score is act(w . x + gate_bias) * (up . x + up_bias) * norm, the share of a
     * feature in the FFN's output; up absent: act(w . x + gate_bias) * norm. */
    const float *norms; // [n] or NULL: the plain product
    tensor up;
    const float *gate_bias, *up_bias; // [n] or NULL
    activation act;
} knn_query;

/* scores [n_queries, count]. */
infer_status knn_scores(knn *k, float *scores, const knn_query *q, infer_error *err);
/* hits [n_queries, n], counts [n_queries]. */
infer_status knn_best(knn *k, knn_hit *hits, int *counts, int n, const knn_query *q,
                      infer_error *err);

/* Whether scores of a matrix are made by the kernel dots_float, else by its matmul. */
static inline bool knn_reads_rows(const tensor *w)
{
    return w->type == DT_F32 || w->type == DT_F16;
}

/* y [n_cols] = the lengths of a matrix's columns; [n_rows] = of its rows. In float64, rounded. */
void knn_row_norms(float *y, const tensor *w, float *row);                  // row [n_cols]: scratch
void knn_column_norms(float *y, const tensor *w, float *row, double *sums); // sums [n_cols]

/* Calls fn in every thread of k, once; for work that goes beside scans. */
void knn_run(knn *k, thread_fn *fn, void *arg);

#endif
