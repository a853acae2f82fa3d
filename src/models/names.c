/* names.c: open addressing with linear probing, FNV-1a hashes (Fowler, Noll & Vo). */
#include "models/names.h"

#include <string.h>

#include "base/mem.h"

static size_t hash(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)s[i]) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

/* The slot that holds the name, or the free one where it would go. */
static name_slot *probe(const name_index *x, const char *s, size_t n)
{
    size_t i = hash(s, n) & (x->n_slots - 1);
    while (x->slots[i].s && (x->slots[i].n != n || memcmp(x->slots[i].s, s, n) != 0))
        i = (i + 1) & (x->n_slots - 1);
    return &x->slots[i];
}

static infer_status grow(name_index *x)
{
    name_index bigger = { .n_slots = x->n_slots ? x->n_slots * 2 : 64, .n_used = x->n_used };
    bigger.slots = mem_zero(bigger.n_slots, sizeof(name_slot));
    if (!bigger.slots) return INFER_NOMEM;
    for (size_t i = 0; i < x->n_slots; i++)
        if (x->slots[i].s) *probe(&bigger, x->slots[i].s, x->slots[i].n) = x->slots[i];
    mem_free(x->slots);
    *x = bigger;
    return INFER_OK;
}

infer_status names_add(name_index *x, const char *s, size_t n, int id, int *old)
{
    if (x->n_used * 2 >= x->n_slots && grow(x) != INFER_OK) return INFER_NOMEM;
    name_slot *slot = probe(x, s, n);
    if (slot->s) {
        *old = slot->id;
        return INFER_FORMAT;
    }
    *slot = (name_slot){ s, n, id };
    x->n_used++;
    return INFER_OK;
}

int names_find(const name_index *x, const char *s, size_t n)
{
    if (!x->n_slots) return -1;
    const name_slot *slot = probe(x, s, n);
    return slot->s ? slot->id : -1;
}

void names_free(name_index *x)
{
    mem_free(x->slots);
    *x = (name_index){ 0 };
}
