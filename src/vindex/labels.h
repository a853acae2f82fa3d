/*
 * labels.h: what features speak for: for each column of the down matrix the tokens whose embeddings
 * it points to most, as down_meta.bin holds them.
 */
#ifndef VINDEX_LABELS_H
#define VINDEX_LABELS_H

#include "compute/backend.h"
#include "models/tokenizer.h"

typedef struct labeller labeller;

/* embed [n_vocab, d_model]; tok may be NULL: ids whose text is empty are then kept. */
infer_status labeller_new(labeller **out, const tensor *embed, const tokenizer *tok, int top_k,
                          int n_threads, infer_error *err);
void labeller_free(labeller *x);
/* Records [n_features, 8 + 8 * top_k] of the columns of down [d_model, n_features]: id and score of
 * the best token, then pairs of the best ones; zeros behind. tick is called now and then with the
 * share that is done, and false from it stops (INFER_CANCELLED); it may be NULL. */
infer_status labeller_run(labeller *x, uint8_t *records, const tensor *down,
                          bool (*tick)(double share, void *user), void *user, infer_error *err);

#endif
