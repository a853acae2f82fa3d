/*
 * vlp.c: patches as files: one JSON object with operations in order (docs/vindex-format.md).
 * Vectors are little-endian float32 in base64 (RFC 4648, padded).
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "vindex/patch.h"

#define MAX_FILE (1u << 30)
#define VERSION 1

/* ---- base64 ---------------------------------------------------------------------------------- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static char *to_base64(const float *x, int n)
{
    size_t bytes = (size_t)n * 4, at = 0;
    const uint8_t *p = (const uint8_t *)x;
    char *out = mem_alloc((bytes + 2) / 3 * 4 + 1, 1);
    for (size_t i = 0; out && i < bytes; i += 3) {
        size_t left = bytes - i < 3 ? bytes - i : 3;
        uint32_t v = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) |
                     (left > 2 ? p[i + 2] : 0);
        out[at++] = digits[v >> 18];
        out[at++] = digits[v >> 12 & 63];
        out[at++] = left > 1 ? digits[v >> 6 & 63] : '=';
        out[at++] = left > 2 ? digits[v & 63] : '=';
    }
    if (out) out[at] = 0;
    return out;
}

/* n floats; NULL with *why set where the text is something else. */
static float *from_base64(const char *s, int n, const char **why)
{
    int8_t value[256];
    memset(value, -1, sizeof value);
    for (int i = 0; i < 64; i++)
        value[(uint8_t)digits[i]] = (int8_t)i;
    size_t len = strlen(s), bytes = (size_t)n * 4, at = 0;
    *why = "is not base64";
    if (len % 4) return NULL;
    while (len && s[len - 1] == '=' && len % 4 != 2)
        len--;
    if (len * 3 / 4 != bytes) {
        *why = "has another length than the index's vectors";
        return NULL;
    }
    uint8_t *out = mem_alloc(bytes + 3, 1);
    if (!out) {
        *why = "out of memory";
        return NULL;
    }
    uint32_t v = 0;
    int bits = 0;
    for (size_t i = 0; i < len; i++) {
        if (value[(uint8_t)s[i]] < 0) {
            mem_free(out);
            return NULL;
        }
        v = v << 6 | (uint32_t)value[(uint8_t)s[i]];
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        out[at++] = (uint8_t)(v >> bits);
    }
    const float *x = (const float *)(void *)out;
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i])) {
            mem_free(out);
            *why = "holds a number that is not finite";
            return NULL;
        }
    return (float *)(void *)out;
}

