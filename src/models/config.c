/*
 * config.c: reading settings from JSON and GGUF under one name each, and checking them together.
 */
#include "models/arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- single settings ------------------------------------------------------------------------- */

/* The first of the '|'-parted names that the text part or the top level has. */
static const json_t *find_json(const config_source *s, const char *names)
{
    for (const char *at = names; at;) {
        const char *end = strchr(at, '|');
        size_t n = end ? (size_t)(end - at) : strlen(at);
        const json_t *v = json_object_getn(s->json, at, n);
        if (!v && s->outer != s->json) v = json_object_getn(s->outer, at, n);
        if (v) return v;
        at = end ? end + 1 : NULL;
    }
    return NULL;
}

static const gguf_value *find_gguf(const config_source *s, const char *key)
{
    char full[256];
    snprintf(full, sizeof(full), "%s.%s", s->prefix, key);
    return gguf_find(s->g, full);
}

const char *cfg_name(const config_source *s, const char *hf, const char *key)
{
    const char *name;
    if (s->g)
        name = arena_printf(s->mem, "key '%s.%s'", s->prefix, key ? key : "?");
    else
        name = arena_printf(s->mem, "%.*s", (int)strcspn(hf ? hf : "?", "|"), hf ? hf : "?");
    return name ? name : "setting";
}

/* A value of either container as a number, whole numbers told apart. */
typedef struct number {
    double value;
    int64_t whole;
    bool is_whole;
} number;

static bool json_to_number(const json_t *v, number *out)
{
    if (!json_is_number(v)) return false;
    out->value = json_number_value(v);
    out->is_whole =
        json_is_integer(v) || (fabs(out->value) < 9e15 && out->value == floor(out->value));
    out->whole = json_is_integer(v) ? json_integer_value(v)
                 : out->is_whole    ? (int64_t)out->value
                                    : 0;
    return true;
}

static bool gguf_to_number(const gguf_value *v, uint64_t i, number *out)
{
    if (v->item == GGUF_STRING || v->item == GGUF_ARRAY || v->item == GGUF_BOOL) return false;
    out->value = gguf_array_number(v, i);
    out->is_whole = v->item != GGUF_F32 && v->item != GGUF_F64;
    out->whole = out->is_whole && fabs(out->value) < 9e15 ? (int64_t)out->value : INT64_MAX;
    return true;
}

/* Number i of a setting, and how many there are (1 where it is no list). */
typedef struct setting {
    const json_t *json;
    const gguf_value *gguf;
    size_t n;
} setting;

static cfg_found look(const config_source *s, setting *v, const char *hf, const char *key)
{
    *v = (setting){ 0 };
    if (s->g) {
        v->gguf = key ? find_gguf(s, key) : NULL;
        if (!v->gguf) return FOUND_NONE;
        v->n = (size_t)v->gguf->count;
        return FOUND;
    }
    v->json = hf ? find_json(s, hf) : NULL;
    if (!v->json) return FOUND_NONE;
    if (json_is_null(v->json)) return FOUND_NULL;
    v->n = json_is_array(v->json) ? json_array_size(v->json) : 1;
    return FOUND;
}

static bool number_at(const setting *v, size_t i, number *out)
{
    if (v->gguf) return gguf_to_number(v->gguf, i, out);
    return json_to_number(json_is_array(v->json) ? json_array_get(v->json, i) : v->json, out);
}

static const char *kind_of(const setting *v)
{
    static const char *const json_kinds[] = { "an object",     "a list", "a string", "an integer",
                                              "a real number", "true",   "false",    "null" };
    return v->gguf ? gguf_type_name(v->gguf->type) : json_kinds[json_typeof(v->json)];
}

static cfg_found bad(config_source *s, const char *hf, const char *key, const char *expected,
                     const setting *v)
{
    fault_add(&s->faults, "%s: expected %s, found %s", cfg_name(s, hf, key), expected, kind_of(v));
    return FOUND_BAD;
}

void *cfg_zero(config_source *s, size_t n, size_t size)
{
    void *p = arena_zero(s->mem, n, size);
    if (!p) s->out_of_memory = true;
    return p;
}

