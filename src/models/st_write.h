/* st_write.h: writing tensors as one safetensors file (the format: safetensors.h). */
#ifndef MODELS_ST_WRITE_H
#define MODELS_ST_WRITE_H

#include "compute/tensor.h"

typedef struct st_out {
    const char *name;
    dtype type; // F32, F16, BF16
    int n_dims;
    int64_t dims[4];         // slowest first
    const uint8_t *parts[2]; // the data: one after the other, the second may be NULL
    uint64_t bytes[2];
    bool exchanged; // the one part is a matrix [dims[1], dims[0]], which is written turned round
} st_out;

/* The file appears when it is whole. */
infer_status st_write(const char *path, const st_out *tensors, size_t n, infer_error *err);

#endif
