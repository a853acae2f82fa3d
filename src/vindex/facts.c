/*
 * facts.c: knn_store.bin and what is asked of it.
 *
 *   bytes  0 .. 3    4          8      12          then for each layer
 *          "LKNN"    version 1  dim    n_layers    layer, n; keys f16 [n, dim]; target ids u32 [n];
 *                                                  n times: length u32, JSON of that length
 *
 * A layer that occurs again replaces its earlier list; bytes behind the last layer are ignored.
 */
#include "vindex/facts.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/mem.h"
#include "models/vindex_dir.h"
#include "vindex/encode.h"

#define THRESHOLD 0.75f

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reading {
    infer_vindex *v;
    const uint8_t *at, *end;
    uint32_t layer, i; // of the list that is read
    infer_error *err;
} reading;

static infer_status short_file(const reading *r, const char *what, size_t need)
{
    return vindex_stale(r->v->dir, r->err, FACTS_FILE,
                        "layer %" PRIu32 ": %s: expected %zu bytes, found %zu", r->layer, what,
                        need, (size_t)(r->end - r->at));
}

static infer_status text_of(const reading *r, const json_t *o, const char *key, const char **out)
{
    const json_t *s = json_object_get(o, key);
    *out = "";
    if (!s) return INFER_OK;
    if (!json_is_string(s))
        return vindex_stale(r->v->dir, r->err, FACTS_FILE,
                            "layer %" PRIu32 ": fact %" PRIu32 ": %s: expected a string", r->layer,
                            r->i, key);
    *out = arena_strndup(&r->v->mem, json_string_value(s), json_string_length(s));
    return *out ? INFER_OK : error_set(r->err, INFER_NOMEM, "%s: out of memory", r->v->path);
}

/* What a key stands for. */
static infer_status read_about(reading *r, key_fact *f)
{
    if (r->end - r->at < 4) return short_file(r, "a fact's length", 4);
    uint32_t n = u32_at(r->at);
    r->at += 4;
    if (n > (size_t)(r->end - r->at)) return short_file(r, "a fact", n);
    json_error_t why;
    json_t *o = json_loadb((const char *)r->at, n, 0, &why);
    r->at += n;
    if (!json_is_object(o)) {
        json_decref(o);
        return vindex_stale(r->v->dir, r->err, FACTS_FILE,
                            "layer %" PRIu32 ": fact %" PRIu32 ": expected a JSON object%s%s",
                            r->layer, r->i, o ? "" : ": ", o ? "" : why.text);
    }
    const json_t *c = json_object_get(o, "confidence");
    f->confidence = c ? (float)json_number_value(c) : 1;
    infer_status st = INFER_OK;
    if (c && (!json_is_number(c) || !isfinite(f->confidence)))
        st = vindex_stale(r->v->dir, r->err, FACTS_FILE,
                          "layer %" PRIu32 ": fact %" PRIu32 ": confidence: expected a finite "
                          "number",
                          r->layer, r->i);
    if (!st) st = text_of(r, o, "entity", &f->entity);
    if (!st) st = text_of(r, o, "relation", &f->relation);
    if (!st) st = text_of(r, o, "target_token", &f->target);
    json_decref(o);
    return st;
}

static infer_status read_key(const reading *r, key_fact *f, const uint8_t *key)
{
    for (int k = 0; k < r->v->d_model; k++)
        if ((key[2 * k + 1] & 0x7c) == 0x7c)
            return vindex_stale(r->v->dir, r->err, FACTS_FILE,
                                "layer %" PRIu32 ": fact %" PRIu32 ": its key is not finite",
                                r->layer, r->i);
    f->half = key;
    return INFER_OK;
}

