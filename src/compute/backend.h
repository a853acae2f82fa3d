/*
 * backend.h: where a forward pass runs. A backend is a constant table of operations on rows of
 * activations; format and shape are in the tensors, so no operation is named after one.
 *
 * Execution: backend_run starts `fn` in every thread of the backend at once. An operation called in
 * it does this thread's share and returns; what it wrote is seen by the others after `barrier`.
 * Where to put barriers is the caller's knowledge (inference/layer.c), so a device that has streams
 * instead of threads runs fn once, with ops that enqueue and a barrier that does nothing.
 *
 * Buffers: rows [n_rows, stride] of float32 from `alloc`, 64-byte aligned.
 */
#ifndef COMPUTE_BACKEND_H
#define COMPUTE_BACKEND_H

#include "base/thread.h"
#include "compute/coarse.h"
#include "compute/cpu/kernels.h"

typedef struct backend backend;
typedef struct device device; // an opened backend: threads or streams, its scratch memory

typedef struct device_options {
    int n_threads;         // 0: thread_count_default()
    const char *cpu_level; // NULL: the best
    int max_cols;          // widest matmul input, for scratch
    int max_head_dim;      // widest head, for scratch
} device_options;

/* One thread's view of a running job. */
typedef struct worker {
    device *dev;
    int thread, n_threads;
} worker;
typedef void worker_fn(const worker *w, void *arg);

typedef enum norm_kind { NORM_NONE, NORM_RMS, NORM_LAYER } norm_kind;
typedef struct norm {
    norm_kind kind;
    const float *weight; // [width] or NULL
    const float *bias;   // [width] or NULL; NORM_LAYER
    float offset;        // added to the weight: 1 for Gemma from safetensors
    float eps;
} norm;

typedef struct linear {
    tensor w;          // [n_outputs, n_cols]; absent: no such projection
    const float *bias; // [n_outputs] or NULL
} linear;

/* A run of rows of one sequence in a step, and its view of the layer's cache. */
typedef struct kv_view {
    void *const *k_tiles,
        *const *v_tiles; // [tile = position / KV_TILE]: all KV heads of that tile, or NULL
    kv_type k_type, v_type;
    int n_kv_heads, head_dim, head_dim_v;
    size_t position_bytes; // of a position, K and V of all heads
} kv_view;
typedef struct row_span {
    int first, n; // rows [first, first + n)
    int pos;      // position of the first; the others follow
    kv_view kv;
} row_span;

typedef struct attention_args {
    float *out; // [n_rows, out_stride]: [n_heads, head_dim_v]
    size_t out_stride;
    const float *q; // [n_rows, q_stride]: [n_heads, head_dim]
    size_t q_stride;
    const row_span *spans;
    int n_spans, n_heads;
    float scale, softcap;
    int window;         // a row sees positions > pos - window; 0: all
    const float *sinks; // [n_heads] extra logits that take weight but give nothing, or NULL
    float *capture;     // probabilities [n_heads, n_rows, n_rows] of the first span alone, or NULL
} attention_args;

/* The choice of experts for a row; see moe_plan in models/model.h for the meaning of the fields. */
typedef enum route_score { ROUTE_SOFTMAX, ROUTE_SIGMOID, ROUTE_SOFTMAX_USED } route_score;
typedef struct route_args {
    const float *logits; // [n_rows, stride]: [n_experts]
    size_t stride;
    int n_rows, n_experts, n_used, n_groups, n_groups_used;
    route_score score;
    bool renormalise, group_top2;
    float weight_scale;
    const float *select_bias, *expert_scale; // [n_experts] or NULL
    int32_t *expert; // [n_rows, n_used] out, best first, ties to the lowest id
    float *weight;   // [n_rows, n_used] out
} route_args;

struct backend {
    const char *name; // "cpu"
    const char *summary;
    /* False where the machine has none. */
    bool (*available)(void);
    infer_status (*open)(device **out, const device_options *o, infer_error *err);
    void (*close)(device *d);
    /* One line: model of the device, level, threads. */
    void (*device_info)(const device *d, char *text, size_t size);
    const char *(*level)(const device *d); // "avx2"; "" where there are none
    int (*n_threads)(const device *d);
    void *(*alloc)(device *d, size_t bytes); // NULL without memory
    void (*free)(device *d, void *p, size_t bytes);
    void (*run)(device *d, worker_fn *fn, void *arg);
    void (*barrier)(const worker *w);

