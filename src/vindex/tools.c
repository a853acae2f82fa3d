/*
 * tools.c: what is done to a finished index: its checksums, gates as float32, and rows by feature
 * of the up and down matrices. A file appears by one rename; where two must change together, a
 * folder of links to the others takes the index's place in one step.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/mem.h"
#include "base/sha.h"
#include "models/vindex_dir.h"
#include "vindex/encode.h"
#include "vindex/vindex.h"

#define PIECE ((size_t)16 << 20) // bytes of a file read at once
#define TILE 256                 // features turned at once: whole blocks of every format

/* ---- checksums ------------------------------------------------------------------------------- */

static infer_status sha_of(char hex[65], const char *path, infer_error *err)
{
    file_map m;
    infer_status st = map_open(&m, path, NULL, NULL, err);
    if (st) return st;
    sha_state s;
    sha256_init(&s);
    for (size_t at = 0; at < m.size; at += PIECE) {
        size_t n = m.size - at < PIECE ? m.size - at : PIECE;
        sha_add(&s, m.data + at, n);
        map_release(&m, m.data + at, n);
    }
    sha_end(&s, hex);
    if (map_broken(&m)) st = error_set(err, INFER_IO, "%s: it shrank while it was read", path);
    map_close(&m);
    return st;
}

static infer_status verify_file(arena *mem, const vindex_dir *d, const char *name,
                                const json_t *sum, infer_error *err)
{
    char hex[65], *path = arena_printf(mem, "%s/%s", d->path, name);
    if (!path) return error_set(err, INFER_NOMEM, "%s: out of memory", d->path);
    if (!json_is_string(sum) || strchr(name, '/') || name[0] == '.')
        return vindex_stale(d, err, "index.json", "checksums: '%.60s': expected a file's digest",
                            name);
    if (!file_exists(path))
        return vindex_stale(d, err, name, "it has a checksum in index.json and is not there");
    infer_status st = sha_of(hex, path, err);
    if (!st && strcmp(hex, json_string_value(sum)))
        st = vindex_stale(d, err, name, "SHA-256 %.16s…, expected %.16s…: the file was changed",
                          hex, json_string_value(sum));
    return st;
}

infer_status infer_vindex_verify(const char *path, infer_error *err)
{
    infer_error own;
    infer_vindex *v;
    if (!err) err = &own;
    infer_status st = infer_vindex_open(&v, path, NULL, err); // sizes and shapes
    if (st) return st;
    const json_t *sums = json_object_get(v->dir->index, "checksums");
    arena mem = { 0 };
    const char *name;
    json_t *sum;
    if (!json_is_object(sums) || !json_object_size(sums))
        st = error_set(err, INFER_NOT_FOUND, "%s/index.json: no checksums to verify by", path);
    else
        json_object_foreach((json_t *)sums, name, sum)
        {
            st = verify_file(&mem, v->dir, name, sum, err);
            if (st) break;
        }
    arena_free(&mem);
    infer_vindex_close(v);
    return st ? st : error_clear(err);
}

/* ---- index.json ------------------------------------------------------------------------------ */

static infer_status write_index(const char *folder, const json_t *index, infer_error *err)
{
    char path[4096];
    atomic_file f;
    snprintf(path, sizeof path, "%s/index.json", folder);
    infer_status st = atomic_open(&f, path, err);
    if (st) return st;
    if (json_dumpf(index, f.f, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) || fputc('\n', f.f) < 0) {
        atomic_abandon(&f);
        return error_set(err, INFER_IO, "%s: writing failed", path);
    }
    return atomic_commit(&f, err);
}

/* Puts the file's digest among the checksums, where there are any. */
static infer_status sum_file(json_t *index, const char *folder, const char *name, infer_error *err)
{
    char path[4096], hex[65];
    json_t *sums = json_object_get(index, "checksums");
    if (!json_is_object(sums)) return INFER_OK;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    infer_status st = sha_of(hex, path, err);
    if (!st && json_object_set_new(sums, name, json_string(hex)))
        st = error_set(err, INFER_NOMEM, "%s: out of memory", folder);
    return st;
}

/* ---- rows by feature ------------------------------------------------------------------------- */

typedef struct feature_file {
    FILE *f;
    bool half;
} feature_file;

