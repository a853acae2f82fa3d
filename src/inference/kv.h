/*
 * kv.h: the KV cache: tiles of KV_TILE positions, taken from one pool a layer.
 *
 * A tile holds K and V of all heads of one layer; kv_type.h says how each head's lies. A sequence
 * has, for each layer, a table from position / KV_TILE to a tile. Layers with a window give tiles
 * back once every position in them has left it, so a window costs its own size whatever the
 * context. A tile may belong to several sequences (fork); it is copied before it is written to.
 *
 * Invariants: 1. refs[t] is the number of tables that hold tile t; 0: it is on the free list.
 * 2. Tables hold no tile at or past the end: index < ceil(length / KV_TILE), outside a step.
 * 3. Layers that use another layer's K and V (kv_source) have no pool and no table of their own.
 */
#ifndef INFERENCE_KV_H
#define INFERENCE_KV_H

#include "compute/backend.h"
#include "models/model.h"

#define KV_BACK 16 // positions at the end that can always be cut off again

typedef struct kv_pool {
    int n_kv_heads, head_dim, head_dim_v, window;
    size_t k_bytes, v_bytes; // of a tile
    uint8_t *mem;            // [n_tiles, k_bytes + v_bytes]; touched as tiles are used
    int n_tiles, n_free;
    int *free_list; // stack; the lowest tiles on top at first
    int *refs;      // [n_tiles]
} kv_pool;

typedef struct kv_cache {
    const backend *be;
    device *dev;
    kv_type k_type, v_type;
    int n_layers, n_table; // tables have n_table entries: ceil(n_ctx / KV_TILE)
    kv_pool *pools;        // [n_layers]; mem NULL where a layer has no cache of its own
    uint64_t bytes;        // reserved in all
} kv_cache;

typedef struct kv_table { // of one layer
    int *tile;            // [n_table], -1: none
    void **k, **v;        // [n_table], NULL: none
} kv_table;

typedef struct kv_sequence {
    kv_table *layers; // [n_layers]
    int length;       // positions stored
} kv_sequence;

/* Room for n_tokens positions in all, and max_rows new ones a step, in up to max_sequences. A
 * quantised type needs heads of whole blocks: INFER_UNSUPPORTED. */
infer_status kv_open(kv_cache *c, const backend *be, device *dev, const infer_model *m,
                     kv_type k_type, kv_type v_type, int n_ctx, int n_tokens, int max_sequences,
                     int max_rows, infer_error *err);
void kv_close(kv_cache *c);

infer_status kv_sequence_new(kv_cache *c, kv_sequence *s, infer_error *err);
void kv_sequence_free(kv_cache *c, kv_sequence *s);
/* copy shares every tile of s; copy is an empty new sequence. */
void kv_fork(kv_cache *c, kv_sequence *copy, const kv_sequence *s);
/* Makes positions [length, length + n) writable. On INFER_LIMIT nothing has changed. */
infer_status kv_prepare(kv_cache *c, kv_sequence *s, int n, infer_error *err);
/* The rows were stored: length grows by n and tiles that left their windows go back. */
void kv_commit(kv_cache *c, kv_sequence *s, int n);
/* Gives back what kv_prepare took and kv_commit will not keep. */
void kv_abandon(kv_cache *c, kv_sequence *s);
infer_status kv_truncate(kv_cache *c, kv_sequence *s, int n, infer_error *err);

#endif
