/*
 * kl.h: a base to compare a model's predictions with: another model, run beside it, or the logits
 * that one left in a file; and the figures of the comparison.
 *
 * A base file, little-endian:
 *
 *   0    8  "INFERKL1"
 *   8    4  n_vocab          12  4  n_ctx          16  4  n_chunks          20  12  zero
 *   32      ids [n_chunks, n_ctx] i32, without BOS in the first place
 *           logits [n_chunks, n_scored, n_vocab] f32: of positions n_ctx/2 to n_ctx - 2 of each
 * chunk
 */
#ifndef CLI_KL_H
#define CLI_KL_H

#include "cli/cli.h"

/* What a comparison is made of: chunks of one text. */
typedef struct kl_text {
    const int32_t *ids; // [n_chunks, n_ctx]
    int n_ctx, n_chunks, n_vocab;
    int max_rows; // of a step
} kl_text;

typedef struct kl_base kl_base;
/* name: a base file or a model. The text's chunks must be the base file's first ones. The text is
 * borrowed. Returns an exit code. */
int kl_open(kl_base **out, const char *name, const cli_engine *e, const kl_text *text);
void kl_close(kl_base *b);
/* Before a chunk's first step; the rows of each step as the model has them (of a sequence of its
 * own); after its last. */
infer_status kl_begin(kl_base *b, int chunk, infer_error *err);
infer_status kl_step(kl_base *b, const infer_row *rows, int n, infer_error *err);
void kl_end(kl_base *b);
/* The base's logits [n_vocab] of row i of the last step, which is position `at` of the chunk. */
const float *kl_logits(const kl_base *b, int row, int at);
/* Compares with the model's, where token `id` came next. */
void kl_add(kl_base *b, const float *base, const float *model, int32_t id);

typedef struct kl_figures {
    long n;
    double mean, error; // of KL(base || model), in nats; standard error of the mean
    double median, p99, max;
    double same_top;               // share of positions where both expect the same token most
    double base_perplexity, ratio; // of the model's to it
    double ratio_error;
} kl_figures;
/* Sorts what was added. */
kl_figures kl_result(kl_base *b);

/* Writes a base file: the header and ids first, then logits in order. Under a temporary name until
 * kl_save_end. */
typedef struct kl_writer kl_writer;
int kl_save_begin(kl_writer **out, const char *path, const kl_text *text);
infer_status kl_save(kl_writer *w, const float *logits, infer_error *err);
infer_status kl_save_end(kl_writer *w, infer_error *err);
void kl_writer_free(kl_writer *w); // removes an unfinished file

#endif
