/*
 * engine.h: the state behind infer_engine and infer_sequence, shared by the files of this folder.
 *
 * An engine owns a device (threads), the KV cache and one workspace, all sized at creation; a step
 * allocates nothing. Rows of a step lie in the workspace in the order of the call.
 */
#ifndef INFERENCE_ENGINE_H
#define INFERENCE_ENGINE_H

#include <stdatomic.h>

#include "inference/head.h"
#include "inference/kv.h"
#include "inference/pack.h"
#include "inference/profile.h"

struct infer_sequence {
    infer_engine *engine;
    kv_sequence kv;
    int rope_len; // 0: its own length
};

/* What computes a layer's FFN, from the normed ws.h to `out` [n_rows, d_model]; ends at a barrier.
 */
typedef struct ffn_provider ffn_provider;
typedef void ffn_fn(const worker *w, infer_engine *e, const ffn_provider *f, float *out);
struct ffn_provider {
    ffn_fn *run;
    layer_plan *plan;              // the engine's own, with the weights that it uses
    const struct walk_layer *walk; // of walk_forward
};

/* Buffers of a step, [max_rows, stride] each; see forward.c for what they hold when. */
typedef struct workspace {
    float *x;         // residual stream [max_rows, d_model]
    act h;            // normed input of projections [max_rows, d_model]
    float *q, *k, *v; // [max_rows, n_heads * head_dim], [max_rows, n_kv_heads * head_dim(_v)]
    act att;          // heads' outputs [max_rows, n_heads * head_dim_v]
    act ffn;          // gate, then act(gate) * up [max_rows, d_ff]
    float *up;        // [max_rows, d_ff]
    float *branch;    // output of a branch [max_rows, d_model]
    float *branch2;   // the FFN's, where both branches are added together
    float *cos, *sin; // [n_ropes, max_rows, n_pairs of the widest]
    float *hidden;    // [max_rows, d_model] of rows that want it
    act out;          // final norm of rows that want logits [max_rows, d_model]
    float *logits;    // [max_rows, n_vocab]; touched as used
    act walk_in;      // [max_rows, padded d_model] where an index has padded columns
    float *walk_coef; // [max_rows, n_edits] activations of features with a down row of their own
    size_t walk_coef_stride;
    /* Mixture of experts: slots are (row, chosen expert) pairs, sorted by expert. */
    act router_in;        // [max_rows, d_model]
    float *router;        // [max_rows, n_experts]
    int32_t *expert;      // [max_rows, n_used]
    float *expert_weight; // [max_rows, n_used]
    int32_t *slot;        // [max_rows, n_used] where the pair lies
    int32_t *slot_row;    // [max_rows * n_used] its row
    int *first_slot;      // [n_experts + 1]
    act slots;            // [max_rows * n_used, d_model] inputs, then in x outputs
    act slot_ffn;         // [max_rows * n_used, d_ff]
    float *slot_up;       // [max_rows * n_used, d_ff]
    float *slot_out;      // [max_rows * n_used, d_model]
    float *shared_gate;   // [max_rows, 64]
    /* Latent attention. */
    act latent_q;  // [max_rows, q_rank]
    float *wide_q; // [max_rows, n_heads * (n_nope + n_rope)]
    act head_in;   // [max_rows, n_heads * row_stride(n_nope)]
    act values;    // [max_rows, n_heads * n_value]
    /* Per-layer embeddings. */
    float *ple;     // [max_rows, n_layers * ple_width]
    float *ple_row; // [n_threads, n_layers * ple_width] a row of the table
    act ple_in;     // [max_rows, ple_width]
    /* Alternating updates, learned augmented residual. */
    float *streams;      // [n_streams - 1, max_rows, d_model] beside x
    float *predicted;    // [max_rows, d_model] the first stream's prediction
    float *altup_router; // [max_rows, 64]
    act laurel_low;      // [max_rows, rank]
    float *laurel;       // [max_rows, d_model]

    size_t router_stride, slot_ffn_stride, wide_q_stride, ple_stride;
    size_t x_stride, q_stride, kv_stride, ffn_stride, logits_stride, rope_stride;
    uint64_t bytes;
    struct {
        void *p;
        size_t bytes;
    } blocks[96]; // what is to be freed
    int n_blocks;
} workspace;

