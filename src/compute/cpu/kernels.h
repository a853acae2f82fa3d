/*
 * kernels.h: the table of CPU kernels. isa.c lists the levels from "ref" upward; a level's init
 * overwrites the pointers that it improves, so that a table is always complete.
 *
 * Rule: a row's result is one fixed sequence of float operations, whatever the number of rows,
 * threads or neighbours. How: the lanes of a vector are outputs (or positions), never parts of one
 * sum; a sum runs over K block by block in order; integer sums of a block are exact. The float
 * sequence is the same at every level, so all levels give the same bits; the checker
 * (tests/kernels) compares them with ==.
 *
 * Memory: pointers to activations are 64-byte aligned and rows have strides that are multiples of
 * 16 floats; weights are as in the file, unaligned. No kernel reads past the rows it is given or
 * writes past the outputs it is asked for.
 */
#ifndef COMPUTE_CPU_KERNELS_H
#define COMPUTE_CPU_KERNELS_H

#include "compute/kv_type.h"
#include "compute/panels.h"

/* Prepared activations, [n_rows, …]: float32, and rounded by blocks of 32 as in quant.h. The
 * strides of x and q are `stride` elements (q has ACT_PLANES bytes each), of scale stride/32, of
 * sum stride/16. */
typedef struct act {
    float *x;
    int8_t *q;
    float *scale;
    int32_t *sum;
    int n_rows, n_cols;
    size_t stride; // multiple of 64
} act;

/* y[r, o] = sum_k w[o, k] * x[r, k] for outputs o in [begin, end) of w's rows and all rows of x.
 * begin is a multiple of PANEL; end too, or w->n_rows. */
typedef struct matmul_args {
    float *y;        // [n_rows, y_stride]
    size_t y_stride; // floats
    const tensor *w; // [n_outputs, n_cols]
    const act *x;
    int begin, end;
    void *scratch; // matmul_scratch_bytes(n_cols), this thread's own, 64-byte aligned
} matmul_args;
size_t matmul_scratch_bytes(int n_cols);

typedef enum activation {
    ACT_NONE,
    ACT_SILU,
    ACT_GELU_TANH,
    ACT_GELU_ERF,
    ACT_RELU,
    ACT_RELU2,
    ACT_GELU_QUICK,
    ACT_COUNT
} activation;
typedef enum rope_pairing { ROPE_HALVES, ROPE_ADJACENT } rope_pairing;

/* One tile of the cache for one KV head: kv_type.h says how K and V lie. Columns and rows not yet
 * stored hold anything, NaN included. */
typedef struct kv_tile {
    void *k, *v;
    kv_type k_type, v_type;
    int head_dim, head_dim_v;
} kv_tile;

/* One query's online softmax (Milakov & Gimelshein 2018) over the tiles in order of position. */
typedef struct attn_query {
    const float *q; // [head_dim]
    float *acc;     // [v_stride], not yet divided by sum; zeros before the first tile
    float max, sum; // -INFINITY and 0 before the first tile
    int lo, hi;     // visible positions of this tile: lo <= p < hi; lo >= hi: none
} attn_query;

struct coarse;
struct coarse_act;

