/* patch.c: patches in memory: their operations, and what these make of a layer. */
#include "vindex/patch.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"

infer_patch *infer_patch_new(const infer_vindex *v, infer_error *err)
{
    infer_patch *p = mem_zero(1, sizeof *p);
    if (p) p->layers = mem_zero((size_t)v->n_layers, sizeof *p->layers);
    if (!p || !p->layers) {
        mem_free(p);
        error_set(err, INFER_NOMEM, "patch: out of memory");
        return NULL;
    }
    p->base = v;
    error_clear(err);
    return p;
}

void patch_op_free(patch_op *op)
{
    mem_free(op->gate);
    mem_free(op->up);
    mem_free(op->down);
    mem_free(op->entity);
    mem_free(op->relation);
    mem_free(op->target);
    mem_free(op->reason);
    *op = (patch_op){ 0 };
}

void infer_patch_free(infer_patch *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_ops; i++)
        patch_op_free(&p->ops[i]);
    for (int l = 0; l < p->base->n_layers; l++)
        mem_free(p->layers[l].v);
    mem_free(p->layers);
    mem_free(p->ops);
    mem_free(p);
}

int infer_patch_n_operations(const infer_patch *p) { return (int)p->n_ops; }

infer_operation infer_patch_operation(const infer_patch *p, int i)
{
    if (i < 0 || (size_t)i >= p->n_ops) return (infer_operation){ 0 };
    const patch_op *op = &p->ops[i];
    return (infer_operation){ (int)op->kind, op->layer,    op->feature,
                              op->entity,    op->relation, op->target };
}

int patch_layer(const infer_patch *p, int layer, const patch_feature **features)
{
    if (layer < 0 || layer >= p->base->n_layers) return 0;
    *features = p->layers[layer].v;
    return (int)p->layers[layer].n;
}

