/* kmeans.h: clusters of directions. */
#ifndef VINDEX_KMEANS_H
#define VINDEX_KMEANS_H

#include "infer_base.h"

/*
 * Spherical k-means of points x [n, d] of unit length, without chance: the first centre is the
 * longest point, each next one the point that is farthest from its nearest centre; then at most
 * max_iterations times each point goes to the centre with the largest product (ties: the lowest)
 * and centres become the unit mean of their points (none: zeros), until nothing moves. The same
 * bits whatever the threads (0: as engines). INFER_ARGUMENT unless 1 <= k <= n.
 *
 * centres [k, d], cluster [n] are filled.
 */
infer_status kmeans(float *centres, int32_t *cluster, const float *x, int n, int d, int k,
                    int max_iterations, int n_threads, infer_error *err);

#endif