/* ---- reading --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    patch_op_kind kind;
} kinds[] = { { "insert", PATCH_INSERT },
              { "update", PATCH_UPDATE },
              { "delete", PATCH_DELETE },
              { "insert_knn", PATCH_INSERT_KNN },
              { "delete_knn", PATCH_DELETE_KNN } };

typedef struct reading {
    const infer_patch *p;
    const char *name; // the file
    size_t i;         // the operation
    infer_error *err;
} reading;

static infer_status bad(const reading *r, const char *key, const char *what)
{
    return error_set(r->err, INFER_FORMAT, "%s: operations[%zu].%s: %s", r->name, r->i, key, what);
}

static infer_status read_int(const reading *r, const json_t *o, const char *key, int64_t max,
                             bool required, int64_t *out)
{
    const json_t *v = json_object_get(o, key);
    if ((!v || json_is_null(v)) && !required) return INFER_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)
        return bad(r, key, v ? "expected an integer in range" : "missing");
    *out = json_integer_value(v);
    return INFER_OK;
}

static infer_status read_text(const reading *r, const json_t *o, const char *key, bool required,
                              char **out)
{
    const json_t *v = json_object_get(o, key);
    if ((!v || json_is_null(v)) && !required) return INFER_OK;
    if (!json_is_string(v)) return bad(r, key, v ? "expected a string" : "missing");
    *out = mem_strdup(json_string_value(v));
    return *out ? INFER_OK : error_set(r->err, INFER_NOMEM, "%s: out of memory", r->name);
}

static infer_status read_vector(const reading *r, const json_t *o, const char *key, bool required,
                                float **out)
{
    const json_t *v = json_object_get(o, key);
    const char *why;
    if ((!v || json_is_null(v)) && !required) return INFER_OK;
    if (!json_is_string(v)) return bad(r, key, v ? "expected a string" : "missing");
    *out = from_base64(json_string_value(v), r->p->base->d_model, &why);
    return *out ? INFER_OK : bad(r, key, why);
}

static infer_status read_number(const reading *r, const json_t *o, const char *key, bool *has,
                                float *out)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return INFER_OK;
    if (!json_is_number(v) || !isfinite((float)json_number_value(v)))
        return bad(r, key, "expected a finite number");
    *has = true;
    *out = (float)json_number_value(v);
    return INFER_OK;
}

static infer_status read_meta(const reading *r, const json_t *o, patch_op *op)
{
    const json_t *m = json_object_get(o, "down_meta");
    int64_t id = op->token;
    if (!m || json_is_null(m)) return INFER_OK;
    if (!json_is_object(m)) return bad(r, "down_meta", "expected an object");
    infer_status st = read_int(r, m, "i", INT32_MAX, true, &id);
    if (!st) st = read_number(r, m, "c", &op->has_meta, &op->score);
    op->has_meta = true;
    op->token = (int32_t)id;
    if (!st && !op->target) st = read_text(r, m, "t", false, &op->target);
    return st;
}

static infer_status read_op(const reading *r, const json_t *o, patch_op *op)
{
    const char *name = json_string_value(json_object_get(o, "op"));
    int64_t layer = 0, feature = 0, id = 0;
    int k = 0;
    while (name && k < COUNT_OF(kinds) && strcmp(name, kinds[k].name))
        k++;
    if (!name || k == COUNT_OF(kinds))
        return bad(r, "op", name ? "is not known" : "expected a string");
    op->kind = kinds[k].kind;
    bool inserts = op->kind == PATCH_INSERT, knn = op->kind == PATCH_INSERT_KNN;
    infer_status st = INFER_OK;
    if (op->kind == PATCH_DELETE_KNN) return read_text(r, o, "entity", true, &op->entity);
    st = read_int(r, o, "layer", r->p->base->n_layers - 1, true, &layer);
    if (!st && !knn) st = read_int(r, o, "feature", INT32_MAX, true, &feature);
    if (!st) st = read_text(r, o, "entity", inserts || knn, &op->entity);
    if (!st) st = read_text(r, o, "relation", knn, &op->relation);
    if (!st) st = read_text(r, o, "target", inserts || knn, &op->target);
    if (!st) st = read_text(r, o, "reason", false, &op->reason);
    if (!st) st = read_int(r, o, "target_id", INT32_MAX, knn, &id);
    if (!st) st = read_number(r, o, "confidence", &op->has_confidence, &op->confidence);
    if (!st && knn) st = read_vector(r, o, "key_vector_b64", true, &op->gate);
    if (!st && !knn) st = read_vector(r, o, "gate_vector_b64", false, &op->gate);
    if (!st) st = read_vector(r, o, "up_vector_b64", false, &op->up);
    if (!st) st = read_vector(r, o, "down_vector_b64", false, &op->down);
    op->layer = (int)layer;
    op->feature = (int)feature;
    op->token = (int32_t)id;
    return st ? st : read_meta(r, o, op);
}

infer_status patch_from_json(infer_patch *p, const char *name, const json_t *json, infer_error *err)
{
    const json_t *ops = json_object_get(json, "operations");
    const json_t *version = json_object_get(json, "version");
    if (!json_is_object(json)) return error_set(err, INFER_FORMAT, "%s: expected an object", name);
    if (!json_is_integer(version) || json_integer_value(version) != VERSION)
        return error_set(err, INFER_FORMAT, "%s: version: expected %d", name, VERSION);
    if (!json_is_array(ops))
        return error_set(err, INFER_FORMAT, "%s: operations: expected a list", name);
    infer_patch *read = infer_patch_new(p->base, err); // first aside: all or nothing
    infer_status st = read ? INFER_OK : INFER_NOMEM;
    reading r = { p, name, 0, err };
    for (r.i = 0; !st && r.i < json_array_size(ops); r.i++) {
        patch_op op = { 0 };
        st = read_op(&r, json_array_get(ops, r.i), &op);
        if (st)
            patch_op_free(&op);
        else if ((st = patch_add(read, &op, err)))
            error_prefix(err, "%s: operations[%zu]", name, r.i);
    }
    int n = infer_patch_n_operations(p);
    if (!st && (st = infer_patch_stack(p, read, INFER_CONFLICT_LAST, err)))
        infer_patch_truncate(p, n);
    infer_patch_free(read);
    return st ? st : error_clear(err);
}

infer_status infer_patch_load(infer_patch *p, const char *path, infer_error *err)
{
    char *text;
    size_t n;
    infer_status st = file_read(path, MAX_FILE, &text, &n, err);
    if (st) return st;
    json_error_t why;
    json_t *json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    mem_free(text);
    st = json ? patch_from_json(p, path, json, err)
              : error_set(err, INFER_FORMAT, "%s: line %d: %s", path, why.line, why.text);
    json_decref(json);
    return st;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_vector(json_t *o, const char *key, const float *x, int n)
{
    char *text = x ? to_base64(x, n) : NULL;
    json_object_set_new(o, key, text ? json_string(text) : json_null());
    mem_free(text);
}

static void put_text(json_t *o, const char *key, const char *s)
{
    json_object_set_new(o, key, s ? json_string(s) : json_null());
}

static json_t *op_to_json(const infer_patch *p, const patch_op *op)
{
    int d = p->base->d_model;
    json_t *o = json_pack("{s:s}", "op", kinds[op->kind].name);
    if (!o) return NULL;
    if (op->kind == PATCH_DELETE_KNN) {
        put_text(o, "entity", op->entity);
        return o;
    }
    json_object_set_new(o, "layer", json_integer(op->layer));
    if (op->kind != PATCH_INSERT_KNN) json_object_set_new(o, "feature", json_integer(op->feature));
    if (op->kind == PATCH_DELETE) {
        put_text(o, "reason", op->reason);
        return o;
    }
    if (op->kind != PATCH_UPDATE || op->entity) put_text(o, "entity", op->entity ? op->entity : "");
    if (op->kind != PATCH_UPDATE || op->relation) put_text(o, "relation", op->relation);
    if (op->kind != PATCH_UPDATE || op->target) put_text(o, "target", op->target ? op->target : "");
    if (op->has_confidence) json_object_set_new(o, "confidence", json_real((double)op->confidence));
    if (op->kind == PATCH_INSERT_KNN) {
        json_object_set_new(o, "target_id", json_integer(op->token));
        put_vector(o, "key_vector_b64", op->gate, d);
        return o;
    }
    put_vector(o, "gate_vector_b64", op->gate, d);
    put_vector(o, "up_vector_b64", op->up, d);
    put_vector(o, "down_vector_b64", op->down, d);
    json_object_set_new(o, "down_meta",
                        op->has_meta
                            ? json_pack("{s:s, s:i, s:f}", "t", op->target ? op->target : "", "i",
                                        (int)op->token, "c", (double)op->score)
                            : json_null());
    return o;
}

json_t *patch_to_json(const infer_patch *p)
{
    char date[32] = "";
    time_t t = time(NULL);
    struct tm utc;
    if (gmtime_r(&t, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *ops = json_array();
    bool ok = ops != NULL;
    for (size_t i = 0; ok && i < p->n_ops; i++)
        ok = !json_array_append_new(ops, op_to_json(p, &p->ops[i]));
    if (!ok) {
        json_decref(ops);
        return NULL;
    }
    return json_pack("{s:i, s:s, s:n, s:s, s:n, s:n, s:[], s:o}", "version", VERSION, "base_model",
                     infer_vindex_describe_index(p->base).model, "base_checksum", "created_at",
                     date, "description", "author", "tags", "operations", ops);
}

infer_status infer_patch_save(const infer_patch *p, const char *path, infer_error *err)
{
    json_t *json = patch_to_json(p);
    atomic_file f;
    infer_status st =
        json ? atomic_open(&f, path, err) : error_set(err, INFER_NOMEM, "%s: out of memory", path);
    if (!st &&
        (json_dumpf(json, f.f, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) || fputc('\n', f.f) < 0)) {
        atomic_abandon(&f);
        st = error_set(err, INFER_IO, "%s: writing failed", path);
    } else if (!st) {
        st = atomic_commit(&f, err);
    }
    json_decref(json);
    return st ? st : error_clear(err);
}
