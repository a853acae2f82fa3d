/*
 * quant_mix.c: the table of mixes. The first rule of a mix whose part occurs in the tensor's name
 * and whose condition holds gives the format; without one it is the mix's own.
 */
#include "models/quant_mix.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/compiler.h"

typedef enum condition {
    ALWAYS,
    FIRST_2, // of the layers
    FIRST_4,
    FIRST_8TH,
    FIRST_16TH,
    MORE_BITS, // the first and the last eighth, and every third layer between
    GQA_4,     // at least four heads share keys and values
    EXPERTS_8,
    NOT_EXPERTS_8,
    GUIDED_8TH,   // the first eighth, with an importance matrix
    UNGUIDED_8TH, // ... without one
    STACK,        // all experts' matrices in one
} condition;

typedef struct rule {
    const char *part;
    condition when;
    dtype type;
} rule;

struct quant_mix {
    const char *name, *summary;
    int file_type;
    dtype type;
    rule rules[8]; // ends with a part of NULL
};

#define V "attn_v.weight"
#define DOWN "ffn_down"
#define OUT "attn_output.weight"
#define QKV "attn_qkv.weight"

static const quant_mix mixes[] = {
    { "F32", "float32", 0, DT_F32, { { 0 } } },
    { "F16", "float16", 1, DT_F16, { { 0 } } },
    { "BF16", "bfloat16", 32, DT_BF16, { { 0 } } },
    { "Q8_0", "8 bits, hardly to be told from F16", 7, DT_Q8_0, { { 0 } } },
    { "Q6_K", "6.6 bits, very close to F16", 18, DT_Q6_K, { { 0 } } },
    { "Q5_K_M",
      "5.7 bits, close to F16",
      17,
      DT_Q5_K,
      { { V, MORE_BITS, DT_Q6_K }, { DOWN, MORE_BITS, DT_Q6_K }, { QKV, ALWAYS, DT_Q6_K } } },
    { "Q5_K_S", "5.5 bits", 16, DT_Q5_K, { { 0 } } },
    { "Q4_K_M",
      "4.8 bits, the usual choice",
      15,
      DT_Q4_K,
      { { V, MORE_BITS, DT_Q6_K },
        { DOWN, MORE_BITS, DT_Q6_K },
        { OUT, EXPERTS_8, DT_Q5_K },
        { QKV, ALWAYS, DT_Q5_K } } },
    { "Q4_K_S",
      "4.6 bits",
      14,
      DT_Q4_K,
      { { V, FIRST_4, DT_Q5_K }, { DOWN, FIRST_8TH, DT_Q5_K }, { OUT, EXPERTS_8, DT_Q5_K } } },
    { "Q3_K_L",
      "4.3 bits",
      13,
      DT_Q3_K,
      { { V, ALWAYS, DT_Q5_K },
        { DOWN, ALWAYS, DT_Q5_K },
        { OUT, NOT_EXPERTS_8, DT_Q5_K },
        { QKV, ALWAYS, DT_Q4_K } } },
    { "Q3_K_M",
      "3.9 bits",
      12,
      DT_Q3_K,
      { { V, FIRST_2, DT_Q5_K },
        { V, ALWAYS, DT_Q4_K },
        { DOWN, FIRST_16TH, DT_Q5_K },
        { DOWN, ALWAYS, DT_Q4_K },
        { OUT, EXPERTS_8, DT_Q5_K },
        { OUT, ALWAYS, DT_Q4_K },
        { QKV, ALWAYS, DT_Q4_K } } },
    { "Q3_K_S", "3.5 bits", 11, DT_Q3_K, { { OUT, EXPERTS_8, DT_Q5_K } } },
    { "Q2_K",
      "3 bits, with loss that shows",
      10,
      DT_Q2_K,
      { { V, GQA_4, DT_Q4_K },
        { V, ALWAYS, DT_Q3_K },
        { DOWN, ALWAYS, DT_Q3_K },
        { OUT, EXPERTS_8, DT_Q5_K },
        { OUT, ALWAYS, DT_Q3_K } } },
    { "Q2_K_S",
      "2.8 bits, with loss that shows",
      21,
      DT_Q2_K,
      { { V, GQA_4, DT_Q4_K }, { DOWN, FIRST_8TH, DT_Q4_K } } },
    { "IQ4_NL",
      "4.5 bits, values not evenly spaced",
      25,
      DT_IQ4_NL,
      { { V, GQA_4, DT_Q5_K }, { DOWN, UNGUIDED_8TH, DT_Q5_K }, { OUT, EXPERTS_8, DT_Q5_K } } },
    { "IQ4_XS",
      "4.3 bits, values not evenly spaced",
      30,
      DT_IQ4_XS,
      { { V, GQA_4, DT_Q5_K }, { DOWN, UNGUIDED_8TH, DT_Q5_K }, { OUT, EXPERTS_8, DT_Q5_K } } },
    { "Q5_1", "6 bits, blocks of 32", 9, DT_Q5_1, { { 0 } } },
    { "Q5_0", "5.5 bits, blocks of 32", 8, DT_Q5_0, { { DOWN, GUIDED_8TH, DT_Q5_1 } } },
    { "Q4_1", "5 bits, blocks of 32", 3, DT_Q4_1, { { 0 } } },
    { "Q4_0", "4.5 bits, blocks of 32", 2, DT_Q4_0, { { DOWN, GUIDED_8TH, DT_Q4_1 } } },
    { "MXFP4",
      "4.3 bits for experts, Q8_0 for the rest",
      38,
      DT_Q8_0,
      { { "", STACK, DT_MXFP4 } } },
    { "TQ2_0", "2.1 bits, for weights of -1, 0 and 1", 37, DT_TQ2_0, { { 0 } } },
    { "TQ1_0", "1.7 bits, for weights of -1, 0 and 1", 36, DT_TQ1_0, { { 0 } } },
};

