/*
 * hf_config.c: config.json from a GGUF file's settings: what the family asks for, under the names
 * that it has there. Whether that says the same is for the caller to check, by opening what it
 * wrote.
 */
#include <string.h>

#include "models/export.h"

static void put(json_t *o, const char *key, size_t n, json_t *value)
{
    json_object_setn_new(o, key, n, value);
}

/* Settings by the first of their names; zero means none. */
static void put_notes(json_t *o, const config *c, const config_source *s)
{
    const char *begin = (const char *)c, *end = begin + sizeof *c;
    for (int i = 0; i < s->n_notes; i++) {
        const cfg_note *n = &s->notes[i];
        if (!n->hf) continue;
        bool inside = (const char *)n->at >= begin && (const char *)n->at < end;
        double x = n->value;
        if (inside)
            x = n->kind == 'i'   ? *(const int *)n->at
                : n->kind == 'f' ? *(const double *)n->at
                                 : *(const bool *)n->at;
        else if (!n->found)
            continue;
        size_t len = strcspn(n->hf, "|");
        if (n->of && *n->of) {
            json_t *list = json_array();
            for (int l = 0; l < c->n_layers; l++)
                json_array_append_new(list, json_integer((*n->of)[l]));
            put(o, n->hf, len, list);
        } else if (n->kind == 'b') {
            put(o, n->hf, len, json_boolean(x != 0));
        } else if (x != 0) {
            put(o, n->hf, len, n->kind == 'i' ? json_integer((json_int_t)x) : json_real(x));
        }
    }
}

static void put_rope(json_t *o, const config *c)
{
    const rope_spec *r = &c->rope;
    if (c->unrotated) return;
    json_object_set_new(o, "rope_theta", json_real(r->base));
    if (c->has_local) json_object_set_new(o, "rope_local_base_freq", json_real(c->rope_local.base));
    if (r->scaling == ROPE_LINEAR)
        json_object_set_new(o, "rope_scaling",
                            json_pack("{s:s, s:f}", "rope_type", "linear", "factor", r->factor));
    if (r->scaling == ROPE_YARN)
        json_object_set_new(o, "rope_scaling",
                            json_pack("{s:s, s:f, s:i, s:f, s:f}", "rope_type", "yarn", "factor",
                                      r->factor, "original_max_position_embeddings",
                                      r->original_len ? r->original_len : c->n_ctx, "beta_fast",
                                      r->beta_fast, "beta_slow", r->beta_slow));
}

static void put_layers(json_t *o, const infer_model *m)
{
    bool sliding = false;
    json_t *list = json_array();
    for (int l = 0; l < m->n_layers; l++) {
        bool slides = m->layers[l].window != 0;
        sliding |= slides;
        json_array_append_new(list, json_string(slides ? "sliding_attention" : "full_attention"));
    }
    if (sliding) json_object_set(o, "layer_types", list);
    json_decref(list);
}

json_t *hf_config(const infer_model *m, const config *c, const config_source *s)
{
    static const char *const acts[ACT_COUNT] = {
        [ACT_SILU] = "silu",     [ACT_GELU_TANH] = "gelu_pytorch_tanh",
        [ACT_GELU_ERF] = "gelu", [ACT_RELU] = "relu",
        [ACT_RELU2] = "relu2",   [ACT_GELU_QUICK] = "quick_gelu"
    };
    json_t *o = json_object();
    if (!o) return NULL;
    put_notes(o, c, s);
    json_object_set_new(o, "model_type", json_string(m->arch->hf_names[0]));
    json_object_set_new(o, "vocab_size", json_integer(m->n_vocab));
    json_object_set_new(o, "tie_word_embeddings", json_boolean(c->tied));
    if (acts[c->act]) {
        json_object_set_new(o, "hidden_act", json_string(acts[c->act]));
        json_object_set_new(o, "hidden_activation", json_string(acts[c->act]));
    }
    put_rope(o, c);
    put_layers(o, m);
    if (m->tok && tok_bos(m->tok) >= 0)
        json_object_set_new(o, "bos_token_id", json_integer(tok_bos(m->tok)));
    json_t *eos = json_array();
    for (int i = 0; i < m->n_eos_ids; i++)
        json_array_append_new(eos, json_integer(m->eos_ids[i]));
    if (m->n_eos_ids) json_object_set(o, "eos_token_id", eos);
    json_decref(eos);
    return o;
}