/* Where the feature is, or would be. */
static size_t place(const infer_patch *p, int layer, int feature)
{
    size_t lo = 0, hi = p->layers[layer].n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (p->layers[layer].v[mid].feature < feature)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const patch_feature *patch_find(const infer_patch *p, int layer, int feature)
{
    if (!p || layer < 0 || layer >= p->base->n_layers) return NULL;
    size_t at = place(p, layer, feature);
    if (at == p->layers[layer].n) return NULL;
    const patch_feature *f = p->layers[layer].v + at;
    return f->feature == feature ? f : NULL;
}

static infer_status entry(infer_patch *p, int layer, int feature, patch_feature **out,
                          infer_error *err)
{
    size_t at = place(p, layer, feature), n = p->layers[layer].n;
    if (at == n || p->layers[layer].v[at].feature != feature) {
        void *v = p->layers[layer].v;
        infer_status st = mem_reserve(&v, &p->layers[layer].cap, n + 1, sizeof(patch_feature), err);
        p->layers[layer].v = v;
        if (st) return st;
        patch_feature *f = p->layers[layer].v + at;
        memmove(f + 1, f, (n - at) * sizeof *f);
        *f = (patch_feature){ .feature = feature, .token = -1 };
        p->layers[layer].n++;
    }
    *out = p->layers[layer].v + at;
    return INFER_OK;
}

/* The effect of one operation. */
static infer_status apply(infer_patch *p, const patch_op *op, infer_error *err)
{
    if (op->kind == PATCH_INSERT_KNN || op->kind == PATCH_DELETE_KNN) return INFER_OK;
    patch_feature *f;
    infer_status st = entry(p, op->layer, op->feature, &f, err);
    if (st) return st;
    if (op->kind == PATCH_DELETE) {
        *f = (patch_feature){ .feature = op->feature, .deleted = true, .token = -1 };
        return INFER_OK;
    }
    if (op->kind == PATCH_INSERT) f->deleted = false;
    if (op->gate) f->gate = op->gate;
    if (op->up) f->up = op->up;
    if (op->down) f->down = op->down;
    if (op->kind == PATCH_INSERT || op->has_meta) {
        f->token = op->token;
        f->target = op->target;
        f->confidence = op->has_meta ? op->score : op->has_confidence ? op->confidence : 0.9f;
    }
    if (op->relation) f->relation = op->relation;
    return INFER_OK;
}

static infer_status check(const infer_patch *p, const patch_op *op, infer_error *err)
{
    const infer_vindex *v = p->base;
    if (op->kind == PATCH_DELETE_KNN) return INFER_OK;
    if (op->layer < 0 || op->layer >= v->n_layers)
        return error_set(err, INFER_ARGUMENT, "patch: layer %d, expected 0 to %d", op->layer,
                         v->n_layers - 1);
    bool speaks = op->kind == PATCH_INSERT || op->kind == PATCH_INSERT_KNN || op->has_meta;
    if (speaks && (op->token < 0 || op->token >= v->n_vocab))
        return error_set(err, INFER_ARGUMENT, "patch: token %d, expected 0 to %d", (int)op->token,
                         v->n_vocab - 1);
    if (op->kind == PATCH_INSERT_KNN) return INFER_OK;
    int n = v->layers[op->layer].n_features;
    if (op->feature < 0 || op->feature >= n)
        return error_set(err, INFER_ARGUMENT, "patch: layer %d: feature %d, expected 0 to %d",
                         op->layer, op->feature, n - 1);
    return INFER_OK;
}

infer_status patch_add(infer_patch *p, patch_op *op, infer_error *err)
{
    void *ops = p->ops;
    infer_status st = check(p, op, err);
    if (!st) st = mem_reserve(&ops, &p->cap, p->n_ops + 1, sizeof *p->ops, err);
    p->ops = ops;
    if (!st) st = apply(p, op, err);
    if (st) {
        patch_op_free(op);
        return st;
    }
    p->ops[p->n_ops++] = *op;
    *op = (patch_op){ 0 };
    return INFER_OK;
}

void infer_patch_truncate(infer_patch *p, int n)
{
    if (n < 0 || (size_t)n >= p->n_ops) return;
    for (size_t i = (size_t)n; i < p->n_ops; i++)
        patch_op_free(&p->ops[i]);
    p->n_ops = (size_t)n;
    for (int l = 0; l < p->base->n_layers; l++)
        p->layers[l].n = 0;
    for (size_t i = 0; i < p->n_ops; i++) // room is there: the layers held all of them before
        apply(p, &p->ops[i], NULL);
}

/* ---- the public calls ------------------------------------------------------------------------ */

static float *copy_vector(const float *from, int n, bool *ok)
{
    float *to = from ? mem_alloc((size_t)n, sizeof *to) : NULL;
    if (to) memcpy(to, from, (size_t)n * sizeof *to);
    *ok &= !from || to;
    return to;
}

static char *copy_text(const char *from, bool *ok)
{
    char *to = from ? mem_strdup(from) : NULL;
    *ok &= !from || to;
    return to;
}

/* A feature that speaks for nothing, else the one that speaks most softly; -1: none. */
static int free_feature(const infer_patch *p, int layer)
{
    const vindex_layer *l = &p->base->layers[layer];
    size_t size = 8 + 8 * (size_t)p->base->top_k;
    int best = -1;
    float least = 0;
    for (int f = 0; f < l->n_features; f++) {
        if (patch_find(p, layer, f)) continue;
        if (!l->meta || f >= l->n_meta) return f;
        uint32_t id;
        float score;
        memcpy(&id, l->meta + (size_t)f * size, 4);
        memcpy(&score, l->meta + (size_t)f * size + 4, 4);
        if (!id && score == 0) return f;
        if (best < 0 || score < least) {
            best = f;
            least = score;
        }
    }
    return best;
}

static infer_status add_edit(infer_patch *p, patch_op_kind kind, const infer_feature_edit *e,
                             int feature, infer_error *err)
{
    bool ok = true;
    int d = p->base->d_model;
    patch_op op = { .kind = kind,
                    .layer = e->layer,
                    .feature = feature,
                    .gate = copy_vector(e->gate, d, &ok),
                    .up = copy_vector(e->up, d, &ok),
                    .down = copy_vector(e->down, d, &ok),
                    .entity = copy_text(e->entity, &ok),
                    .relation = copy_text(e->relation, &ok),
                    .target = copy_text(e->target, &ok),
                    .has_meta = e->target != NULL,
                    .has_confidence = true,
                    .token = e->token,
                    .confidence = e->confidence > 0 ? e->confidence : 0.9f };
    op.score = op.confidence;
    if (ok) return patch_add(p, &op, err);
    patch_op_free(&op);
    return error_set(err, INFER_NOMEM, "patch: out of memory");
}

infer_status infer_patch_insert(infer_patch *p, const infer_feature_edit *e, int *feature,
                                infer_error *err)
{
    if (e->layer < 0 || e->layer >= p->base->n_layers)
        return error_set(err, INFER_ARGUMENT, "patch: layer %d, expected 0 to %d", e->layer,
                         p->base->n_layers - 1);
    int f = e->feature >= 0 ? e->feature : free_feature(p, e->layer);
    if (f < 0)
        return error_set(err, INFER_LIMIT, "patch: layer %d: every feature is edited already",
                         e->layer);
    infer_status st = add_edit(p, PATCH_INSERT, e, f, err);
    if (!st && feature) *feature = f;
    return st ? st : error_clear(err);
}

infer_status infer_patch_update(infer_patch *p, const infer_feature_edit *e, infer_error *err)
{
    infer_status st = add_edit(p, PATCH_UPDATE, e, e->feature, err);
    return st ? st : error_clear(err);
}

infer_status infer_patch_delete(infer_patch *p, int layer, int feature, const char *reason,
                                infer_error *err)
{
    bool ok = true;
    patch_op op = {
        .kind = PATCH_DELETE, .layer = layer, .feature = feature, .reason = copy_text(reason, &ok)
    };
    if (!ok) return error_set(err, INFER_NOMEM, "patch: out of memory");
    infer_status st = patch_add(p, &op, err);
    return st ? st : error_clear(err);
}

/* ---- stacks ---------------------------------------------------------------------------------- */

static infer_status add_copy(infer_patch *p, const patch_op *from, infer_error *err)
{
    bool ok = true;
    int d = p->base->d_model;
    patch_op op = *from;
    op.gate = copy_vector(from->gate, d, &ok);
    op.up = copy_vector(from->up, d, &ok);
    op.down = copy_vector(from->down, d, &ok);
    op.entity = copy_text(from->entity, &ok);
    op.relation = copy_text(from->relation, &ok);
    op.target = copy_text(from->target, &ok);
    op.reason = copy_text(from->reason, &ok);
    if (ok) return patch_add(p, &op, err);
    patch_op_free(&op);
    return error_set(err, INFER_NOMEM, "patch: out of memory");
}

static bool edits_feature(const patch_op *op)
{
    return op->kind == PATCH_INSERT || op->kind == PATCH_UPDATE || op->kind == PATCH_DELETE;
}

infer_status infer_patch_stack(infer_patch *p, const infer_patch *top, infer_conflict how,
                               infer_error *err)
{
    if (p->base != top->base)
        return error_set(err, INFER_ARGUMENT, "patch: the patches are of two open indexes");
    for (size_t i = 0; how == INFER_CONFLICT_FAIL && i < top->n_ops; i++) {
        const patch_op *op = &top->ops[i];
        if (edits_feature(op) && patch_find(p, op->layer, op->feature))
            return error_set(err, INFER_ARGUMENT, "patch: both edit layer %d, feature %d",
                             op->layer, op->feature);
    }
    for (size_t i = 0; i < top->n_ops; i++) {
        const patch_op *op = &top->ops[i];
        const patch_feature *mine =
            edits_feature(op) ? patch_find(p, op->layer, op->feature) : NULL;
        if (how == INFER_CONFLICT_CONFIDENCE && mine && op->kind != PATCH_DELETE) {
            const patch_feature *theirs = patch_find(top, op->layer, op->feature);
            if (mine->confidence > theirs->confidence) continue;
        }
        infer_status st = add_copy(p, op, err);
        if (st) return st;
    }
    return error_clear(err);
}
