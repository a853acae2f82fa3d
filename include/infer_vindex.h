/*
 * infer_vindex.h: the model as a database. A vindex is a folder in which the feed-forward weights
 * of a model lie as an index: feature f of layer l is a gate row (what it reacts to), an up row and
 * a down row (what it writes), with the tokens that it speaks for. It can be searched, walked,
 * edited by overlays, and the forward pass can run from it (infer_model_options.ffn).
 *
 * An open vindex is immutable and shared by threads. Edits are patches: overlays over a base that
 * never changes. Scores are raw dot products, as signed; "best" means largest in magnitude. What
 * the folder holds, byte by byte: docs/vindex-format.md.
 */
#ifndef INFER_VINDEX_H
#define INFER_VINDEX_H

#include "infer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct infer_vindex infer_vindex;
typedef struct infer_patch infer_patch;

/* ---- making one ------------------------------------------------------------------------------ */

typedef struct infer_progress {
    const char *stage; // "gates", "labels", ...
    int step, n_steps; // stages
    uint64_t done, total;
    double seconds_left; // of all stages; negative: not known yet
} infer_progress;

typedef struct infer_extract_options {
    size_t struct_size;
    const char *level; // "browse", "attention", "inference", "all"; NULL: "inference"
    const char *dtype; // "f16" or "f32"; NULL: "f16"
    const char *quant; // "none" or "q4k"; NULL: "none"
    bool resume;       // go on where an extraction of the same model to the same place was stopped
    bool force;        // replace what is there
    int n_threads;     // 0: as engines
    int top_k;         // tokens kept for a feature; 0: 10
    int n_clusters;    // relation clusters (k-means); 0: none
    /* False stops: INFER_CANCELLED; what is done stays beside `out` for `resume`. Or NULL. */
    bool (*progress)(const infer_progress *p, void *user);
    void *user;
    infer_log log; // warnings: tensors that are not taken over
} infer_extract_options;

/* Writes the vindex of the model at `path` (GGUF file or folder, safetensors folder) to the folder
 * `out`, which appears when it is whole: until then the work lies beside it, in a folder that
 * `resume` continues. Memory is bounded by a few layers. */
INFER_API infer_status infer_extract(const char *path, const char *out,
                                     const infer_extract_options *options, infer_error *err);

/* ---- opening --------------------------------------------------------------------------------- */

typedef struct infer_vindex_options {
    size_t struct_size;
    bool hnsw;          // build or map the graphs: KNN by HNSW instead of by scanning
    int ef_search;      // HNSW's beam; 0: 200
    uint64_t pin_bytes; // budget of memory that hot layers may be locked in; 0: none
    int n_threads;      // for scans and building; 0: as engines
    infer_log log;
} infer_vindex_options;

/* Maps the folder. A malformed or stale file is an error that names it and how to rebuild it; only
 * what the level leaves out may be absent. */
INFER_API infer_status infer_vindex_open(infer_vindex **out, const char *path,
                                         const infer_vindex_options *options, infer_error *err);
/* Models and patches that use it must be closed first. */
INFER_API void infer_vindex_close(infer_vindex *v);

typedef struct infer_vindex_info {
    const char *path, *model, *family, *level, *dtype, *quant; // live as long as the vindex
    int n_layers, d_model, d_ff, n_vocab, top_k;
    uint64_t n_features, n_labelled; // of all layers; with top tokens
    uint64_t bytes;                  // of all files
    bool has_attention, has_ffn, has_tokenizer, has_meta, has_hnsw;
    int bands[3][2]; // first and last layer of syntax, knowledge, output
} infer_vindex_info;
INFER_API infer_vindex_info infer_vindex_describe_index(const infer_vindex *v);
INFER_API int infer_vindex_n_features(const infer_vindex *v, int layer); // -1: no such layer
/* Reads every file that has a checksum. INFER_FORMAT names the first file that differs. */
INFER_API infer_status infer_vindex_verify(const char *path, infer_error *err);
/* Gates (and routers) as float32; the folder is replaced in one step. */
INFER_API infer_status infer_vindex_gates_to_f32(const char *path, infer_error *err);
/* down_features.bin or up_features.bin: rows by feature of the matrices that are there, as "f32"
 * (NULL) or "f16". */
INFER_API infer_status infer_vindex_build_features(const char *path, bool down,
                                                   const char *type_name, infer_error *err);
/* Files that stand in for others, which may then be removed: "gates-q4" (gate_vectors_q4.bin),
 * "down-q4k" (down_features_q4k.bin, of down_features.bin), "attention-q8", "attention-q4"
 * (attn_weights_q8.bin, …), "layers-f32", "layers-q4k" (layers/layer_LL.weights). */
