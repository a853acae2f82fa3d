/*
 * tokenizer.h: text to ids and back, exactly as the model's authors did it.
 *
 * One pipeline in the terms of Hugging Face tokenizers: added tokens are cut out of the text, then
 * normalizer → pre-tokenizer → model (BPE, byte-level BPE, Unigram) → post-processor; decoding runs
 * the decoder's steps. tokenizer.json states the pipeline; a GGUF file names one
 * (tokenizer.ggml.model and .pre) and tokenizer_gguf.c states what each name means in the same
 * terms.
 *
 * Immutable after opening: any number of threads may use one.
 */
#ifndef MODELS_TOKENIZER_H
#define MODELS_TOKENIZER_H

#include "models/gguf.h"

typedef struct tokenizer tokenizer;

/* From a folder with tokenizer.json (tokenizer_config.json is read too where it lies beside it),
 * and from GGUF metadata. g may be closed afterwards: nothing is borrowed. */
infer_status tokenizer_from_folder(tokenizer **out, const char *folder, infer_error *err);
infer_status tokenizer_from_gguf(tokenizer **out, const gguf *g, infer_error *err);
void tokenizer_free(tokenizer *t);

/* Bytes [begin, end) of a text. */
typedef struct tok_range {
    size_t begin, end;
} tok_range;

typedef struct tok_options {
    bool no_special; // add no BOS or EOS
    bool plain_text; // special tokens written in the text are text (user content in a chat)
    /* plain_text for parts: a special token whose match would overlap one of these ranges is not
     * matched there; all else is as without them (merges still cross a range's ends). What a chat
     * template copied from messages is given here. Sorted by begin, disjoint; borrowed. */
    const tok_range *plain;
    size_t n_plain;
} tok_options;

/* Encodes n bytes of UTF-8 (NUL is legal). *ids is allocated with mem_alloc, owned by the caller.
 * Invalid UTF-8 is INFER_ARGUMENT. Linear time. o may be NULL. */
infer_status tok_encode(const tokenizer *t, int32_t **ids, size_t *n_ids, const char *text,
                        size_t n, const tok_options *o, infer_error *err);
/* Decodes; *text is allocated (NUL-terminated; *n bytes), valid UTF-8. Ids outside the vocabulary
 * are INFER_ARGUMENT. */
infer_status tok_decode(const tokenizer *t, char **text, size_t *n, const int32_t *ids,
                        size_t n_ids, bool skip_special, infer_error *err);

/* Streaming: what a new id adds to the text so far, in whole UTF-8 characters; bytes that may still
 * be completed are held back. The pieces of all ids, and of the flush, concatenate to tok_decode's
 * text. No allocation after stream_new. */
#define TOK_STREAM_MOST ((size_t)1 << 20) // bytes of the longest piece, beyond a token's text
typedef struct tok_stream tok_stream;
infer_status tok_stream_new(tok_stream **out, const tokenizer *t, bool skip_special,
                            infer_error *err);
void tok_stream_free(tok_stream *s);
/* The piece is NUL-terminated, *n bytes, owned by the stream, valid until the next call. */
const char *tok_stream_push(tok_stream *s, int32_t id, size_t *n);
const char *tok_stream_flush(tok_stream *s, size_t *n);
void tok_stream_reset(tok_stream *s);

int tok_n_vocab(const tokenizer *t); // largest id + 1
/* The raw entry of an id (as in the vocabulary file), NULL outside; n may be NULL. */
const char *tok_token(const tokenizer *t, int32_t id, size_t *n);
int32_t tok_find(const tokenizer *t, const char *token); // exact entry, -1: none
bool tok_is_special(const tokenizer *t, int32_t id);
int32_t tok_bos(const tokenizer *t); // -1: none
int32_t tok_eos(const tokenizer *t);
bool tok_adds_bos(const tokenizer *t);
bool tok_adds_eos(const tokenizer *t);
/* Ends generation: EOS, and the end-of-turn tokens that the vocabulary has (<end_of_turn>,
 * <|im_end|>,
 * <|eot_id|>, …, tokenizer.ggml.eot_token_id). */
bool tok_is_end(const tokenizer *t, int32_t id);
/* The chat template's source, NULL: none. Borrowed. */
const char *tok_chat_template(const tokenizer *t);

#endif
