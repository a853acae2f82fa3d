/*
 * rope.h: rotary frequencies (Su et al. 2021) and the ways in which they are stretched for long
 * contexts. Everything is float32 in the order of operations of transformers, so that angles agree.
 */
#ifndef MODELS_ROPE_H
#define MODELS_ROPE_H

#include "base/error.h"
#include "models/model.h"

/* What a configuration says about one kind of rotation. */
typedef struct rope_spec {
    rope_scaling scaling;
    double base;
    double factor;                           // 1: none
    double low_freq, high_freq;              // llama3
    double beta_fast, beta_slow;             // YaRN (Peng et al. 2023)
    bool truncate;                           // YaRN: whole numbers as bounds of the ramp
    double attention_factor;                 // of YaRN and longrope; 0: follows from the factor
    double mscale, mscale_all_dim;           // YaRN as DeepSeek has it; 0: not given
    double alpha;                            // Hunyuan: the base times alpha^(dim/(dim-2)); 0: not
    int original_len;                        // 0: the trained context
    const float *short_factor, *long_factor; // longrope [n_factors]
    int n_factors;
    const float *divisors; // of each frequency, as GGUF stores llama3, or NULL
    int n_divisors;
    int dim; // rotated dimensions of a head
    int head_dim; // of the layers that rotate so; 0: the config's
} rope_spec;

/* Its scaling by a name that config files use ("llama3"); -1: unknown. */
int rope_scaling_find(const char *name, size_t n);
/* The known names, for messages. */
extern const char rope_scaling_names[];

/* YaRN's factor of attention: 0.1 mscale ln(factor) + 1. */
double rope_yarn_mscale(double factor, double mscale);

/* Adds what is wrong with the numbers; where names the setting. */
void rope_check(const rope_spec *r, fault_list *faults, const char *where);
/* Fills the plan; the spec has passed rope_check. n_ctx is the trained context. */
infer_status rope_build(rope_plan *out, const rope_spec *r, rope_pairing pairing, int n_ctx,
                        arena *mem, infer_error *err);
#endif
