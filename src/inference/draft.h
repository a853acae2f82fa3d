/*
 * draft.h: guesses of the next tokens, made of the text itself, and whether they pay.
 *
 * Text repeats what it has said: a summary its source, an edit the code. Where the last tokens
 * stood before, what followed them then is the draft (prompt lookup). A step then computes the last
 * token and the draft as rows of one pass over the weights, and every drafted token that equals the
 * one which is chosen anyway has saved a step. Drafts decide what is computed ahead, never what
 * comes out.
 *
 * Whether to draft and how much is measured: steps are timed by their number of rows, drafts by how
 * far they held, divided by the length of the repetition; a draft is made where the expected tokens
 * a second exceed those of single steps, and only while all that drafts have cost stays within a
 * fiftieth of the time.
 */
#ifndef INFERENCE_DRAFT_H
#define INFERENCE_DRAFT_H

#include "infer_base.h"

#define DRAFT_MOST 15 // tokens ahead; a multiple of a kernel's rows with the token before them

typedef struct draft draft;

/* For texts of up to n_ctx tokens. No allocation afterwards. */
infer_status draft_new(draft **out, int n_ctx, infer_error *err);
void draft_free(draft *d);
/* The text keeps its first n tokens only. */
void draft_cut(draft *d, int n);
/* What follows ids [n], at most `most` tokens (DRAFT_MOST is the limit), to out. `always`: whatever
 * it may cost. Returns the number; 0: a single step is better. */
int draft_propose(draft *d, int32_t *out, const int32_t *ids, int n, int most, bool always);
/* A step of one token and n_drafted more took `seconds`. */
void draft_timed(draft *d, int n_drafted, double seconds);
/* The first n_held of the last proposal were right; `settled` where the next one, if there was one,
 * was wrong, and not merely never asked for. */
void draft_held(draft *d, int n_held, bool settled);

#endif
