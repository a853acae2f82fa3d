/* kmeans.h: clusters of directions. */
#ifndef VINDEX_KMEANS_H
#define VINDEX_KMEANS_H

#include "infer_base.h"

typedef struct kmeans_run {
    const float *x; // [n, d] points of unit length
    int n, d, k;
    int max_iterations, n_threads; // n_threads 0: as engines
    /* Called now and then with the share that is surely done; false stops (INFER_CANCELLED). */
    bool (*tick)(double share, void *user); // or NULL
    void *user;
} kmeans_run;

/*
 * Spherical k-means without chance: the first centre is the longest point, each next one the point
 * that is farthest from its nearest centre; then at most max_iterations times each point goes to
 * the centre with the largest product (ties: the lowest) and centres become the unit mean of their
 * points (none: zeros), until nothing moves. The same bits whatever the threads. INFER_ARGUMENT
 * unless 1 <= k <= n.
 *
 * centres [k, d], cluster [n] are filled.
 */
infer_status kmeans(float *centres, int32_t *cluster, const kmeans_run *run, infer_error *err);

#endif
