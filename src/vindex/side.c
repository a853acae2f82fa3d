/* side.c: metadata as lines of JSON, FFNs in a file for each layer, down rows in blocks. */
#include "vindex/side.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "models/vindex_side.h"

/* ---- down_meta.jsonl ------------------------------------------------------------------------- */

#define META "down_meta.jsonl"
#define TEXT_MOST ((size_t)1 << 30)

static const json_t *either(const json_t *o, const char *name, const char *brief)
{
    const json_t *v = json_object_get(o, name);
    return v ? v : json_object_get(o, brief);
}

static void put_pair(uint8_t *p, const json_t *id, const json_t *score)
{
    uint32_t n = (uint32_t)json_integer_value(id);
    float f = (float)json_number_value(score);
    memcpy(p, &n, 4);
    memcpy(p + 4, &f, 4);
}

static bool is_pair(const infer_vindex *v, const json_t *id, const json_t *score)
{
    return json_is_integer(id) && json_integer_value(id) >= 0 &&
           json_integer_value(id) < v->n_vocab && json_is_number(score) &&
           isfinite((float)json_number_value(score));
}

/* Both forms: long names, and the brief ones of an importer. */
static infer_status read_line(infer_vindex *v, const json_t *o, int line, infer_error *err)
{
    const json_t *l = either(o, "layer", "l"), *f = either(o, "feature", "f");
    const json_t *id = either(o, "top_token_id", "i"), *score = either(o, "c_score", "c");
    const json_t *list = either(o, "top_k", "k");
    json_int_t layer = json_integer_value(l), feature = json_integer_value(f);
    if (!json_is_integer(l) || !json_is_integer(f) || layer < 0 || layer >= v->n_layers ||
        feature < 0 || feature >= v->layers[layer].n_features)
        return vindex_stale(v->dir, err, META, "line %d: expected a layer and a feature of it",
                            line);
    if (!is_pair(v, id, score) || (list && !json_is_array(list)))
        return vindex_stale(v->dir, err, META, "line %d: expected a token, a score and a list",
                            line);
    vindex_layer *x = &v->layers[layer];
    size_t size = 8 + 8 * (size_t)v->top_k;
    if (!x->meta) {
        x->meta = arena_zero(&v->mem, (size_t)x->n_features, size);
        if (!x->meta) return error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
        x->n_meta = x->n_features;
    }
    uint8_t *record = (uint8_t *)(uintptr_t)x->meta + (size_t)feature * size;
    memset(record, 0, size);
    put_pair(record, id, score);
    for (size_t i = 0; i < json_array_size(list) && i < (size_t)v->top_k; i++) {
        const json_t *t = json_array_get(list, i);
        const json_t *token = either(t, "token_id", "i"), *logit = either(t, "logit", "s");
        if (!is_pair(v, token, logit))
            return vindex_stale(v->dir, err, META, "line %d: expected tokens and their scores",
                                line);
        put_pair(record + 8 + 8 * i, token, logit);
    }
    return INFER_OK;
}

infer_status side_meta(infer_vindex *v, infer_error *err)
{
    char *text = NULL, *path;
    size_t size = 0;
    if (!vindex_dir_has(v->dir, META)) return INFER_OK;
    path = arena_printf(&v->mem, "%s/" META, v->path);
    infer_status st = path ? file_read(path, TEXT_MOST, &text, &size, err)
                           : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    int line = 1;
    for (char *at = text, *end; !st && at && at < text + size; at = end + 1, line++) {
        end = memchr(at, '\n', (size_t)(text + size - at));
        if (!end) end = text + size;
        if (end == at) continue;
        json_error_t why;
        json_t *o = json_loadb(at, (size_t)(end - at), 0, &why);
        if (!json_is_object(o))
            st = vindex_stale(v->dir, err, META, "line %d: expected a JSON object", line);
        else if (!json_object_get(o, "_header"))
            st = read_line(v, o, line, err);
        json_decref(o);
    }
    mem_free(text);
    return st;
}

/* ---- layers ---------------------------------------------------------------------------------- */

infer_status side_ffn(infer_vindex *v, int layer, infer_error *err)
{
    side_layer f;
    vindex_layer *x = &v->layers[layer];
    infer_status st = side_layer_open(&f, v->dir, layer, err);
    if (st || f.n != 1 || x->n_experts) return st; // experts are a model's: load_vindex.c has them
    tensor gate, up, down;
    st = side_layer_entry(&gate, &up, &down, &f, 0, v->dir, err);
    if (st) return st;
    if (x->n_features && x->n_features != f.inter)
        return error_set(err, INFER_FORMAT,
                         "%s: layer %d: its file has %d features, expected %d: make it anew with "
                         "'infer extract'",
                         v->path, layer, f.inter, x->n_features);
    x->n_features = f.inter;
    if (!tensor_present(&x->up)) {
        x->gate = gate;
        x->up = up;
    }
    if (!tensor_present(&x->down)) x->down = down;
    return INFER_OK;
}

/* ---- down rows ------------------------------------------------------------------------------- */

static int padded(int n) { return (n + 255) / 256 * 256; }

infer_status side_down_rows(infer_vindex *v, infer_error *err)
{
    static const char name[] = "down_features_q4k_manifest.json", data[] = "down_features_q4k.bin";
    vindex_manifest m;
    if (!vindex_dir_has(v->dir, data)) return INFER_OK;
    infer_status st = vindex_dir_manifest(v->dir, name, data, &m, err);
    if (st) return st;
    if (m.n != v->n_layers)
        return vindex_stale(v->dir, err, name, "expected an entry for each of %d layers, found %d",
                            v->n_layers, m.n);
    for (int l = 0; l < v->n_layers; l++) {
        vindex_layer *x = &v->layers[l];
        const vindex_entry *e = &m.v[l];
        if (!x->n_features) continue;
        if (!e->data || e->n_dims != 2 || e->dims[0] != padded(x->n_features) ||
            e->dims[1] != padded(v->d_model))
            return vindex_stale(v->dir, err, name, "layer %d: expected rows [%d, %d]", l,
                                padded(x->n_features), padded(v->d_model));
        if (tensor_present(&x->down_rows)) continue;
        if (padded(v->d_model) == v->d_model)
            x->down_rows =
                (tensor){ .name = data,
                          .data = e->data,
                          .type = (dtype)e->type,
                          .n_rows = x->n_features,
                          .n_cols = v->d_model,
                          .n_slices = 1,
                          .row_bytes = quant_row_bytes((dtype)e->type, (size_t)v->d_model) };
        else if (!tensor_present(&x->down))
            return error_set(err, INFER_UNSUPPORTED,
                             "%s/%s: rows of %d padded to %d cannot be walked: make float ones "
                             "with 'infer build-down-features'",
                             v->path, data, v->d_model, padded(v->d_model));
    }
    return INFER_OK;
}