static infer_status read_list(reading *r)
{
    infer_vindex *v = r->v;
    size_t d = (size_t)v->d_model;
    if (r->end - r->at < 8) return short_file(r, "the list's head", 8);
    r->layer = u32_at(r->at);
    uint32_t n = u32_at(r->at + 4);
    r->at += 8;
    if (r->layer >= (uint32_t)v->n_layers)
        return vindex_stale(v->dir, r->err, FACTS_FILE, "layer %" PRIu32 ", expected 0 to %d",
                            r->layer, v->n_layers - 1);
    if (n > (size_t)(r->end - r->at) / (2 * d + 4)) // keys and ids fit, so nothing overflows
        return short_file(r, "keys and targets", (size_t)n * (2 * d + 4));
    const uint8_t *keys = r->at, *ids = keys + (size_t)n * 2 * d;
    r->at = ids + (size_t)n * 4;
    key_fact *facts = arena_zero(&v->mem, (size_t)n + 1, sizeof *facts);
    if (!facts) return error_set(r->err, INFER_NOMEM, "%s: out of memory", v->path);
    infer_status st = INFER_OK;
    for (r->i = 0; r->i < n && !st; r->i++) {
        key_fact *f = &facts[r->i];
        uint32_t id = u32_at(ids + 4 * (size_t)r->i);
        f->layer = (int)r->layer;
        f->token = (int32_t)id;
        if (id >= (uint32_t)v->n_vocab)
            return vindex_stale(v->dir, r->err, FACTS_FILE,
                                "layer %" PRIu32 ": fact %" PRIu32 ": token %" PRIu32
                                ", expected below %d",
                                r->layer, r->i, id, v->n_vocab);
        st = read_key(r, f, keys + (size_t)r->i * 2 * d);
        if (!st) st = read_about(r, f);
    }
    if (st) return st;
    v->facts[r->layer].v = facts;
    v->facts[r->layer].n = (int)n;
    return INFER_OK;
}

infer_status facts_open(infer_vindex *v, infer_error *err)
{
    if (!vindex_dir_has(v->dir, FACTS_FILE)) return INFER_OK;
    const file_map *m = vindex_dir_map(v->dir, FACTS_FILE, err);
    if (!m) return err->code;
    if (m->size < 16)
        return vindex_stale(v->dir, err, FACTS_FILE, "%zu bytes, expected a header of 16", m->size);
    if (memcmp(m->data, "LKNN", 4))
        return vindex_stale(v->dir, err, FACTS_FILE, "expected magic LKNN, found %02x%02x%02x%02x",
                            m->data[0], m->data[1], m->data[2], m->data[3]);
    uint32_t version = u32_at(m->data + 4), dim = u32_at(m->data + 8), n = u32_at(m->data + 12);
    if (version != 1)
        return vindex_stale(v->dir, err, FACTS_FILE, "expected version 1, found %" PRIu32, version);
    if (n && dim != (uint32_t)v->d_model)
        return vindex_stale(v->dir, err, FACTS_FILE, "keys of %" PRIu32 " numbers, expected %d",
                            dim, v->d_model);
    v->facts = arena_zero(&v->mem, (size_t)v->n_layers, sizeof *v->facts);
    if (!v->facts) return error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    reading r = { .v = v, .at = m->data + 16, .end = m->data + m->size, .err = err };
    infer_status st = INFER_OK;
    for (uint32_t i = 0; i < n && !st; i++)
        st = read_list(&r);
    return st;
}

/* ---- what stands ----------------------------------------------------------------------------- */

/* Whether no operation from i on takes the entity's facts away. */
static bool stands(const infer_patch *p, size_t i, const char *entity)
{
    for (; p && i < p->n_ops; i++)
        if (p->ops[i].kind == PATCH_DELETE_KNN && !strcasecmp(p->ops[i].entity, entity))
            return false;
    return true;
}

void facts_each(const infer_vindex *v, const infer_patch *p, int layer,
                bool (*fn)(const key_fact *f, void *user), void *user)
{
    for (int i = 0; v->facts && i < v->facts[layer].n; i++)
        if (stands(p, 0, v->facts[layer].v[i].entity) && !fn(&v->facts[layer].v[i], user)) return;
    for (size_t i = 0; p && i < p->n_ops; i++) {
        const patch_op *op = &p->ops[i];
        if (op->kind != PATCH_INSERT_KNN || op->layer != layer || !stands(p, i + 1, op->entity))
            continue;
        key_fact f = { .layer = layer,
                       .token = op->token,
                       .confidence = op->has_confidence ? op->confidence : 1,
                       .entity = op->entity,
                       .relation = op->relation,
                       .target = op->target,
                       .key = op->gate };
        if (!fn(&f, user)) return;
    }
}

static bool count_one(const key_fact *f, void *user)
{
    (void)f;
    ++*(int *)user;
    return true;
}

int facts_count(const infer_vindex *v, const infer_patch *p)
{
    int n = 0;
    for (int l = 0; l < v->n_layers; l++)
        facts_each(v, p, l, count_one, &n);
    return n;
}

/* ---- asking ---------------------------------------------------------------------------------- */

typedef struct recalling {
    const float *x; // [d_model] the FFN's input
    int d;
    double length;
    double best;
    key_fact fact;
    bool found;
} recalling;