    /* All of these: this thread's share. Rows are [n_rows, stride]. Operations divide their work by
     * rows, by heads of rows (normalise_heads, copy_heads, rope, kv_append) or by outputs (matmul,
     * attention, softcap of logits). Two by rows, or two by as many heads, may follow each other on
     * the same data without a barrier; everything else needs one. */
    void (*embed)(const worker *w, float *y, size_t stride, const tensor *table, const int32_t *ids,
                  int n_rows, float scale); // an id < 0: row left as it is
    /* y += table[positions[r]] */
    void (*add_rows)(const worker *w, float *y, size_t stride, const tensor *table,
                     const int32_t *positions, int n_rows);
    void (*normalise)(const worker *w, float *y, const float *x, size_t stride, int n_rows,
                      int width,
                      const norm *n); // y may be x; NORM_NONE copies
    /* Within rows of [n_heads, width], each head alone; weight [width], or [n_heads, width] with
     * per_head_weight. */
    void (*normalise_heads)(const worker *w, float *x, size_t stride, int n_rows, int n_heads,
                            int width, const norm *n, bool per_head_weight);
    /* Fills a->q, scale and sum of its n_rows from a->x; by rows. */
    void (*prepare)(const worker *w, act *a);
    /* y = x W^T + b. exact: on float32 activations even where W is quantised. */
    void (*matmul)(const worker *w, float *y, size_t y_stride, const linear *l, const act *x,
                   bool exact);
    /* Matrices laid anew in the order in which this device's matmul reads them (panels.h); NULL,
     * both of them: none. packed_bytes: what w takes, 0 where it is best read as it is. pack: this
     * thread's share of rows [begin, end) to `to`, where the whole of w has packed_bytes. begin is
     * a multiple of PANEL. */
    size_t (*packed_bytes)(const device *d, const tensor *w);
    void (*pack)(const worker *w, uint8_t *to, const tensor *from, int begin, int end);
    /* y[i] = rows[ids[i]] . row r of x, the bits of an exact matmul; all n by this thread alone. */
    void (*dot_rows)(const worker *w, float *y, const tensor *rows, const int32_t *ids, int n,
                     const act *x, int r);
    /* y[r] = sum over f of a[r, f] * rows[f], f in order, those with a[r, f] 0 left out and where
     * no r needs them not read; a [n_rows, a_stride], rows [n_features, n_cols], of which the first
     * `width` columns are wanted. */
    void (*sum_rows)(const worker *w, float *y, size_t y_stride, int width, const tensor *rows,
                     const float *a, size_t a_stride, int n_rows);
    /* y = x, heads of rows. */
    void (*copy_heads)(const worker *w, float *y, size_t y_stride, const float *x, size_t x_stride,
                       int n_rows, int n_heads, int width);
    /* Rotates n_heads vectors of `width` in each row; cos, sin [n_rows, n_pairs]. */
    void (*rope)(const worker *w, float *x, size_t stride, int n_rows, int n_heads, int width,
                 const float *cos, const float *sin, int n_pairs, int gap, rope_pairing pairing);
    /* Stores k [n_rows, n_kv_heads, head_dim] and v into the tiles of the spans. */
    void (*kv_append)(const worker *w, const row_span *spans, int n_spans, const float *k,
                      size_t k_stride, const float *v, size_t v_stride);
    void (*attention)(const worker *w, const attention_args *a);
    void (*glu)(const worker *w, float *y, const float *gate, const float *up, size_t stride,
                int n_rows, int width, activation act); // up NULL: plain activation
    void (*add_scaled)(const worker *w, float *y, const float *x, size_t stride, int n_rows,
                       int width, float scale);
    void (*scale)(const worker *w, float *y, size_t stride, int n_rows, int width, float scale);
    void (*softcap)(const worker *w, float *y, size_t stride, int n_rows, int width, float cap);
    /* y = min(max(y, lo), hi) * scale + shift; by rows. */
    void (*clamp)(const worker *w, float *y, size_t stride, int n_rows, int width, float lo,
                  float hi, float scale, float shift);

    /* The search for a matrix's largest products (coarse.h); NULL, all of them: none. A copy begins
     * with nothing packed and owns nothing of the matrix; drop gives its memory back. pack: n more
     * panels of this thread's share, all of which are then [*from, *from + *size) of the matrix.
     * top: as top_args says, with a barrier inside. */
    bool (*coarse_open)(const device *d, coarse *c, const tensor *w);
    void (*coarse_close)(coarse *c);
    void (*coarse_drop)(coarse *c);
    size_t (*coarse_bytes)(const coarse *c); // in memory
    size_t (*coarse_rows)(const coarse *c);  // packed
    void (*coarse_pack)(const worker *w, coarse *c, int n, const uint8_t **from, size_t *size);
    void (*top)(const worker *w, const top_args *a);

    /* Mixture of experts; by rows (of y). */
    void (*route)(const worker *w, const route_args *a);
    /* Row i of y is row index[i] of x, with its prepared form. */
    void (*gather)(const worker *w, act *y, const act *x, const int32_t *index);
    /* y[r] = sum over j of weight[r, j] * x[slot[r, j]], j in order. */
    void (*combine)(const worker *w, float *y, size_t stride, const float *x, const int32_t *slot,
                    const float *weight, int n_rows, int n_used, int width);
    /* y[r] *= sigmoid(gate[r, 0]) */
    void (*sigmoid_rows)(const worker *w, float *y, size_t stride, const float *gate,
                         size_t gate_stride, int n_rows, int width);
};

extern const backend *const backends[]; // ends with NULL
const backend *backend_find(const char *name);
/* The backend that a model runs on unless told otherwise: the first available one. */
const backend *default_backend(void);

/* Rows' stride in floats for a width: a multiple of 64. */
static inline size_t row_stride(int width) { return ((size_t)width + 63) / 64 * 64; }

#endif
