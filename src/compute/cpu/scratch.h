/*
 * scratch.h: sizes of the pieces of a matmul's scratch memory, for the kernels and for
 * matmul_scratch_bytes. Rows of activations are taken in groups: large, as a panel is unpacked once
 * a group; their integers are read in order, so that the third-level cache does.
 */
#ifndef COMPUTE_CPU_SCRATCH_H
#define COMPUTE_CPU_SCRATCH_H

#include "compute/cpu/kernels.h"

/* k of two panels unpacked at once: 16 KiB, half of a first-level cache; but no short rests. */
#define INT8_CHUNK 512
#define INT8_CHUNK_MOST 768
#define F32_CHUNK 256
#define AMX_CHUNK 256 // k of two panels as tiles: 16 KiB beside as much of activations
#define AMX_ROWS 512

static inline int group_rows(size_t bytes, size_t row_bytes, int least, int most)
{
    size_t n = row_bytes ? bytes / row_bytes / 8 * 8 : (size_t)most;
    return n < (size_t)least ? least : n > (size_t)most ? most : (int)n;
}
static inline int int8_group(int n_cols) { return group_rows(2 << 20, (size_t)n_cols, 32, 512); }
/* k from `done` on that are unpacked at once. */
static inline int int8_chunk(int n_cols, int done)
{
    return n_cols - done <= INT8_CHUNK_MOST ? n_cols - done : INT8_CHUNK;
}
static inline int f32_group(int n_cols)
{
    return group_rows(512 << 10, (size_t)n_cols * 4, 16, 128);
}

static inline int amx_chunk(int n_cols, int done)
{
    return n_cols - done < AMX_CHUNK ? n_cols - done : AMX_CHUNK;
}
/* Whole tiles of 16 rows, each plane of bfloat16; they stay in the second-level cache. */
static inline int amx_group(int n_cols)
{
    return group_rows(768 << 10, (size_t)n_cols * 2 * ACT_PLANES, 32, AMX_ROWS) / 16 * 16;
}

/* A bump pointer; each piece is 64-byte aligned. */
static inline void *scratch_take(uint8_t **at, size_t bytes)
{
    void *p = *at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

#endif