static bool compare(const key_fact *f, void *user)
{
    recalling *r = user;
    double dot = 0, own = f->half ? 1 : 0; // keys of the file have unit length
    for (int i = 0; i < r->d; i++) {
        uint16_t h;
        float key;
        if (f->half) {
            memcpy(&h, f->half + 2 * i, 2);
            key = f16_to_f32(h);
        } else {
            key = f->key[i];
            own += (double)key * (double)key;
        }
        dot += (double)key * (double)r->x[i];
    }
    if (!f->half) own = sqrt(own);
    double cosine = own > 0 && r->length > 0 ? dot / own / r->length : 0;
    if (cosine > r->best) {
        r->best = cosine;
        r->fact = *f;
        r->found = true;
    }
    return true;
}

int infer_vindex_recall(const infer_vindex *v, const infer_patch *patch, const float *ffn_in,
                        float threshold, infer_knn_fact *out, infer_error *err)
{
    if (!v || !ffn_in || !out || (patch && patch->base != v)) {
        error_set(err, INFER_ARGUMENT, "infer_vindex_recall: NULL argument, or another's patch");
        return -1;
    }
    error_clear(err);
    for (int l = 0; l < v->n_layers; l++) {
        recalling r = { .x = ffn_in + (size_t)l * (size_t)v->d_model,
                        .d = v->d_model,
                        .best = (double)(threshold > 0 ? threshold : THRESHOLD) };
        for (int i = 0; i < v->d_model; i++)
            r.length += (double)r.x[i] * (double)r.x[i];
        r.length = sqrt(r.length);
        facts_each(v, patch, l, compare, &r);
        if (!r.found) continue;
        *out = (infer_knn_fact){ l,
                                 (float)r.best,
                                 r.fact.token,
                                 r.fact.confidence,
                                 r.fact.entity,
                                 r.fact.relation,
                                 r.fact.target };
        return 1;
    }
    return 0;
}

int infer_vindex_n_facts(const infer_vindex *v, const infer_patch *patch)
{
    return facts_count(v, patch);
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct writing {
    FILE *f;
    int d, part;
    bool failed;
} writing;

static void put_u32(FILE *f, uint32_t v)
{
    uint8_t b[4] = { (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24) };
    fwrite(b, 1, 4, f);
}

static void put_key(const writing *w, const key_fact *f)
{
    float sum = 0;
    if (f->half) fwrite(f->half, 2, (size_t)w->d, w->f);
    if (f->half) return;
    for (int k = 0; k < w->d; k++)
        sum += f->key[k] * f->key[k];
    float len = sqrtf(sum);
    for (int k = 0; k < w->d; k++) {
        uint16_t h = vindex_half(len > 0 ? f->key[k] / len : 0);
        fwrite(&h, 2, 1, w->f);
    }
}

/* Digits that tell a number from its neighbours. */
static int digits_of(double x)
{
    char text[40];
    int n = 1;
    while (n < 17 && (snprintf(text, sizeof text, "%.*g", n, x), strtod(text, NULL) != x))
        n++;
    return n;
}

static bool put_fact(const key_fact *f, void *user)
{
    writing *w = user;
    if (w->part == 0) put_key(w, f);
    if (w->part == 1) put_u32(w->f, (uint32_t)f->token);
    if (w->part < 2) return true;
    json_t *o = json_pack("{s:f, s:s, s:s, s:s}", "confidence", (double)f->confidence, "entity",
                          f->entity, "relation", f->relation, "target_token", f->target);
    size_t digits = JSON_REAL_PRECISION((size_t)digits_of((double)f->confidence));
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS | digits) : NULL;
    json_decref(o);
    w->failed |= !text;
    if (text) {
        put_u32(w->f, (uint32_t)strlen(text));
        fputs(text, w->f);
    }
    free(text);
    return text != NULL;
}

infer_status facts_write(FILE *f, const infer_vindex *v, const infer_patch *p, infer_error *err)
{
    writing w = { .f = f, .d = v->d_model };
    int n_layers = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass) {
            fwrite("LKNN", 1, 4, f);
            put_u32(f, 1);
            put_u32(f, (uint32_t)w.d);
            put_u32(f, (uint32_t)n_layers);
        }
        for (int l = 0; l < v->n_layers; l++) {
            int n = 0;
            facts_each(v, p, l, count_one, &n);
            if (!n) continue;
            n_layers++;
            if (!pass) continue;
            put_u32(f, (uint32_t)l);
            put_u32(f, (uint32_t)n);
            for (w.part = 0; w.part < 3; w.part++)
                facts_each(v, p, l, put_fact, &w);
        }
    }
    return w.failed ? error_set(err, INFER_NOMEM, "compile: out of memory") : INFER_OK;
}
