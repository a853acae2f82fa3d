/* top.h: the coarse copy of a matrix and the search through it (compute/coarse.h), for cpu.c. */
#ifndef COMPUTE_CPU_TOP_H
#define COMPUTE_CPU_TOP_H

#include "compute/coarse.h"

/* A copy of w with nothing packed yet; false without memory. Pages of the copy are touched as they
 * are packed. w: 32 divides its columns. */
bool coarse_open(coarse *c, const tensor *w, int n_threads);
void coarse_close(coarse *c);
/* Gives the copy's memory back: nothing is packed. */
void coarse_drop(coarse *c);
size_t coarse_packed_bytes(const coarse *c);
size_t coarse_packed_rows(const coarse *c);
/* Packs n more panels of the thread's share; [*from, *from + *size) of w are then packed by it. */
void coarse_pack_more(coarse *c, const cpu_kernels *k, int thread, int n, const uint8_t **from,
                      size_t *size);
/* In every thread of the pool at once; scratch: of a matmul. Meets once at the barrier. */
void top_search(const cpu_kernels *k, thread_pool *pool, void *scratch, const top_args *a,
                int thread);

#endif
