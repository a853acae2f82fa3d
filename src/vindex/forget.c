/*
 * forget.c: a fact taken away: the features that a patch gave it, and those of the base that speak
 * for the target and that the entity's query excites (the strongest twentieth of a layer).
 */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/mem.h"
#include "vindex/facts.h"

typedef struct forgetting {
    infer_patch *p;
    const infer_fact *fact;
    int n;
    arena mem;
    infer_error *err;
} forgetting;

static bool same(const char *a, const char *b) { return !b || (a && !strcasecmp(a, b)); }

static infer_status forget(forgetting *f, int layer, int feature)
{
    infer_status st = infer_patch_delete(f->p, layer, feature, f->fact->target, f->err);
    f->n += !st;
    return st;
}

/* Features that stand for the fact in the patch itself. */
static infer_status forget_inserted(forgetting *f)
{
    size_t n = f->p->n_ops;
    for (size_t i = 0; i < n; i++) {
        const patch_op *op = &f->p->ops[i];
        if (op->kind != PATCH_INSERT || !same(op->entity, f->fact->entity) ||
            !same(op->relation, f->fact->relation) || !same(op->target, f->fact->target))
            continue;
        const patch_feature *now = patch_find(f->p, op->layer, op->feature);
        if (!now || now->deleted || now->target != op->target) continue; // another fact's by now
        infer_status st = forget(f, op->layer, op->feature);
        if (st) return st;
    }
    return INFER_OK;
}

/* Facts by key: all of an entity's go at once, and those that were not meant come back. */
typedef struct keys {
    forgetting *f;
    patch_op *kept;
    size_t n_kept, cap;
    int n_gone;
    infer_status st;
} keys;

static bool sort_key(const key_fact *x, void *user)
{
    keys *k = user;
    const infer_fact *f = k->f->fact;
    size_t d = (size_t)k->f->p->base->d_model;
    if (strcasecmp(x->entity, f->entity)) return true;
    if (same(x->relation, f->relation) && same(x->target, f->target)) {
        k->n_gone++;
        return true;
    }
    k->st = mem_reserve((void **)&k->kept, &k->cap, k->n_kept + 1, sizeof *k->kept, k->f->err);
    if (k->st) return false;
    patch_op op = { .kind = PATCH_INSERT_KNN,
                    .layer = x->layer,
                    .token = x->token,
                    .has_confidence = true,
                    .confidence = x->confidence,
                    .gate = mem_alloc(d, sizeof(float)),
                    .entity = mem_strdup(x->entity),
                    .relation = mem_strdup(x->relation),
                    .target = mem_strdup(x->target) };
    k->kept[k->n_kept++] = op;
    if (!op.gate || !op.entity || !op.relation || !op.target) {
        k->st = error_set(k->f->err, INFER_NOMEM, "delete: out of memory");
        return false;
    }
    if (x->half)
        quant_formats[DT_F16]->dequant(op.gate, x->half, d);
    else
        memcpy(op.gate, x->key, d * sizeof(float));
    return true;
}

static infer_status forget_keys(forgetting *f)
{
    keys k = { .f = f };
    patch_op gone = { .kind = PATCH_DELETE_KNN };
    for (int l = 0; l < f->p->base->n_layers && !k.st; l++)
        facts_each(f->p->base, f->p, l, sort_key, &k);
    if (!k.st && k.n_gone) {
        gone.entity = mem_strdup(f->fact->entity);
        k.st = gone.entity ? patch_add(f->p, &gone, f->err)
                           : error_set(f->err, INFER_NOMEM, "delete: out of memory");
        for (size_t i = 0; i < k.n_kept && !k.st; i++)
            k.st = patch_add(f->p, &k.kept[i], f->err);
        f->n += k.n_gone;
    }
    for (size_t i = 0; i < k.n_kept; i++)
        patch_op_free(&k.kept[i]);
    mem_free(k.kept);
    return k.st;
}

