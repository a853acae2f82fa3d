/*
 * clusters.h: relation clusters: features whose step from what they react to, to what they speak
 * for, goes the same way. A feature's step is E[top token] - the mean embedding of the whole word
 * that its gate row answers to most; k-means joins equal ones.
 */
#ifndef VINDEX_CLUSTERS_H
#define VINDEX_CLUSTERS_H

#include "vindex/extract.h"

/* Writes relation_clusters.json and feature_clusters.jsonl of the work folder's down_meta.bin. */
infer_status extract_clusters(extraction *x);
/* Features that are looked at: those of the knowledge band. */
int extract_clustered(const extraction *x);

/* cluster_names.c: what clusters are called. */
typedef struct cluster_name {
    const char *label;
    const char *top[5]; // tokens that are typical of it, most typical first
    int n_top;
} cluster_name;
typedef struct cluster_members {
    int n, k, top_k;
    const int32_t *cluster;        // [n] which of k
    const uint8_t *const *records; // [n] of down_meta.bin
} cluster_members;
/* Names [k]; their texts are mem's. */
infer_status cluster_names(cluster_name *names, const cluster_members *c, const infer_model *m,
                           arena *mem, infer_error *err);

#endif
