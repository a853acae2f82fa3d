/* kv.c: pools of tiles and the sequences' tables. */
#include "inference/kv.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"

static int tiles_for(int positions) { return (positions + KV_TILE - 1) / KV_TILE; }

static void *tile_k(const kv_pool *p, int t)
{
    return p->mem + (size_t)t * (p->k_bytes + p->v_bytes);
}

static infer_status pool_open(kv_cache *c, kv_pool *p, const layer_plan *l, int n_tiles,
                              infer_error *err)
{
    *p = (kv_pool){ .n_kv_heads = l->n_kv_heads,
                    .head_dim = l->head_dim,
                    .head_dim_v = l->head_dim_v,
                    .window = l->window,
                    .n_tiles = n_tiles };
    // Both parts are multiples of 64 bytes, so every head's K and V is aligned for vector loads.
    p->k_bytes = (size_t)l->n_kv_heads * kv_tile_bytes(c->k_type, l->head_dim);
    p->v_bytes = (size_t)l->n_kv_heads * kv_tile_bytes(c->v_type, kv_v_stride(l->head_dim_v));
    size_t bytes;
    if (mem_mul((size_t)n_tiles, p->k_bytes + p->v_bytes, &bytes))
        p->mem = c->be->alloc(c->dev, bytes);
    p->free_list = mem_alloc((size_t)n_tiles, sizeof(int));
    p->refs = mem_zero((size_t)n_tiles, sizeof(int));
    if (!p->mem || !p->free_list || !p->refs)
        return error_set(err, INFER_NOMEM, "kv cache: no memory for %d tiles of %zu bytes a layer",
                         n_tiles, p->k_bytes + p->v_bytes);
    c->bytes += bytes;
    for (int i = 0; i < n_tiles; i++)
        p->free_list[i] = n_tiles - 1 - i;
    p->n_free = n_tiles;
    return INFER_OK;
}

static infer_status check_heads(const char *what, kv_type type, int layer, int width,
                                infer_error *err)
{
    if (width % kv_block(type) == 0) return INFER_OK;
    return error_set(err, INFER_UNSUPPORTED,
                     "kv cache: %s as %s: expected heads of a multiple of %d, found %d in layer "
                     "%d; f16, bf16 and f32 take any",
                     what, kv_type_name(type), kv_block(type), width, layer);
}

infer_status kv_open(kv_cache *c, const backend *be, device *dev, const infer_model *m,
                     kv_type k_type, kv_type v_type, int n_ctx, int n_tokens, int max_sequences,
                     int max_rows, infer_error *err)
{
    *c = (kv_cache){ .be = be,
                     .dev = dev,
                     .k_type = k_type,
                     .v_type = v_type,
                     .n_layers = m->n_layers,
                     .n_table = tiles_for(n_ctx) };
    for (int l = 0; l < m->n_layers; l++) {
        infer_status st = check_heads("K", k_type, l, m->layers[l].head_dim, err);
        if (!st) st = check_heads("V", v_type, l, m->layers[l].head_dim_v, err);
        if (st) return st;
    }
    c->pools = mem_zero((size_t)m->n_layers, sizeof *c->pools);
    if (!c->pools) return error_set(err, INFER_NOMEM, "kv cache: out of memory");
    for (int l = 0; l < m->n_layers; l++) {
        const layer_plan *plan = &m->layers[l];
        if (plan->kv_source != l) continue;
        // Every sequence may hold one tile that is partly filled, and a copy while it is shared.
        long long full = (long long)tiles_for(n_tokens) + max_sequences;
        int window = plan->window < n_ctx ? plan->window : n_ctx;
        long long windowed =
            (long long)max_sequences * (tiles_for(window + KV_BACK + max_rows) + 2);
        long long n = plan->window && windowed < full ? windowed : full;
        if (n > INT32_MAX)
            return error_set(err, INFER_LIMIT, "kv cache: %lld tiles are too many", n);
        infer_status st = pool_open(c, &c->pools[l], plan, (int)n, err);
        if (st) return st;
    }
    return INFER_OK;
}

void kv_close(kv_cache *c)
{
    for (int l = 0; c->pools && l < c->n_layers; l++) {
        kv_pool *p = &c->pools[l];
        if (p->mem) c->be->free(c->dev, p->mem, (size_t)p->n_tiles * (p->k_bytes + p->v_bytes));
        mem_free(p->free_list);
        mem_free(p->refs);
    }
    mem_free(c->pools);
    *c = (kv_cache){ 0 };
}

/* ---- tables ---- */

static bool owns(const kv_cache *c, int layer) { return c->pools[layer].mem != NULL; }

static void put(kv_pool *p, kv_table *t, int i, int tile)
{
    t->tile[i] = tile;
    t->k[i] = tile < 0 ? NULL : tile_k(p, tile);
    t->v[i] = tile < 0 ? NULL : (uint8_t *)tile_k(p, tile) + p->k_bytes;
}

static void drop(kv_pool *p, kv_table *t, int i)
{
    int tile = t->tile[i];
    if (tile < 0) return;
    if (--p->refs[tile] == 0) p->free_list[p->n_free++] = tile;
    put(p, t, i, -1);
}

static int take(kv_pool *p)
{
    int tile = p->free_list[--p->n_free];
    p->refs[tile] = 1;
    return tile;
}

