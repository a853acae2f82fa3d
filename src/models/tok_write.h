/* tok_write.h: a tokenizer that GGUF names, written out as the tokenizer.json that states it. */
#ifndef MODELS_TOK_WRITE_H
#define MODELS_TOK_WRITE_H

#include "models/tokenizer.h"

/* Text of a tokenizer.json that gives t's ids; t was read from g. *text is the caller's
 * (mem_free). What has no such form is INFER_UNSUPPORTED: it is read back and compared on texts
 * that try what tokenizers differ in. */
infer_status tok_write_json(char **text, size_t *n, const tokenizer *t, const gguf *g,
                            infer_error *err);
/* tokenizer_config.json beside it: chat template, special tokens. */
infer_status tok_write_config(char **text, size_t *n, const tokenizer *t, infer_error *err);

#endif
