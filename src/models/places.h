/*
 * places.h: what a tensor's name says, by the family's patterns: the role, the layer, the expert.
 */
#ifndef MODELS_PLACES_H
#define MODELS_PLACES_H

#include "models/arch.h"

typedef struct place {
    tensor_role role;
    int layer, expert;  // -1: none
    const char *suffix; // ".weight", ".bias"; of the name
} place;

/* The place of a tensor in a Hugging Face folder whose text model has this prefix (outer: what
 * stands outside it), or in a GGUF file. False: no role's. */
bool place_find_hf(place *p, const arch *a, const char *prefix, const char *outer,
                   const char *name);
bool place_find_gguf(place *p, const arch *a, const char *name);
/* The Hugging Face name without the prefix, as vindexes hold it. False where the family has none.
 */
bool place_key(char *out, size_t size, const arch *a, tensor_role role, int layer, int expert,
               const char *suffix);
bool role_is_norm(tensor_role role);

#endif