/* The setting's note, to receive what is read; never NULL. */
static cfg_note *note(config_source *s, char kind, const void *at, int *const *of, const char *hf,
                      const char *key)
{
    if (!s->notes || s->n_notes == MAX_NOTES) return &s->unnoted;
    s->notes[s->n_notes] = (cfg_note){ .key = key, .hf = hf, .kind = kind, .at = at, .of = of };
    return &s->notes[s->n_notes++];
}

cfg_found cfg_int(config_source *s, int *out, const char *hf, const char *key, int min, int max)
{
    cfg_note *told = note(s, 'i', out, NULL, hf, key);
    setting v;
    cfg_found f = look(s, &v, hf, key);
    if (f != FOUND) return f;
    number first = { 0 };
    for (size_t i = 0; i < v.n; i++) {
        number x;
        if (!number_at(&v, i, &x) || !x.is_whole) return bad(s, hf, key, "an integer", &v);
        if (i == 0) first = x;
        if (x.whole != first.whole) {
            fault_add(&s->faults, "%s: it differs from layer to layer, which is not supported",
                      cfg_name(s, hf, key));
            return FOUND_BAD;
        }
    }
    if (v.n == 0) return bad(s, hf, key, "an integer", &v);
    if (first.whole < min || first.whole > max) {
        fault_add(&s->faults, "%s: expected %d to %d, found %" PRId64, cfg_name(s, hf, key), min,
                  max, first.whole);
        return FOUND_BAD;
    }
    told->value = (double)first.whole;
    told->found = true;
    *out = (int)first.whole;
    return FOUND;
}

cfg_found cfg_layer_ints(config_source *s, int *out, int **of, int n, const char *hf,
                         const char *key, int min, int max)
{
    note(s, 'i', out, of, hf, key);
    setting v;
    cfg_found f = look(s, &v, hf, key);
    if (f != FOUND) return f;
    bool list = v.gguf ? v.gguf->type == GGUF_ARRAY : json_is_array(v.json);
    if (!list || v.n < 2 || n < 1) return cfg_int(s, out, hf, key, min, max);
    if (v.n != (size_t)n) {
        fault_add(&s->faults, "%s: expected a number or %d of them, found %zu",
                  cfg_name(s, hf, key), n, v.n);
        return FOUND_BAD;
    }
    int *all = cfg_zero(s, v.n, sizeof(*all)), largest = 0;
    if (!all) return FOUND_BAD;
    bool equal = true;
    for (size_t i = 0; i < v.n; i++) {
        number x;
        if (!number_at(&v, i, &x) || !x.is_whole) return bad(s, hf, key, "integers", &v);
        if (x.whole < min || x.whole > max) {
            fault_add(&s->faults, "%s: expected %d to %d, found %" PRId64, cfg_name(s, hf, key),
                      min, max, x.whole);
            return FOUND_BAD;
        }
        all[i] = (int)x.whole;
        if (all[i] > largest) largest = all[i];
        equal = equal && all[i] == all[0];
    }
    *out = largest;
    *of = equal ? NULL : all;
    return FOUND;
}

cfg_found cfg_floats(config_source *s, double **out, int n, const char *hf, const char *key)
{
    setting v;
    cfg_found f = look(s, &v, hf, key);
    if (f != FOUND || n < 1) return f;
    bool list = v.gguf ? v.gguf->type == GGUF_ARRAY : json_is_array(v.json);
    if (list && v.n != (size_t)n) {
        fault_add(&s->faults, "%s: expected a number or %d of them, found %zu",
                  cfg_name(s, hf, key), n, v.n);
        return FOUND_BAD;
    }
    double *all = cfg_zero(s, (size_t)n, sizeof(*all));
    if (!all) return FOUND_BAD;
    for (int i = 0; i < n; i++) {
        number x;
        if (!number_at(&v, list ? (size_t)i : 0, &x)) return bad(s, hf, key, "numbers", &v);
        all[i] = x.value;
    }
    *out = all;
    return FOUND;
}

