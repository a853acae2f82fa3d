/*
 * tok_vocab.c: the tokenizer's tables: strings to ids, pairs to merges, byte tries.
 *
 * All are open-addressing tables at most two thirds full, filled once and then only read. Strings
 * lie in one pool; a slot keeps half of the string's hash, so that a miss seldom touches the pool.
 */
#include "models/tok.h"

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ n, w;
    while (n >= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        s += 8;
        n -= 8;
    }
    w = 0;
    switch (n) {                                      // a constant size each: plain loads
    case 7: w |= (uint64_t)(unsigned char)s[6] << 48; // fall through
    case 6: w |= (uint64_t)(unsigned char)s[5] << 40; // fall through
    case 5: w |= (uint64_t)(unsigned char)s[4] << 32; // fall through
    case 4: w |= (uint64_t)(unsigned char)s[3] << 24; // fall through
    case 3: w |= (uint64_t)(unsigned char)s[2] << 16; // fall through
    case 2: w |= (uint64_t)(unsigned char)s[1] << 8;  // fall through
    case 1: w |= (unsigned char)s[0];
    }
    h = (h ^ w) * 0xff51afd7ed558ccdu;
    h ^= h >> 29;
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 32;
}

static uint32_t table_size(size_t n) // a power of two that n entries fill to two thirds at most
{
    uint32_t size = 16;
    while (size < n + n / 2 + 1)
        size *= 2;
    return size;
}

infer_status str_map_init(str_map *m, arena *a, size_t n, infer_error *err)
{
    uint32_t size = table_size(n);
    m->slots = arena_zero(a, size, sizeof *m->slots);
    if (!m->slots) return error_set(err, INFER_NOMEM, "vocabulary of %zu tokens", n);
    m->mask = size - 1;
    return INFER_OK;
}

static void put(str_map *m, const tokenizer *t, int32_t id, uint64_t h)
{
    tok_entry e = t->entries[id];
    uint32_t i = (uint32_t)h & m->mask, tag = (uint32_t)(h >> 32);
    for (; m->slots[i]; i = (i + 1) & m->mask) {
        if ((uint32_t)(m->slots[i] >> 32) != tag) continue;
        tok_entry o = t->entries[(uint32_t)m->slots[i] - 1];
        if (o.n == e.n && !memcmp(t->pool + o.at, t->pool + e.at, e.n)) break;
    }
    m->slots[i] = (uint64_t)tag << 32 | ((uint32_t)id + 1);
}

void str_map_put(str_map *m, const tokenizer *t, int32_t id)
{
    put(m, t, id, hash_bytes(t->pool + t->entries[id].at, t->entries[id].n));
}

/* Large tables are far from the cache: the slots of a batch are asked for before the first is used.
 */
void str_map_put_many(str_map *m, const tokenizer *t, const int32_t *ids, size_t n)
{
    uint64_t h[TOK_BATCH];
    for (size_t i = 0; i < n; i++) {
        tok_entry e = t->entries[ids[i]];
        h[i] = hash_bytes(t->pool + e.at, e.n);
        PREFETCH(&m->slots[(uint32_t)h[i] & m->mask]);
    }
    for (size_t i = 0; i < n; i++)
        put(m, t, ids[i], h[i]);
}

static int32_t find(const str_map *m, const tokenizer *t, const char *s, size_t n, uint64_t h)
{
    uint32_t tag = (uint32_t)(h >> 32);
    for (uint32_t i = (uint32_t)h & m->mask; m->slots[i]; i = (i + 1) & m->mask) {
        if ((uint32_t)(m->slots[i] >> 32) != tag) continue;
        uint32_t id = (uint32_t)m->slots[i] - 1;
        tok_entry e = t->entries[id];
        if (e.n == n && !memcmp(t->pool + e.at, s, n)) return (int32_t)id;
    }
    return -1;
}

int32_t str_map_find(const str_map *m, const tokenizer *t, const char *s, size_t n)
{
    return m->slots ? find(m, t, s, n, hash_bytes(s, n)) : -1;
}

