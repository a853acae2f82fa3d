/* device.h: what the files of the CPU backend share: the threads and their scratch memory. */
#ifndef COMPUTE_CPU_DEVICE_H
#define COMPUTE_CPU_DEVICE_H

#include "compute/backend.h"

#define ATTN_QUERIES 64               // most queries that attend to a tile in one call
#define ATTN_PART_BYTES ((size_t)8 << 20) // of parts of one step's attention; touched as used

typedef struct thread_scratch {
    uint8_t *matmul;
    uint8_t *rows; // [PANEL] rows of a matrix
    float *acc; // [2, ATTN_QUERIES, v_stride]: all chunks so far, this chunk
    attn_query queries[ATTN_QUERIES], chunk[ATTN_QUERIES];
} thread_scratch;

struct device {
    const cpu_kernels *k;
    thread_pool *pool;
    thread_scratch scratch[MAX_THREADS];
    size_t matmul_bytes, rows_bytes, acc_bytes;
    float *parts; // ATTN_PART_BYTES, shared; see attention.c
};

static inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* attention.c */
void cpu_kv_append(const worker *w, const row_span *spans, int n_spans, const float *k,
                   size_t k_stride, const float *v, size_t v_stride);
void cpu_attention(const worker *w, const attention_args *a);

#endif
