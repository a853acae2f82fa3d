/*
 * mem.h: every allocation of the library goes through here, so that tests can count allocations and
 * make the n-th one fail.
 *
 * All functions return NULL on failure (also when n * size overflows) and never abort. Memory is
 * freed with mem_free, which accepts NULL.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "infer_base.h"

void *mem_alloc(size_t n, size_t size);           // uninitialised
void *mem_zero(size_t n, size_t size);            // zeroed
void *mem_resize(void *p, size_t n, size_t size); // p stays valid where NULL is returned
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
void mem_free(void *p);

/* Page-aligned, zeroed, backed lazily by the system (a large range costs nothing until touched);
 * size 0 is legal. Freed with mem_free_pages(p, size). */
void *mem_pages(size_t size);
void mem_free_pages(void *p, size_t size);
/* As mem_pages, in large pages where the system gives them; for what is read from end to end. */
void *mem_pages_large(size_t size);
/* Gives the pages back to the system; the range stays, zeroed. */
void mem_drop_pages(void *p, size_t size);

/* Makes room for n elements in *p (of *cap, doubling). INFER_NOMEM leaves both unchanged. */
infer_status mem_reserve(void **p, size_t *cap, size_t n, size_t size, infer_error *err);

/* For tests: allocations made by this process so far, and the ordinal of the one that shall fail
 * (0: none). */
uint64_t mem_count(void);
void mem_fail_at(uint64_t ordinal);

/* Multiplication that tells overflow: true and *out = a * b, or false. */
static inline int mem_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

#endif