INFER_API infer_status infer_vindex_build(const char *path, const char *what, infer_error *err);

/* ---- asking ---------------------------------------------------------------------------------- */

typedef struct infer_hit {
    int layer, feature;
    float score;       // gate row . x
    int32_t token;     // its first top token; -1: none known
    const char *label; // relation, or NULL; lives as long as the vindex
} infer_hit;

/* The best n features of a layer for x [d_model] (the FFN's input, normed), best first; the count,
 * -1 on error. patch (NULL: none) is laid over the base. */
INFER_API int infer_vindex_knn(const infer_vindex *v, const infer_patch *patch, int layer,
                               const float *x, infer_hit *hits, int n, infer_error *err);
typedef struct infer_knn_options {
    size_t struct_size;
    const infer_patch *patch;
    int expert;        // of a mixture: 1 is the first; 0: all features
    bool contribution; // as infer_vindex_knn_contribution
    bool scan;         // also where there is a graph
} infer_knn_options;
/* The same of rows x [n_rows, d_model]: hits [n_rows, n] and their counts [n_rows]. */
INFER_API infer_status infer_vindex_knn_batch(const infer_vindex *v, int layer, const float *x,
                                              int n_rows, infer_hit *hits, int *counts, int n,
                                              const infer_knn_options *options, infer_error *err);
/* All scores [n_rows, n_features] of rows x [n_rows, d_model]. */
INFER_API infer_status infer_vindex_scores(const infer_vindex *v, int layer, const float *x,
                                           int n_rows, float *scores, infer_error *err);
/* The best n by |act(gate . x) * (up . x)| * |down row|: what the feature really adds. */
INFER_API int infer_vindex_knn_contribution(const infer_vindex *v, int layer, const float *x,
                                            infer_hit *hits, int n, infer_error *err);

/* The query vector [d_model] of a text: `last` its last token's embedding (special tokens added),
 * else the mean over its tokens (none added); times the embedding's scale. */
INFER_API infer_status infer_vindex_embed(const infer_vindex *v, const char *text, bool last,
                                          float *x, infer_error *err);

/* The embedding [d_model] of a token, scaled as the model scales it. */
INFER_API infer_status infer_vindex_embedding(const infer_vindex *v, int32_t token, float *x,
                                              infer_error *err);

typedef struct infer_token_score {
    int32_t token;
    float score;
} infer_token_score;
/* What a feature speaks for: up to n tokens and their scores; the count. text of ids:
 * infer_vindex_token. */
INFER_API int infer_vindex_feature(const infer_vindex *v, const infer_patch *patch, int layer,
                                   int feature, infer_token_score *tokens, int n);
INFER_API const char *infer_vindex_token(const infer_vindex *v, int32_t token); // as printed
INFER_API const infer_tokenizer *infer_vindex_tokenizer(const infer_vindex *v); // NULL: none

typedef struct infer_edge {
    const char *target;   // lives as long as the vindex (or the patch)
    const char *relation; // or NULL
    int32_t token;
    int layer, feature;
    float score;    // of the strongest feature
    int n_features; // that speak for the target
    int first_layer, last_layer;
} infer_edge;
typedef struct infer_query {
    size_t struct_size;
    int first_layer, last_layer; // both 0: by band; last_layer -1: first_layer alone
    const char *band;            // "syntax", "knowledge", "output", "all"; NULL: "knowledge"
    const char *entity;          // select: text in the tokens, any case
    const char *relation;        // only this label
    float min_score;
    bool by_layer; // select: order by layer, not by score
    /* describe: rank, and score, by how many standard deviations a feature answers more to the
     * entity than to the vocabulary's tokens at large: those that answer to all are set aside. */
    bool contrast;
    const infer_patch *patch;
} infer_query;
/* What the model knows of an entity: its gates' hits over the layers, joined by target, strongest
 * first. */
INFER_API int infer_vindex_describe(const infer_vindex *v, const char *entity, infer_edge *edges,
                                    int n, const infer_query *query, infer_error *err);
/* The n best features of each layer for a prompt's query vector, in order of layers. */
INFER_API int infer_vindex_walk(const infer_vindex *v, const char *prompt, infer_hit *hits,
                                int n_per_layer, const infer_query *query, infer_error *err);
/* Features whose tokens or label match the query. */
INFER_API int infer_vindex_select(const infer_vindex *v, infer_edge *edges, int n,
                                  const infer_query *query, infer_error *err);
