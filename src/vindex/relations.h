/*
 * relations.h: names of what features express: of probes (feature_labels.json), else of the cluster
 * they are in (relation_clusters.json, feature_clusters.jsonl).
 */
#ifndef VINDEX_RELATIONS_H
#define VINDEX_RELATIONS_H

#include "vindex/vindex.h"

/* Reads what of them the folder has. */
infer_status relations_open(infer_vindex *v, infer_error *err);
void relations_close(infer_vindex *v);
/* NULL: none. */
const char *relation_of(const infer_vindex *v, int layer, int feature);

#endif
