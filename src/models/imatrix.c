/*
 * imatrix.c: both formats become one table of names and float32 means. Counts of the file are
 * compared with the bytes left before they size anything.
 */
#include "models/imatrix.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "models/gguf.h"
#include "models/names.h"

#define MAX_NAME 1024

typedef struct entry {
    float *v;
    size_t n;
} entry;

struct imatrix {
    arena mem;
    entry *entries;
    size_t n, cap;
    name_index names;
    int n_chunks;
};

static infer_status add(imatrix *m, float **v, const char *name, size_t n_name, size_t n,
                        const char *path, infer_error *err)
{
    int old;
    infer_status s = mem_reserve((void **)&m->entries, &m->cap, m->n + 1, sizeof(*m->entries), err);
    if (s != INFER_OK) return s;
    const char *copy = arena_strndup(&m->mem, name, n_name);
    *v = arena_alloc(&m->mem, n, sizeof(float));
    if (!copy || !*v) return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    s = names_add(&m->names, copy, n_name, (int)m->n, &old);
    if (s == INFER_FORMAT)
        return error_set(err, s, "%s: tensor '%.*s' occurs twice", path, (int)n_name, name);
    if (s != INFER_OK) return error_set(err, s, "%s: out of memory", path);
    m->entries[m->n++] = (entry){ *v, n };
    return INFER_OK;
}

static infer_status check(const float *v, size_t n, const char *name, size_t n_name,
                          const char *path, infer_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!(isfinite(v[i]) && v[i] >= 0))
            return error_set(err, INFER_FORMAT,
                             "%s: tensor '%.*s': value %zu is %g, expected a finite number of at "
                             "least 0",
                             path, (int)n_name, name, i, (double)v[i]);
    return INFER_OK;
}

/* ---- binary ---------------------------------------------------------------------------------- */

typedef struct cursor {
    const uint8_t *p;
    size_t left;
    const char *path;
    infer_error *err;
} cursor;

static infer_status ends_in(const cursor *c, const char *what)
{
    return error_set(c->err, INFER_FORMAT, "%s: file ends in %s", c->path, what);
}

/* An i32 of at least min. */
static infer_status number(cursor *c, size_t *out, int min, size_t max, const char *what)
{
    if (c->left < 4) return ends_in(c, what);
    uint32_t u =
        c->p[0] | (uint32_t)c->p[1] << 8 | (uint32_t)c->p[2] << 16 | (uint32_t)c->p[3] << 24;
    int32_t v = (int32_t)u;
    c->p += 4;
    c->left -= 4;
    if (v < min || (uint64_t)v > max)
        return error_set(c->err, INFER_FORMAT,
                         "%s: %s is %" PRId32 ", expected %d to %zu (not an importance matrix?)",
                         c->path, what, v, min, max);
    *out = (size_t)v;
    return INFER_OK;
}

static infer_status binary_entry(imatrix *m, cursor *c)
{
    size_t n_name, calls, n;
    infer_status s = number(c, &n_name, 1, MAX_NAME, "a name's length");
    if (s != INFER_OK) return s;
    if (n_name > c->left) return ends_in(c, "a name");
    const char *name = (const char *)c->p;
    c->p += n_name;
    c->left -= n_name;
    if ((s = number(c, &calls, 0, INT32_MAX, "a number of calls")) != INFER_OK) return s;
    if ((s = number(c, &n, 1, INT32_MAX, "a number of values")) != INFER_OK) return s;
    if (n > c->left / 4) return ends_in(c, "an entry's values");
    float *v;
    if ((s = add(m, &v, name, n_name, n, c->path, c->err)) != INFER_OK) return s;
    memcpy(v, c->p, n * 4);
    c->p += n * 4;
    c->left -= n * 4;
    for (size_t i = 0; calls > 0 && i < n; i++)
        v[i] /= (float)calls;
    return check(v, n, name, n_name, c->path, c->err);
}

