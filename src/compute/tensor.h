/*
 * tensor.h: a view of weights: type, shape, bytes. A tensor owns nothing; the model's maps and
 * arena do. data NULL means that the tensor is absent.
 */
#ifndef COMPUTE_TENSOR_H
#define COMPUTE_TENSOR_H

#include "compute/quant.h"

typedef struct tensor {
    const char *name;    // as in the file; lives as long as the model
    const uint8_t *data; // [n_slices, n_rows, row_bytes]; no alignment promised
    dtype type;
    int n_rows, n_cols; // a matrix [n_rows, n_cols]; a vector has n_rows 1
    int n_slices;       // expert stacks; 1 otherwise
    size_t row_bytes;
    const uint8_t *panels; // the same rows as panels.h has them; NULL: not made
} tensor;

static inline bool tensor_present(const tensor *t) { return t->data != NULL; }

/* Rows [begin, begin + n) as a tensor. */
static inline tensor tensor_rows(const tensor *t, int begin, int n)
{
    tensor v = *t;
    v.data = t->data + (size_t)begin * t->row_bytes;
    v.n_rows = n;
    v.panels = NULL;
    return v;
}
/* Slice s of a stack as a matrix. */
static inline tensor tensor_slice(const tensor *t, int s)
{
    tensor v = *t;
    v.data = t->data + (size_t)s * (size_t)t->n_rows * t->row_bytes;
    v.n_slices = 1;
    v.panels = NULL;
    return v;
}
/* Row r to float32 [n_cols]. */
static inline void tensor_row(float *y, const tensor *t, int r)
{
    quant_formats[t->type]->dequant(y, t->data + (size_t)r * t->row_bytes, (size_t)t->n_cols);
}
static inline size_t tensor_bytes(const tensor *t)
{
    return (size_t)t->n_slices * (size_t)t->n_rows * t->row_bytes;
}

#endif