/* Names of formats alone, and what they stand for. */
static const char *const aliases[][2] = {
    { "Q3_K", "Q3_K_M" },
    { "Q4_K", "Q4_K_M" },
    { "Q5_K", "Q5_K_M" },
    { "MXFP4_MOE", "MXFP4" },
};

const quant_mix *mix_at(int i) { return i >= 0 && i < COUNT_OF(mixes) ? &mixes[i] : NULL; }

const quant_mix *mix_find(const char *name)
{
    for (int i = 0; i < COUNT_OF(aliases); i++)
        if (!strcasecmp(name, aliases[i][0])) name = aliases[i][1];
    for (int i = 0; i < COUNT_OF(mixes); i++)
        if (!strcasecmp(name, mixes[i].name)) return &mixes[i];
    return NULL;
}

const char *mix_name(const quant_mix *m) { return m->name; }
const char *mix_summary(const quant_mix *m) { return m->summary; }
int mix_file_type(const quant_mix *m) { return m->file_type; }

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

bool mix_takes(const char *name, int n_dims)
{
    static const char *const kept[] = {
        "_norm.weight",         "ffn_gate_inp",  "altup",       "laurel",
        "per_layer_model_proj", "position_embd", "token_types", "ssm_conv1d",
        "shortconv.conv",       "attn_rel_b",    "time_mix_",
    };
    if (n_dims < 2 || !ends_with(name, "weight")) return false;
    for (int i = 0; i < COUNT_OF(kept); i++)
        if (strstr(name, kept[i])) return false;
    return true;
}

static bool holds(condition when, const mix_model *m, int layer, bool is_stack)
{
    int n = m->n_layers;
    switch (when) {
    case ALWAYS: return true;
    case FIRST_2: return layer < 2;
    case FIRST_4: return layer < 4;
    case FIRST_8TH: return layer < n / 8;
    case FIRST_16TH: return layer < n / 16;
    case MORE_BITS: return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
    case GQA_4: return m->n_kv_heads && m->n_heads / m->n_kv_heads >= 4;
    case EXPERTS_8: return m->n_experts == 8;
    case NOT_EXPERTS_8: return m->n_experts != 8;
    case GUIDED_8TH: return m->has_importance && layer < n / 8;
    case UNGUIDED_8TH: return !m->has_importance && layer < n / 8;
    case STACK: return is_stack;
    }
    return false;
}

/* The nearest format of at least as many bits in blocks of 32. */
static dtype fallback(dtype t)
{
    switch (t) {
    case DT_IQ4_XS: return DT_IQ4_NL;
    case DT_Q4_K: return DT_Q5_0;
    case DT_Q5_K: return DT_Q5_1;
    case DT_Q6_K: return DT_Q8_0;
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_TQ1_0:
    case DT_TQ2_0: return DT_Q4_0;
    default: return DT_F16;
    }
}

static dtype by_rules(const quant_mix *m, const mix_model *model, const char *name, bool is_stack)
{
    int layer = 0;
    bool values = strstr(name, V) != NULL;
    dtype t = m->type;
    sscanf(name, "blk.%d.", &layer);
    if (model->n_experts == 8 && (values || strstr(name, "attn_k.weight")))
        return DT_Q8_0; // small beside the experts
    for (const rule *r = m->rules; r->part; r++)
        if (strstr(name, r->part) && holds(r->when, model, layer, is_stack)) {
            t = r->type;
            break;
        }
    // with 80 layers eight heads share values: they are small and matter much
    if (values && model->n_layers == 80 && (t == DT_Q3_K || t == DT_Q4_K)) t = DT_Q5_K;
    return t;
}

dtype mix_choose(const quant_mix *m, const mix_model *model, dtype *wanted, const char *name,
                 int64_t n_cols, bool is_stack)
{
    bool is_float = quant_formats[m->type]->sub == 0;
    bool embedding = !strcmp(name, "token_embd.weight");
    dtype t = m->type;
    if (is_float) {
        // every matrix alike
    } else if (!strcmp(name, "output.weight") || (embedding && !model->has_output)) {
        bool fits = n_cols % quant_formats[t]->block_size == 0;
        t = !fits || t == DT_Q8_0 ? DT_Q8_0 : DT_Q6_K;
    } else if (embedding) {
        if (t == DT_TQ1_0 || t == DT_TQ2_0) t = DT_Q4_K;
    } else {
        t = by_rules(m, model, name, is_stack);
    }
    *wanted = t;
    while (n_cols % quant_formats[t]->block_size)
        t = fallback(t);
    return t;
}
