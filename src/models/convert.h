/*
 * convert.h: the vocabulary's part of converting a folder to GGUF (convert_tok.c).
 */
#ifndef MODELS_CONVERT_H
#define MODELS_CONVERT_H

#include "models/quantize.h"

/* Writes tokenizer.ggml.* for t, read from the folder; n_vocab entries, the missing ones as
 * padding. bos: where the tokenizer names none, -1: none. A tokenizer that GGUF has no form for is
 * refused. */
infer_status convert_tokenizer(out_model *m, const tokenizer *t, int n_vocab, int32_t bos,
                               infer_error *err);
/* Whether the written vocabulary gives the folder's ids on sample texts; refuses showing one that
 * differs. */
infer_status convert_check_tokenizer(const out_model *m, const tokenizer *t, const gguf *written,
                                     infer_error *err);

#endif
