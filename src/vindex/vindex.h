/*
 * vindex.h: an open vindex as the rest of the program sees it: for each layer the FFN's matrices as
 * tensors (views into the maps), the features' metadata, the embedding.
 *
 * Whoever computes takes what is present, whatever file it came from: a tensor carries its type,
 * and the kernels read every type. Absent tensors have data NULL. Immutable after open but for the
 * access counters and what hnsw.c adds under its own lock.
 */
#ifndef VINDEX_VINDEX_H
#define VINDEX_VINDEX_H

#include <stdatomic.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "compute/cpu/kernels.h" // activation
#include "compute/tensor.h"
#include "infer_vindex.h"
#include "models/tokenizer.h"

typedef struct vindex_dir vindex_dir; // models/vindex_dir.h: index.json, manifests, maps

typedef struct vindex_layer {
    int n_features;            // gate rows, experts one after another; 0: no index of this layer
    int n_experts, per_expert; // 0: a dense layer
    tensor gate;               // [n_features, d_model]; plain FFNs: the up matrix
    tensor up;                 // [n_features, d_model]; absent in plain FFNs, and by level
    tensor down;               // [n_slices = experts or 1, d_model, features of a slice]
    tensor down_rows;          // [n_features, d_model], feature-major
    tensor router;             // [n_experts, d_model]
    const float *router_bias;  // [n_experts] or NULL
    const float *gate_bias, *up_bias; // [n_features] or NULL
    const float *down_bias;           // [d_model] or NULL
    const uint8_t *meta;              // down_meta.bin's records [n_meta, 8 + 8 * top_k], or NULL
    int n_meta;
    struct vindex_graph *graph; // hnsw.c; NULL: none
    _Atomic uint64_t accesses;
    bool pinned;
} vindex_layer;

struct infer_vindex {
    char *path; // as given
    vindex_dir *dir;
    arena mem;
    infer_log log;
    int n_layers, d_model, n_vocab, top_k, n_threads, ef_search;
    bool gated; // FFN of gate and up, else plain
    activation act;
    float embed_scale;
    vindex_layer *layers;         // [n_layers]
    tensor embed;                 // [n_vocab, d_model]
    tokenizer *tok;               // or NULL
    struct vindex_labels *labels; // labels of features (relations.h); or NULL
    struct {
        struct key_fact *v;
        int n;
    } * facts; // [n_layers] of knn_store.bin (facts.h); or NULL
    struct searcher *search;      // threads, graphs and caches of searching (search.h)
    uint64_t pin_budget, pinned;
    uint64_t evictions;
};

/* Row f of a matrix of the index, after the patch (NULL: none), as float32 [d_model]; zeros where
 * it is absent. */
typedef enum vindex_part { VINDEX_GATE, VINDEX_UP, VINDEX_DOWN } vindex_part;
void vindex_row(float *y, const infer_vindex *v, const infer_patch *p, int layer, int feature,
                vindex_part part);

/* patch.c: what a patch says of a layer, for scans and for the walk: features whose rows differ
 * from the base, ascending. vectors [d_model] or NULL (the base's). deleted: gate 0. */
typedef struct patch_feature {
    int feature;
    bool deleted;
    const float *gate, *up, *down;
    int32_t token; // -1: metadata of the base
    const char *target, *relation;
    float confidence;
} patch_feature;
int patch_layer(const infer_patch *p, int layer, const patch_feature **features);

#endif
