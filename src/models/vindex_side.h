/*
 * vindex_side.h: files that stand in for others of a vindex: gates in Q4_0, attention in int8 or
 * Q4_0, FFNs in a file for each layer. Sizes and headers are checked before anything is used.
 */
#ifndef MODELS_VINDEX_SIDE_H
#define MODELS_VINDEX_SIDE_H

#include "models/load_vindex.h"

#define SIDE_GATES "gate_vectors_q4.bin"
#define SIDE_ATTN_Q8 "attn_weights_q8.bin"
#define SIDE_ATTN_Q4 "attn_weights_q4.bin"

/* Gates of every layer, one behind the other: [num_features, hidden_size] in LARQL's Q4_0. NULL
 * with err set where the file is wrong. */
const uint8_t *side_gates(vindex_dir *d, infer_error *err);

/* layers/layer_LL.weights: entries (a dense FFN, or one an expert) of gate and up, and down. */
typedef struct side_layer {
    dtype type;
    int n, inter, hidden;
    const uint8_t *file;
    const uint8_t *table; // [n] of four u64
} side_layer;
/* *out has n 0 where index.json speaks of no such files. */
infer_status side_layer_open(side_layer *out, vindex_dir *d, int layer, infer_error *err);
/* The matrices of entry i: rows of gate and up, [hidden, inter] down. Where the file pads columns
 * down is a copy in float32, in d's memory. */
infer_status side_layer_entry(tensor *gate, tensor *up, tensor *down, const side_layer *x, int i,
                              vindex_dir *d, infer_error *err);

/* Adds to s what it has not yet of these: attention, and the FFNs of layer files. */
infer_status side_tensors(safetensors *s, vindex_dir *d, const arch *a, const config *c,
                          bool walk_only, infer_error *err);

#endif
