/*
 * quantize.h: what is to be written, between those who read a model's files (quantize.c for GGUF,
 * convert.c for Hugging Face folders) and the loop that makes the rows (quantize.c).
 */
#ifndef MODELS_QUANTIZE_H
#define MODELS_QUANTIZE_H

#include "base/arena.h"
#include "infer_tools.h"
#include "models/gguf_write.h"
#include "models/model.h"
#include "models/quant_mix.h"

/* A tensor of the output. Its rows come from n_slices matrices [n_rows, n_cols] of the source. */
typedef struct out_tensor {
    const char *name;
    int n_dims;
    int64_t dims[4]; // fastest first
    dtype from;
    const uint8_t *data;          // n_slices 1
    const uint8_t *const *slices; // [n_slices] otherwise
    int64_t n_slices, n_rows, n_cols;
    int permute_heads; // rows of each head: the two halves of rope pairs are interleaved; 0: as
                       // they are
    float add;         // to each number
    bool fixed;        // `to` is given: no mix changes it
    dtype to;
    uint64_t bytes;
} out_tensor;

typedef struct out_model {
    arena mem;
    char *path; // of the input
    gguf *g;    // the input: one of the two
    infer_model *model;
    gguf_writer *w; // keys are put as the input is read
    out_tensor *tensors;
    size_t n_tensors, cap_tensors;
    mix_model facts;
    dtype main_type; // that most bytes of the input's matrices have
    uint64_t in_bytes;
    const infer_quantize_options *o;
    struct out_base *base; // or NULL
} out_model;

/* The GGUF file that an index was made from: its tensors are taken as they are, but for the FFN's
 * of layers that were edited. */
typedef struct out_base {
    gguf *g;
    const bool *edited; // [layers]
    int n_taken;        // filled
} out_base;
/* quantize_base.c: refuses a file of another model. */
infer_status out_take_base(out_model *m, infer_error *err);

/* infer_quantize with a base (NULL: none). */
infer_status quantize_model(const char *in, const char *out, const infer_quantize_options *options,
                            out_base *base, infer_quantize_result *result, infer_error *err);

/* A zeroed tensor at the end of the list; NULL without memory. */
out_tensor *out_add(out_model *m, infer_error *err);

/* Keys that tell of the file that they are in and not of the model; with a mix, of formats too. */
bool own_key(const gguf_value *v, const quant_mix *mix);

/* convert.c: keys and tensors of the folder m->path. */
infer_status convert_folder(out_model *m, infer_error *err);
/* Whether the written file says what the folder says, weights aside; refuses naming what differs.
 */
infer_status convert_check(const out_model *m, const char *written, infer_error *err);
/* What two models' plans differ in, weights aside; NULL: nothing. */
const char *model_difference(const infer_model *a, const infer_model *b);

#endif