cfg_found cfg_float(config_source *s, double *out, const char *hf, const char *key)
{
    cfg_note *told = note(s, 'f', out, NULL, hf, key);
    setting v;
    number x;
    cfg_found f = look(s, &v, hf, key);
    if (f != FOUND) return f;
    if (v.n != 1 || !number_at(&v, 0, &x)) return bad(s, hf, key, "a number", &v);
    if (!isfinite(x.value)) {
        fault_add(&s->faults, "%s: expected a finite number, found %g", cfg_name(s, hf, key),
                  x.value);
        return FOUND_BAD;
    }
    told->value = x.value;
    told->found = true;
    *out = x.value;
    return FOUND;
}

cfg_found cfg_bool(config_source *s, bool *out, const char *hf, const char *key)
{
    cfg_note *told = note(s, 'b', out, NULL, hf, key);
    setting v;
    cfg_found f = look(s, &v, hf, key);
    if (f != FOUND) return f;
    if (v.gguf ? v.gguf->type != GGUF_BOOL : !json_is_boolean(v.json))
        return bad(s, hf, key, "true or false", &v);
    *out = v.gguf ? v.gguf->data[0] != 0 : json_is_true(v.json);
    told->value = *out;
    told->found = true;
    return FOUND;
}

cfg_found cfg_flags(config_source *s, uint8_t **out, const char *hf, const char *key, int n)
{
    setting v;
    cfg_found f = look(s, &v, hf, key);
    if (f != FOUND || n < 1) return f;
    if (v.n != (size_t)n || (v.json && !json_is_array(v.json))) {
        fault_add(&s->faults, "%s: expected a list of %d, found %zu", cfg_name(s, hf, key), n, v.n);
        return FOUND_BAD;
    }
    uint8_t *flags = cfg_zero(s, v.n, 1);
    if (!flags) return FOUND_BAD;
    for (size_t i = 0; i < v.n; i++) {
        const json_t *item = v.json ? json_array_get(v.json, i) : NULL;
        number x = { 0 };
        if (item && json_is_boolean(item))
            flags[i] = json_is_true(item);
        else if (v.gguf && v.gguf->item == GGUF_BOOL)
            flags[i] = v.gguf->data[i] != 0;
        else if (number_at(&v, i, &x) && x.is_whole && (x.whole == 0 || x.whole == 1))
            flags[i] = (uint8_t)x.whole;
        else
            return bad(s, hf, key, "a list of 0 and 1", &v);
    }
    *out = flags;
    return FOUND;
}

cfg_found cfg_string(config_source *s, const char **out, const char *hf, const char *key)
{
    setting v;
    cfg_found f = look(s, &v, hf, key);
    if (f != FOUND) return f;
    char *copy = NULL;
    if (v.gguf && v.gguf->type == GGUF_STRING) {
        gguf_text t = gguf_value_text(v.gguf);
        copy = arena_strndup(s->mem, t.s, t.n);
    } else if (json_is_string(v.json)) {
        copy = arena_strndup(s->mem, json_string_value(v.json), json_string_length(v.json));
    } else {
        return bad(s, hf, key, "a string", &v);
    }
    if (!copy) {
        s->out_of_memory = true;
        return FOUND_BAD;
    }
    *out = copy;
    return FOUND;
}

cfg_found cfg_activation(config_source *s, activation *out, const char *hf)
{
    static const struct {
        const char *name;
        activation act;
    } known[] = {
        { "silu", ACT_SILU },
        { "swish", ACT_SILU },
        { "gelu", ACT_GELU_ERF },
        { "gelu_python", ACT_GELU_ERF },
        { "gelu_new", ACT_GELU_TANH },
        { "gelu_fast", ACT_GELU_TANH },
        { "gelu_pytorch_tanh", ACT_GELU_TANH },
        { "relu", ACT_RELU },
        { "relu2", ACT_RELU2 },
        { "quick_gelu", ACT_GELU_QUICK },
    };
    const char *name;
    cfg_found f = cfg_string(s, &name, hf, NULL);
    if (f != FOUND) return f;
    for (int i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].act;
            return FOUND;
        }
    fault_add(&s->faults, "%s: activation '%s' is not supported", cfg_name(s, hf, NULL), name);
    return FOUND_BAD;
}

/* ---- rope ------------------------------------------------------------------------------------ */

