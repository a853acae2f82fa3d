/*
 * compile.c: a patch baked into a new vindex. Files that no edit touches are hard links to the
 * base's (copies where the file system has none); the others are copied, and the edited rows and
 * columns written into the copies. The folder appears by one rename; the base is only read.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/mem.h"
#include "base/sha.h"
#include "models/vindex_side.h"
#include "vindex/encode.h"
#include "vindex/facts.h"
#include "vindex/patch.h"

#define MAX_TOUCHED 16

typedef struct touched {
    const file_map *map;
    const char *name;
    int fd;
} touched;

typedef struct compilation {
    const infer_patch *p;
    const infer_vindex *v;
    char *out, *work;
    touched files[MAX_TOUCHED];
    int n_files;
    arena mem;
    infer_error *err;
} compilation;

static infer_status no_memory(const compilation *c)
{
    return error_set(c->err, INFER_NOMEM, "compile: out of memory");
}

static infer_status io_error(const compilation *c, const char *name)
{
    return error_set(c->err, INFER_IO, "%s/%s: %s", c->work, name, strerror(errno));
}

/* ---- files ----------------------------------------------------------------------------------- */

static infer_status copy_bytes(const compilation *c, const char *name, int *out)
{
    char *from = arena_printf((arena *)&c->mem, "%s/%s", c->v->path, name);
    char *to = arena_printf((arena *)&c->mem, "%s/%s", c->work, name), *buffer;
    if (!from || !to || !(buffer = mem_alloc(1 << 20, 1))) return no_memory(c);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int fd = open(to, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool ok = in >= 0 && fd >= 0;
    while (ok) {
        ssize_t n = read(in, buffer, 1 << 20);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            ok = n == 0;
            break;
        }
        for (ssize_t done = 0, k; ok && done < n; done += k)
            ok = (k = write(fd, buffer + done, (size_t)(n - done))) > 0;
    }
    mem_free(buffer);
    infer_status st = ok ? INFER_OK : io_error(c, name);
    if (in >= 0) close(in);
    if (ok && out) {
        *out = fd;
        return INFER_OK;
    }
    if (fd >= 0 && fsync(fd) && ok) st = io_error(c, name);
    if (fd >= 0) close(fd);
    return st;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The copy of the file that holds these bytes, and where they are in it. */
static infer_status place_of(compilation *c, const void *data, int *fd, uint64_t *offset,
                             const char **name)
{
    const vindex_dir *d = c->v->dir;
    for (int i = 0; i < d->n_maps; i++) {
        const file_map *m = &d->maps[i];
        uintptr_t at = (uintptr_t)data, lo = (uintptr_t)m->data;
        if (at < lo || at >= lo + m->size) continue;
        *offset = at - lo;
        *name = base_name(m->path);
        for (int k = 0; k < c->n_files; k++)
            if (c->files[k].map == m) {
                *fd = c->files[k].fd;
                return INFER_OK;
            }
        if (c->n_files == MAX_TOUCHED) break;
        infer_status st = copy_bytes(c, *name, fd);
        if (!st) c->files[c->n_files++] = (touched){ m, *name, *fd };
        return st;
    }
    return error_set(c->err, INFER_INTERNAL, "compile: a matrix lies in no file");
}

static bool is_touched(const compilation *c, const char *name)
{
    for (int k = 0; k < c->n_files; k++)
        if (!strcmp(c->files[k].name, name)) return true;
    return false;
}

static infer_status put(const compilation *c, int fd, const char *name, const void *data, size_t n,
                        uint64_t at)
{
    const uint8_t *p = data;
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return io_error(c, name);
        p += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return INFER_OK;
}

/* ---- rows and columns ------------------------------------------------------------------------ */

static infer_status encode(const compilation *c, uint8_t *to, const float *x, int n, dtype type,
                           const char *name)
{
    if (type == DT_F32) {
        memcpy(to, x, (size_t)n * 4);
    } else if (type == DT_F16) {
        for (int i = 0; i < n; i++) {
            uint16_t h = vindex_half(x[i]);
            memcpy(to + 2 * i, &h, 2);
        }
    } else {
        return error_set(c->err, INFER_UNSUPPORTED,
                         "compile: %s is stored as %s: edits are baked into f32 and f16 files only",
                         name, quant_formats[type]->name);
    }
    return INFER_OK;
}

static infer_status put_row(compilation *c, const tensor *t, int row, const float *x)
{
    int fd = -1, d = c->v->d_model;
    uint64_t at = 0;
    const char *name = "";
    if (!tensor_present(t) || !x) return INFER_OK;
    uint8_t *bytes = mem_alloc((size_t)d, 4);
    if (!bytes) return no_memory(c);
    infer_status st = encode(c, bytes, x, d, t->type, t->name);
    if (!st) st = place_of(c, t->data + (size_t)row * t->row_bytes, &fd, &at, &name);
    if (!st) st = put(c, fd, name, bytes, quant_row_bytes(t->type, (size_t)d), at);
    mem_free(bytes);
    return st;
}

/* Feature f's column of the down matrix, experts one after another. */
static infer_status put_column(compilation *c, const vindex_layer *l, int f, const float *x)
{
    const tensor *t = &l->down;
    int fd = -1, d = c->v->d_model;
    uint64_t at = 0;
    const char *name = "";
    if (!tensor_present(t) || !x) return INFER_OK;
    uint8_t bytes[4];
    int slice = l->n_experts ? f / l->per_expert : 0, column = l->n_experts ? f % l->per_expert : f;
    size_t size = quant_row_bytes(t->type, 1);
    infer_status st = INFER_OK;
    for (int r = 0; r < d && !st; r++) {
        st = encode(c, bytes, x + r, 1, t->type, t->name);
        const uint8_t *p = t->data + ((size_t)slice * (size_t)d + (size_t)r) * t->row_bytes +
                           (size_t)column * size;
        if (!st) st = place_of(c, p, &fd, &at, &name);
        if (!st) st = put(c, fd, name, bytes, size, at);
    }
    return st;
}

static infer_status put_meta(compilation *c, int layer, const patch_feature *f)
{
    const vindex_layer *l = &c->v->layers[layer];
    size_t size = 8 + 8 * (size_t)c->v->top_k;
    if (!l->meta || f->feature >= l->n_meta) return INFER_OK;
    if (f->token < 0 && !f->deleted) return INFER_OK;
    uint8_t *record = mem_zero(size, 1);
    if (!record) return no_memory(c);
    if (!f->deleted) {
        memcpy(record, &f->token, 4);
        memcpy(record + 4, &f->confidence, 4);
        if (c->v->top_k) memcpy(record + 8, record, 8);
    }
    int fd = -1;
    uint64_t at = 0;
    const char *name = "";
    infer_status st = place_of(c, l->meta + (size_t)f->feature * size, &fd, &at, &name);
    if (!st) st = put(c, fd, name, record, size, at);
    mem_free(record);
    return st;
}

static infer_status bake(compilation *c)
{
    int d = c->v->d_model;
    float *zeros = arena_zero(&c->mem, (size_t)d, sizeof *zeros);
    if (!zeros) return no_memory(c);
    for (int l = 0; l < c->v->n_layers; l++) {
        const vindex_layer *x = &c->v->layers[l];
        const patch_feature *f;
        int n = patch_layer(c->p, l, &f);
        for (int i = 0; i < n; i++, f++) {
            const float *gate = f->deleted ? zeros : f->gate;
            const float *down = f->deleted ? zeros : f->down;
            infer_status st = put_row(c, &x->gate, f->feature, gate);
            if (!st && !c->v->gated) st = put_row(c, &x->up, f->feature, gate);
            if (!st && c->v->gated) st = put_row(c, &x->up, f->feature, f->up);
            if (!st) st = put_column(c, x, f->feature, down);
            bool blocks = quant_formats[x->down_rows.type]->sub && tensor_present(&x->down);
            if (!st && !blocks) st = put_row(c, &x->down_rows, f->feature, down);
            if (!st) st = put_meta(c, l, f);
            if (st) return st;
        }
    }
    return INFER_OK;
}

/* ---- facts ----------------------------------------------------------------------------------- */

static infer_status write_facts(compilation *c)
{
    atomic_file a;
    if (!facts_count(c->v, c->p)) return INFER_OK;
    char *path = arena_printf(&c->mem, "%s/" FACTS_FILE, c->work);
    infer_status st = path ? atomic_open(&a, path, c->err) : no_memory(c);
    if (st) return st;
    st = facts_write(a.f, c->v, c->p, c->err);
    if (!st) return atomic_commit(&a, c->err);
    atomic_abandon(&a);
    return st;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Made of files that are there, and of other weights than the new ones. */
static bool is_stale(const compilation *c, const char *name)
{
    if (!strcmp(name, "hnsw.bin")) return true; // graphs of the old gates
    if (!strcmp(name, SIDE_GATES)) return vindex_dir_has(c->v->dir, "gate_vectors.bin");
    return !strncmp(name, "down_features_q4k", 17) && tensor_present(&c->v->layers[0].down);
}

static infer_status link_rest(compilation *c)
{
    DIR *dir = opendir(c->v->path);
    if (!dir) return error_set(c->err, INFER_IO, "%s: %s", c->v->path, strerror(errno));
    infer_status st = INFER_OK;
    for (struct dirent *e; !st && (e = readdir(dir));) {
        const char *name = e->d_name;
        if (name[0] == '.' || !strcmp(name, "index.json") || !strcmp(name, FACTS_FILE) ||
            is_touched(c, name))
            continue;
        char *from = arena_printf(&c->mem, "%s/%s", c->v->path, name);
        char *to = arena_printf(&c->mem, "%s/%s", c->work, name);
        struct stat s;
        if (!from || !to) {
            st = no_memory(c);
        } else if (stat(from, &s) || !S_ISREG(s.st_mode) || access(to, F_OK) == 0) {
            continue; // folders of layers have no edits to run from
        } else if (is_stale(c, name)) {
            continue;
        } else if (link(from, to)) {
            st = copy_bytes(c, name, NULL);
        }
    }
    closedir(dir);
    return st;
}

static infer_status write_index(compilation *c)
{
    json_t *index = json_deep_copy(c->v->dir->index), *sums;
    if (!index) return no_memory(c);
    // The manifests were hung on index.json while it is open.
    json_object_del(index, "weight_manifest.json");
    json_object_del(index, "interleaved_q4k_manifest.json");
    json_object_del(index, "attn_weights_q4k_manifest.json");
    json_object_del(index, "down_features_q4k_manifest.json");
    json_object_del(index, "ffn_layout"); // the float weights are there
    sums = json_object_get(index, "checksums");
    infer_status st = INFER_OK;
    for (int k = 0; k < c->n_files && !st && sums; k++) {
        if (!json_object_get(sums, c->files[k].name)) continue;
        char *path = arena_printf(&c->mem, "%s/%s", c->work, c->files[k].name), hex[65];
        file_map m;
        st = path ? map_open(&m, path, NULL, NULL, c->err) : no_memory(c);
        if (st) break;
        sha_state s;
        sha256_init(&s);
        sha_add(&s, m.data, m.size);
        sha_end(&s, hex);
        map_close(&m);
        json_object_set_new(sums, c->files[k].name, json_string(hex));
    }
    char *path = arena_printf(&c->mem, "%s/index.json", c->work);
    atomic_file a;
    if (!st) st = path ? atomic_open(&a, path, c->err) : no_memory(c);
    if (!st) {
        json_dumpf(index, a.f, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        fputc('\n', a.f);
        st = atomic_commit(&a, c->err);
    }
    json_decref(index);
    return st;
}

static infer_status run(compilation *c)
{
    size_t n = strlen(c->out);
    while (n > 1 && c->out[n - 1] == '/')
        c->out[--n] = 0;
    c->work = arena_printf(&c->mem, "%s.partial", c->out);
    if (!c->work) return no_memory(c);
    if (access(c->out, F_OK) == 0)
        return error_set(c->err, INFER_ARGUMENT, "%s: is there already", c->out);
    if (*c->v->dir->ffn_layout && !vindex_dir_has(c->v->dir, "up_weights.bin"))
        return error_set(c->err, INFER_UNSUPPORTED,
                         "compile: %s/layers: edits are baked into float files only: make the "
                         "index anew with 'infer extract --quant none'",
                         c->v->path);
    if (dir_exists(c->work) && folder_remove(c->work, c->err)) return c->err->code;
    if (mkdir(c->work, 0755))
        return error_set(c->err, INFER_IO, "%s: %s", c->work, strerror(errno));
    infer_status st = bake(c);
    if (!st) st = write_facts(c);
    for (int k = 0; k < c->n_files; k++) {
        if (!st && fsync(c->files[k].fd)) st = io_error(c, c->files[k].name);
        close(c->files[k].fd);
    }
    if (!st) st = link_rest(c);
    if (!st) st = write_index(c);
    if (!st) st = folder_replace(c->work, c->out, c->err);
    if (st) folder_remove(c->work, NULL);
    return st;
}

infer_status infer_patch_compile(const infer_patch *p, const char *out, infer_error *err)
{
    infer_error own;
    if (!err) err = &own;
    if (!p || !out) return error_set(err, INFER_ARGUMENT, "infer_patch_compile: NULL argument");
    compilation c = { .p = p, .v = p->base, .err = err };
    c.out = arena_strndup(&c.mem, out, strlen(out));
    infer_status st = c.out ? run(&c) : no_memory(&c);
    arena_free(&c.mem);
    return st ? st : error_clear(err);
}