infer_status imatrix_parse(imatrix **out, const uint8_t *data, size_t size, const char *path,
                           infer_error *err)
{
    cursor c = { data, size, path, err };
    size_t n, chunks = 0;
    *out = NULL;
    infer_status s = number(&c, &n, 1, size / 16, "the number of entries");
    if (s != INFER_OK) return s;
    imatrix *m = mem_zero(1, sizeof(*m));
    if (!m) return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    for (size_t i = 0; s == INFER_OK && i < n; i++)
        s = binary_entry(m, &c);
    if (s == INFER_OK && c.left >= 4) s = number(&c, &chunks, 0, INT32_MAX, "the number of chunks");
    m->n_chunks = (int)chunks;
    if (s != INFER_OK) {
        imatrix_close(m);
        return s;
    }
    *out = m;
    return error_clear(err);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static float value_at(const gguf_tensor *t, size_t i)
{
    float f;
    memcpy(&f, t->data + 4 * i, 4);
    return f;
}

/* Sums of one tensor [n_slices, n] and how many inputs each slice had. */
static infer_status gguf_entry(imatrix *m, const gguf *g, const gguf_tensor *sums, size_t n_name,
                               const char *path, infer_error *err)
{
    char counts_name[MAX_NAME + 16];
    const char *name = sums->name.s;
    memcpy(counts_name, name, n_name);
    strcpy(counts_name + n_name, ".counts");
    const gguf_tensor *counts = gguf_find_tensor(g, counts_name);
    if (!counts) return error_set(err, INFER_FORMAT, "%s: tensor '%s' missing", path, counts_name);
    if (sums->type != DT_F32 || counts->type != DT_F32)
        return error_set(err, INFER_FORMAT, "%s: tensor '%.*s': expected f32 sums and counts", path,
                         (int)n_name, name);
    size_t total = (size_t)(sums->bytes / 4), n_counts = (size_t)(counts->bytes / 4);
    if (n_counts == 0 || total % n_counts || total / n_counts != (size_t)sums->dims[0])
        return error_set(err, INFER_FORMAT,
                         "%s: tensor '%.*s': %zu sums in rows of %" PRId64 ", but %zu counts", path,
                         (int)n_name, name, total, sums->dims[0], n_counts);
    float *v;
    infer_status s = add(m, &v, name, n_name, total, path, err);
    if (s != INFER_OK) return s;
    for (size_t i = 0; i < total; i++) {
        float count = value_at(counts, i / (size_t)sums->dims[0]);
        v[i] = count > 0 ? value_at(sums, i) / count : 1; // an expert that was never chosen
    }
    return check(v, total, name, n_name, path, err);
}

static infer_status from_gguf(imatrix *m, const char *path, infer_error *err)
{
    static const char ending[] = ".in_sum2";
    const size_t n_ending = sizeof(ending) - 1;
    gguf *g;
    int64_t chunks = 0;
    infer_status s = gguf_open(&g, path, NULL, NULL, err);
    if (s != INFER_OK) return s;
    for (int i = 0; s == INFER_OK && i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        if (t->name.n <= n_ending || t->name.n > MAX_NAME) continue;
        size_t n = t->name.n - n_ending;
        if (memcmp(t->name.s + n, ending, n_ending) == 0) s = gguf_entry(m, g, t, n, path, err);
    }
    if (s == INFER_OK) s = gguf_int(g, "imatrix.chunk_count", &chunks, NULL, err);
    if (s == INFER_OK && m->n == 0)
        s = error_set(err, INFER_FORMAT,
                      "%s: no tensor NAME.in_sum2: this GGUF file is no importance matrix", path);
    m->n_chunks = chunks > 0 && chunks <= INT32_MAX ? (int)chunks : 0;
    gguf_close(g);
    return s;
}

/* ---- both ------------------------------------------------------------------------------------ */

infer_status imatrix_open(imatrix **out, const char *path, infer_error *err)
{
    file_map map;
    *out = NULL;
    infer_status s = map_open(&map, path, NULL, NULL, err);
    if (s != INFER_OK) return s;
    bool is_gguf = map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0;
    if (!is_gguf) {
        s = imatrix_parse(out, map.data, map.size, path, err);
        map_close(&map);
        return s;
    }
    map_close(&map);
    imatrix *m = mem_zero(1, sizeof(*m));
    s = m ? from_gguf(m, path, err) : error_set(err, INFER_NOMEM, "%s: out of memory", path);
    if (s != INFER_OK) {
        imatrix_close(m);
        return s;
    }
    *out = m;
    return error_clear(err);
}

void imatrix_close(imatrix *m)
{
    if (!m) return;
    mem_free(m->entries);
    names_free(&m->names);
    arena_free(&m->mem);
    mem_free(m);
}

const float *imatrix_find(const imatrix *m, const char *name, size_t *n)
{
    int i = names_find(&m->names, name, strlen(name));
    if (i < 0) return NULL;
    *n = m->entries[i].n;
    return m->entries[i].v;
}

int imatrix_n_entries(const imatrix *m) { return (int)m->n; }
int imatrix_n_chunks(const imatrix *m) { return m->n_chunks; }