infer_status kv_sequence_new(kv_cache *c, kv_sequence *s, infer_error *err)
{
    *s = (kv_sequence){ .layers = mem_zero((size_t)c->n_layers, sizeof(kv_table)) };
    bool ok = s->layers != NULL;
    for (int l = 0; ok && l < c->n_layers; l++) {
        if (!owns(c, l)) continue;
        kv_table *t = &s->layers[l];
        t->tile = mem_alloc((size_t)c->n_table, sizeof(int));
        t->k = mem_zero((size_t)c->n_table, sizeof(void *));
        t->v = mem_zero((size_t)c->n_table, sizeof(void *));
        ok = t->tile && t->k && t->v;
        for (int i = 0; t->tile && i < c->n_table; i++)
            t->tile[i] = -1;
    }
    if (ok) return INFER_OK;
    kv_sequence_free(c, s);
    return error_set(err, INFER_NOMEM, "sequence: out of memory");
}

void kv_sequence_free(kv_cache *c, kv_sequence *s)
{
    for (int l = 0; s->layers && l < c->n_layers; l++) {
        kv_table *t = &s->layers[l];
        for (int i = 0; t->tile && t->k && t->v && i < c->n_table; i++)
            drop(&c->pools[l], t, i);
        mem_free(t->tile);
        mem_free(t->k);
        mem_free(t->v);
    }
    mem_free(s->layers);
    *s = (kv_sequence){ 0 };
}

void kv_fork(kv_cache *c, kv_sequence *copy, const kv_sequence *s)
{
    for (int l = 0; l < c->n_layers; l++) {
        if (!owns(c, l)) continue;
        for (int i = 0; i < c->n_table; i++) {
            int tile = s->layers[l].tile[i];
            if (tile < 0) continue;
            c->pools[l].refs[tile]++;
            put(&c->pools[l], &copy->layers[l], i, tile);
        }
    }
    copy->length = s->length;
}

/* Tiles that layer l needs before s can grow by n. */
static int missing(const kv_cache *c, const kv_sequence *s, int l, int n)
{
    int need = 0;
    const kv_table *t = &s->layers[l];
    for (int i = s->length / KV_TILE; i < tiles_for(s->length + n); i++)
        if (t->tile[i] < 0 || c->pools[l].refs[t->tile[i]] > 1) need++;
    return need;
}

infer_status kv_prepare(kv_cache *c, kv_sequence *s, int n, infer_error *err)
{
    for (int l = 0; l < c->n_layers; l++) {
        if (!owns(c, l)) continue;
        int need = missing(c, s, l, n);
        if (need > c->pools[l].n_free)
            return error_set(
                err, INFER_LIMIT,
                "kv cache: full: %d more positions need %d tiles in layer %d, %d are free", n, need,
                l, c->pools[l].n_free);
    }
    for (int l = 0; l < c->n_layers; l++) {
        if (!owns(c, l)) continue;
        kv_pool *p = &c->pools[l];
        kv_table *t = &s->layers[l];
        for (int i = s->length / KV_TILE; i < tiles_for(s->length + n); i++) {
            int old = t->tile[i];
            if (old >= 0 && p->refs[old] == 1) continue;
            int fresh = take(p);
            if (old >= 0) {
                memcpy(tile_k(p, fresh), tile_k(p, old), p->k_bytes + p->v_bytes);
                drop(p, t, i);
            }
            put(p, t, i, fresh);
        }
    }
    return INFER_OK;
}

void kv_abandon(kv_cache *c, kv_sequence *s)
{
    for (int l = 0; l < c->n_layers; l++)
        for (int i = tiles_for(s->length); owns(c, l) && i < c->n_table; i++)
            drop(&c->pools[l], &s->layers[l], i);
}

/* First position that the row at position pos sees. */
static int first_visible(const kv_pool *p, int pos)
{
    return p->window && pos - p->window + 1 > 0 ? pos - p->window + 1 : 0;
}

void kv_commit(kv_cache *c, kv_sequence *s, int n)
{
    s->length += n;
    for (int l = 0; l < c->n_layers; l++) {
        if (!owns(c, l)) continue;
        int last = s->length > KV_BACK ? s->length - KV_BACK : 0; // what may become the end
        int keep = first_visible(&c->pools[l], last) / KV_TILE;
        for (int i = keep - 1; i >= 0 && s->layers[l].tile[i] >= 0; i--)
            drop(&c->pools[l], &s->layers[l], i);
    }
}

infer_status kv_truncate(kv_cache *c, kv_sequence *s, int n, infer_error *err)
{
    if (n < 0 || n > s->length)
        return error_set(err, INFER_ARGUMENT, "truncate: %d positions, expected 0 to %d", n,
                         s->length);
    for (int l = 0; l < c->n_layers; l++) {
        int first = owns(c, l) ? first_visible(&c->pools[l], n) : n;
        if (first < n && s->layers[l].tile[first / KV_TILE] < 0)
            return error_set(
                err, INFER_UNSUPPORTED,
                "truncate: position %d needs positions from %d on, which the window of "
                "layer %d has dropped",
                n, first, l);
    }
    s->length = n;
    kv_abandon(c, s);
    return INFER_OK;
}