/* What infer_step made of its rows. */
typedef struct step {
    int n_rows, n_spans, n_logits;
    int32_t *ids;              // [max_rows], -1: an embedding was given
    int32_t *pos;              // [max_rows]
    int *rope_len;             // [max_rows] length that the row is rotated for
    int *want_row;             // [max_rows] rows that want logits, in order
    int *logits_at;            // [max_rows] row → index in logits, -1
    int *hidden_at;            // [max_rows] row → 0 or -1
    row_span *spans;           // [max_rows]; kv filled by layer
    infer_sequence **span_seq; // [max_rows]
    bool could_search, searches; // the head (head.h)
    _Atomic int *stop;         // [n_layers] set by thread 0: cancelled before this layer
} step;

struct infer_engine {
    const infer_model *model;
    const backend *be; // while profiling: the profile's, whose operations time those of the other
    profile *profile;  // NULL before the first
    bool profiling;
    device *dev;
    kv_cache kv;
    workspace ws;
    step step;
    layer_plan *layers; // [n_layers] the model's, with what was packed of their matrices
    linear lm_head;     // so too
    packer pack;
    head_search head;
    infer_capture capture;
    ffn_provider *ffn;               // [n_layers]
    arena walk_mem;                  // of the providers that run from an index
    struct walk_counts *walk_counts; // or NULL; see walk.h
    row_span *layer_spans;           // [n_threads, max_rows]: each thread's view of a layer's tiles
    bool exact;
    int n_ctx, n_kv_tokens, max_rows, max_sequences, n_sequences;
    _Atomic int cancel;
    infer_log log;
    char device_text[256];
};

/* The providers; dense also on a plan that is not a layer's. */
ffn_fn dense_forward, moe_forward;
void ffn_forward(const worker *w, infer_engine *e, const layer_plan *l, float *out);
/* Latent attention: fills ws.q, ws.k and ws.v (mla_project), and takes ws.att to ws.values
 * (mla_values). */
void mla_project(const worker *w, infer_engine *e, const layer_plan *l);
void mla_values(const worker *w, infer_engine *e, const layer_plan *l);
/* Alternating updates (altup.c): the streams made of x, and x made of them; before and after a
 * layer; the per-layer embedding's input ws.h, and its output added. Each ends at a barrier but
 * altup_add, which is by rows. */
void altup_open(const worker *w, infer_engine *e);
void altup_close(const worker *w, infer_engine *e);
void altup_predict(const worker *w, infer_engine *e, const altup_plan *a);
void altup_correct(const worker *w, infer_engine *e, const altup_plan *a);
void altup_input(const worker *w, infer_engine *e, const altup_plan *a);
void altup_add(const worker *w, infer_engine *e, const float *y);
/* ws.laurel from ws.h, to be added to x beside the attention (by rows). */
void laurel_branch(const worker *w, infer_engine *e, const laurel_plan *l);
void laurel_add(const worker *w, infer_engine *e);
/* gate (and up) → activation; by rows. */
void glu_rows(const worker *w, infer_engine *e, const layer_plan *l, float *gate, float *up,
              size_t stride, int n_rows, int width);
/* Sparse activation: gates keep what lies above a cut, which their own distribution sets; by rows.
 */
void sparsify(const worker *w, float *gate, size_t stride, int n_rows, int width, float cut);
static inline act act_rows(const act *a, int n_rows, int n_cols)
{
    act v = *a;
    v.n_rows = n_rows;
    v.n_cols = n_cols;
    return v;
}

/* Memory of the engine's, freed with it; NULL without. */
void *workspace_alloc(infer_engine *e, size_t n, size_t size);

/* forward.c: the forward pass over e->step. Returns false when cancelled. */
bool forward_run(infer_engine *e);
/* rope.c: cos and sin of the step's rows, this thread's share (by rows). */
void rope_fill(const worker *w, const infer_engine *e);

/* Whether accepted ids change later choices. */
bool sampler_penalises(const infer_sampler *sampler);
/* Forgets what was accepted; the random draws go on. */
void sampler_forget(infer_sampler *sampler);

#endif