// where: the key at fault, NULL in an object that the caller names.
static void set_scaling(config_source *s, rope_spec *r, const char *where, const char *name,
                        size_t n)
{
    int scaling = rope_scaling_find(name, n);
    if (scaling < 0)
        fault_add(&s->faults, "%s%srope type '%.*s' is not supported (supported: %s)",
                  where ? where : "", where ? ": " : "", n > 60 ? 60 : (int)n, name,
                  rope_scaling_names);
    else
        r->scaling = (rope_scaling)scaling;
}

static const float *factor_list(config_source *s, int *n, const char *key)
{
    setting v;
    number x;
    if (look(s, &v, key, NULL) != FOUND) return NULL;
    if (!json_is_array(v.json) || v.n > MAX_WIDTH) {
        bad(s, key, NULL, "a list of numbers", &v);
        return NULL;
    }
    float *out = cfg_zero(s, v.n, sizeof(float));
    for (size_t i = 0; out && i < v.n; i++) {
        if (!number_at(&v, i, &x)) {
            bad(s, key, NULL, "a list of numbers", &v);
            return NULL;
        }
        out[i] = (float)x.value;
    }
    *n = (int)v.n;
    return out;
}

/* One object: rope_scaling, rope_parameters, or a member of a nested rope_parameters. Its settings
 * are read with the same calls, as a container of its own. */
static void read_rope_object(config_source *s, rope_spec *r, double *fraction, const json_t *object,
                             const char *where)
{
    config_source in = { .path = s->path, .json = object, .outer = object, .mem = s->mem };
    const char *type;
    int n_short = 0, n_long = 0;
    if (cfg_string(&in, &type, "rope_type|type", NULL) == FOUND)
        set_scaling(&in, r, NULL, type, strlen(type));
    cfg_float(&in, &r->base, "rope_theta", NULL);
    cfg_found factor = cfg_float(&in, &r->factor, "factor", NULL);
    cfg_float(&in, &r->low_freq, "low_freq_factor", NULL);
    cfg_float(&in, &r->high_freq, "high_freq_factor", NULL);
    cfg_float(&in, &r->beta_fast, "beta_fast", NULL);
    cfg_float(&in, &r->beta_slow, "beta_slow", NULL);
    cfg_bool(&in, &r->truncate, "truncate", NULL);
    cfg_float(&in, &r->attention_factor, "attention_factor", NULL);
    cfg_float(&in, &r->alpha, "alpha", NULL);
    cfg_float(&in, &r->mscale, "mscale", NULL);
    cfg_float(&in, &r->mscale_all_dim, "mscale_all_dim", NULL);
    cfg_float(&in, fraction, "partial_rotary_factor", NULL);
    cfg_int(&in, &r->original_len, "original_max_position_embeddings", NULL, 1, INT32_MAX);
    if (r->scaling == ROPE_LONGROPE) {
        r->short_factor = factor_list(&in, &n_short, "short_factor");
        r->long_factor = factor_list(&in, &n_long, "long_factor");
        r->n_factors = n_short == n_long ? n_short : -1;
    }
    if (r->scaling != ROPE_PLAIN && factor != FOUND) r->factor = 0; // finish_rope works it out
    if (in.faults.n) fault_add(&s->faults, "%s: %s", where, in.faults.text);
    s->out_of_memory |= in.out_of_memory;
}

static void read_rope_json(config_source *s, config *c)
{
    cfg_float(s, &c->rope.base, "rope_theta|rotary_emb_base", NULL);
    cfg_float(s, &c->rotary_fraction, "partial_rotary_factor|rotary_pct", NULL);
    cfg_int(s, &c->rope.original_len, "original_max_position_embeddings", NULL, 1, INT32_MAX);
    if (cfg_float(s, &c->rope_local.base, "rope_local_base_freq", NULL) == FOUND)
        c->has_local = true;

    const char *where = "rope_parameters";
    const json_t *v = find_json(s, where);
    if (!v || json_is_null(v)) v = find_json(s, where = "rope_scaling");
    if (!v || json_is_null(v)) return;
    if (!json_is_object(v)) {
        fault_add(&s->faults, "%s: expected an object", where);
        return;
    }
    const json_t *full = json_object_get(v, "full_attention");
    const json_t *sliding = json_object_get(v, "sliding_attention");
    if (json_is_object(full) || json_is_object(sliding)) {
        if (json_is_object(full))
            read_rope_object(s, &c->rope, &c->rotary_fraction, full,
                             "rope_parameters.full_attention");
        if (json_is_object(sliding)) {
            c->has_local = true;
            read_rope_object(s, &c->rope_local, &c->rotary_fraction_local, sliding,
                             "rope_parameters.sliding_attention");
        }
    } else {
        read_rope_object(s, &c->rope, &c->rotary_fraction, v, where);
    }
}

