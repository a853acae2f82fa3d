/*
 * search.h: what searching an open vindex needs beside the index: threads for scans, the graphs,
 * and what is computed once and kept: lengths of down rows and of embeddings, texts of tokens.
 * Everything is safe to call from several threads.
 */
#ifndef VINDEX_SEARCH_H
#define VINDEX_SEARCH_H

#include "vindex/knn.h"
#include "vindex/vindex.h"

infer_status searcher_open(infer_vindex *v, const infer_vindex_options *o, infer_error *err);
void searcher_close(infer_vindex *v);

knn *searcher_scan(const infer_vindex *v);
/* Token id's text, trimmed; its raw entry or "T<id>" where that is empty. Lives as long as v. */
const char *searcher_token(const infer_vindex *v, int32_t id);
/* Lengths [n_vocab] of the embeddings; NULL without memory. */
const float *searcher_embed_norms(const infer_vindex *v);

/* Mean and standard deviation [n_features] of a layer's scores for tokens spread over the
 * vocabulary; live as long as v. */
infer_status searcher_baseline(const infer_vindex *v, int layer, const float **mean,
                               const float **deviation, infer_error *err);
/* The same of one gate row. */
infer_status searcher_baseline_of(const infer_vindex *v, const float *gate, float *mean,
                                  float *deviation, infer_error *err);

/* What the index and the patch say of a feature. tokens [*n] are the base's best, NULL and 0 where
 * none are known or the patch tells another target. */
typedef struct feature_label {
    const char *target;   // text of the first token, or the patch's; NULL: none
    const char *relation; // or NULL
    int32_t token;        // -1: none known
    float score;          // of the first token
} feature_label;
feature_label searcher_label(const infer_vindex *v, const infer_patch *p, int layer, int feature);

#endif
