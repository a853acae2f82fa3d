/*
 * imatrix.h: importance matrices: for each weight matrix the mean square of each of its inputs, by
 * which quantisers weigh their errors. Two file formats: GGUF (tensors NAME.in_sum2 and
 * NAME.counts), and the older binary one:
 *
 *   i32 entries; each: i32 length, name, i32 calls, i32 n, f32 sums[n]     little-endian
 *   then, if the file goes on: i32 chunks, i32 length, name of the text
 */
#ifndef MODELS_IMATRIX_H
#define MODELS_IMATRIX_H

#include "infer_base.h"

typedef struct imatrix imatrix;

infer_status imatrix_open(imatrix **out, const char *path, infer_error *err);
/* The binary format from memory; path is for messages. */
infer_status imatrix_parse(imatrix **out, const uint8_t *data, size_t size, const char *path,
                           infer_error *err);
void imatrix_close(imatrix *m);
/* Finite values of at least 0: the columns' of the tensor, slice after slice for stacks of experts.
 * NULL: none. */
const float *imatrix_find(const imatrix *m, const char *name, size_t *n);
int imatrix_n_entries(const imatrix *m);
int imatrix_n_chunks(const imatrix *m); // 0: not told

#endif
