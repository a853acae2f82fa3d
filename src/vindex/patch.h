/*
 * patch.h: what a patch holds: operations in the order they were made, and, made of them, what they
 * say of each layer. Applied in order; later ones win.
 */
#ifndef VINDEX_PATCH_H
#define VINDEX_PATCH_H

#include <jansson.h>

#include "vindex/vindex.h"

typedef enum patch_op_kind {
    PATCH_INSERT,
    PATCH_UPDATE,
    PATCH_DELETE,
    PATCH_INSERT_KNN,
    PATCH_DELETE_KNN
} patch_op_kind;

typedef struct patch_op {
    patch_op_kind kind;
    int layer, feature;                        // feature: not of the KNN operations
    float *gate, *up, *down;                   // [d_model] or NULL; gate is the key of INSERT_KNN
    char *entity, *relation, *target, *reason; // or NULL
    bool has_meta, has_confidence;
    int32_t token;           // of the target
    float confidence, score; // score: c_score of the metadata
} patch_op;

struct infer_patch {
    const infer_vindex *base;
    patch_op *ops;
    size_t n_ops, cap;
    struct {
        patch_feature *v; // ascending
        size_t n, cap;
    } * layers; // [n_layers]
};

/* Takes op's strings and vectors, also on failure. */
infer_status patch_add(infer_patch *p, patch_op *op, infer_error *err);
void patch_op_free(patch_op *op);
/* What the patch says of a feature; NULL: nothing. */
const patch_feature *patch_find(const infer_patch *p, int layer, int feature);

/* .vlp: one JSON object (vindex-format.md). patch_from_json appends; on failure nothing. */
infer_status patch_from_json(infer_patch *p, const char *name, const json_t *json,
                             infer_error *err);
json_t *patch_to_json(const infer_patch *p); // NULL without memory

#endif
