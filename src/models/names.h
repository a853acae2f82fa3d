/*
 * names.h: a hash index from names to small integers: tensors and keys of a file by name. The names
 * are borrowed; zero-initialised is empty.
 */
#ifndef MODELS_NAMES_H
#define MODELS_NAMES_H

#include "infer_base.h"

typedef struct name_slot {
    const char *s; // NULL: free
    size_t n;
    int id;
} name_slot;
typedef struct name_index {
    name_slot *slots;
    size_t n_slots; // power of two, at most half of them used
    size_t n_used;
} name_index;

/* Adds name → id. INFER_FORMAT, with *old set, where the name is there already. */
infer_status names_add(name_index *x, const char *s, size_t n, int id, int *old);
int names_find(const name_index *x, const char *s, size_t n); // -1: none
void names_free(name_index *x);

#endif
