/*
 * safetensors.h: a Hugging Face folder's weights, single (model.safetensors) or sharded
 * (model.safetensors.index.json). Format: 8-byte header length, a JSON object of name → {dtype,
 * shape, data_offsets}, data.
 *
 * Everything is checked at open: header length against the file, shapes times type size against
 * offsets, offsets against the file, names that occur twice, shards that the index names.
 */
#ifndef MODELS_SAFETENSORS_H
#define MODELS_SAFETENSORS_H

#include "base/map.h"
#include "compute/tensor.h"

typedef struct safetensors safetensors;

typedef struct st_tensor {
    const char *name;
    const char *dtype_name; // "BF16" as in the file
    int type;               // dtype, -1: a type that is not computed with (skipped unless needed)
    int n_dims;
    int64_t dims[5]; // dims[n_dims-1] is the fastest
    const uint8_t *data;
    uint64_t bytes;
} st_tensor;

infer_status st_open(safetensors **out, const char *folder, const map_options *o,
                     const infer_log *log, infer_error *err);
/* An empty directory of tensors whose bytes others own, and additions to it; t's name is copied.
 * INFER_FORMAT where the name is there already. */
infer_status st_new(safetensors **out, const char *folder, infer_error *err);
infer_status st_add(safetensors *s, const st_tensor *t, infer_error *err);
void st_close(safetensors *s);
uint64_t st_file_bytes(const safetensors *s);
bool st_broken(const safetensors *s);
/* As map_release, for a part of a tensor. */
void st_release(const safetensors *s, const void *from, size_t size);
int st_n_tensors(const safetensors *s);
const st_tensor *st_tensor_at(const safetensors *s, int i);
const st_tensor *st_find(const safetensors *s, const char *name);

#endif
