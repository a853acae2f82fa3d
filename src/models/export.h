/*
 * export.h: a vindex as a Hugging Face folder: config.json, model.safetensors, the tokenizer's
 * files.
 */
#ifndef MODELS_EXPORT_H
#define MODELS_EXPORT_H

#include "models/arch.h"

/* The folder `out` appears when it is whole, and when it says what the index says. Refused by name:
 * what the family's files have in a form that is not made here. */
infer_status export_folder(const char *vindex, const char *out, const infer_log *log,
                           infer_error *err);

/* hf_config.c: config.json of settings that came from a GGUF file, noted in s; NULL without memory.
 */
json_t *hf_config(const infer_model *m, const config *c, const config_source *s);

#endif
