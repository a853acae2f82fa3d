/*
 * load_vindex.h: a vindex as a model's container: its settings, and its tensors under their Hugging
 * Face names. The FFN's matrices are [n_outputs, n_inputs] and each expert's its own, whatever the
 * family's files have.
 */
#ifndef MODELS_LOAD_VINDEX_H
#define MODELS_LOAD_VINDEX_H

#include "models/arch.h"
#include "models/vindex_dir.h"

/* Makes the folder s's settings: our own keys of index.json, else what model_config tells. *json is
 * the caller's (json_decref); *meta too (gguf_close), where the settings are a GGUF file's. */
infer_status vindex_settings(config_source *s, json_t **json, gguf **meta, vindex_dir *d,
                             infer_error *err);
/* Where conventions of the folder's values are Hugging Face's though the settings are GGUF's. */
void vindex_conventions(config *c, const arch *a, const vindex_dir *d);
/* The tensors. INFER_NOT_FOUND names the files that a lower level leaves out. walk_only: the FFN's
 * are not needed. */
infer_status vindex_tensors(safetensors **out, vindex_dir *d, const arch *a, const config *c,
                            bool walk_only, infer_error *err);

#endif
