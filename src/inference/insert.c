/*
 * insert.c: a fact put into a model as features of a patch.
 *
 * The prompt that asks for the fact is run, and in each chosen layer a feature that speaks for
 * little gets three rows made of the FFN's input r at the prompt's last position:
 *
 *   - gate: r, as long as the layer's gate rows are on average, so that it answers to r;
 *   - up: what of r is in no other input, neither of the prompt's earlier positions nor of any of
 *     other prompts of the same form: 1 for r and 0 for those, which leaves other entities alone;
 *   - down: the embedding of the target's first token, times alpha.
 *
 * Where alpha is not given it is the smallest found that makes the target likely and first.
 *
 * Or r is stored as it is, as the key of a fact (vindex/facts.h).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/mem.h"
#include "inference/engine.h"
#include "vindex/patch.h"

static const char *const others[] = { "France",   "Japan", "Shakespeare", "Microsoft",
                                      "the moon", "water", "Chicago",     "my brother" };
#define N_OTHERS COUNT_OF(others)
#define LEAST_ALPHA 0.01f
#define MAX_TRIES 16 // doublings from there
#define REFINEMENTS 4
#define LIKELY 0.5       // probability of the target that is enough
#define MAX_CONTRAST 512 // inputs that up is kept from

typedef struct insertion {
    const infer_model *m;
    infer_patch *p;
    const infer_fact *fact;
    infer_insert_options o;
    infer_error *err;
    arena mem;
    int first, last; // layers
    int32_t target;
    float *in[1 + N_OTHERS]; // [n_layers, n, d_model] FFN inputs: of the prompt, of the others
    int n[1 + N_OTHERS];
    float *scale;  // [n_layers] lengths of gate rows
    int *features; // [n_layers]
} insertion;

static infer_status no_memory(const insertion *x)
{
    return error_set(x->err, INFER_NOMEM, "insert: out of memory");
}

/* "The {relation} of {entity} is" with both put in. */
static char *prompt_of(insertion *x, const char *entity)
{
    const char *t = x->o.prompt ? x->o.prompt : "The {relation} of {entity} is";
    char *out = NULL;
    size_t n = 0, cap = 0;
    while (*t) {
        const char *piece = t;
        size_t len = 1, skip = 1;
        if (!strncmp(t, "{relation}", 10)) {
            piece = x->fact->relation;
            len = strlen(piece);
            skip = 10;
        } else if (!strncmp(t, "{entity}", 8)) {
            piece = entity;
            len = strlen(piece);
            skip = 8;
        }
        if (mem_reserve((void **)&out, &cap, n + len + 1, 1, x->err)) {
            mem_free(out);
            return NULL;
        }
        memcpy(out + n, piece, len);
        n += len;
        t += skip;
    }
    if (out) out[n] = 0;
    return out;
}

/* Runs a text on a model of its own options; in [n_layers, n, d_model] or NULL; *p: probability of
 * the target, negative where another token is likelier. */
static infer_status ask(insertion *x, const infer_model *m, const int32_t *ids, size_t n, float *in,
                        double *p)
{
    infer_engine *e = NULL;
    infer_sequence *s = NULL;
    infer_row *rows = mem_zero(n, sizeof *rows);
    infer_engine_options o = {
        .n_ctx = (int)n + 1, .max_rows = (int)n, .max_sequences = 1, .exact = true
    };
    infer_status st = rows ? infer_engine_new(&e, m, &o, x->err) : no_memory(x);
    if (!st && !(s = infer_sequence_new(e, x->err))) st = INFER_NOMEM;
    infer_capture c = { .ffn_in = in };
    if (!st && in) st = infer_engine_capture(e, &c, x->err);
    for (size_t i = 0; i < n && !st; i++)
        rows[i] = (infer_row){ .seq = s,
                               .token = ids[i],
                               .want = i + 1 == n ? INFER_WANT_LOGITS : INFER_WANT_NOTHING };
    if (!st) st = infer_step(e, rows, (int)n, x->err);
    if (!st && p) {
        const float *z = infer_logits(e, (int)n - 1);
        double sum = 0;
        float most = z[x->target];
        for (int i = 0; i < m->n_vocab; i++)
            if (z[i] > most) most = z[i];
        for (int i = 0; i < m->n_vocab; i++)
            sum += exp((double)(z[i] - most));
        *p = exp((double)(z[x->target] - most)) / sum;
        if (most > z[x->target]) *p = -*p;
    }
    mem_free(rows);
    infer_sequence_free(s);
    infer_engine_free(e);
    return st;
}