typedef struct cpu_kernels {
    const char *name; // the level
    /* True for formats that matmul_int8 reads by vector code of this level, false for those that go
     * through the format's unpack. NULL: none. */
    bool (*reads_by_vectors)(dtype type);

    /* Any quantised format (format->sub != 0), bits of quant_dot; n_cols is a multiple of 32. */
    void (*matmul_int8)(const matmul_args *a);
    /* Any format, on dequantised weights and float32 activations: acc32 = 0; over the 32 k of a
     * block acc32 = fmaf(w[k], x[k], acc32); acc += acc32 after each block; the last block may be
     * short. */
    void (*matmul_f32)(const matmul_args *a);
    /* The bits of quant_act_row; n is a multiple of 32. */
    void (*act_row)(int8_t *q, float *scale, int32_t *sum, const float *x, int n);

    /* y = x / sqrt(mean(x^2) + eps) * (offset + w); w NULL: times 1. y may be x. Sums in float64.
     */
    void (*rms_norm)(float *y, const float *x, const float *w, float offset, float eps, int n);
    /* y = (x - mean) / sqrt(var + eps) * (offset + w) + b; w, b may be NULL. */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, float offset,
                       float eps, int n);
    /* Rotates the first 2 * n_pairs of x by cos, sin [n_pairs]. With ROPE_HALVES the pair of i is
     * (i, i + n_pairs + gap); ADJACENT: (2i, 2i + 1). */
    void (*rope)(float *x, const float *cos, const float *sin, int n_pairs, int gap,
                 rope_pairing pairing);
    /* y = act(gate) * up; up NULL: y = act(gate). y may be gate. */
    void (*glu)(float *y, const float *gate, const float *up, activation act, int n);
    /* y += scale * x: product rounded, then the sum. */
    void (*add_scaled)(float *y, const float *x, float scale, int n);
    void (*scale)(float *y, float scale, int n);
    /* y[c] = fmaf(a[i], row i [c], y[c]) for each of n_rows rows in order where a[i] is not 0. Row
     * i lies at rows + i * step, aligned for its type, F32 or F16; rows with a[i] 0 are not read.
     */
    void (*sum_rows)(float *y, const float *a, const uint8_t *rows, size_t step, dtype type,
                     int n_rows, int n);
    /* y = cap * tanh(y / cap) */
    void (*softcap)(float *y, float cap, int n);

    /* Stores one position: k [head_dim], v [head_dim_v] into column / row `at`. */
    void (*kv_store)(const kv_tile *t, int at, const float *k, const float *v);
    /* For each of n queries: s_p = softcap(scale * (q . K_p)) over its visible positions, then max,
     * sum and acc as online softmax. softcap 0: none. */
    void (*attn_tile)(attn_query *q, int n, const kv_tile *t, float scale, float softcap);
    /* Only s_p, for capture: scores [KV_TILE]; invisible ones are -INFINITY. The same bits as in
     * attn_tile. */
    void (*attn_scores)(float *scores, const attn_query *q, const kv_tile *t, float scale,
                        float softcap);
    /* y[i] = exp(x[i] - shift), the exponential of attn_tile; returns the sum in float64 in order.
     */
    double (*exp_sum)(float *y, const float *x, float shift, int n);

    /* out[i, j] = q[i] . v[j], exact, of vectors [n] of bytes in [-127, 127]; n is a multiple of
     * 64, at most DOTS_MAX. */
    void (*dots_i8)(int32_t *out, size_t out_stride, const int8_t *const *q, int n_q,
                    const int8_t *const *v, int n_v, int n);
    /* out[i, j] = q[i] . v[j] of float32 q [n] and float32 or, with half, float16 v [n]: sixteen
     * sums, of the k that are equal modulo 16, by fma in order, added as v16_sum does. */
    void (*dots_float)(float *out, size_t out_stride, const float *const *q, int n_q,
                       const void *const *v, int n_v, int n, bool half);

    /* A coarse copy (coarse.h): score, and score plus bound, of the rows of n_panels panels,
     * [n_panels * PANEL] each; their floats differ between levels. pack makes panel i; scratch has
     * COARSE_PACK_SCRATCH bytes. */
    void (*coarse_scores)(float *score, float *upper, const uint8_t *panels, int n_panels,
                          int n_blocks, const struct coarse_act *x);
    void (*coarse_pack)(struct coarse *c, int i, void *scratch);

    /* After attn_tile: to takes in part, which saw later positions; acc [v_stride]. A part that saw
     * nothing (max -INFINITY, sum 0) changes nothing. */
    void (*attn_merge)(attn_query *to, const attn_query *part, int v_stride);
} cpu_kernels;
#define DOTS_MAX 65536 // 127 * 255 * this is below 2^31: a kernel may add 128 to each byte

/* The table of a level; NULL where this machine cannot run it or nobody knows the name. name NULL:
 * the best level here. The table is constant after the first call (thread-safe). */
const cpu_kernels *cpu_kernels_get(const char *level);

typedef struct isa_level {
    const char *name;
    bool (*have)(void);           // CPU and OS both
    void (*init)(cpu_kernels *k); // overwrites what it improves
    /* What its matmuls are called: quantised weights read by vectors, by unpack, float weights. */
    const char *by_vectors, *by_unpack, *by_float;
} isa_level;
extern const isa_level isa_levels[]; // ends with a NULL name; from ref upward

#endif
