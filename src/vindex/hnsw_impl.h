/*
 * hnsw_impl.h: what building and searching a graph share: vectors of bytes, and products as keys.
 */
#ifndef VINDEX_HNSW_IMPL_H
#define VINDEX_HNSW_IMPL_H

#include <math.h>

#include "base/half.h"
#include "vindex/hnsw.h"

static inline size_t padded(size_t n) { return (n + 63) / 64 * 64; }

/* q [stride] and the scale: x is about scale * q. Not finite or all 0: zeros, and 0. */
float graph_bytes(int8_t *q, const float *x, int n, size_t stride);

/* A product's magnitude as a key: larger is nearer, among equals the lower place. */
static inline uint64_t key_of(int32_t product, float weight, uint32_t place)
{
    float mag = fabsf((float)product) * weight;
    return (uint64_t)f32_bits(mag) << 32 | (uint32_t)~place;
}
static inline uint32_t key_place(uint64_t key) { return (uint32_t) ~(uint32_t)key; }

#endif