static infer_status encode(insertion *x, const char *text, int32_t **ids, size_t *n)
{
    return infer_tokenize(infer_model_tokenizer(x->m), ids, n, text, strlen(text), NULL, x->err);
}

/* The first token of " target" after the prompt. */
static infer_status find_target(insertion *x, const char *prompt, const int32_t *ids, size_t n)
{
    char *whole = arena_printf(&x->mem, "%s %s", prompt, x->fact->target);
    int32_t *all;
    size_t n_all;
    if (!whole) return no_memory(x);
    infer_status st = encode(x, whole, &all, &n_all);
    if (st) return st;
    size_t same = 0;
    while (same < n && same < n_all && ids[same] == all[same])
        same++;
    if (same < n_all)
        x->target = all[same];
    else
        st = error_set(x->err, INFER_ARGUMENT, "insert: the target is empty");
    infer_free(all);
    return st;
}

static infer_status choose_layers(insertion *x)
{
    const infer_vindex *v = x->p->base;
    infer_vindex_info info = infer_vindex_describe_index(v);
    x->first = x->o.first_layer;
    x->last = x->o.last_layer;
    if (!x->first && !x->last) {
        int from = info.bands[1][0], to = info.bands[1][1];
        if (to <= from) { // few layers: no bands
            from = v->n_layers / 2;
            to = v->n_layers - 1;
        }
        x->first = (from + to + 1) / 2;
        x->last = to;
        if (x->o.key) x->first = x->last = to - (to > 0);
    }
    if (x->last == -1) x->last = x->first;
    if (x->first < 0 || x->last < x->first || x->last >= v->n_layers)
        return error_set(x->err, INFER_ARGUMENT,
                         "insert: layers %d to %d, expected some of 0 to %d", x->first, x->last,
                         v->n_layers - 1);
    for (int l = x->first; l <= x->last && !x->o.key; l++)
        if (!v->layers[l].n_features || v->layers[l].n_experts)
            return error_set(x->err, INFER_UNSUPPORTED,
                             "insert: layer %d has %s: choose others with layers", l,
                             v->layers[l].n_experts ? "experts" : "no features");
    return INFER_OK;
}

static double dot(const float *a, const float *b, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += (double)a[i] * b[i];
    return s;
}

static const float *input_of(const insertion *x, int text, int layer, int pos)
{
    return x->in[text] + ((size_t)layer * (size_t)x->n[text] + (size_t)pos) * (size_t)x->m->d_model;
}

/* v less its projections on the n vectors of the basis; its squared length then. */
static double take_out(float *v, const float *basis, int n, int d)
{
    for (int k = 0; k < n; k++) {
        const float *b = basis + (size_t)k * (size_t)d;
        double p = dot(v, b, d);
        for (int i = 0; i < d; i++)
            v[i] -= (float)(p * (double)b[i]);
    }
    return dot(v, v, d);
}

/* What of r is in none of the other inputs (Gram and Schmidt). */
static void contrast(float *u, float *basis, const insertion *x, int layer)
{
    int d = x->m->d_model, n = 0, most = d / 2 < MAX_CONTRAST ? d / 2 : MAX_CONTRAST;
    const float *r = input_of(x, 0, layer, x->n[0] - 1);
    for (int t = 0; t < 1 + N_OTHERS; t++)
        for (int pos = t ? x->n[t] - 1 : x->n[0] - 2; pos >= 0 && n < most; pos--) {
            float *b = basis + (size_t)n * (size_t)d;
            memcpy(b, input_of(x, t, layer, pos), (size_t)d * sizeof *b);
            double before = dot(b, b, d), left = take_out(b, basis, n, d);
            if (left < 1e-4 * before) continue; // says nothing new
            for (int i = 0; i < d; i++)
                b[i] = (float)(b[i] / sqrt(left));
            n++;
        }
    memcpy(u, r, (size_t)d * sizeof *u);
    double whole = dot(u, u, d);
    if (take_out(u, basis, n, d) < 1e-4 * whole) // too much alike: answer to r as it is
        memcpy(u, r, (size_t)d * sizeof *u);
    double to_one = dot(u, r, d);
    for (int i = 0; i < d && to_one != 0; i++)
        u[i] = (float)(u[i] / to_one);
}

