/*
 * labels.h: what features speak for: for each column of the down matrix the tokens whose embeddings
 * it points to most, as down_meta.bin holds them.
 */
#ifndef VINDEX_LABELS_H
#define VINDEX_LABELS_H

#include "compute/backend.h"
#include "models/tokenizer.h"

/* A token's text without white space around it, allocated; empty: a special one, or no token. */
infer_status label_text(char **out, const tokenizer *tok, int32_t id, infer_error *err);

typedef struct labeller labeller;

/* embed [n_vocab, d_model]; tok may be NULL: ids whose text is empty are then kept. words: only
 * tokens that are whole words are chosen from (three ASCII letters, digits, - and ' or more). */
infer_status labeller_new(labeller **out, const tensor *embed, const tokenizer *tok, bool words,
                          int top_k, int n_threads, infer_error *err);
void labeller_free(labeller *x);
/* Records [n_features, 8 + 8 * top_k] of the columns of a matrix [d_model, n_features] (a down), or
 * of the rows of [n_features, d_model]: id and score of the best token, then pairs of the best
 * ones; zeros behind. tick is called now and then with the share that is done, and false from it
 * stops (INFER_CANCELLED); it may be NULL. */
infer_status labeller_run(labeller *x, uint8_t *records, const tensor *of, bool by_rows,
                          bool (*tick)(double share, void *user), void *user, infer_error *err);

#endif