static void put_values(const feature_file *to, const float *x, size_t n)
{
    uint16_t part[512];
    if (!to->half) {
        fwrite(x, sizeof *x, n, to->f);
        return;
    }
    for (size_t i = 0, m; i < n; i += m) {
        m = n - i < COUNT_OF(part) ? n - i : COUNT_OF(part);
        for (size_t k = 0; k < m; k++)
            part[k] = vindex_half(x[i + k]);
        fwrite(part, sizeof *part, m, to->f);
    }
}

static infer_status put_rows(const feature_file *to, const tensor *t, int d_model, infer_error *err)
{
    float *row = mem_alloc((size_t)t->n_cols, sizeof *row);
    if (!row) return error_set(err, INFER_NOMEM, "features: out of memory");
    for (int r = 0; r < t->n_rows; r++) {
        tensor_row(row, t, r);
        put_values(to, row, (size_t)d_model);
    }
    mem_free(row);
    return INFER_OK;
}

/* Columns of a matrix [d_model, n] as rows. */
static infer_status put_columns(const feature_file *to, const tensor *t, int n, infer_error *err)
{
    size_t d = (size_t)t->n_rows;
    const quant_format *q = quant_formats[t->type];
    float *tile = mem_alloc(TILE * d, sizeof *tile), part[TILE];
    if (!tile) return error_set(err, INFER_NOMEM, "features: out of memory");
    for (int first = 0; first < n; first += TILE) {
        int stored = t->n_cols - first < TILE ? t->n_cols - first : TILE;
        int wanted = n - first < TILE ? n - first : TILE;
        size_t at = (size_t)(first / q->block_size) * (size_t)q->block_bytes;
        for (size_t r = 0; r < d; r++) {
            q->dequant(part, t->data + r * t->row_bytes + at, (size_t)stored);
            for (int c = 0; c < wanted; c++)
                tile[(size_t)c * d + r] = part[c];
        }
        put_values(to, tile, (size_t)wanted * d);
    }
    mem_free(tile);
    return INFER_OK;
}

static infer_status put_layer(const feature_file *to, const infer_vindex *v, int layer, bool down,
                              infer_error *err)
{
    const vindex_layer *x = &v->layers[layer];
    const tensor *up = tensor_present(&x->up) || v->gated ? &x->up : &x->gate;
    if (!x->n_features) return INFER_OK;
    if (!tensor_present(down ? &x->down : up))
        return error_set(err, INFER_NOT_FOUND,
                         "%s: layer %d has no %s matrix: make the index again with 'infer extract "
                         "--level inference'",
                         v->path, layer, down ? "down" : "up");
    if (!down) return put_rows(to, up, v->d_model, err);
    int slices = x->n_experts ? x->n_experts : 1,
        per = x->n_experts ? x->per_expert : x->n_features;
    infer_status st = INFER_OK;
    for (int s = 0; s < slices && !st; s++) {
        tensor one = tensor_slice(&x->down, s);
        st = put_columns(to, &one, per, err);
    }
    return st;
}

infer_status infer_vindex_build_features(const char *path, bool down, const char *type_name,
                                         infer_error *err)
{
    infer_error own;
    infer_vindex *v;
    atomic_file f;
    if (!err) err = &own;
    const char *name = down ? "down_features.bin" : "up_features.bin";
    bool half = type_name && !strcmp(type_name, "f16");
    if (!half && type_name && strcmp(type_name, "f32"))
        return error_set(err, INFER_ARGUMENT, "dtype '%s': expected f32 or f16", type_name);
    infer_status st = infer_vindex_open(&v, path, NULL, err);
    if (st) return st;
    char *full = arena_printf(&v->mem, "%s/%s", path, name);
    st = full ? atomic_open(&f, full, err) : error_set(err, INFER_NOMEM, "%s: out of memory", path);
    if (!st) {
        for (int l = 0; l < v->n_layers && !st; l++)
            st = put_layer(&(feature_file){ f.f, half }, v, l, down, err);
        if (st)
            atomic_abandon(&f);
        else
            st = atomic_commit(&f, err);
    }
    if (!st) st = sum_file(v->dir->index, path, name, err);
    if (!st) st = write_index(path, v->dir->index, err);
    infer_vindex_close(v);
    return st ? st : error_clear(err);
}

/* ---- gates as float32 ------------------------------------------------------------------------ */