static infer_status measure(insertion *x)
{
    const infer_vindex *v = x->p->base;
    float *row = arena_alloc(&x->mem, (size_t)row_stride(2 * v->d_model), sizeof *row);
    if (!row) return no_memory(x);
    for (int l = x->first; l <= x->last; l++) {
        double sum = 0;
        int n = v->layers[l].n_features < 100 ? v->layers[l].n_features : 100;
        for (int f = 0; f < n; f++) {
            tensor_row(row, &v->layers[l].gate, f);
            sum += sqrt(dot(row, row, v->d_model));
        }
        x->scale[l] = (float)(sum / n);
        x->features[l] = -1;
    }
    return INFER_OK;
}

/* The features of all layers, at this strength; those of an earlier try are written over. */
static infer_status install(insertion *x, float alpha)
{
    const infer_vindex *v = x->p->base;
    int d = v->d_model;
    float *rows = mem_alloc((size_t)d * (3 + MAX_CONTRAST), sizeof *rows);
    if (!rows) return no_memory(x);
    float *gate = rows, *up = rows + d, *down = rows + 2 * d;
    infer_status st = INFER_OK;
    for (int l = x->first; l <= x->last && !st; l++) {
        const float *r = input_of(x, 0, l, x->n[0] - 1);
        double len = sqrt(dot(r, r, d));
        for (int i = 0; i < d; i++)
            gate[i] = len > 0 ? (float)((double)r[i] / len * (double)x->scale[l]) : 0;
        contrast(up, rows + 3 * (size_t)d, x, l);
        tensor_row(down, &v->embed, x->target);
        for (int i = 0; i < d; i++)
            down[i] *= v->embed_scale * alpha;
        infer_feature_edit e = { .layer = l,
                                 .feature = x->features[l],
                                 .gate = v->gated ? gate : up,
                                 .up = v->gated ? up : NULL,
                                 .down = down,
                                 .entity = x->fact->entity,
                                 .relation = x->fact->relation,
                                 .target = x->fact->target,
                                 .token = x->target,
                                 .confidence = x->o.confidence };
        st = infer_patch_insert(x->p, &e, &x->features[l], x->err);
    }
    mem_free(rows);
    return st;
}

/* The FFN's inputs of text t. */
static infer_status record(insertion *x, int t, const int32_t *ids, size_t n)
{
    x->n[t] = (int)n;
    x->in[t] =
        arena_alloc(&x->mem, (size_t)x->m->n_layers * n * (size_t)x->m->d_model, sizeof(float));
    return x->in[t] ? ask(x, x->m, ids, n, x->in[t], NULL) : no_memory(x);
}

static infer_status try_alpha(insertion *x, float alpha, int before, const infer_model *probe,
                              const int32_t *ids, size_t n, bool *enough)
{
    double p = 0;
    infer_patch_truncate(x->p, before);
    infer_status st = install(x, alpha);
    if (!st) st = ask(x, probe, ids, n, NULL, &p);
    *enough = p >= LIKELY;
    return st;
}

/* Doubles alpha until it is enough, then halves the step between the last two. */
static infer_status find_alpha(insertion *x, const int32_t *ids, size_t n)
{
    infer_model probe = *x->m; // the same model with the patch
    probe.ffn_index = x->p->base;
    probe.ffn_patch = x->p;
    int before = infer_patch_n_operations(x->p);
    float low = 0, high = LEAST_ALPHA;
    bool enough = false;
    infer_status st = INFER_OK;
    for (int i = 0; i < MAX_TRIES && !st; i++) {
        st = try_alpha(x, high, before, &probe, ids, n, &enough);
        if (enough) break;
        low = high;
        high *= 2;
    }
    if (!st && !enough)
        return error_set(x->err, INFER_LIMIT,
                         "insert: the target does not come first even at alpha %g: choose other "
                         "layers, or give alpha",
                         (double)low);
    for (int i = 0; i < REFINEMENTS && !st; i++) {
        float middle = (low + high) / 2;
        st = try_alpha(x, middle, before, &probe, ids, n, &enough);
        *(enough ? &high : &low) = middle;
    }
    return st ? st : try_alpha(x, high, before, &probe, ids, n, &enough);
}

