/*
 * vindex_dir.h: the folder of a vindex as a container: index.json and the manifests, checked, and
 * the files mapped. Formats: docs/vindex-format.md.
 *
 * Everything that index.json and a manifest say is checked at open against the files' sizes. A file
 * is mapped when it is first asked for.
 */
#ifndef MODELS_VINDEX_DIR_H
#define MODELS_VINDEX_DIR_H

#include <jansson.h>

#include "base/arena.h"
#include "base/map.h"
#include "compute/tensor.h"

typedef struct vindex_gates {
    int layer, n_features;
    int n_experts, per_expert; // 0: dense
    uint64_t offset, length;   // in gate_vectors.bin
} vindex_gates;

/* A row of a manifest. */
typedef struct vindex_entry {
    const char *key,
        *kind; // "tensor", "vector", "tensor_q4k", "tensor_f16"; a quantised file's "Q4_K"
    int type;  // dtype
    int n_dims;
    int64_t dims[4];
    const uint8_t *data;
    const char *absent; // the file that would have it, and is not there
    uint64_t bytes;
} vindex_entry;
typedef struct vindex_manifest {
    vindex_entry *v;
    int n;
} vindex_manifest;

typedef struct vindex_dir {
    char *path;
    arena mem;
    json_t *index; // index.json
    map_options how;
    infer_log log;
    file_map *maps;
    int n_maps, cap_maps;

    int version, n_layers, d_model, d_ff, n_vocab, top_k;
    const char *model, *family, *level, *quant, *ffn_layout; // ffn_layout: "" or "per_layer"
    dtype type;                                              // of the float files: F32 or F16
    float embed_scale;
    bool has_weights, has_bands;
    int bands[3][2];      // syntax, knowledge, output: first and last layer
    vindex_gates *gates;  // [n_layers] by layer; n_features 0 where index.json has none
    const json_t *config; // model_config, or NULL
    const json_t *extra;  // our own keys ("infer"), or NULL
} vindex_dir;

/* True for a folder with index.json. */
bool vindex_dir_is(const char *path);
infer_status vindex_dir_open(vindex_dir **out, const char *path, const map_options *how,
                             const infer_log *log, infer_error *err);
void vindex_dir_close(vindex_dir *d);
uint64_t vindex_dir_bytes(const vindex_dir *d); // of the files mapped so far
bool vindex_dir_broken(const vindex_dir *d);
/* NULL where the file is missing (err: INFER_NOT_FOUND) or cannot be mapped. */
const file_map *vindex_dir_map(vindex_dir *d, const char *name, infer_error *err);
bool vindex_dir_has(const vindex_dir *d, const char *name);
/* weight_manifest.json, or a quantised file's own (whose data is in `data_file`). A missing file is
 * an empty manifest; an entry of the former whose file is missing has no data. Offsets and shapes
 * are checked. */
infer_status vindex_dir_manifest(vindex_dir *d, const char *name, const char *data_file,
                                 vindex_manifest *out, infer_error *err);
/* By key; NULL: none. The last of equal keys counts. */
const vindex_entry *vindex_entry_find(const vindex_manifest *m, const char *key);
/* Tells the system that pages of the files in [from, from + size) may go. */
void vindex_dir_release(const vindex_dir *d, const void *from, size_t size);
/* "… : run 'infer extract' again" */
infer_status vindex_stale(const vindex_dir *d, infer_error *err, const char *file, const char *fmt,
                          ...) __attribute__((format(printf, 4, 5)));

#endif
