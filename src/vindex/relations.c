/* relations.c: label files into one table of names by layer and feature. */
#include "vindex/relations.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "models/vindex_dir.h"

#define TEXT_MOST ((size_t)1 << 30)

struct vindex_labels {
    const char ***names; // [n_layers] [n_features] or NULL
    arena mem;
};

const char *relation_of(const infer_vindex *v, int layer, int feature)
{
    if (!v->labels || layer < 0 || layer >= v->n_layers || feature < 0 ||
        feature >= v->layers[layer].n_features)
        return NULL;
    const char **names = v->labels->names[layer];
    return names ? names[feature] : NULL;
}

void relations_close(infer_vindex *v)
{
    if (!v->labels) return;
    arena_free(&v->labels->mem);
    mem_free(v->labels);
    v->labels = NULL;
}

/* A feature that the index does not have is passed over: labels may come from elsewhere. */
static infer_status put(infer_vindex *v, int64_t layer, int64_t feature, const char *name,
                        infer_error *err)
{
    struct vindex_labels *x = v->labels;
    if (layer < 0 || layer >= v->n_layers || feature < 0 ||
        feature >= v->layers[layer].n_features || !*name)
        return INFER_OK;
    const char **names = x->names[layer];
    if (!names) {
        names = arena_zero(&x->mem, (size_t)v->layers[layer].n_features, sizeof *names);
        x->names[layer] = names;
    }
    if (!names) return error_set(err, INFER_NOMEM, "%s: out of memory for labels", v->path);
    names[feature] = name;
    return INFER_OK;
}

/* The folder's file as text; *text NULL where it is missing. */
static infer_status read_text(const infer_vindex *v, const char *name, char **text, size_t *size,
                              infer_error *err)
{
    *text = NULL;
    if (!vindex_dir_has(v->dir, name)) return INFER_OK;
    arena mem = { 0 };
    char *path = arena_printf(&mem, "%s/%s", v->path, name);
    infer_status st = path ? file_read(path, TEXT_MOST, text, size, err)
                           : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    arena_free(&mem);
    return st;
}

static infer_status read_json(const infer_vindex *v, const char *name, json_t **out,
                              infer_error *err)
{
    char *text;
    size_t size;
    json_error_t why;
    *out = NULL;
    infer_status st = read_text(v, name, &text, &size, err);
    if (st != INFER_OK || !text) return st;
    *out = json_loadb(text, size, 0, &why);
    mem_free(text);
    if (*out) return INFER_OK;
    return vindex_stale(v->dir, err, name, "line %d: %s", why.line, why.text);
}

/* {"k", "labels": [k], …} and a line for each feature: {"c": cluster, "f": feature, "l": layer} */
static infer_status read_clusters(infer_vindex *v, infer_error *err)
{
    static const char clusters[] = "relation_clusters.json", members[] = "feature_clusters.jsonl";
    json_t *root;
    char *text = NULL;
    size_t size = 0;
    infer_status st = read_json(v, clusters, &root, err);
    if (st != INFER_OK || !root) return st;
    const json_t *labels = json_object_get(root, "labels");
    size_t k = json_array_size(labels);
    const char **names = arena_zero(&v->labels->mem, k + 1, sizeof *names);
    if (!json_is_array(labels))
        st = vindex_stale(v->dir, err, clusters, "labels: expected an array");
    else if (!names)
        st = error_set(err, INFER_NOMEM, "%s: out of memory for labels", v->path);
    for (size_t i = 0; st == INFER_OK && i < k; i++) {
        const char *s = json_string_value(json_array_get(labels, i));
        if (!s)
            st = vindex_stale(v->dir, err, clusters, "labels: %zu is no string", i);
        else
            names[i] = arena_strndup(&v->labels->mem, s, strlen(s));
    }
    if (st == INFER_OK) st = read_text(v, members, &text, &size, err);
    int line = 1;
    for (char *at = text, *end; st == INFER_OK && at && at < text + size; at = end + 1, line++) {
        end = memchr(at, '\n', (size_t)(text + size - at));
        if (!end) end = text + size;
        if (end == at) continue;
        json_t *o = json_loadb(at, (size_t)(end - at), 0, NULL);
        const json_t *c = json_object_get(o, "c"), *f = json_object_get(o, "f");
        const json_t *l = json_object_get(o, "l");
        json_int_t cluster = json_integer_value(c);
        if (!json_is_integer(c) || !json_is_integer(f) || !json_is_integer(l) || cluster < 0 ||
            (size_t)cluster >= k)
            st = vindex_stale(v->dir, err, members, "line %d: expected c below %zu, f and l", line,
                              k);
        else if (names[cluster])
            st = put(v, json_integer_value(l), json_integer_value(f), names[cluster], err);
        json_decref(o);
    }
    mem_free(text);
    json_decref(root);
    return st;
}

/* {"L<layer>_F<feature>": "name"}; other keys and values are somebody else's. */
static infer_status read_probes(infer_vindex *v, infer_error *err)
{
    json_t *root, *value;
    const char *key;
    infer_status st = read_json(v, "feature_labels.json", &root, err);
    json_object_foreach(root, key, value)
    {
        int layer, feature, n = 0;
        if (st != INFER_OK || !json_is_string(value) ||
            sscanf(key, "L%9d_F%9d%n", &layer, &feature, &n) != 2 || key[n])
            continue;
        const char *s = json_string_value(value);
        s = arena_strndup(&v->labels->mem, s, strlen(s));
        st = s ? put(v, layer, feature, s, err)
               : error_set(err, INFER_NOMEM, "%s: out of memory for labels", v->path);
    }
    json_decref(root);
    return st;
}

infer_status relations_open(infer_vindex *v, infer_error *err)
{
    if (!vindex_dir_has(v->dir, "relation_clusters.json") &&
        !vindex_dir_has(v->dir, "feature_labels.json"))
        return INFER_OK;
    v->labels = mem_zero(1, sizeof *v->labels);
    if (v->labels)
        v->labels->names =
            arena_zero(&v->labels->mem, (size_t)v->n_layers, sizeof *v->labels->names);
    if (!v->labels || !v->labels->names)
        return error_set(err, INFER_NOMEM, "%s: out of memory for labels", v->path);
    infer_status st = read_clusters(v, err);
    return st == INFER_OK ? read_probes(v, err) : st;
}