/* Frequencies' factors that GGUF stores as a tensor; NULL: it has none. */
static const float *factor_tensor(config_source *s, int *n, const char *name)
{
    const gguf_tensor *t = gguf_find_tensor(s->g, name);
    if (!t) return NULL;
    if (t->type != DT_F32 || t->dims[0] > MAX_WIDTH || t->bytes != (uint64_t)t->dims[0] * 4) {
        fault_add(&s->faults, "tensor '%s': expected one row of f32", name);
        return NULL;
    }
    float *out = cfg_zero(s, (size_t)t->dims[0], sizeof(float));
    if (out) memcpy(out, t->data, (size_t)t->bytes);
    *n = (int)t->dims[0];
    return out;
}

static void read_rope_gguf(config_source *s, config *c)
{
    rope_spec *r = &c->rope;
    const char *type;
    double scale = 0, attn_factor = 1;
    cfg_float(s, &r->base, NULL, "rope.freq_base");
    if (cfg_float(s, &c->rope_local.base, NULL, "rope.freq_base_swa") == FOUND) c->has_local = true;
    cfg_int(s, &r->dim, NULL, "rope.dimension_count", 1, MAX_WIDTH);
    cfg_found given = cfg_float(s, &scale, NULL, "rope.scaling.factor");
    if (given != FOUND) given = cfg_float(s, &scale, NULL, "rope.scale_linear");
    if (given == FOUND && scale != 0) r->factor = scale; // 0 stands for none
    if (cfg_string(s, &type, NULL, "rope.scaling.type") == FOUND)
        set_scaling(s, r, cfg_name(s, NULL, "rope.scaling.type"), type, strlen(type));
    else if (given == FOUND && r->factor != 1)
        r->scaling = ROPE_LINEAR;
    else if (gguf_find_tensor(s->g, "rope_factors_long.weight"))
        r->scaling = ROPE_LONGROPE; // Phi 3 files name no type
    if (r->scaling == ROPE_PLAIN) r->factor = 1;
    if (r->scaling == ROPE_LONGROPE && given != FOUND) r->factor = 0; // finish_rope works it out
    r->divisors = factor_tensor(s, &r->n_divisors, "rope_freqs.weight");
    int n_long = 0;
    r->short_factor = factor_tensor(s, &r->n_factors, "rope_factors_short.weight");
    r->long_factor = factor_tensor(s, &n_long, "rope_factors_long.weight");
    if (r->n_factors != n_long) r->n_factors = -1;
    cfg_int(s, &r->original_len, NULL, "rope.scaling.original_context_length", 1, INT32_MAX);
    cfg_float(s, &r->beta_fast, NULL, "rope.scaling.yarn_beta_fast");
    cfg_float(s, &r->beta_slow, NULL, "rope.scaling.yarn_beta_slow");
    cfg_float(s, &r->attention_factor, NULL, "rope.scaling.yarn_attn_factor");
    if (cfg_float(s, &attn_factor, NULL, "rope.scaling.attn_factor") == FOUND) {
        if (r->scaling == ROPE_LONGROPE) r->attention_factor = attn_factor;
        // here it comes on top of YaRN's own
        if (r->scaling == ROPE_YARN && attn_factor != 1 && r->factor > 1)
            r->attention_factor = attn_factor * (0.1 * log(r->factor) + 1.0);
    }
}

/* ---- everything ------------------------------------------------------------------------------ */

