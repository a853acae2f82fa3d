/*
 * side.h: what an index takes from files that stand in for others (models/vindex_side.h), and how
 * they are made.
 */
#ifndef VINDEX_SIDE_H
#define VINDEX_SIDE_H

#include "vindex/vindex.h"

/* down_meta.jsonl, where there is no down_meta.bin: records in v's memory. */
infer_status side_meta(infer_vindex *v, infer_error *err);
/* layers/layer_LL.weights: what the layer has not from other files. */
infer_status side_ffn(infer_vindex *v, int layer, infer_error *err);
/* down_features_q4k.bin: down rows by feature in blocks. */
infer_status side_down_rows(infer_vindex *v, infer_error *err);

#endif