/* The mean of the text's embeddings. */
static infer_status query_of(forgetting *f, float *x)
{
    const infer_vindex *v = f->p->base;
    int32_t *ids;
    size_t n, used = 0;
    tok_options o = { .no_special = true };
    infer_status st =
        tok_encode(v->tok, &ids, &n, f->fact->entity, strlen(f->fact->entity), &o, f->err);
    if (st) return st;
    float *row = arena_alloc(&f->mem, (size_t)v->d_model, sizeof *row);
    if (!row) st = error_set(f->err, INFER_NOMEM, "delete: out of memory");
    memset(x, 0, (size_t)v->d_model * sizeof *x);
    for (size_t i = 0; i < n && !st; i++) {
        if (ids[i] < 0 || ids[i] >= v->n_vocab) continue;
        tensor_row(row, &v->embed, ids[i]);
        for (int k = 0; k < v->d_model; k++)
            x[k] += row[k];
        used++;
    }
    for (int k = 0; k < v->d_model && used; k++)
        x[k] = x[k] / (float)used * v->embed_scale;
    mem_free(ids);
    return st;
}

/* Whether the feature's first token reads as the target, spaces aside. */
static bool speaks_for(const forgetting *f, const vindex_layer *l, int feature)
{
    const infer_vindex *v = f->p->base;
    size_t size = 8 + 8 * (size_t)v->top_k, n = 0;
    int32_t id;
    char *text = NULL;
    if (!l->meta || feature >= l->n_meta) return false;
    memcpy(&id, l->meta + (size_t)feature * size, 4);
    if (tok_decode(v->tok, &text, &n, &id, 1, true, NULL)) return false;
    const char *s = text;
    while (isspace((unsigned char)*s))
        s++;
    size_t len = strlen(s);
    while (len && isspace((unsigned char)s[len - 1]))
        len--;
    bool is = len == strlen(f->fact->target) && !strncasecmp(s, f->fact->target, len);
    mem_free(text);
    return is;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x > y ? -1 : x < y;
}

static infer_status forget_of_base(forgetting *f)
{
    const infer_vindex *v = f->p->base;
    if (!v->tok) return INFER_OK;
    float *x = arena_alloc(&f->mem, (size_t)v->d_model, sizeof *x);
    float *row = arena_alloc(&f->mem, (size_t)v->d_model + 256, sizeof *row);
    if (!x || !row) return error_set(f->err, INFER_NOMEM, "delete: out of memory");
    infer_status st = query_of(f, x);
    for (int l = 0; l < v->n_layers && !st; l++) {
        const vindex_layer *layer = &v->layers[l];
        int n = layer->n_features;
        if (!n || !layer->meta) continue;
        arena_position mark = arena_mark(&f->mem);
        float *score = arena_alloc(&f->mem, 2 * (size_t)n, sizeof *score);
        if (!score) return error_set(f->err, INFER_NOMEM, "delete: out of memory");
        for (int i = 0; i < n; i++) {
            double sum = 0;
            tensor_row(row, &layer->gate, i);
            for (int k = 0; k < v->d_model; k++)
                sum += (double)row[k] * x[k];
            score[i] = score[n + i] = fabsf((float)sum);
        }
        qsort(score + n, (size_t)n, sizeof *score, descending);
        float least = score[n + n / 20];
        for (int i = 0; i < n && !st; i++)
            if (score[i] >= least && !patch_find(f->p, l, i) && speaks_for(f, layer, i))
                st = forget(f, l, i);
        arena_reset(&f->mem, mark);
    }
    return st;
}

infer_status infer_delete_fact(infer_patch *patch, const infer_fact *fact, int *n, infer_error *err)
{
    infer_error own;
    if (!err) err = &own;
    if (!patch || !fact || !fact->entity || !fact->target)
        return error_set(err, INFER_ARGUMENT, "infer_delete_fact: NULL argument");
    forgetting f = { .p = patch, .fact = fact, .err = err };
    int before = infer_patch_n_operations(patch);
    infer_status st = forget_inserted(&f);
    if (!st) st = forget_keys(&f);
    bool inserted = f.n > 0; // what was put in is taken out, and what the base knew stays
    if (!st && !inserted) st = forget_of_base(&f);
    if (st) infer_patch_truncate(patch, before);
    if (n) *n = st ? 0 : f.n;
    arena_free(&f.mem);
    return st ? st : error_clear(err);
}