static void read_layer_types(config_source *s, config *c)
{
    setting v;
    if (look(s, &v, "layer_types", NULL) != FOUND || c->n_layers < 1) return;
    if (!json_is_array(v.json)) {
        bad(s, "layer_types", NULL, "a list", &v);
        return;
    }
    if (v.n != (size_t)c->n_layers) {
        fault_add(&s->faults, "layer_types: expected %d entries, found %zu", c->n_layers, v.n);
        return;
    }
    uint8_t *sliding = cfg_zero(s, v.n, 1);
    for (size_t i = 0; sliding && i < v.n; i++) {
        const char *name = json_string_value(json_array_get(v.json, i));
        if (name && strcmp(name, "sliding_attention") == 0)
            sliding[i] = 1;
        else if (!name || strcmp(name, "full_attention") != 0)
            fault_add(&s->faults,
                      "layer_types: entry %zu is '%s', expected full_attention or "
                      "sliding_attention",
                      i, name ? name : "no string");
    }
    c->sliding = sliding;
}

/* A number, or a letter for each of the layers that repeat: L slides, G sees everything. */
static void read_pattern_json(config_source *s, config *c)
{
    setting v;
    const char *key = "sliding_window_pattern|_sliding_window_pattern", *kinds;
    if (look(s, &v, key, NULL) != FOUND) return;
    if (!json_is_string(v.json)) {
        cfg_int(s, &c->pattern, key, NULL, 1, MAX_LAYERS);
        return;
    }
    if (cfg_string(s, &kinds, key, NULL) != FOUND || c->n_layers < 1) return;
    size_t n = strlen(kinds);
    if (n == 0 || strspn(kinds, "LG") != n) {
        fault_add(&s->faults, "%s: expected a number or letters L and G, found '%.60s'",
                  cfg_name(s, key, NULL), kinds);
        return;
    }
    c->sliding = cfg_zero(s, (size_t)c->n_layers, 1);
    for (int i = 0; c->sliding && i < c->n_layers; i++)
        c->sliding[i] = kinds[(size_t)i % n] == 'L';
}

/* GGUF gives the pattern as a number or as one flag for each layer. */
static void read_pattern_gguf(config_source *s, config *c)
{
    setting v;
    const char *key = "attention.sliding_window_pattern";
    if (look(s, &v, NULL, key) != FOUND) return;
    if (v.gguf->type != GGUF_ARRAY) {
        cfg_int(s, &c->pattern, NULL, key, 1, MAX_LAYERS);
        return;
    }
    if (v.gguf->item != GGUF_BOOL || v.n < (size_t)c->n_layers) {
        bad(s, NULL, key, "a bool for each layer", &v);
        return;
    }
    c->sliding = cfg_zero(s, (size_t)c->n_layers, 1);
    for (int i = 0; c->sliding && i < c->n_layers; i++)
        c->sliding[i] = v.gguf->data[i] != 0;
}

void config_init(config *c, const arch *a, bool is_gguf)
{
    rope_spec neutral = { .factor = 1,
                          .low_freq = 1,
                          .high_freq = 4,
                          .beta_fast = 32,
                          .beta_slow = 1,
                          .truncate = true };
    *c = (config){ .rope = neutral,
                   .rope_local = neutral,
                   .rotary_fraction = 1,
                   .embed_scale = 1,
                   .residual_scale = 1,
                   .logit_scale = 1,
                   .moe.weight_scale = 1,
                   .pairing = is_gguf ? a->gguf_pairing : a->hf_pairing };
    a->defaults(c, is_gguf);
}