/* The input itself as a key, in place of features. */
static infer_status store_key(insertion *x)
{
    size_t bytes = (size_t)x->m->d_model * sizeof(float);
    const infer_fact *f = x->fact;
    patch_op op = { .kind = PATCH_INSERT_KNN,
                    .layer = x->last,
                    .gate = mem_alloc(bytes, 1),
                    .entity = mem_strdup(f->entity),
                    .relation = mem_strdup(f->relation),
                    .target = mem_strdup(f->target),
                    .has_confidence = true,
                    .confidence = x->o.confidence > 0 ? x->o.confidence : 1,
                    .token = x->target };
    if (!op.gate || !op.entity || !op.relation || !op.target) {
        patch_op_free(&op);
        return no_memory(x);
    }
    memcpy(op.gate, input_of(x, 0, x->last, x->n[0] - 1), bytes);
    return patch_add(x->p, &op, x->err);
}

static infer_status run(insertion *x)
{
    const infer_model *m = x->m;
    const infer_vindex *v = x->p->base;
    if (v->n_layers != m->n_layers || v->d_model != m->d_model)
        return error_set(x->err, INFER_ARGUMENT, "insert: %s is no index of %s", v->path, m->path);
    if (!infer_model_tokenizer(m))
        return error_set(x->err, INFER_ARGUMENT, "insert: %s has no vocabulary", m->path);
    infer_status st = choose_layers(x);
    if (st) return st;
    x->scale = arena_zero(&x->mem, (size_t)m->n_layers, sizeof *x->scale);
    x->features = arena_zero(&x->mem, (size_t)m->n_layers, sizeof *x->features);
    if (!x->scale || !x->features) return no_memory(x);
    if (!x->o.key && (st = measure(x))) return st;
    int32_t *ids = NULL;
    size_t n = 0;
    char *prompt = prompt_of(x, x->fact->entity);
    st = prompt ? encode(x, prompt, &ids, &n) : INFER_NOMEM;
    if (!st && !n) st = error_set(x->err, INFER_ARGUMENT, "insert: the prompt is empty");
    if (!st) st = find_target(x, prompt, ids, n);
    if (!st) st = record(x, 0, ids, n);
    for (int o = 0; o < N_OTHERS && !st && !x->o.key; o++) {
        int32_t *other = NULL;
        size_t n_other = 0;
        char *text = prompt_of(x, strcasecmp(others[o], x->fact->entity) ? others[o] : "Europe");
        st = text ? encode(x, text, &other, &n_other) : INFER_NOMEM;
        if (!st) st = record(x, o + 1, other, n_other);
        infer_free(other);
        mem_free(text);
    }
    int before = infer_patch_n_operations(x->p);
    if (!st && x->o.key)
        st = store_key(x);
    else if (!st)
        st = x->o.alpha > 0 ? install(x, x->o.alpha) : find_alpha(x, ids, n);
    if (st) infer_patch_truncate(x->p, before);
    infer_free(ids);
    mem_free(prompt);
    return st;
}

infer_status infer_insert(const infer_model *model, infer_patch *patch, const infer_fact *fact,
                          const infer_insert_options *options, infer_error *err)
{
    infer_error own;
    if (!err) err = &own;
    if (!model || !patch || !fact || !fact->entity || !fact->relation || !fact->target)
        return error_set(err, INFER_ARGUMENT, "infer_insert: NULL argument");
    insertion x = { .m = model, .p = patch, .fact = fact, .err = err };
    if (options) x.o = *options;
    infer_status st = run(&x);
    arena_free(&x.mem);
    return st ? st : error_clear(err);
}
