/*
 * facts.h: facts stored by key (knn_store.bin, and a patch's insert_knn): where the FFN's input of
 * a layer points the way of a key, the key's target is the answer, whatever the model says.
 */
#ifndef VINDEX_FACTS_H
#define VINDEX_FACTS_H

#include <stdio.h>

#include "vindex/patch.h"

#define FACTS_FILE "knn_store.bin"

typedef struct key_fact {
    int layer;
    int32_t token;
    float confidence;
    const char *entity, *relation, *target; // "" where the file has none
    const uint8_t *half;                    // key [d_model] of unit length as halves, or
    const float *key;                       // of any length
} key_fact;

/* Reads the folder's knn_store.bin into v->facts, if it has one. */
infer_status facts_open(infer_vindex *v, infer_error *err);
/* Calls fn for the layer's facts that stand, base's first; false from it ends that. */
void facts_each(const infer_vindex *v, const infer_patch *p, int layer,
                bool (*fn)(const key_fact *f, void *user), void *user);
/* knn_store.bin of what stands. */
infer_status facts_write(FILE *f, const infer_vindex *v, const infer_patch *p, infer_error *err);
int facts_count(const infer_vindex *v, const infer_patch *p);

#endif