/* As str_map_put_many; a slot leads on to its entry, and that to its bytes. */
void str_map_find_many(const str_map *m, const tokenizer *t, const text *s, int32_t *ids, size_t n)
{
    uint64_t h[TOK_BATCH];
    for (size_t i = 0; i < n; i++) {
        h[i] = hash_bytes(s[i].s, s[i].n);
        PREFETCH(&m->slots[(uint32_t)h[i] & m->mask]);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)m->slots[(uint32_t)h[i] & m->mask];
        if (id) PREFETCH(&t->entries[id - 1]);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)m->slots[(uint32_t)h[i] & m->mask];
        if (id) PREFETCH(t->pool + t->entries[id - 1].at);
    }
    for (size_t i = 0; i < n; i++)
        ids[i] = find(m, t, s[i].s, s[i].n, h[i]);
}

infer_status pair_map_init(pair_map *m, arena *a, size_t n, infer_error *err)
{
    uint32_t size = table_size(n);
    m->slots = arena_alloc(a, size, sizeof *m->slots);
    if (!m->slots) return error_set(err, INFER_NOMEM, "table of %zu merges", n);
    memset(m->slots, 0xff, size * sizeof *m->slots);
    m->mask = size - 1;
    return INFER_OK;
}

void pair_map_put(pair_map *m, int32_t a, int32_t b, uint32_t rank, int32_t id)
{
    uint32_t i = pair_hash(a, b) & m->mask;
    while (m->slots[i].a >= 0 && (m->slots[i].a != a || m->slots[i].b != b))
        i = (i + 1) & m->mask;
    m->slots[i] = (pair_slot){ a, b, rank, id };
}

// ---- tries ----------------------------------------------------------------------------------

static infer_status trie_grow(trie *t, infer_error *err)
{
    uint32_t size = t->slots ? 2 * (t->mask + 1) : 1024;
    uint64_t *slots = mem_zero(size, sizeof *slots);
    if (!slots) return error_set(err, INFER_NOMEM, "token trie");
    for (uint32_t i = 0; t->slots && i <= t->mask; i++) {
        uint64_t s = t->slots[i];
        if (!s) continue;
        uint32_t j = trie_hash((uint32_t)(s >> 32), s >> 24 & 0xff) & (size - 1);
        while (slots[j])
            j = (j + 1) & (size - 1);
        slots[j] = s;
    }
    mem_free(t->slots);
    t->slots = slots;
    t->mask = size - 1;
    return INFER_OK;
}

static infer_status trie_node(trie *t, uint32_t *node, infer_error *err)
{
    if (t->n_nodes >= 1u << 24) return error_set(err, INFER_LIMIT, "token trie: too many bytes");
    infer_status st;
    GROW(st, t->value, t->value_cap, (size_t)t->n_nodes + 1, err);
    if (st) return st;
    t->value[t->n_nodes] = -1;
    *node = t->n_nodes++;
    return INFER_OK;
}

infer_status trie_add(trie *t, const char *s, size_t n, int32_t value, infer_error *err)
{
    uint32_t node = 0, next = 0;
    if (!t->n_nodes) TRY(trie_node(t, &node, err));
    for (size_t i = 0; i < n; i++, node = next) {
        unsigned char c = (unsigned char)s[i];
        if (!t->slots || t->n_nodes * 3 / 2 > t->mask) TRY(trie_grow(t, err));
        next = trie_step(t, node, c);
        if (next) continue;
        TRY(trie_node(t, &next, err));
        if (!node) {
            t->first[c] = next;
            continue;
        }
        uint32_t j = trie_hash(node, c) & t->mask;
        while (t->slots[j])
            j = (j + 1) & t->mask;
        t->slots[j] = (uint64_t)node << 32 | (uint64_t)c << 24 | next;
    }
    t->value[node] = value;
    return INFER_OK;
}

void trie_free(trie *t)
{
    mem_free(t->slots);
    mem_free(t->value);
    memset(t, 0, sizeof *t);
}
