/*
 * nearest.h: for many vectors at once the rows of a matrix with the largest products, exactly as
 * the whole product would have them: the same ids and bits, equal ones by the lowest id.
 */
#ifndef VINDEX_NEAREST_H
#define VINDEX_NEAREST_H

#include "compute/backend.h"

#define NEAREST_MOST 2048 // vectors at once

typedef struct nearest nearest;
typedef struct near_row {
    int32_t id;
    float score, upper; // of a candidate: the product lies between; equal: it is the product
} near_row;

/* skip [table->n_rows]: rows that are not to be found, or NULL; table and skip outlive x. dev was
 * opened for the table's columns and more. */
infer_status nearest_new(nearest **out, const backend *be, device *dev, const tensor *table,
                         int top_k, const uint8_t *skip, infer_error *err);
void nearest_free(nearest *x);

/* Where the vectors go: rows [NEAREST_MOST, stride]. */
float *nearest_vectors(nearest *x, size_t *stride);
/* Searches for the first n vectors. tick is called now and then with the share that is done; false
 * from it stops, and is returned. It may be NULL. */
bool nearest_search(nearest *x, int n, bool (*tick)(double share, void *user), void *user);
/* The best of vector i, best first; *n at most top_k. Products that are NaN or -INFINITY are not
 * among them. */
const near_row *nearest_best(const nearest *x, int i, int *n);

#endif