/* Files of float that have no size to tell their type by: they follow index.json's dtype. */
static infer_status widen(const char *from, const char *to, infer_error *err)
{
    file_map m;
    atomic_file f;
    float out[4096];
    infer_status st = map_open(&m, from, NULL, NULL, err);
    if (st) return st;
    st = atomic_open(&f, to, err);
    for (size_t at = 0, n = m.size / 2; !st && at < n; at += COUNT_OF(out)) {
        size_t k = n - at < COUNT_OF(out) ? n - at : COUNT_OF(out);
        quant_formats[DT_F16]->dequant(out, m.data + 2 * at, k);
        fwrite(out, sizeof *out, k, f.f);
    }
    map_close(&m);
    return st ? st : atomic_commit(&f, err);
}

/* A folder of links to the files of `path`, one level of folders deep. */
static infer_status link_folder(arena *mem, const char *path, const char *to, int depth,
                                infer_error *err)
{
    if (mkdir(to, 0755)) return error_set(err, INFER_IO, "%s: %s", to, strerror(errno));
    DIR *d = opendir(path);
    if (!d) return error_set(err, INFER_IO, "%s: %s", path, strerror(errno));
    infer_status st = INFER_OK;
    for (struct dirent *e; !st && (e = readdir(d));) {
        struct stat s;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *a = arena_printf(mem, "%s/%s", path, e->d_name);
        char *b = arena_printf(mem, "%s/%s", to, e->d_name);
        if (!a || !b)
            st = error_set(err, INFER_NOMEM, "%s: out of memory", path);
        else if (stat(a, &s))
            st = error_set(err, INFER_IO, "%s: %s", a, strerror(errno));
        else if (S_ISDIR(s.st_mode) && depth)
            st = link_folder(mem, a, b, depth - 1, err);
        else if (S_ISREG(s.st_mode) && link(a, b))
            st = error_set(err, INFER_IO, "%s: it cannot be linked to: %s", a, strerror(errno));
    }
    closedir(d);
    return st;
}

static infer_status set_gates_f32(vindex_dir *d, infer_error *err)
{
    json_t *list = json_object_get(d->index, "layers"), *row;
    size_t i;
    bool ok = !json_object_set_new(d->index, "dtype", json_string("f32"));
    json_array_foreach(list, i, row)
    {
        json_int_t offset = json_integer_value(json_object_get(row, "offset"));
        json_int_t length = json_integer_value(json_object_get(row, "length"));
        ok = ok && !json_object_set_new(row, "offset", json_integer(2 * offset)) &&
             !json_object_set_new(row, "length", json_integer(2 * length));
    }
    return ok ? INFER_OK : error_set(err, INFER_NOMEM, "%s: out of memory", d->path);
}

static infer_status make_f32(arena *mem, vindex_dir *d, const char *work, infer_error *err)
{
    static const char *const files[] = { "gate_vectors.bin", "router_weights.bin" };
    infer_status st = set_gates_f32(d, err);
    for (int i = 0; i < COUNT_OF(files) && !st; i++) {
        char *from = arena_printf(mem, "%s/%s", d->path, files[i]);
        char *to = arena_printf(mem, "%s/%s", work, files[i]);
        if (!from || !to) return error_set(err, INFER_NOMEM, "%s: out of memory", d->path);
        if (!file_exists(from)) continue;
        st = widen(from, to, err);
        if (!st) st = sum_file(d->index, work, files[i], err);
    }
    return st ? st : write_index(work, d->index, err);
}

infer_status infer_vindex_gates_to_f32(const char *path, infer_error *err)
{
    infer_error own;
    infer_vindex *v;
    arena mem = { 0 };
    if (!err) err = &own;
    infer_status st = infer_vindex_open(&v, path, NULL, err);
    if (st) return st;
    if (v->dir->type == DT_F32) {
        infer_vindex_close(v);
        return error_clear(err);
    }
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    char *work = arena_printf(&mem, "%.*s.%d.tmp", (int)n, path, (int)getpid());
    st = work ? link_folder(&mem, path, work, 1, err)
              : error_set(err, INFER_NOMEM, "%s: out of memory", path);
    if (!st) st = make_f32(&mem, v->dir, work, err);
    if (!st) st = folder_replace(work, path, err);
    if (st && work && dir_exists(work)) folder_remove(work, NULL);
    infer_vindex_close(v);
    arena_free(&mem);
    return st ? st : error_clear(err);
}