typedef struct infer_relation {
    const char *name;
    int count, first_layer, last_layer;
    float max_score;
    const char *examples[3];
} infer_relation;
INFER_API int infer_vindex_relations(const infer_vindex *v, infer_relation *relations, int n,
                                     infer_error *err);
/* Tokens whose embeddings are nearest to a text's by cosine. */
INFER_API int infer_vindex_neighbours(const infer_vindex *v, const char *text,
                                      infer_token_score *tokens, int n, infer_error *err);
/* The experts that layer's router chooses for x, best first, with softmax over the chosen; the
 * count. INFER_UNSUPPORTED without a router. */
INFER_API int infer_vindex_route(const infer_vindex *v, int layer, const float *x,
                                 infer_token_score *experts, int n, infer_error *err);

/* Graphs for KNN, of a vindex opened with hnsw: built at open unless the folder holds them. Saving
 * writes them there (hnsw.bin). Checking compares their file's checksums, and measures which share
 * of the scan's best 10 they find for n embeddings in each layer: recall [n_layers]. */
INFER_API bool infer_vindex_graphs_mapped(const infer_vindex *v); // they were in the folder
INFER_API infer_status infer_vindex_save_graphs(const infer_vindex *v, infer_error *err);
INFER_API infer_status infer_vindex_check_graphs(const infer_vindex *v, int n, float *recall,
                                                 infer_error *err);

/* ---- residency ------------------------------------------------------------------------------- */

typedef struct infer_residency {
    uint64_t budget, pinned; // bytes
    int n_pinned;            // layers
    uint64_t accesses, evictions;
} infer_residency;
/* Locks what is used most, within pin_bytes; called between requests. */
INFER_API infer_status infer_vindex_repin(infer_vindex *v, infer_error *err);
INFER_API infer_status infer_vindex_pin_layers(infer_vindex *v, int first, int last,
                                               infer_error *err);
INFER_API void infer_vindex_release(infer_vindex *v); // tells the system that pages may go
INFER_API infer_residency infer_vindex_residency(const infer_vindex *v);

/* ---- editing: patches over an immutable base ------------------------------------------------- */

INFER_API infer_patch *infer_patch_new(const infer_vindex *v, infer_error *err);
INFER_API void infer_patch_free(infer_patch *patch);
/* Appends a .vlp file's operations: later ones win. Nothing is changed on an error. */
INFER_API infer_status infer_patch_load(infer_patch *patch, const char *path, infer_error *err);
/* Written beside and renamed: a crash leaves the old file or the new. */
INFER_API infer_status infer_patch_save(const infer_patch *patch, const char *path,
                                        infer_error *err);
INFER_API int infer_patch_n_operations(const infer_patch *patch);
typedef struct infer_operation {
    int kind; // 0 insert, 1 update, 2 delete, 3 insert_knn, 4 delete_knn
    int layer, feature;
    const char *entity, *relation, *target; // or NULL; live as long as the operation
} infer_operation;
INFER_API infer_operation infer_patch_operation(const infer_patch *patch, int i);
/* Takes back all operations but the first n. */
INFER_API void infer_patch_truncate(infer_patch *patch, int n);

typedef struct infer_feature_edit {
    int layer, feature;                     // feature -1: a free one is chosen
    const float *gate, *up, *down;          // [d_model] each, NULL: the base's
    const char *entity, *relation, *target; // or NULL
    int32_t token;                          // of the target
    float confidence;                       // 0: 0.9
} infer_feature_edit;
/* *feature (may be NULL) is the feature that was taken. */
INFER_API infer_status infer_patch_insert(infer_patch *patch, const infer_feature_edit *edit,
                                          int *feature, infer_error *err);
INFER_API infer_status infer_patch_update(infer_patch *patch, const infer_feature_edit *edit,
                                          infer_error *err);
/* The feature never fires again and is found no more. */
INFER_API infer_status infer_patch_delete(infer_patch *patch, int layer, int feature,
                                          const char *reason, infer_error *err);

typedef enum infer_conflict {
    INFER_CONFLICT_LAST,       // the later patch wins
    INFER_CONFLICT_CONFIDENCE, // the higher confidence
    INFER_CONFLICT_FAIL        // an error that names the feature
} infer_conflict;
/* `top` laid over `patch`. */
INFER_API infer_status infer_patch_stack(infer_patch *patch, const infer_patch *top,
                                         infer_conflict how, infer_error *err);
