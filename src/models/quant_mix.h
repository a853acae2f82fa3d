/*
 * quant_mix.h: which format each tensor gets. A mix is a name ("Q4_K_M"), a format that most
 * matrices have, and rules for those that need more bits: the choices of llama.cpp's quantiser, so
 * that files of one name have one size and quality whoever made them.
 */
#ifndef MODELS_QUANT_MIX_H
#define MODELS_QUANT_MIX_H

#include "compute/quant.h"

typedef struct quant_mix quant_mix;

/* Row i of the table; NULL past the last. */
const quant_mix *mix_at(int i);
/* By name, in any case; NULL: none. */
const quant_mix *mix_find(const char *name);
const char *mix_name(const quant_mix *m);
const char *mix_summary(const quant_mix *m);
int mix_file_type(const quant_mix *m); // general.file_type

/* What the choice depends on beside the tensor. */
typedef struct mix_model {
    int n_layers, n_heads, n_kv_heads, n_experts;
    bool has_output; // a head of its own; else the embedding is it
    bool has_importance;
} mix_model;

/* Whether the tensor is one of those that are quantised at all: matrices but for norms, routers and
 * learned positions. n_dims counts dimensions above 1. */
bool mix_takes(const char *name, int n_dims);
/* The format for a tensor that mix_takes. *wanted is what it would be if its rows of n_cols fitted;
 * where they do not, the nearest format that they fit is returned. */
dtype mix_choose(const quant_mix *m, const mix_model *model, dtype *wanted, const char *name,
                 int64_t n_cols, bool is_stack);

#endif
