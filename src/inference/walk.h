/*
 * walk.h: FFNs that run from a vindex. Made at engine creation, one for each layer; the plan's row
 * of the layer is copied with the index's matrices in it, so that what can be computed by the dense
 * code is computed by it.
 */
#ifndef INFERENCE_WALK_H
#define INFERENCE_WALK_H

#include "inference/engine.h"
#include "vindex/vindex.h"

/* What a walk adds to the dense FFN of `plan`. */
struct walk_layer {
    const infer_vindex *index;
    int layer;
    char path[64];      // "f16", "q4_k, down by features": for people
    bool plain;         // dense code computes it: nothing is added
    int h_cols, f_cols; // columns of gate and up, and of down: padded to whole blocks by the file
    const tensor *rows; // [n_features, d_model] down by features; NULL: plan.down
    const float *bias;  // [d_model] with rows, or NULL
    const patch_feature *edits; // ascending
    int n_edits;
    float keep;             // features whose contribution is less than this share of the row's mean
                            // are left out; 0: exact
    const float *down_norm; // [n_features] with keep: lengths of the down rows; by_gate: 1
    bool by_gate;           // with keep: |act(gate)| alone decides
};

/* Sizes that a step's buffers need beyond the plan's. */
typedef struct walk_widths {
    int h_cols, f_cols, n_edits;
} walk_widths;
walk_widths walk_widths_of(const infer_model *m);

/* Puts the index's providers in e->ffn from layer `from` on. */
infer_status walk_open(infer_engine *e, const infer_engine_options *o, infer_error *err);
void walk_forward(const worker *w, infer_engine *e, const ffn_provider *f, float *out);

/* Counts what a calibration needs: for each layer how often a contribution falls in a bin. */
#define WALK_BINS 2048
typedef struct walk_counts {
    uint64_t *bins; // [n_threads, n_layers, WALK_BINS]
    int n_layers;
} walk_counts;
static inline int walk_bin(float contribution)
{
    // 32 bins an octave, from 2^-40 up: the bits of a float are its logarithm, in steps.
    union {
        float f;
        uint32_t u;
    } v = { contribution };
    int bin = (int)(v.u >> 18) - ((127 - 40) << 5);
    return bin < 0 ? 0 : bin >= WALK_BINS ? WALK_BINS - 1 : bin;
}
static inline float walk_bin_floor(int bin)
{
    union {
        uint32_t u;
        float f;
    } v = { (uint32_t)(bin + ((127 - 40) << 5)) << 18 };
    return bin ? v.f : 0;
}

#endif