void config_read(config_source *s, config *c)
{
    cfg_int(s, &c->n_layers, "num_hidden_layers|n_layer|num_layers", "block_count", 1, MAX_LAYERS);
    cfg_int(s, &c->d_model, "hidden_size|n_embd", "embedding_length", 1, MAX_WIDTH);
    cfg_layer_ints(s, &c->d_ff, &c->d_ff_of, c->n_layers, "intermediate_size|n_inner",
                   "feed_forward_length", 1, MAX_WIDTH);
    cfg_int(s, &c->n_heads, "num_attention_heads|n_head", "attention.head_count", 1, MAX_WIDTH);
    cfg_found kv = cfg_layer_ints(s, &c->n_kv_heads, &c->n_kv_heads_of, c->n_layers,
                                  "num_key_value_heads", "attention.head_count_kv", 1, MAX_WIDTH);
    if (kv == FOUND_NULL) c->n_kv_heads = 0; // as many as heads
    if (cfg_int(s, &c->head_dim, "head_dim", "attention.key_length", 1, MAX_WIDTH) == FOUND_NULL)
        c->head_dim = 0;
    cfg_int(s, &c->head_dim_v, NULL, "attention.value_length", 1, MAX_WIDTH);
    cfg_int(s, &c->n_ctx, "max_position_embeddings|n_positions", "context_length", 1, INT32_MAX);
    cfg_float(s, &c->norm_eps,
              c->norm == NORM_LAYER ? "layer_norm_eps|layer_norm_epsilon|norm_epsilon|norm_eps"
                                    : "rms_norm_eps|layer_norm_eps|norm_epsilon",
              c->norm == NORM_LAYER ? "attention.layer_norm_epsilon"
                                    : "attention.layer_norm_rms_epsilon");
    cfg_bool(s, &c->tied, "tie_word_embeddings", NULL);
    cfg_bool(s, &c->attention_bias, "attention_bias", NULL);
    cfg_bool(s, &c->mlp_bias, "mlp_bias", NULL);
    cfg_activation(s, &c->act, "hidden_act|activation_function");

    if (cfg_int(s, &c->window, "sliding_window", "attention.sliding_window", 0, INT32_MAX) ==
        FOUND_NULL)
        c->window = 0;
    if (s->g) {
        read_pattern_gguf(s, c);
        read_rope_gguf(s, c);
    } else {
        read_pattern_json(s, c);
        read_layer_types(s, c);
        read_rope_json(s, c);
    }
}

void config_slide_by_pattern(config_source *s, config *c)
{
    if (c->sliding || c->n_layers < 1) return;
    c->sliding = cfg_zero(s, (size_t)c->n_layers, 1);
    for (int i = 0; c->sliding && i < c->n_layers; i++)
        c->sliding[i] = (i + 1) % c->pattern != 0;
}

void config_rotate_sliding(config_source *s, config *c)
{
    if (!c->sliding || c->n_layers < 1) return;
    c->no_rope = cfg_zero(s, (size_t)c->n_layers, 1);
    for (int i = 0; c->no_rope && i < c->n_layers; i++)
        c->no_rope[i] = !c->sliding[i];
}

static void need(config_source *s, int value, const char *hf, const char *key)
{
    // a value that was there and wrong has its fault already
    setting v;
    if (value < 1 && look(s, &v, hf, key) != FOUND)
        fault_add(&s->faults, "%s missing", cfg_name(s, hf, key));
}

static void check_number(config_source *s, double x, double min, const char *name)
{
    if (!(isfinite(x) && x >= min && fabs(x) < 1e30))
        fault_add(&s->faults, "%s: expected a finite number of at least %g, found %g", name, min,
                  x);
}

static void finish_rope(config_source *s, config *c, rope_spec *r, const char *where)
{
    // GGUF states the rotated dimensions, config.json the fraction
    int head_dim = r->head_dim ? r->head_dim : c->head_dim;
    if (!r->dim) r->dim = (int)(head_dim * c->rotary_fraction);
    if (r->dim > head_dim)
        fault_add(&s->faults, "%s: %d rotated dimensions, the head has %d", where, r->dim,
                  head_dim);
    // Hunyuan's dynamic scaling is one longer base for every length
    if (r->scaling == ROPE_DYNAMIC && r->alpha > 0 && r->dim > 2) {
        r->base *= pow(r->alpha, (double)r->dim / (r->dim - 2));
        r->scaling = ROPE_PLAIN;
    }
    // a factor that is not given is how much longer the context became
    if (r->factor == 0 && (r->scaling == ROPE_YARN || r->scaling == ROPE_LONGROPE))
        r->factor = r->original_len ? (double)c->n_ctx / r->original_len : 1;
    rope_check(r, &s->faults, where);
}