/* A new vindex with the patch baked in; files that it does not touch are hard-linked or copied. */
INFER_API infer_status infer_patch_compile(const infer_patch *patch, const char *out,
                                           infer_error *err);

/* Facts stored by key: knn_store.bin, and insert_knn of a patch. A key is the FFN's input of one
 * layer at the end of a prompt that asks for the fact. */
typedef struct infer_knn_fact {
    int layer;
    float cosine;
    int32_t token;
    float confidence;
    const char *entity, *relation, *target; // live as long as the vindex (or the patch)
} infer_knn_fact;
/* The fact that overrides the model where the FFNs' inputs are ffn_in [n_layers, d_model]
 * (infer_capture): of the first layer whose best key has a cosine above the threshold (0: 0.75).
 * 1, or 0: none; -1 on error. */
INFER_API int infer_vindex_recall(const infer_vindex *v, const infer_patch *patch,
                                  const float *ffn_in, float threshold, infer_knn_fact *fact,
                                  infer_error *err);
INFER_API int infer_vindex_n_facts(const infer_vindex *v, const infer_patch *patch);

typedef struct infer_compile_options {
    size_t struct_size;
    /* For a GGUF file: the GGUF file that the index was made from. What no edit touches is taken
     * from it byte for byte, so that quantised weights stay so; NULL: the index's precision. */
    const char *model;
    int n_threads; // 0: as engines
    infer_log log;
} infer_compile_options;
/* A model with the patch baked in, for other programs: a GGUF file where `out` ends in ".gguf",
 * else a Hugging Face folder (config.json, model.safetensors, tokenizer). Both are read back and
 * compared with the index; a family that they have no form for here is INFER_UNSUPPORTED. */
INFER_API infer_status infer_patch_compile_model(const infer_patch *patch, const char *out,
                                                 const infer_compile_options *options,
                                                 infer_error *err);

typedef struct infer_fact {
    const char *entity, *relation, *target;
} infer_fact;
typedef struct infer_insert_options {
    size_t struct_size;
    float alpha;      // strength of the down rows; 0: 0.25
    float confidence; // 0: 0.9
    /* Both 0: the upper half of the knowledge band. last_layer -1: first_layer alone. */
    int first_layer, last_layer;
    bool key; // store the FFN's input of last_layer as a fact's key and change no feature (both 0:
              // the knowledge band's last layer but one)
    const char
        *prompt; // "{relation}" and "{entity}" replaced; NULL: "The {relation} of {entity} is"
} infer_insert_options;
/* Installs a fact: runs the prompt through the model, and in each layer gives a free feature a gate
 * that answers to the FFN's input there and a down row that writes the target. */
INFER_API infer_status infer_insert(const infer_model *model, infer_patch *patch,
                                    const infer_fact *fact, const infer_insert_options *options,
                                    infer_error *err);
/* Deletes the features that speak for the target where the entity's query hits them; *n counts. */
INFER_API infer_status infer_delete_fact(infer_patch *patch, const infer_fact *fact, int *n,
                                         infer_error *err);

/* ---- the sparse walk: opt-in, approximate, measured -------------------------------------------
 */

typedef struct infer_walk_point {
    bool by_gate;  // features chosen by |act(gate)| alone, else by |act(gate) * up| * |down row|
    double kept;   // share of the features, on the text that set the thresholds
    double kl;     // mean KL(exact || sparse) of a position of the held-out text
    double max_kl; // the largest
    double top1;   // share of positions with the same likeliest token
    double bytes;  // share of the FFN's bytes that is read
    double ffn_seconds, dense_ffn_seconds; // of a generated token, here and exact
    double token_seconds;                  // of the whole token
} infer_walk_point;
typedef struct infer_calibrate_options {
    size_t struct_size;
    const int32_t *ids; // text that sets the thresholds
    int n_ids;
    const int32_t *held; // text that is measured
    int n_held;
    const double *shares; // of features to keep, (0, 1]
    int n_shares;
    bool with_gate; // measure the choice by the gate alone, too
    int n_threads;
    bool (*progress)(double share, void *user); // false stops; or NULL
    void *user;
} infer_calibrate_options;
/* What keeping a share of the features costs: points [n_shares], and [n_shares] more with
 * with_gate; thresholds [n_shares, n_layers] or NULL, for infer_engine_options.walk_keep. model was
 * opened with an index that has down rows by features. */
INFER_API infer_status infer_walk_calibrate(const infer_model *model,
                                            const infer_calibrate_options *options,
                                            infer_walk_point *points, float *thresholds,
                                            infer_error *err);

#ifdef __cplusplus
}
#endif
#endif
