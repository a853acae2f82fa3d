/*
 * locate.h: what a path given by the user leads to: a GGUF file, or a Hugging Face folder.
 */
#ifndef MODELS_LOCATE_H
#define MODELS_LOCATE_H

#include "infer_base.h"

/* *found is the GGUF file or the folder, allocated with mem_alloc. A folder with config.json and
 * safetensors is taken as such, else its one GGUF file (a split set counts as one). */
infer_status model_locate(char **found, bool *is_folder, const char *path, infer_error *err);

#endif
