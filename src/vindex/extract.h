/*
 * extract.h: the state of an extraction, shared by its driver (extract.c) and by what decides which
 * tensor goes where (extract_plan.c).
 */
#ifndef VINDEX_EXTRACT_H
#define VINDEX_EXTRACT_H

#include <jansson.h>

#include "base/thread.h"
#include "models/places.h"
#include "models/vindex_dir.h"
#include "vindex/vindex.h"

/* A tensor of the source and its place in a file of the index. */
typedef struct item {
    const char *file, *key, *kind; // kind NULL: in no manifest
    tensor src;                    // or
    const float *floats;           // [n_cols], n_rows 1
    int n_rows, n_cols, n_padded;  // padded with zeros
    dtype type;                    // in the file
    float add;                     // to every value: norms whose weights count from another zero
    int head_dim;                  // rows of each head go from pairs side by side to halves; 0: not
    uint64_t offset, bytes;
    int n_dims;
    int64_t dims[4];
    int order[2]; // within the file
} item;

typedef struct extraction {
    infer_extract_options o;
    infer_error *err;
    infer_model *m;
    arena mem;
    char *out, *work;
    const char *level;
    int level_no; // 0 browse, 1 attention, 2 inference, 3 all
    dtype type;
    bool q4k, interleaved; // interleaved: the FFN's blocks in a file of places
    int top_k, n_threads;

    item *items; // browse's first
    size_t n_items, cap_items, n_browse;
    int *features; // [n_layers]

    thread_pool *pool;
    uint8_t *buffers[MAX_THREADS];
    float *rows[MAX_THREADS];

    json_t *own;           // the model's whole settings, for the key "infer"
    const char *type_name; // of the model, as files have it

    json_t *description;
    char extracted_at[32];
    size_t n_done;
    int labels_done;
    bool clusters_done;
    uint64_t label_bytes;
    double saved;

    const char *stage;
    bool stopped;
    int step, n_steps;
    double told, began, work_done, work_start, work_total, label_cost, label_work;
} extraction;

/* Fills own and type_name. */
infer_status extract_settings(extraction *x);
/* The list of items, with their offsets; refuses by name what a vindex cannot hold. */
infer_status extract_plan(extraction *x);
/* index.json; takes no reference of sums. NULL without memory. */
json_t *extract_index(extraction *x, json_t *sums);
/* layer_bands: first and last layer of syntax, knowledge and output; false: too few layers. */
bool extract_bands(int bands[3][2], const extraction *x);
/* The layer's experts where they are what is indexed; NULL: a dense FFN is, also one beside
 * experts.
 */
const moe_plan *extract_experts(const extraction *x, int layer);
/* What a layer's features lie in: its experts' matrices, or one. */
int extract_n_parts(const extraction *x, int layer);
const tensor *extract_gate(const extraction *x, int layer, int part); // plain FFNs: the up matrix
/* Progress: done of the stage's total; sets stopped. What is said where that is set. */
void extract_tell(extraction *x, double done, double total);
infer_status extract_cancelled(const extraction *x);
char *extract_path(extraction *x, const char *name); // in the work folder; NULL without memory
/* Manifests, tokenizer, templates, settings. */
infer_status extract_side_files(extraction *x);

#endif
