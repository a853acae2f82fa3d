/*
 * pack.h: weights laid anew in the order in which the device reads them (backend.h), by which
 * generation gains most: it reads every weight for one row, and what it does not spend on putting
 * rows in order it has for memory.
 *
 * It is earned, like the head's copy: after PACK_WAIT steps of few rows each such step packs some
 * layers, until all are. The pages of the file that are packed are given back, so that a weight is
 * in memory once. The rows stay readable from the file (embeddings, exact products).
 *
 * A head that can be searched (head.h) is left alone while it is; where for long no step wanted
 * that, or too many rows survived twice, the search is given up and the head packed.
 */
#ifndef INFERENCE_PACK_H
#define INFERENCE_PACK_H

#include "compute/backend.h"
#include "infer.h"

struct infer_engine;

typedef struct pack_item {
    linear *l;
    size_t at;  // in memory
    bool index; // l's file is that of the FFN's index
} pack_item;

typedef struct packer {
    pack_item *items; // by layers, the head's last
    int *first;       // [n_layers + 2] a layer's items; those of n_layers: the head
    uint8_t *memory;  // NULL: nothing is to be packed
    size_t bytes, packed;
    int n_layers; // with the head
    int wait;     // steps until it begins
    int done;     // layers that are packed
    int next;     // layers [done, next) are packed in this step
    int wholes;   // steps since the head could last be searched
} packer;

/* What of e->layers, their FFNs' plans and e->lm_head is to be packed; memory is reserved, not used
 * yet. */
infer_status pack_open(struct infer_engine *e, infer_error *err);
void pack_close(struct infer_engine *e);
/* Before a step, in it at the beginning of each layer (in every thread), and after it. */
void pack_plan(struct infer_engine *e);
void pack_layer(const worker *w, struct infer_engine *e, int layer);
void pack_settle(struct infer_engine *e);

#endif