void config_check(config_source *s, config *c)
{
    need(s, c->n_layers, "num_hidden_layers", "block_count");
    need(s, c->d_model, "hidden_size", "embedding_length");
    need(s, c->d_ff, "intermediate_size", "feed_forward_length");
    need(s, c->n_heads, "num_attention_heads", "attention.head_count");
    need(s, c->n_ctx, "max_position_embeddings", "context_length");
    if (c->n_kv_heads == 0) c->n_kv_heads = c->n_heads;
    if (c->moe.n_experts) config_check_experts(s, c);
    if (s->faults.n) return; // what follows divides by these

    for (int i = 0; c->n_kv_heads_of && i < c->n_layers; i++)
        if (c->n_kv_heads_of[i] < 1 || c->n_heads % c->n_kv_heads_of[i])
            c->n_kv_heads = c->n_kv_heads_of[i]; // told below
    if (c->n_kv_heads < 1 || c->n_heads % c->n_kv_heads)
        fault_add(&s->faults, "%s %d is no multiple of %s %d",
                  cfg_name(s, "num_attention_heads", "attention.head_count"), c->n_heads,
                  cfg_name(s, "num_key_value_heads", "attention.head_count_kv"), c->n_kv_heads);
    for (int i = 0; c->kv_source && c->head_dim_of && i < c->n_layers; i++)
        if (c->head_dim_of[i] != c->head_dim_of[c->kv_source[i]])
            fault_add(&s->faults,
                      "layer %d has heads of %d, the keys it uses of layer %d are of %d", i,
                      c->head_dim_of[i], c->kv_source[i], c->head_dim_of[c->kv_source[i]]);
    if (c->head_dim == 0) {
        if (c->d_model % c->n_heads)
            fault_add(&s->faults, "%s %d is no multiple of %s %d",
                      cfg_name(s, "hidden_size", "embedding_length"), c->d_model,
                      cfg_name(s, "num_attention_heads", "attention.head_count"), c->n_heads);
        c->head_dim = c->d_model / c->n_heads;
    }
    if (c->head_dim_v == 0) c->head_dim_v = c->head_dim;
    if ((int64_t)c->n_heads * c->head_dim > MAX_WIDTH ||
        (int64_t)c->n_heads * c->head_dim_v > MAX_WIDTH)
        fault_add(&s->faults, "%d heads of %d are wider than %d", c->n_heads, c->head_dim,
                  MAX_WIDTH);
    if (!(c->norm_eps > 0 && c->norm_eps <= 1))
        fault_add(&s->faults, "%s: expected a number above 0 and at most 1, found %g",
                  cfg_name(s, "rms_norm_eps", "attention.layer_norm_rms_epsilon"), c->norm_eps);
    if (!(c->rotary_fraction > 0 && c->rotary_fraction <= 1) ||
        !(c->rotary_fraction_local >= 0 && c->rotary_fraction_local <= 1))
        fault_add(&s->faults,
                  "partial_rotary_factor: expected a number above 0 and at most 1, "
                  "found %g",
                  c->rotary_fraction);
    check_number(s, c->query_scalar, 0, "query_pre_attn_scalar");
    check_number(s, c->attn_softcap, 0, "attn_logit_softcapping");
    check_number(s, c->final_softcap, 0, "final_logit_softcapping");
    check_number(s, c->attn_scale, 0, "attention_multiplier");
    check_number(s, c->clip_qkv, 0, "clip_qkv");
    check_number(s, c->embed_scale, -1e30, "embedding_multiplier");
    check_number(s, c->residual_scale, -1e30, "residual_multiplier");
    check_number(s, c->logit_scale, -1e30, "logit scale");
    if (s->faults.n || c->unrotated) return;

    finish_rope(s, c, &c->rope, s->g ? "rope" : "rope_scaling");
    if (c->has_local) {
        if (!c->rope_local.dim && c->rotary_fraction_local > 0)
            c->rope_local.dim = (int)(c->head_dim * c->rotary_fraction_local);
        if (!c->rope_local.dim) c->rope_local.dim = c->rope.dim;
        finish_rope(s, c, &c->rope_local, "rope of sliding layers");
    }
}
