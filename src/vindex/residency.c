/*
 * residency.c: which layers stay in memory. A pinned layer's matrices are locked (mlock), within a
 * budget; the others are the system's to drop, and are dropped at once by a release.
 *
 * Ranges are cut to whole pages that belong to one layer alone, so that layers that share a page do
 * not lock or release each other's.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "models/vindex_dir.h"
#include "vindex/vindex.h"

typedef struct range {
    uintptr_t begin, end; // whole pages
} range;

/* The pages of a matrix; begin == end: none. */
static range pages_of(const tensor *t)
{
    long size = sysconf(_SC_PAGESIZE);
    uintptr_t page = size > 0 ? (uintptr_t)size : 4096;
    if (!tensor_present(t)) return (range){ 0, 0 };
    uintptr_t begin = ((uintptr_t)t->data + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)t->data + tensor_bytes(t)) & ~(page - 1);
    return begin < end ? (range){ begin, end } : (range){ 0, 0 };
}

enum { PARTS = 4 };
static void parts_of(const vindex_layer *x, range *r)
{
    r[0] = pages_of(&x->gate);
    r[1] = pages_of(&x->up);
    r[2] = pages_of(&x->down);
    r[3] = pages_of(&x->down_rows);
}

static uint64_t layer_bytes(const vindex_layer *x)
{
    range r[PARTS];
    uint64_t sum = 0;
    parts_of(x, r);
    for (int i = 0; i < PARTS; i++)
        sum += r[i].end - r[i].begin;
    return sum;
}

static void unpin(infer_vindex *v, int layer)
{
    vindex_layer *x = &v->layers[layer];
    range r[PARTS];
    if (!x->pinned) return;
    parts_of(x, r);
    for (int i = 0; i < PARTS; i++)
        if (r[i].begin < r[i].end) munlock((void *)r[i].begin, r[i].end - r[i].begin);
    x->pinned = false;
    v->pinned -= layer_bytes(x);
}

static infer_status pin(infer_vindex *v, int layer, infer_error *err)
{
    vindex_layer *x = &v->layers[layer];
    range r[PARTS];
    if (x->pinned) return INFER_OK;
    parts_of(x, r);
    for (int i = 0; i < PARTS; i++) {
        if (r[i].begin == r[i].end || mlock((void *)r[i].begin, r[i].end - r[i].begin) == 0)
            continue;
        int why = errno;
        while (i-- > 0)
            if (r[i].begin < r[i].end) munlock((void *)r[i].begin, r[i].end - r[i].begin);
        return error_set(err, INFER_LIMIT,
                         "%s: layer %d: cannot lock %llu bytes in memory: %s (see ulimit -l)",
                         v->path, layer, (unsigned long long)layer_bytes(x), strerror(why));
    }
    x->pinned = true;
    v->pinned += layer_bytes(x);
    return INFER_OK;
}

infer_status infer_vindex_pin_layers(infer_vindex *v, int first, int last, infer_error *err)
{
    if (first < 0 || last < first || last >= v->n_layers)
        return error_set(err, INFER_ARGUMENT, "layers %d-%d: expected layers of 0 to %d", first,
                         last, v->n_layers - 1);
    for (int l = first; l <= last; l++) {
        uint64_t bytes = layer_bytes(&v->layers[l]);
        if (!bytes || v->layers[l].pinned) continue;
        if (bytes > v->pin_budget - v->pinned)
            return error_set(
                err, INFER_LIMIT, "%s: layer %d: %llu bytes to lock, %llu left of a budget of %llu",
                v->path, l, (unsigned long long)bytes,
                (unsigned long long)(v->pin_budget - v->pinned), (unsigned long long)v->pin_budget);
        infer_status st = pin(v, l, err);
        if (st != INFER_OK) return st;
    }
    return error_clear(err);
}

typedef struct use {
    uint64_t accesses;
    int layer;
} use;

static int by_use(const void *a, const void *b)
{
    const use *x = a, *y = b;
    if (x->accesses != y->accesses) return x->accesses > y->accesses ? -1 : 1;
    return x->layer - y->layer;
}

infer_status infer_vindex_repin(infer_vindex *v, infer_error *err)
{
    use *order = mem_alloc((size_t)v->n_layers, sizeof *order);
    bool *wanted = mem_zero((size_t)v->n_layers, sizeof *wanted);
    infer_status st =
        order && wanted ? INFER_OK : error_set(err, INFER_NOMEM, "%s: out of memory", v->path);
    for (int l = 0; st == INFER_OK && l < v->n_layers; l++)
        order[l] = (use){ atomic_load(&v->layers[l].accesses), l };
    if (st == INFER_OK) qsort(order, (size_t)v->n_layers, sizeof *order, by_use);
    uint64_t left = v->pin_budget;
    for (int i = 0; st == INFER_OK && i < v->n_layers; i++) { // what does not fit is passed over
        uint64_t bytes = layer_bytes(&v->layers[order[i].layer]);
        if (!bytes || !order[i].accesses || bytes > left) continue;
        wanted[order[i].layer] = true;
        left -= bytes;
    }
    for (int l = 0; st == INFER_OK && l < v->n_layers; l++)
        if (v->layers[l].pinned && !wanted[l]) {
            unpin(v, l);
            v->evictions++;
        }
    for (int i = 0; st == INFER_OK && i < v->n_layers; i++)
        if (wanted[order[i].layer]) st = pin(v, order[i].layer, err);
    mem_free(order);
    mem_free(wanted);
    return st == INFER_OK ? error_clear(err) : st;
}

void infer_vindex_release(infer_vindex *v)
{
    for (int l = 0; l < v->n_layers; l++) {
        range r[PARTS];
        if (v->layers[l].pinned) continue;
        parts_of(&v->layers[l], r);
        for (int i = 0; i < PARTS; i++)
            if (r[i].begin < r[i].end)
                vindex_dir_release(v->dir, (const void *)r[i].begin, r[i].end - r[i].begin);
    }
}

infer_residency infer_vindex_residency(const infer_vindex *v)
{
    infer_residency r = { .budget = v->pin_budget, .pinned = v->pinned, .evictions = v->evictions };
    for (int l = 0; l < v->n_layers; l++) {
        r.n_pinned += v->layers[l].pinned;
        r.accesses += atomic_load(&v->layers[l].accesses);
    }
    return r;
}
